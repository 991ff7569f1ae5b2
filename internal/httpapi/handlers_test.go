package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

func TestOpenAccount(t *testing.T) {
	t.Parallel()
	s := newService(t)
	body := `{"currency":"KWD","min_balance":-500,"metadata":{"owner":"c-81"}}`
	s.do("PUT", "/v1/accounts/A", body).expect(201).
		has("account_id", "A", "currency", "KWD", "exponent", 3, "status", "active", "balance", 0, "held", 0,
			"available", 500, "min_balance", -500, "fencing.source", "lease", "fencing.required", false, "fence", 0,
			"seq", 1, "metadata.owner", "c-81").
		headerIs("Location", "/v1/accounts/A").headerIs("ETag", `"1"`)
	s.credit("A", `{"amount":7}`, "k1").expect(201)
	s.do("PUT", "/v1/accounts/A", body).expect(200).has("balance", 7, "seq", 2).
		headerIs("Location", "").headerIs("ETag", `"2"`)
	for _, other := range []string{
		`{"currency":"EUR","min_balance":-500,"metadata":{"owner":"c-81"}}`,
		`{"currency":"KWD","min_balance":-501,"metadata":{"owner":"c-81"}}`,
		`{"currency":"KWD","min_balance":-500,"exponent":2,"metadata":{"owner":"c-81"}}`,
		`{"currency":"KWD","min_balance":-500}`,
	} {
		s.do("PUT", "/v1/accounts/A", other).refused(409, ledger.CodeAccountExists).has("applied", false)
	}
	s.do("PUT", "/v1/accounts/B", `{"currency":"EUR"}`, headerIfMatch, `"1"`).refused(400, codeInvalidRequest)
	s.do("GET", "/v1/accounts/B", "").refused(404, ledger.CodeAccountNotFound)
}

// Case 16: many opens of one account at once.
func TestConcurrentOpensMakeOneAccount(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var mu sync.Mutex
	statuses := map[int]int{}
	together(10, func(int) {
		r := s.do("PUT", "/v1/accounts/A", `{"currency":"EUR"}`)
		mu.Lock()
		defer mu.Unlock()
		statuses[r.status]++
	})
	if statuses[201] != 1 || statuses[200] != 9 {
		t.Errorf("statuses %v", statuses)
	}
	s.credit("A", `{"amount":1}`, "k").expect(201).has("seq", 2)
}

// together runs f(0) … f(n-1) at once and waits for all.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

func TestChangeAccount(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	patch := func(body string, headers ...string) reply {
		t.Helper()
		return s.do("PATCH", "/v1/accounts/A", body, headers...)
	}
	patch(`{"status":"frozen"}`).expect(200).has("status", "frozen", "seq", 2).headerIs("ETag", `"2"`)
	patch(`{"status":"frozen"}`).expect(200).has("seq", 2) // without effect nothing is written
	s.credit("A", `{"amount":100}`, "k1").expect(201)
	s.debit("A", `{"amount":1}`, "k2").refused(422, ledger.CodeAccountFrozen).has("seq", 4)
	patch(`{"status":"active","min_balance":-50,"metadata":{"a":"b"}}`, headerIfMatch, `"3"`).
		refused(412, ledger.CodeSeqMismatch).has("applied", false, "current_seq", 4)
	patch(`{"status":"active","min_balance":-50,"metadata":{"a":"b"}}`, headerIfMatch, `"4"`).expect(200).
		has("status", "active", "available", 150, "metadata.a", "b", "seq", 5)
	s.do("GET", "/v1/accounts/A", "").expect(200).has("metadata.a", "b", "seq", 5, "available", 150).headerIs("ETag", `"5"`)
	patch(`{"metadata":{}}`).expect(200).has("metadata.a", nil, "seq", 6)
	patch(`{"status":"closed"}`).refused(409, ledger.CodeAccountNotEmpty)
	s.debit("A", `{"amount":100}`, "k3").expect(201)
	patch(`{"status":"closed"}`).expect(200).has("status", "closed")
	s.credit("A", `{"amount":1}`, "k4").refused(422, ledger.CodeAccountClosed)
	patch(`{"status":"active"}`).refused(422, ledger.CodeAccountClosed)
	s.do("PATCH", "/v1/accounts/B", `{"status":"frozen"}`).refused(404, ledger.CodeAccountNotFound)
}

