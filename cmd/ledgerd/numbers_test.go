package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
)

const maxAmount = 1<<53 - 1

func TestAmountsAreIntegersInRange(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	for i, amount := range []string{
		"-1", "0", "1.0", "1e3", `"1"`, "null", "9007199254740992", "9223372036854775807", "9223372036854775808",
		"1e-1", "-0", "01", "true", "[]", "NaN", strings.Repeat("9", 400),
	} {
		a := n.do("POST", "/v1/accounts/a/credits", `{"amount":`+amount+`}`, "Idempotency-Key", fmt.Sprint("k", i))
		r := a.read()
		if a.status != http.StatusBadRequest || len(r.Errors) == 0 {
			t.Errorf("amount %.30s: %s", amount, a)
			continue
		}
		wellFormed := json.Valid([]byte(amount))
		if wellFormed && r.Errors[0].Pointer != "/amount" {
			t.Errorf("amount %.30s: the pointer is %q", amount, r.Errors[0].Pointer)
		}
	}
	r := n.want(http.StatusBadRequest, "POST", "/v1/accounts/a/credits", `{}`, "Idempotency-Key", "k")
	if len(r.Errors) == 0 || r.Errors[0].Pointer != "/amount" {
		t.Errorf("without an amount: %+v", r.Errors)
	}
	if got := n.balance("a"); got.Seq != 1 {
		t.Errorf("something was written: seq %d", got.Seq)
	}
	largest := n.do("POST", "/v1/accounts/a/credits", fmt.Sprintf(`{"amount":%d}`, int64(maxAmount)), "Idempotency-Key", "max")
	if !bytes.Contains(largest.body, []byte(`"balance":9007199254740991`)) {
		t.Errorf("the largest amount: %s", largest)
	}
	if got := n.balance("a"); got.Balance != maxAmount || got.Available != maxAmount {
		t.Errorf("the balance is %d with %d available", got.Balance, got.Available)
	}
}

func TestBalanceLimitDeclines(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	n.credit("a", maxAmount, "k1")
	r := n.want(http.StatusUnprocessableEntity, "POST", "/v1/accounts/a/credits", `{"amount":1}`, "Idempotency-Key", "k2")
	if r.Code != "balance_limit" || r.Seq != 3 {
		t.Errorf("one more than the limit: code %s, seq %d", r.Code, r.Seq)
	}
	n.want(http.StatusCreated, "PUT", "/v1/accounts/b", `{"currency":"EUR","min_balance":-4503599627370496}`)
	n.want(http.StatusCreated, "POST", "/v1/accounts/b/debits", `{"amount":4503599627370496}`, "Idempotency-Key", "k1")
	r = n.want(http.StatusUnprocessableEntity, "POST", "/v1/accounts/b/debits", `{"amount":1}`, "Idempotency-Key", "k2")
	if r.Code != "insufficient_funds" {
		t.Errorf("one less than the overdraft: code %s", r.Code)
	}
	if got := n.balance("b"); got.Balance != -4503599627370496 {
		t.Errorf("the balance is %d", got.Balance)
	}
	n.want(http.StatusBadRequest, "PUT", "/v1/accounts/c", `{"currency":"EUR","min_balance":-4503599627370497}`)
	n.want(http.StatusBadRequest, "PUT", "/v1/accounts/c", `{"currency":"EUR","min_balance":1}`)
}

func TestMetadataIsStoredExactlyOrRefused(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	const composed, decomposed = "caf\u00e9", "cafe\u0301"
	texts := []string{
		composed, decomposed, "😀👩‍👩‍👧", `"quoted" and 'single'`, `back\slash \u0041`, "line\nbreak\ttab\r\x01\x7f", "\u2028\u2029", "</script>",
		"\ufffd", "\uffff", strings.Repeat("é", 4000), "",
	}
	for i, text := range texts {
		body, err := json.Marshal(map[string]any{"amount": 1, "description": clip(text, 500), "metadata": map[string]string{"k": text, clip("name "+text, 20): "v"}})
		if err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprint("k", i)
		r := n.want(http.StatusCreated, "POST", "/v1/accounts/a/credits", string(body), "Idempotency-Key", key)
		stored := n.do("GET", fmt.Sprintf("/v1/accounts/a/entries/%d", r.Seq), "")
		var e struct {
			Description string
			Metadata    map[string]string
		}
		if err := json.Unmarshal(stored.body, &e); err != nil {
			t.Fatal(err)
		}
		if e.Metadata["k"] != text || e.Description != clip(text, 500) {
			t.Errorf("%.30q came back as %.30q and %.30q", text, e.Metadata["k"], e.Description)
		}
	}
	for _, body := range []string{
		`{"amount":1,"metadata":{"k":"a\u0000b"}}`,
		`{"amount":1,"metadata":{"k":"\ud800"}}`,
		`{"amount":1,"metadata":{"\udc00":"v"}}`,
		`{"amount":1,"description":"\ud83d x"}`,
		"{\"amount\":1,\"metadata\":{\"k\":\"\xff\"}}",
		`{"amount":1,"metadata":{"k":1}}`,
		`{"amount":1,"metadata":{"k":"v","k":"w"}}`,
		`{"amount":1,"metadata":{"k":"` + strings.Repeat("x", 17<<10) + `"}}`,
	} {
		r := n.want(http.StatusBadRequest, "POST", "/v1/accounts/a/credits", body, "Idempotency-Key", "bad")
		if r.Code != "invalid_request" {
			t.Errorf("%.60s: code %s", body, r.Code)
		}
	}
}

