package httpapi

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// seqs walks through all pages of a list of entries.
func (s *service) seqs(id string, limit int, query url.Values) string {
	s.t.Helper()
	query.Set("limit", fmt.Sprint(limit))
	var all []string
	for range 1000 {
		r := s.do("GET", "/v1/accounts/"+id+"/entries?"+query.Encode(), "").expect(200)
		data := r.get("data").([]any)
		if len(data) > limit {
			s.t.Fatalf("%d entries in a page of %d", len(data), limit)
		}
		for _, e := range data {
			all = append(all, fmt.Sprint(e.(map[string]any)["seq"]))
		}
		next, more := r.get("next_cursor").(string)
		if !more {
			return strings.Join(all, " ")
		}
		query = url.Values{"cursor": {next}, "limit": {fmt.Sprint(limit)}}
	}
	s.t.Fatal("the list has no end")
	return ""
}

func TestFiltersOfEntries(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	s.open("B")
	posted := map[int]string{}
	for i := 2; i <= 13; i++ { // 2 5 8 11 credits, 3 6 9 12 debits, 4 7 10 13 transfers
		var r reply
		key := fmt.Sprint("k", i)
		switch i % 3 {
		case 2:
			r = s.credit("A", fmt.Sprintf(`{"amount":10,"counterparty":"bank %d","effective_at":"2026-01-%02dT00:00:00Z"}`, i%2, i), key).expect(201)
		case 0:
			r = s.debit("A", `{"amount":1,"metadata":{"order":"7","a b":""}}`, key).expect(201)
		default:
			r = s.transfer(`{"from":"A","to":"B","amount":1,"metadata":{"refund":""},"description":"metadata order"}`, key).expect(201)
			r.text = s.do("GET", fmt.Sprintf("/v1/accounts/A/entries/%d", i), "").expect(200).text
		}
		posted[i] = r.get("posted_at").(string)
	}
	s.debit("A", `{"amount":1000,"counterparty":"bank 0"}`, "declined").refused(422, ledger.CodeInsufficientFunds)
	for _, tt := range []struct {
		query url.Values
		want  string // ascending
	}{
		{url.Values{"kind": {"credit"}}, "2 5 8 11"},
		{url.Values{"kind": {"debit"}}, "3 4 6 7 9 10 12 13"},
		{url.Values{"kind": {"declined"}}, "14"},
		{url.Values{"kind": {"opened"}}, "1"},
		{url.Values{"kind": {"fenced"}}, ""},
		{url.Values{"counterparty": {"B"}}, "4 7 10 13"},
		{url.Values{"counterparty": {"bank 0"}}, "2 8 14"},
		{url.Values{"counterparty": {"bank"}}, ""},
		{url.Values{"counterparty": {"bank 0' or ''='"}}, ""},
		{url.Values{"metadata_key": {"order"}}, "3 6 9 12"},
		{url.Values{"metadata_key": {"a b"}}, "3 6 9 12"},
		{url.Values{"metadata_key": {"description"}}, ""},
		{url.Values{"effective_from": {"2026-01-05T00:00:00Z"}, "effective_to": {"2026-01-11T00:00:00Z"}}, "5 8"},
		{url.Values{"effective_to": {"2026-01-05T00:00:00Z"}}, "2"},
		{url.Values{"effective_from": {"2026-01-05T00:00:00Z"}, "kind": {"credit"}, "counterparty": {"bank 1"}}, "5 11"},
		{url.Values{"posted_from": {posted[5]}, "kind": {"credit"}}, "5 8 11"},
		{url.Values{"posted_to": {posted[8]}, "kind": {"credit"}}, "2 5"},
		{url.Values{"posted_from": {posted[4]}, "posted_to": {posted[7]}}, "4 5 6"},
		{url.Values{"posted_to": {"2020-01-01T00:00:00Z"}}, ""},
		{url.Values{"posted_from": {"2999-01-01T00:00:00Z"}}, ""},
	} {
		for _, limit := range []int{1, 3, 200} {
			up := url.Values{"order": {"asc"}}
			for name, value := range tt.query {
				up[name] = value
			}
			if got := s.seqs("A", limit, up); got != tt.want {
				t.Errorf("%s by %d is %q, want %q", tt.query.Encode(), limit, got, tt.want)
			}
			fields := strings.Fields(tt.want)
			for i, j := 0, len(fields)-1; i < j; i, j = i+1, j-1 {
				fields[i], fields[j] = fields[j], fields[i]
			}
			down := url.Values{}
			for name, value := range tt.query {
				down[name] = value
			}
			if got := s.seqs("A", limit, down); got != strings.Join(fields, " ") {
				t.Errorf("%s by %d downwards is %q", tt.query.Encode(), limit, got)
			}
		}
	}
}

func TestFiltersAreChecked(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	s.credit("A", `{"amount":1}`, "1").expect(201)
	s.credit("A", `{"amount":1}`, "2").expect(201)
	list := func(query string) reply { return s.do("GET", "/v1/accounts/A/entries?"+query, "") }
	for _, query := range []string{
		"kind=transfer", "kind=", "posted_from=2026-01-01", "effective_to=now", "counterparty=", "metadata_key=",
		"counterparty=" + strings.Repeat("x", 256), "metadata_key=" + strings.Repeat("x", 65), "counterparty=%00", "counterparty=%ff",
		"posted_from=2026-01-02T00:00:00Z&posted_to=2026-01-01T00:00:00Z", "effective_from=2026-01-01T00:00:00Z&effective_to=2026-01-01T00:00:00Z",
	} {
		list(query).refused(400, ledger.CodeInvalid)
	}
	cursor := list("kind=credit&limit=1").expect(200).get("next_cursor").(string)
	list("kind=credit&cursor=" + cursor).expect(200)
	list("cursor=" + cursor).expect(200)
	list("kind=debit&cursor="+cursor).refused(400, ledger.CodeInvalid)
	list("order=asc&cursor="+cursor).refused(400, ledger.CodeInvalid)
	longest := url.Values{"kind": {"credit"}, "counterparty": {strings.Repeat("🙂", 255)}, "metadata_key": {strings.Repeat("🙂", 64)},
		"posted_from": {"0001-01-02T00:00:00Z"}, "posted_to": {"9999-12-31T23:59:59.999999Z"}}
	list(longest.Encode()).expect(200).has("next_cursor", nil)
	filter := ledger.EntryFilter{Kind: "credit", Counterparty: strings.Repeat("🙂", 255), MetadataKey: strings.Repeat("🙂", 64)}
	c := entriesCursor{account: ledger.AccountID(strings.Repeat("a", 128)), after: 7, filter: filter}
	if again, err := parseEntriesCursor(c.String()); err != nil || again != c {
		t.Errorf("the cursor is %+v, %v", again, err)
	}
}

func TestTrialBalanceCoversWhatIsApplied(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	s.credit("A", `{"amount":1}`, "1").expect(201)
	// No projection works here, so nothing is applied.
	s.do("GET", "/v1/reports/trial-balance?currency=EUR", "").expect(200).
		has("accounts", 1, "entries", 0, "entries_behind", 2, "credits", 0, "balance", 0, "in_from_outside", 0, "in_transit", 0, "declines", 0)
	s.do("GET", "/v1/reports/trial-balance?currency=USD", "").expect(200).has("accounts", 0, "entries_behind", 0, "balance", 0)
	s.do("GET", "/v1/reports/trial-balance", "").refused(400, ledger.CodeInvalid)
	s.do("GET", "/v1/reports/trial-balance?currency=eur", "").refused(400, ledger.CodeInvalid)
}