func TestFencing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.do("PUT", "/v1/accounts/A", `{"currency":"EUR","fencing":{"source":"external","required":true}}`).expect(201)
	s.credit("A", `{"amount":1}`, "k0").refused(428, ledger.CodeTokenRequired).has("applied", false)
	s.credit("A", `{"amount":1}`, "k1", headerToken, "102").expect(201).has("fence", 102)
	s.credit("A", `{"amount":1}`, "k2", headerToken, "101").refused(409, ledger.CodeStaleToken).
		has("applied", false, "presented_token", 101, "current_token", 102)
	s.credit("A", `{"amount":1}`, "k2", headerToken, "102").expect(201).has("balance", 2)
	s.do("PATCH", "/v1/accounts/A", `{"fencing":{"reset":5,"reason":"the coordinator was rebuilt"}}`).expect(200).has("fence", 5)
	s.do("GET", "/v1/accounts/A/entries?limit=1", "").expect(200)
	s.do("GET", "/v1/accounts/A/entries/4", "").expect(200).has("kind", "settings", "reason", "the coordinator was rebuilt", "fence", 5)
	s.do("PATCH", "/v1/accounts/A", `{"fencing":{"reset":6,"reason":"upwards"}}`).refused(409, ledger.CodeFencingResetRefused)
	s.open("B")
	s.credit("B", `{"amount":1}`, "k1", headerToken, "7").refused(409, ledger.CodeTokenFromTheFuture).
		has("presented_token", 7, "current_token", 0)
}

func TestReceipt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	first := s.credit("A", `{"amount":12500,"currency":"EUR","description":"top-up","counterparty":"bank",`+
		`"effective_at":"2026-11-30T12:00:00+04:00","metadata":{"b":"2","a":"\u00e9"}}`, "k1").expect(201).
		has("account_id", "A", "seq", 2, "kind", "credit", "amount", 12500, "currency", "EUR", "balance", 12500, "held", 0,
			"available", 12500, "effective_at", "2026-11-30T08:00:00.000000Z", "description", "top-up", "counterparty", "bank",
			"metadata.a", "é", "metadata.b", "2", "idempotency_key", "k1").
		headerIs("Location", "/v1/accounts/A/entries/2").headerIs("ETag", `"2"`).headerIs("Idempotency-Replayed", "").
		headerIs("Content-Type", "application/json")
	if got := s.do("GET", first.header.Get("Location"), "").expect(200); got.text != first.text {
		t.Errorf("the entry differs from the receipt:\n%s\n%s", got.text, first.text)
	}
	transaction := s.do("GET", fmt.Sprintf("/v1/transactions/%s", first.get("transaction_id")), "").expect(200)
	if want := fmt.Sprintf(`{"transaction_id":%q,"entries":[%s]}`, first.get("transaction_id"), first.text); transaction.text != want {
		t.Errorf("the transaction is %s", transaction.text)
	}
}

