package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Kind says what an entry did.
type Kind string

// The kinds of entries.
const (
	KindOpened   Kind = "opened"
	KindSettings Kind = "settings"
	KindFenced   Kind = "fenced"
	KindCredit   Kind = "credit"
	KindDebit    Kind = "debit"
	// KindTransfer and KindTransaction are kinds of operations alone, as
	// Entry.Attempted and Item.Type have them: their entries are credits and debits.
	KindTransfer    Kind = "transfer"
	KindTransaction Kind = "transaction"
	// KindDeclined records a definitive refusal; it moved nothing.
	KindDeclined Kind = "declined"
)

// Entry is one immutable link of an account's chain, with the account's state
// after it. Money is in minor units; absent text is "".
type Entry struct {
	TransactionID  string            `json:"transaction_id"`
	AccountID      string            `json:"account_id"`
	Seq            int64             `json:"seq"`
	Kind           Kind              `json:"kind"`
	Amount         int64             `json:"amount"`
	Currency       string            `json:"currency"`
	Balance        int64             `json:"balance"`
	Held           int64             `json:"held"`
	Available      int64             `json:"available"`
	MinBalance     int64             `json:"min_balance"`
	Status         Status            `json:"status"`
	Fencing        Fencing           `json:"fencing"`
	Fence          int64             `json:"fence"`
	PostedAt       time.Time         `json:"posted_at"`
	EffectiveAt    time.Time         `json:"effective_at"`
	Description    string            `json:"description"`
	Counterparty   string            `json:"counterparty"`
	Metadata       map[string]string `json:"metadata"`
	IdempotencyKey string            `json:"idempotency_key"`
	// Reason is the code of a declined entry, or why a fence was reset.
	Reason string `json:"reason"`
	// Attempted is what a declined entry refused.
	Attempted Kind `json:"attempted"`
	// RefusedBy is the account that declined, when it is another one of the
	// transaction that a declined entry refused.
	RefusedBy string `json:"refused_by"`
	// Hash chains the entry to the one before it, in hexadecimal.
	Hash string `json:"hash"`
}

// Balance is what an account has. Available, MinBalance and Status are those of
// the head, so a projected read has none of them.
type Balance struct {
	AccountID  string `json:"account_id"`
	Currency   string `json:"currency"`
	Exponent   int    `json:"exponent"`
	Balance    int64  `json:"balance"`
	Held       int64  `json:"held"`
	Available  int64  `json:"available"`
	MinBalance int64  `json:"min_balance"`
	Status     Status `json:"status"`
	// Seq is the entry after which the balance is this.
	Seq int64 `json:"seq"`
	// ProjectedSeq is the last entry that the balance row has applied.
	ProjectedSeq int64 `json:"projected_seq"`
	// Consistency is "strong", "projected" or "point_in_time".
	Consistency string    `json:"consistency"`
	AsOf        time.Time `json:"as_of"`
}

// BalanceOption says which balance is read.
type BalanceOption func(url.Values)

// Projected reads the balance row alone: cheaper, and possibly behind.
func Projected() BalanceOption {
	return func(v url.Values) { v.Set("consistency", "projected") }
}

// MinSeq waits, at most for the given time (10 s is the service's limit), until
// the balance row has applied entry seq.
func MinSeq(seq int64, wait time.Duration) BalanceOption {
	return func(v url.Values) {
		v.Set("min_seq", strconv.FormatInt(seq, 10))
		v.Set("wait_ms", strconv.FormatInt(wait.Milliseconds(), 10))
	}
}

// At reads the balance after the last entry that was posted at or before t.
func At(t time.Time) BalanceOption {
	return func(v url.Values) { v.Set("at", t.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano)) }
}

// Balance reads the account's balance: a strong read, which sees every write
// that was answered before, unless an option says otherwise.
func (c *Client) Balance(ctx context.Context, accountID string, options ...BalanceOption) (Balance, error) {
	cl, err := newCall("read balance of", http.MethodGet, accountID, "/balance")
	if err != nil {
		return Balance{}, err
	}
	query := url.Values{}
	for _, o := range options {
		o(query)
	}
	if len(query) > 0 {
		cl.path += "?" + query.Encode()
	}
	var b Balance
	_, err = c.do(ctx, cl, &b)
	return b, err
}

