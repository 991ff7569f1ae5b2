package httpapi

import (
	"context"
	"net/http"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// ReportReader makes reports over all accounts. *ledger.Reader is one.
type ReportReader interface {
	// TrialBalance adds up everything in one currency.
	TrialBalance(ctx context.Context, currency ledger.Currency) (ledger.TrialBalance, error)
}

func (s *server) getTrialBalance(x *exchange, r *http.Request) error {
	q := parseQuery(r, "currency")
	text := q.values.Get("currency")
	currency, err := ledger.ParseCurrency(text)
	switch {
	case !q.has("currency"):
		q.fail("currency", "required")
	case err != nil:
		q.fail("currency", err.Error())
	}
	if err := q.err(); err != nil {
		return err
	}
	t, err := s.reports.TrialBalance(r.Context(), currency)
	if err != nil {
		return err
	}
	x.sendJSON(http.StatusOK, appendTrialBalance(x.buf, &t))
	return nil
}

func appendTrialBalance(b []byte, t *ledger.TrialBalance) []byte {
	b = append(b, `{"currency":"`...)
	b = append(b, t.Currency...)
	b = append(b, `","as_of":`...)
	b = appendTime(b, t.AsOf)
	for _, m := range [...]struct{ name, integer string }{
		{"accounts", strconv.FormatInt(t.Accounts, 10)},
		{"entries", strconv.FormatInt(t.Entries, 10)},
		{"entries_behind", strconv.FormatInt(t.Behind, 10)},
		{"credits", t.Credits}, {"debits", t.Debits}, {"balance", t.Balance}, {"held", t.Held},
		{"in_from_outside", t.In}, {"out_to_outside", t.Out}, {"in_transit", t.InTransit},
		{"declines", strconv.FormatInt(t.Declines, 10)},
	} {
		b = append(b, `,"`...)
		b = append(b, m.name...)
		b = append(b, `":`...)
		b = append(b, m.integer...)
	}
	return append(b, '}')
}
