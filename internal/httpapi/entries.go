package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// EntryReader reads entries. *ledger.Reader is one. The errors for what does
// not exist are *ledger.Refusal.
type EntryReader interface {
	// Entries returns one page of an account's chain, by seq.
	Entries(ctx context.Context, id ledger.AccountID, q ledger.EntryQuery) (ledger.Account, []ledger.Entry, error)
	// FilteredEntries returns one page of those entries that a filter selects.
	FilteredEntries(ctx context.Context, id ledger.AccountID, q ledger.EntryQuery, f ledger.EntryFilter) (ledger.Account, ledger.EntryPage, error)
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
	q := parseQuery(r, "limit", "cursor", "order", "kind", "posted_from", "posted_to", "effective_from", "effective_to", "counterparty", "metadata_key")
	limit := q.limit()
	c := entriesPage(&q, id)
	if err := q.err(); err != nil {
		return err
	}
	account, page, err := s.entriesAt(r.Context(), c, limit)
	if err != nil {
		return err
	}
	next := ""
	if page.Next > 0 {
		c.after = page.Next
		next = c.String()
	}
	b, err := appendPage(x.buf, len(page.Entries), func(b []byte, i int) ([]byte, error) {
		return appendEntry(b, &page.Entries[i], account.Currency)
	}, next)
	if err != nil {
		return err
	}
	x.sendJSON(http.StatusOK, b)
	return nil
}

// entriesAt reads the page behind c.
func (s *server) entriesAt(ctx context.Context, c entriesCursor, limit int) (ledger.Account, ledger.EntryPage, error) {
	at := ledger.EntryQuery{After: c.after, Ascending: c.ascending, Limit: limit}
	if c.filter != (ledger.EntryFilter{}) {
		return s.entries.FilteredEntries(ctx, c.account, at, c.filter)
	}
	at.Limit++ // one more tells whether there is a next page
	account, entries, err := s.entries.Entries(ctx, c.account, at)
	page := ledger.EntryPage{Entries: entries}
	if len(entries) > limit {
		page = ledger.EntryPage{Entries: entries[:limit], Next: entries[limit-1].Seq}
	}
	return account, page, err
}

// entriesPage returns the place, the order and the filters that the query asks
// for. A cursor belongs to one account, one order and one set of filters.
func entriesPage(q *query, id ledger.AccountID) entriesCursor {
	c := entriesCursor{account: id, ascending: q.choice("order", descending, ascending, descending) == ascending, filter: q.entryFilter()}
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
	case c.filter != (ledger.EntryFilter{}) && c.filter != from.filter:
		q.fail("cursor", "the cursor has other filters")
	}
	return from
}

var entryKinds = []string{"opened", "settings", "fenced", "credit", "debit", "hold", "capture", "release", "declined"}

func (q *query) entryFilter() ledger.EntryFilter {
	f := ledger.EntryFilter{
		Kind:       ledger.Kind(q.choice("kind", "", entryKinds...)),
		PostedFrom: q.time("posted_from"), PostedTo: q.time("posted_to"),
		EffectiveFrom: q.time("effective_from"), EffectiveTo: q.time("effective_to"),
		Counterparty: q.text("counterparty", ledger.CounterpartyRunesMax),
		MetadataKey:  q.text("metadata_key", ledger.MetadataKeyRunesMax),
	}
	for _, span := range [...]struct {
		name     string
		from, to time.Time
	}{{"posted_to", f.PostedFrom, f.PostedTo}, {"effective_to", f.EffectiveFrom, f.EffectiveTo}} {
		if !span.from.IsZero() && !span.to.IsZero() && !span.from.Before(span.to) {
			q.fail(span.name, "must be after the beginning of the time")
		}
	}
	return f
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