// Entry returns entry seq of the account.
func (c *Client) Entry(ctx context.Context, accountID string, seq int64) (Entry, error) {
	cl, err := newCall("read an entry of", http.MethodGet, accountID, "/entries/"+strconv.FormatInt(seq, 10))
	if err != nil {
		return Entry{}, err
	}
	var e Entry
	_, err = c.do(ctx, cl, &e)
	return e, err
}

// EntryQuery says how the entries of an account are listed.
type EntryQuery struct {
	// Ascending lists the oldest entry first; the default is the newest.
	Ascending bool
	// PageSize is how many entries one request brings, 1 to 200; 0 means 200.
	PageSize int
	// The rest are filters; members that are zero let everything through. The
	// times From are inclusive, To are not, in microseconds.
	Kind                       Kind
	PostedFrom, PostedTo       time.Time
	EffectiveFrom, EffectiveTo time.Time
	// Counterparty is compared with the whole text; of a transfer it is the
	// other account.
	Counterparty string
	// MetadataKey is a key that the entry's metadata has.
	MetadataKey string
}

func (q *EntryQuery) values() url.Values {
	v := url.Values{}
	if q.Ascending {
		v.Set("order", "asc")
	}
	for name, text := range map[string]string{"kind": string(q.Kind), "counterparty": q.Counterparty, "metadata_key": q.MetadataKey} {
		if text != "" {
			v.Set(name, text)
		}
	}
	for name, t := range map[string]time.Time{
		"posted_from": q.PostedFrom, "posted_to": q.PostedTo, "effective_from": q.EffectiveFrom, "effective_to": q.EffectiveTo,
	} {
		if !t.IsZero() {
			v.Set(name, t.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano))
		}
	}
	return v
}

// Entries lists the entries of the account, fetching pages as they are needed.
// An error ends the list.
func (c *Client) Entries(ctx context.Context, accountID string, q EntryQuery) iter.Seq2[Entry, error] {
	cl, err := newCall("list entries of", http.MethodGet, accountID, "/entries")
	if err != nil {
		return func(yield func(Entry, error) bool) { yield(Entry{}, err) }
	}
	return pages[Entry](ctx, c, cl.action, cl.path, q.values(), q.PageSize)
}

// Transaction is all entries that were committed for one request.
type Transaction struct {
	ID      string  `json:"transaction_id"`
	Entries []Entry `json:"entries"`
}

// Transaction returns the transaction with this id.
func (c *Client) Transaction(ctx context.Context, id string) (Transaction, error) {
	var t Transaction
	cl := &call{
		action: "read transaction " + id,
		method: http.MethodGet,
		path:   "/v1/transactions/" + url.PathEscape(id),
	}
	_, err := c.do(ctx, cl, &t)
	return t, err
}

const pageSizeMax = 200

// pages yields the items of all pages. Only the first request has the filters:
// after that the cursor carries them.
func pages[T any](ctx context.Context, c *Client, action, path string, query url.Values, size int) iter.Seq2[T, error] {
	if size == 0 {
		size = pageSizeMax
	}
	limit := strconv.Itoa(size)
	query.Set("limit", limit)
	return func(yield func(T, error) bool) {
		query := query
		for {
			var page struct {
				Data []T     `json:"data"`
				Next *string `json:"next_cursor"`
			}
			cl := &call{action: action, method: http.MethodGet, path: path + "?" + query.Encode()}
			if _, err := c.do(ctx, cl, &page); err != nil {
				var zero T
				yield(zero, err)
				return
			}
			for _, item := range page.Data {
				if !yield(item, nil) {
					return
				}
			}
			if page.Next == nil || *page.Next == "" {
				return
			}
			query = url.Values{"cursor": {*page.Next}, "limit": {limit}}
		}
	}
}