func TestReplays(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	s.open("B")
	first := s.credit("A", `{"amount":5,"effective_at":"2026-11-30T12:00:00+04:00"}`, "k1").expect(201)
	s.credit("A", `{"amount":1}`, "k2").expect(201)
	// The same instant in another spelling, the key quoted, and a condition that no longer holds: still the same operation.
	again := s.credit("A", ` {"effective_at":"2026-11-30T08:00:00.000Z","amount":5,"metadata":{},"description":""}`, `"k1"`, headerIfMatch, `"1"`).expect(201).
		headerIs("Idempotency-Replayed", "true").headerIs("ETag", `"2"`).headerIs("Location", "/v1/accounts/A/entries/2")
	if again.text != first.text {
		t.Errorf("the replay is\n%s\nthe original\n%s", again.text, first.text)
	}
	// Cases 2 and 3.
	s.credit("B", `{"amount":5}`, "k1").expect(201).headerIs("Idempotency-Replayed", "")
	s.credit("A", `{"amount":6}`, "k1").refused(422, ledger.CodeKeyReused).has("applied", false, "seq", nil)
	s.debit("A", `{"amount":5}`, "k1").refused(422, ledger.CodeKeyReused)
	// Case 10: a decline stays one.
	declined := s.debit("A", `{"amount":100}`, "k3").refused(422, ledger.CodeInsufficientFunds).
		has("applied", false, "seq", 4, "detail", "100 were asked for, 6 were available.").
		headerIs("Location", "/v1/accounts/A/entries/4").headerIs("Idempotency-Replayed", "")
	s.credit("A", `{"amount":1000}`, "k4").expect(201)
	replayed := s.debit("A", `{"amount":100}`, "k3").refused(422, ledger.CodeInsufficientFunds).headerIs("Idempotency-Replayed", "true")
	for _, member := range []string{"type", "title", "detail", "seq", "transaction_id"} {
		if replayed.get(member) != declined.get(member) || declined.get(member) == nil {
			t.Errorf("%s is %v, then %v", member, declined.get(member), replayed.get(member))
		}
	}
	s.debit("A", `{"amount":100}`, "k5").expect(201)
	s.do("GET", "/v1/accounts/A/entries/4", "").expect(200).
		has("kind", "declined", "attempted", "debit", "reason", "insufficient_funds", "amount", 100, "balance", 6)
}

// Case 5: a body that fails validation does not use up the key.
func TestRefusedBodyLeavesTheKey(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	for _, body := range []string{`{"amount":0}`, `{"amount":1,"x":1}`, `{"amount":1`, ``} {
		s.do("POST", "/v1/accounts/A/credits", body, headerKey, "k", "Content-Type", "application/json").
			refused(400, codeInvalidRequest).has("applied", false)
	}
	s.do("POST", "/v1/accounts/A/credits", `{"amount":1}`).refused(400, codeKeyMissing).has("applied", false)
	s.do("POST", "/v1/accounts/A/credits", `{"amount":1}`, "X-Idempotency", "k").refused(400, codeKeyMissing)
	s.do("POST", "/v1/accounts/A/credits?dry_run=1", `{"amount":1}`, headerKey, "k").refused(400, codeInvalidRequest)
	s.credit("A", `{"amount":1}`, "k").expect(201).has("balance", 1).headerIs("Idempotency-Replayed", "")
	s.credit("nobody", `{"amount":1}`, "k").refused(404, ledger.CodeAccountNotFound).has("applied", false)
}

// Cases 1, 8 and 12 over HTTP.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	texts := make([]string, 50)
	together(50, func(i int) { texts[i] = s.credit("A", `{"amount":50}`, "one").expect(201).text })
	for _, text := range texts {
		if text != texts[0] {
			t.Errorf("receipts differ:\n%s\n%s", text, texts[0])
		}
	}
	var mu sync.Mutex
	statuses := map[int]int{}
	together(100, func(i int) {
		r := s.debit("A", `{"amount":1}`, fmt.Sprintf("d%d", i))
		mu.Lock()
		defer mu.Unlock()
		statuses[r.status]++
	})
	if statuses[201] != 50 || statuses[422] != 50 {
		t.Errorf("statuses %v", statuses)
	}
	s.do("GET", "/v1/accounts/A/balance", "").expect(200).has("balance", 0, "seq", 102)
}

func TestNumbersAreExact(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	s.credit("A", `{"amount":9007199254740991}`, "k1").expect(201).has("amount", 9007199254740991, "balance", 9007199254740991)
	s.credit("A", `{"amount":1}`, "k2").refused(422, ledger.CodeBalanceLimit).has("seq", 3)
	s.do("GET", "/v1/accounts/A", "").expect(200).has("balance", 9007199254740991, "available", 9007199254740991)
}

