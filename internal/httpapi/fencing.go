package httpapi

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// FencingLog keeps the latest writes that a fence refused, for people.
type FencingLog interface {
	// Note takes in a rejection. It returns at once, whatever the database does.
	Note(r FencingRejection)
	// Rejections returns up to limit rejections that are older than the one with
	// the id before, newest first; of one account when it is given.
	Rejections(ctx context.Context, before int64, account ledger.AccountID, limit int) ([]FencingRejection, error)
}

// FencingRejection is one write that was refused for its token. Nothing was
// written.
type FencingRejection struct {
	ID        int64            `json:"-"`
	AccountID ledger.AccountID `json:"account_id,omitzero"`
	Code      ledger.Code      `json:"code"`
	Presented ledger.Token     `json:"presented_token"`
	Current   ledger.Token     `json:"current_token"`
	// Method, Route and RequestID name the request; Route is a path of api.yaml.
	Method    string `json:"method"`
	Route     string `json:"route"`
	RequestID string `json:"request_id"`
	// RemoteAddress and UserAgent say who sent it, as far as this service sees.
	RemoteAddress string    `json:"remote_address"`
	UserAgent     string    `json:"user_agent"`
	At            time.Time `json:"rejected_at"`
}

// noteRejection keeps p when a fence refused the write.
func (s *server) noteRejection(x *exchange, p *problem) {
	if p.code != ledger.CodeStaleToken && p.code != ledger.CodeTokenFromTheFuture {
		return
	}
	address, _, err := net.SplitHostPort(x.request.RemoteAddr)
	if err != nil {
		address = x.request.RemoteAddr
	}
	s.fencing.Note(FencingRejection{
		AccountID: p.fenced, Code: p.code,
		Presented: ledger.Token(p.presented), Current: ledger.Token(p.current),
		Method: x.request.Method, Route: x.pattern, RequestID: x.id,
		RemoteAddress: clip(address), UserAgent: clip(printable(x.request.UserAgent())), At: time.Now().UTC(),
	})
}

// printable replaces what PostgreSQL does not store as text.
func printable(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c < 0x20 || c > 0x7e {
			b[i] = '?'
		}
	}
	return string(b)
}

func (s *server) listFencingRejections(x *exchange, r *http.Request) error {
	q := parseQuery(r, "limit", "cursor", "account_id")
	limit := q.limit()
	c := rejectionsCursor{before: int64(ledger.MaxAmount)}
	if q.has("account_id") {
		var err error
		if c.account, err = ledger.ParseAccountID(q.values.Get("account_id")); err != nil {
			q.fail("account_id", err.Error())
		}
	}
	if q.has("cursor") && len(q.errs) == 0 {
		from, err := parseRejectionsCursor(q.values.Get("cursor"))
		switch {
		case err != nil:
			q.fail("cursor", err.Error())
		case q.has("account_id") && c.account != from.account:
			q.fail("account_id", "the cursor has another filter")
		}
		c = from
	}
	if err := q.err(); err != nil {
		return err
	}
	list, err := s.fencing.Rejections(r.Context(), c.before, c.account, limit+1)
	if err != nil {
		return err
	}
	page := listPage[FencingRejection]{Data: list}
	if len(list) > limit {
		page.Data = list[:limit]
		c.before = list[limit-1].ID
		next := c.String()
		page.Next = &next
	}
	return s.sendValue(x, http.StatusOK, page)
}