// clip returns the first runes of a text.
func clip(s string, runes int) string {
	r := []rune(s)
	return string(r[:min(len(r), runes)])
}

type page struct {
	Data []struct {
		Seq       int64  `json:"seq"`
		AccountID string `json:"account_id"`
		Currency  string `json:"currency"`
		Status    string `json:"status"`
	} `json:"data"`
	NextCursor *string `json:"next_cursor"`
}

func (n *node) page(path string) page {
	n.t.Helper()
	a := n.do("GET", path, "")
	var p page
	if err := json.Unmarshal(a.body, &p); err != nil || a.status != http.StatusOK {
		n.t.Fatalf("GET %s: %s %v", path, a, err)
	}
	return p
}

func TestPagesAreExactWhileAWriterAdds(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	for i := range 99 {
		n.credit("a", 1, fmt.Sprint("k", i))
	}
	for _, order := range []string{"asc", "desc"} {
		var seqs []int64
		path := "/v1/accounts/a/entries?limit=7&order=" + order
		for round := 0; ; round++ {
			p := n.page(path)
			for _, e := range p.Data {
				if order == "desc" || e.Seq <= 100 { // what is added meanwhile comes at the end of asc
					seqs = append(seqs, e.Seq)
				}
			}
			if p.NextCursor == nil || order == "asc" && len(seqs) >= 100 {
				break
			}
			if len(p.Data) != 7 {
				t.Fatalf("%s: page %d has %d entries", order, round, len(p.Data))
			}
			path = "/v1/accounts/a/entries?limit=7&cursor=" + url.QueryEscape(*p.NextCursor)
			n.credit("a", 1, fmt.Sprint(order, round))
		}
		first := seqs[0]
		for i, seq := range seqs {
			want := first + int64(i)
			if order == "desc" {
				want = first - int64(i)
			}
			if seq != want {
				t.Fatalf("%s: position %d has seq %d, want %d", order, i, seq, want)
			}
		}
		if order == "asc" && (first != 1 || len(seqs) != 100) || order == "desc" && seqs[len(seqs)-1] != 1 {
			t.Errorf("%s: %d entries from %d to %d", order, len(seqs), first, seqs[len(seqs)-1])
		}
	}
}

func TestCursorKeepsItsFilters(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	for i := range 12 {
		currency := []string{"EUR", "USD"}[i%2]
		n.want(http.StatusCreated, "PUT", fmt.Sprintf("/v1/accounts/acc-%02d", i), fmt.Sprintf(`{"currency":%q}`, currency))
	}
	n.want(http.StatusOK, "PATCH", "/v1/accounts/acc-03", `{"status":"frozen"}`)
	var ids []string
	path := "/v1/accounts?currency=USD&status=active&limit=2"
	for {
		p := n.page(path)
		for _, a := range p.Data {
			if a.Currency != "USD" || a.Status != "active" {
				t.Errorf("%+v passed the filter", a)
			}
			ids = append(ids, a.AccountID)
		}
		if p.NextCursor == nil {
			break
		}
		path = "/v1/accounts?limit=2&cursor=" + url.QueryEscape(*p.NextCursor)
	}
	if got := strings.Join(ids, " "); got != "acc-01 acc-05 acc-07 acc-09 acc-11" {
		t.Errorf("the pages have %s", got)
	}
	n.want(http.StatusBadRequest, "GET", "/v1/accounts?cursor=forged", "")
	n.want(http.StatusBadRequest, "GET", "/v1/accounts?limit=0", "")
	n.want(http.StatusBadRequest, "GET", "/v1/accounts?limit=201", "")
	n.want(http.StatusBadRequest, "GET", "/v1/accounts?unknown=1", "")
}

