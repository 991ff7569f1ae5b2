package httpapi

import (
	"context"
	"net/http"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// AccountReader reads accounts with their state now. *ledger.Reader is one.
type AccountReader interface {
	// Head returns the account and its last entry; the error is a
	// *ledger.Refusal account_not_found when it was never opened.
	Head(ctx context.Context, id ledger.AccountID) (ledger.Head, error)
	// Accounts returns one page, in the order of the ids.
	Accounts(ctx context.Context, q ledger.AccountQuery) ([]ledger.Head, error)
}

func (s *server) openAccount(x *exchange, r *http.Request) error {
	op, err := s.readOpening(r)
	if err != nil {
		return err
	}
	receipt, err := s.writer.Apply(r.Context(), op)
	if err != nil {
		return err
	}
	if receipt.Unchanged {
		// The receipt tells of the opening; the answer tells of the account now.
		head, err := s.accounts.Head(r.Context(), op.AccountID)
		if err != nil {
			return err
		}
		x.sendAccount(http.StatusOK, &head.Account, &head.State, head.Seq)
		return nil
	}
	x.set("Location", "/v1/accounts/"+string(op.AccountID))
	x.sendAccount(http.StatusCreated, &receipt.Account, &receipt.Entry.After, receipt.Entry.Seq)
	return nil
}

func (s *server) readOpening(r *http.Request) (*ledger.Operation, error) {
	if err := noQuery(r); err != nil {
		return nil, err
	}
	id, err := accountID(r)
	if err != nil {
		return nil, err
	}
	if r.Header[headerIfMatch] != nil {
		// Ignoring a condition would be worse than not having it.
		return nil, invalid(fieldError{header: headerIfMatch, detail: "an account is opened without a condition"})
	}
	op := &ledger.Operation{Kind: ledger.KindOpened, AccountID: id}
	d := s.decoder()
	defer s.release(d)
	if err := d.fill(r); err != nil {
		return nil, err
	}
	return op, d.opening(op)
}

func (s *server) changeAccount(x *exchange, r *http.Request) error {
	op, err := s.readChange(r)
	if err != nil {
		return err
	}
	receipt, err := s.writer.Apply(r.Context(), op)
	if err != nil {
		return err
	}
	x.sendAccount(http.StatusOK, &receipt.Account, &receipt.Entry.After, receipt.Entry.Seq)
	return nil
}

func (s *server) readChange(r *http.Request) (*ledger.Operation, error) {
	if err := noQuery(r); err != nil {
		return nil, err
	}
	id, err := accountID(r)
	if err != nil {
		return nil, err
	}
	h, err := parseWriteHeaders(r.Header, false)
	if err != nil {
		return nil, err
	}
	op := &ledger.Operation{Kind: ledger.KindSettings, AccountID: id, IfMatch: h.ifMatch, Token: h.token}
	d := s.decoder()
	defer s.release(d)
	if err := d.fill(r); err != nil {
		return nil, err
	}
	return op, d.change(op)
}

func (s *server) getAccount(x *exchange, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	id, err := accountID(r)
	if err != nil {
		return err
	}
	head, err := s.accounts.Head(r.Context(), id)
	if err != nil {
		return err
	}
	x.sendAccount(http.StatusOK, &head.Account, &head.State, head.Seq)
	return nil
}

func (x *exchange) sendAccount(status int, a *ledger.Account, state *ledger.State, seq ledger.Seq) {
	x.set("Etag", etag(seq))
	x.sendJSON(status, appendAccount(x.buf, a, state, seq))
}

func (s *server) listAccounts(x *exchange, r *http.Request) error {
	q := parseQuery(r, "limit", "cursor", "currency", "status")
	limit := q.limit()
	c := accountsPage(&q)
	if err := q.err(); err != nil {
		return err
	}
	heads, err := s.accounts.Accounts(r.Context(), ledger.AccountQuery{
		Currency: c.currency, Status: c.status, After: c.after,
		Limit: limit + 1, // one more tells whether there is a next page
	})
	if err != nil {
		return err
	}
	next := ""
	if len(heads) > limit {
		heads = heads[:limit]
		c.after = heads[limit-1].Account.ID
		next = c.String()
	}
	b, err := appendPage(x.buf, len(heads), func(b []byte, i int) ([]byte, error) {
		return appendAccount(b, &heads[i].Account, &heads[i].State, heads[i].Seq), nil
	}, next)
	if err != nil {
		return err
	}
	x.sendJSON(http.StatusOK, b)
	return nil
}

// accountsPage returns the place and the filters that the query asks for. A
// cursor carries its filters: they may be repeated, not changed.
func accountsPage(q *query) accountsCursor {
	var c accountsCursor
	if q.has("currency") {
		var err error
		if c.currency, err = ledger.ParseCurrency(q.values.Get("currency")); err != nil {
			q.fail("currency", err.Error())
		}
	}
	c.status = ledger.Status(q.choice("status", "", string(ledger.Active), string(ledger.Frozen), string(ledger.Closed)))
	if !q.has("cursor") || len(q.errs) > 0 {
		return c
	}
	from, err := parseAccountsCursor(q.values.Get("cursor"))
	if err != nil {
		q.fail("cursor", err.Error())
		return c
	}
	if q.has("currency") && c.currency != from.currency {
		q.fail("currency", "the cursor has another filter")
	}
	if q.has("status") && c.status != from.status {
		q.fail("status", "the cursor has another filter")
	}
	return from
}