// Case 39: text is stored exactly.
func TestTextIsStoredExactly(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	r := s.credit("A", `{"amount":1,"description":"\u00e9 e\u0301 \ud83d\ude00 \" \\ \n \u2028 <&>","metadata":{"\u00e9":"1","e\u0301":"2"}}`, "k").expect(201)
	entry := s.do("GET", r.header.Get("Location"), "").expect(200).
		has("description", "é e\u0301 😀 \" \\ \n \u2028 <&>", "metadata.é", "1", "metadata.e\u0301", "2")
	if entry.text != r.text {
		t.Errorf("stored as %s", entry.text)
	}
	value := strings.Repeat("x", 16<<10-len(`{"k":""}`))
	s.credit("A", `{"amount":1,"metadata":{"k":"`+value+`"}}`, "k2").expect(201).has("metadata.k", value)
	s.credit("A", `{"amount":1,"metadata":{"k":"`+value+`x"}}`, "k3").refused(400, codeInvalidRequest)
}

// Case 43: ids and filters with everything that does not belong there.
func TestStrangeIDs(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, id := range []string{"%22", "'", "%25", "..", "%2e%2e", "a%2Fb", "a%00", "%C3%A9", "-a", "a%20b", "%3B", strings.Repeat("a", 129)} {
		s.do("GET", "/v1/accounts/"+id, "").refused(400, codeInvalidRequest)
		s.do("PUT", "/v1/accounts/"+id, `{"currency":"EUR"}`).refused(400, codeInvalidRequest).has("applied", false)
	}
	longest := strings.Repeat("a", 128)
	s.open(longest)
	s.do("GET", "/v1/accounts/%61"+longest[1:], "").expect(200).has("account_id", longest)
	for _, path := range []string{
		"/v1/accounts?currency=%27", "/v1/accounts?currency=eur", "/v1/accounts?status=open", "/v1/accounts?limit=0", "/v1/accounts?limit=201",
		"/v1/accounts?limit=1.0", "/v1/accounts?limit=", "/v1/accounts?limit=1&limit=2", "/v1/accounts?limt=1", "/v1/accounts?%zz=1",
		"/v1/accounts?cursor=", "/v1/accounts?cursor=%25", "/v1/accounts/" + longest + "?x=1", "/v1/accounts/" + longest + "/entries?order=up",
		"/v1/accounts/" + longest + "/entries/0", "/v1/accounts/" + longest + "/entries/01", "/v1/accounts/" + longest + "/entries/x",
		"/v1/transactions/x", "/v1/transactions/019AD3F5-7C1E-7D3A-9B1F-0B8A5C2D4E6F", "/v1/projections/balances?x=1",
		"/v1/projections/balances/rebuilds/a.b", "/v1/projections/balances/verifications/" + strings.Repeat("a", 65),
	} {
		s.do("GET", path, "").refused(400, codeInvalidRequest)
	}
	s.do("GET", "/v1/accounts/"+longest+"/entries/2", "").refused(404, ledger.CodeEntryNotFound)
	s.do("GET", "/v1/accounts/nobody/entries/2", "").refused(404, ledger.CodeAccountNotFound)
	s.do("GET", "/v1/accounts/nobody/entries", "").refused(404, ledger.CodeAccountNotFound)
	s.do("GET", "/v1/transactions/019ad3f5-7c1e-7d3a-9b1f-0b8a5c2d4e6f", "").refused(404, ledger.CodeTransactionNotFound)
}

func TestUnroutedRequests(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, path := range []string{"/", "/v1", "/v2/accounts", "/v1/accounts/", "/v1/accounts/A/credits/", "/v1//accounts"} {
		s.do("GET", path, "").refused(404, codeNotFound)
	}
	s.do("DELETE", "/v1/accounts/A", "").refused(405, codeMethodNotAllowed).headerIs("Allow", "GET, PUT, PATCH")
	s.do("GET", "/v1/accounts/A/credits", "").refused(405, codeMethodNotAllowed).headerIs("Allow", "POST")
	s.do("POST", "/healthz", "").refused(405, codeMethodNotAllowed).headerIs("Allow", "GET")
	if r := s.do(http.MethodHead, "/healthz", ""); r.status != 200 {
		t.Errorf("HEAD /healthz is answered with %d", r.status)
	}
}
