package httpapi

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// EntryReader reads entries. *ledger.Reader is one. The errors for what does
// not exist are *ledger.Refusal.
type EntryReader interface {
	// Entries returns one page of an account's chain, by seq.
	Entries(ctx context.Context, id ledger.AccountID, q ledger.EntryQuery) (ledger.Account, []ledger.Entry, error)
	// Entry returns one link.
	Entry(ctx context.Context, id ledger.AccountID, seq ledger.Seq) (ledger.Account, ledger.Entry, error)
	// Transaction returns all entries that were committed for one request.
	Transaction(ctx context.Context, id uuid.UUID) ([]ledger.TransactionEntry, error)
}

const (
	ascending  = "asc"
	descending = "desc"
)

func (s *server) listEntries(x *exchange, r *http.Request) error {
	id, err := accountID(r)
	if err != nil {
		return err
	}
	q := parseQuery(r, "limit", "cursor", "order")
	limit := q.limit()
	c := entriesPage(&q, id)
	if err := q.err(); err != nil {
		return err
	}
	account, entries, err := s.entries.Entries(r.Context(), id, ledger.EntryQuery{
		After: c.after, Ascending: c.ascending,
		Limit: limit + 1, // one more tells whether there is a next page
	})
	if err != nil {
		return err
	}
	next := ""
	if len(entries) > limit {
		entries = entries[:limit]
		c.after = entries[limit-1].Seq
		next = c.String()
	}
	b, err := appendPage(x.buf, len(entries), func(b []byte, i int) ([]byte, error) {
		return appendEntry(b, &entries[i], account.Currency)
	}, next)
	if err != nil {
		return err
	}
	x.sendJSON(http.StatusOK, b)
	return nil
}

// entriesPage returns the place and the order that the query asks for. A cursor
// belongs to one account and one order.
func entriesPage(q *query, id ledger.AccountID) entriesCursor {
	c := entriesCursor{account: id, ascending: q.choice("order", descending, ascending, descending) == ascending}
	if !q.has("cursor") || len(q.errs) > 0 {
		return c
	}
	from, err := parseEntriesCursor(q.values.Get("cursor"))
	switch {
	case err != nil:
		q.fail("cursor", err.Error())
		return c
	case from.account != id:
		q.fail("cursor", "the cursor is of another account")
	case q.has("order") && from.ascending != c.ascending:
		q.fail("order", "the cursor has another order")
	}
	return from
}

func (s *server) getEntry(x *exchange, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	id, err := accountID(r)
	if err != nil {
		return err
	}
	seq, ok := positiveInteger(pathValue(r, "seq"))
	if !ok {
		return invalid(fieldError{parameter: "seq", detail: "an integer from 1 to 9007199254740991"})
	}
	account, entry, err := s.entries.Entry(r.Context(), id, ledger.Seq(seq))
	if err != nil {
		return err
	}
	b, err := appendEntry(x.buf, &entry, account.Currency)
	if err != nil {
		return err
	}
	x.sendJSON(http.StatusOK, b)
	return nil
}

func (s *server) getTransaction(x *exchange, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	id, err := transactionID(pathValue(r, "transaction_id"))
	if err != nil {
		return err
	}
	entries, err := s.entries.Transaction(r.Context(), id)
	if err != nil {
		return err
	}
	b, err := appendTransaction(x.buf, entries)
	if err != nil {
		return err
	}
	x.sendJSON(http.StatusOK, b)
	return nil
}

// transactionID parses a UUID in its one spelling: lower case, with hyphens.
func transactionID(s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil || id.String() != s {
		return uuid.Nil, invalid(fieldError{parameter: "transaction_id", detail: "a UUID such as 019ad3f5-7c1e-7d3a-9b1f-0b8a5c2d4e6f"})
	}
	return id, nil
}