func TestInstantsNotSpellings(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	send := func(at, key string) answer {
		return n.do("POST", "/v1/accounts/a/credits", fmt.Sprintf(`{"amount":1,"effective_at":%q}`, at), "Idempotency-Key", key)
	}
	one := send("2026-03-01T12:00:00+04:00", "k")
	two := send("2026-03-01T08:00:00Z", "k")
	if two.status != http.StatusCreated || !two.replayed() || !bytes.Equal(one.body, two.body) {
		t.Errorf("one instant in two spellings: %s and %s", one, two)
	}
	for i, at := range []string{"1969-12-31T23:59:59.999999Z", "0001-01-01T00:00:00.000001Z", "9999-12-31T23:59:59Z", "2024-02-29T00:00:00-11:30"} {
		a := send(at, fmt.Sprint("year", i))
		want, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		var e struct {
			EffectiveAt time.Time `json:"effective_at"`
		}
		if err := json.Unmarshal(a.body, &e); a.status != http.StatusCreated || err != nil || !e.EffectiveAt.Equal(want) {
			t.Errorf("%s: %s", at, a)
		}
	}
	for _, at := range []string{"2026-03-01T12:00:00", "2026-03-01", "2026-02-30T00:00:00Z", "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "now", ""} {
		if a := send(at, "bad"); a.status != http.StatusBadRequest || len(a.read().Errors) == 0 || a.read().Errors[0].Pointer != "/effective_at" {
			t.Errorf("effective_at %q: %s", at, a)
		}
	}
}

// Back-dated operations change neither the order nor the running balance, and
// the balance at a moment is the one of the last entry posted by then.
func TestPointInTimeAgreesWithTheEntries(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	for i := range 30 {
		body := fmt.Sprintf(`{"amount":%d,"effective_at":"%d-06-01T00:00:00Z"}`, i+1, 2030-i)
		n.want(http.StatusCreated, "POST", "/v1/accounts/a/credits", body, "Idempotency-Key", fmt.Sprint("k", i))
	}
	var entries struct {
		Data []struct {
			Seq, Amount, Balance int64
			PostedAt             time.Time `json:"posted_at"`
		}
	}
	if err := json.Unmarshal(n.do("GET", "/v1/accounts/a/entries?order=asc&limit=200", "").body, &entries); err != nil {
		t.Fatal(err)
	}
	var sum int64
	for i, e := range entries.Data {
		sum += e.Amount
		if e.Seq != int64(i+1) || e.Balance != sum {
			t.Fatalf("entry %d: seq %d, balance %d, want %d", i, e.Seq, e.Balance, sum)
		}
	}
	for i, e := range entries.Data {
		var want int64
		var seq int64
		for _, other := range entries.Data {
			if !other.PostedAt.After(e.PostedAt) {
				want, seq = other.Balance, other.Seq
			}
		}
		at := url.QueryEscape(e.PostedAt.Format(time.RFC3339Nano))
		got := n.want(http.StatusOK, "GET", "/v1/accounts/a/balance?at="+at, "")
		if got.Balance != want || got.Seq != seq {
			t.Errorf("at entry %d: balance %d at seq %d, want %d at %d", i, got.Balance, got.Seq, want, seq)
		}
	}
	before := url.QueryEscape(entries.Data[0].PostedAt.Add(-time.Microsecond).Format(time.RFC3339Nano))
	n.want(http.StatusNotFound, "GET", "/v1/accounts/a/balance?at="+before, "")
}

func TestNamesAreTakenLiterallyOrRefused(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	longest := strings.Repeat("x", 128)
	for _, id := range []string{"a", "A", "0", longest, "a.b_c:d-e", "a..b", "A1"} {
		n.open(id)
		n.credit(id, 1, "k")
	}
	for _, id := range []string{longest + "x", "a'b", `a"b`, "a%b", "a b", "..", ".a", "-a", "é", "a/b", "a\\b", "a;drop", "a\x00b"} {
		a := n.do("PUT", "/v1/accounts/"+url.PathEscape(id), `{"currency":"EUR"}`)
		if a.status != http.StatusBadRequest && a.status != http.StatusNotFound {
			t.Errorf("account id %.20q: %s", id, a)
		}
	}
	for _, query := range []string{"currency='", "currency=%25", "status=active'--", "currency=E", "status="} {
		n.want(http.StatusBadRequest, "GET", "/v1/accounts?"+query, "")
	}
	if p := n.page("/v1/accounts?limit=200"); len(p.Data) != 7 {
		t.Errorf("%d accounts are open, want 7", len(p.Data))
	}
	for _, seq := range []string{"0", "-1", "x", "1.0", strconv.Itoa(1 << 54)} {
		if a := n.do("GET", "/v1/accounts/a/entries/"+seq, ""); a.status != http.StatusBadRequest && a.status != http.StatusNotFound {
			t.Errorf("entry %s: %s", seq, a)
		}
	}
}
