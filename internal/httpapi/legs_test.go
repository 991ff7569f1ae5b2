package httpapi

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

func (s *service) transfer(body, key string, headers ...string) reply {
	s.t.Helper()
	return s.do("POST", "/v1/transfers", body, append([]string{headerKey, key}, headers...)...)
}

func (s *service) transact(body, key string, headers ...string) reply {
	s.t.Helper()
	return s.do("POST", "/v1/transactions", body, append([]string{headerKey, key}, headers...)...)
}

func (s *service) balanceIs(id string, want int) {
	s.t.Helper()
	s.do("GET", "/v1/accounts/"+id+"/balance", "").expect(200).has("balance", want)
}

func (s *service) seqIs(id string, want int) {
	s.t.Helper()
	s.do("GET", "/v1/accounts/"+id, "").expect(200).has("seq", want)
}

func TestTransferMovesMoneyOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	s.open("B")
	s.credit("A", `{"amount":100}`, "in").expect(201)
	const body = `{"from":"A","to":"B","amount":30,"currency":"EUR","description":"lunch","metadata":{"order":"7"},"effective_at":"2026-11-01T12:00:00+04:00"}`
	first := s.transfer(body, "k").expect(201)
	id := first.get("transaction_id").(string)
	first.headerIs("Location", "/v1/transactions/"+id).headerIs("Idempotency-Replayed", "")
	for _, want := range []string{
		`"account_id":"A","seq":3,"kind":"debit","amount":30,"currency":"EUR","balance":70`, `"counterparty":"B"`, `"idempotency_key":"k"`,
		`"account_id":"B","seq":2,"kind":"credit","amount":30,"currency":"EUR","balance":30`, `"counterparty":"A"`,
		`"effective_at":"2026-11-01T08:00:00.000000Z"`, `"description":"lunch","metadata":{"order":"7"}`,
	} {
		if !strings.Contains(first.text, want) {
			t.Errorf("the answer has no %s: %s", want, first.text)
		}
	}
	again := s.transfer(strings.Replace(body, "12:00:00+04:00", "08:00:00Z", 1), `"k"`).expect(201).headerIs("Idempotency-Replayed", "true")
	if again.text != first.text {
		t.Errorf("the replay is\n%s\nand was\n%s", again.text, first.text)
	}
	if read := s.do("GET", "/v1/transactions/"+id, "").expect(200); read.text != first.text {
		t.Errorf("it reads as\n%s\nand was\n%s", read.text, first.text)
	}
	s.transfer(`{"from":"A","to":"B","amount":31}`, "k").refused(422, ledger.CodeKeyReused).has("applied", false)
	s.debit("A", `{"amount":30}`, "k").refused(422, ledger.CodeKeyReused)
	s.credit("B", `{"amount":1}`, "k").expect(201) // the key belongs to the first account alone
	s.balanceIs("A", 70)
	s.balanceIs("B", 31)
}

func TestDeclinedTransferIsRecordedWithTheFirstAccount(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, id := range []string{"A", "B", "closed"} {
		s.open(id)
	}
	s.do("PUT", "/v1/accounts/yen", `{"currency":"JPY"}`).expect(201)
	s.do("PATCH", "/v1/accounts/closed", `{"status":"closed"}`).expect(200)
	s.credit("A", `{"amount":10}`, "in").expect(201)
	for i, tt := range []struct {
		body    string
		code    ledger.Code
		blames  any
		mention string
	}{
		{`{"from":"A","to":"B","amount":11}`, ledger.CodeInsufficientFunds, nil, "A"},
		{`{"from":"A","to":"A","amount":1}`, ledger.CodeSameAccount, nil, "itself"},
		{`{"from":"A","to":"closed","amount":1}`, ledger.CodeAccountClosed, "closed", "closed"},
		{`{"from":"A","to":"yen","amount":1}`, ledger.CodeCurrencyMismatch, "yen", "yen"},
		{`{"from":"A","to":"B","amount":1,"currency":"USD"}`, ledger.CodeCurrencyMismatch, nil, "A"},
	} {
		key := fmt.Sprint("declined-", i)
		r := s.transfer(tt.body, key).refused(422, tt.code).has("seq", i+3, "refused_by", tt.blames, "applied", false).
			headerIs("Location", fmt.Sprintf("/v1/accounts/A/entries/%d", i+3))
		if !strings.Contains(r.get("detail").(string), tt.mention) {
			t.Errorf("the detail is %q", r.get("detail"))
		}
		again := s.transfer(tt.body, key).refused(422, tt.code).headerIs("Idempotency-Replayed", "true")
		if again.get("detail") != r.get("detail") || again.get("refused_by") != r.get("refused_by") {
			t.Errorf("the replay says %s, the first answer %s", again.text, r.text)
		}
		s.do("GET", fmt.Sprintf("/v1/accounts/A/entries/%d", i+3), "").expect(200).
			has("kind", "declined", "reason", string(tt.code), "attempted", "transfer", "refused_by", tt.blames)
	}
	s.credit("A", `{"amount":100}`, "top-up").expect(201)
	s.transfer(`{"from":"A","to":"B","amount":11}`, "declined-0").refused(422, ledger.CodeInsufficientFunds)
	s.transfer(`{"from":"A","to":"B","amount":11}`, "afterwards").expect(201)
	s.seqIs("B", 2)
	s.transfer(`{"from":"A","to":"nobody","amount":1}`, "k404").refused(404, ledger.CodeAccountNotFound).has("applied", false)
	s.transfer(`{"from":"nobody","to":"A","amount":1}`, "k404").refused(404, ledger.CodeAccountNotFound)
}

func TestTransactionIsAllOrNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, id := range []string{"A", "B", "C"} {
		s.open(id)
	}
	s.credit("A", `{"amount":100}`, "in").expect(201)
	// Several legs of one account see each other.
	r := s.transact(`{"legs":[{"account_id":"A","direction":"debit","amount":100},{"account_id":"B","direction":"credit","amount":60},
		{"account_id":"C","direction":"credit","amount":40},{"account_id":"B","direction":"debit","amount":10},{"account_id":"A","direction":"credit","amount":10}]}`, "t1").expect(201)
	var order []string
	for _, e := range r.get("entries").([]any) {
		entry := e.(map[string]any)
		order = append(order, fmt.Sprint(entry["account_id"], entry["seq"], entry["kind"]))
	}
	if got := strings.Join(order, " "); got != "A3debit B2credit C2credit B3debit A4credit" {
		t.Errorf("the entries come as %s", got)
	}
	// The last leg is refused: nothing changed but the record of it.
	s.transact(`{"legs":[{"account_id":"C","direction":"credit","amount":20},{"account_id":"A","direction":"debit","amount":5},
		{"account_id":"A","direction":"debit","amount":15}]}`, "t2").refused(422, ledger.CodeInsufficientFunds).has("refused_by", "A", "seq", 3)
	for id, want := range map[string]int{"A": 10, "B": 50, "C": 40} {
		s.balanceIs(id, want)
	}
	s.seqIs("A", 4)
}

// TestTransactionSizes are the limits of 2 and 1,000 legs.
func TestTransactionSizes(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	s.open("B")
	s.credit("A", `{"amount":1000}`, "in").expect(201)
	legs := func(n int) string {
		var b strings.Builder
		fmt.Fprintf(&b, `{"legs":[{"account_id":"A","direction":"debit","amount":%d}`, n-1)
		for range n - 1 {
			b.WriteString(`,{"account_id":"B","direction":"credit","amount":1}`)
		}
		return b.String() + "]}"
	}
	s.transact(legs(1000), "max").expect(201)
	s.transact(legs(1001), "over").refused(400, ledger.CodeInvalid)
	s.transact(`{"legs":[{"account_id":"A","direction":"debit","amount":1}]}`, "one").refused(400, ledger.CodeInvalid)
	s.balanceIs("B", 999)
	s.seqIs("B", 1000)
}

func TestMalformedLegsAreRefusedWithTheirPlace(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	s.open("B")
	const leg = `{"account_id":"A","direction":"debit","amount":1}`
	for _, tt := range []struct{ path, body, pointer string }{
		{"/v1/transfers", `{}`, "/from"},
		{"/v1/transfers", `{"from":"A","to":"B"}`, "/amount"},
		{"/v1/transfers", `{"from":"A","amount":1}`, "/to"},
		{"/v1/transfers", `{"from":"A/","to":"B","amount":1}`, "/from"},
		{"/v1/transfers", `{"from":"A","to":7,"amount":1}`, "/to"},
		{"/v1/transfers", `{"from":"A","to":"B","amount":0}`, "/amount"},
		{"/v1/transfers", `{"from":"A","to":"B","amount":1.0}`, "/amount"},
		{"/v1/transfers", `{"from":"A","to":"B","amount":1,"counterparty":"x"}`, "/counterparty"},
		{"/v1/transfers", `{"from":"A","to":"B","amount":1,"legs":[]}`, "/legs"},
		{"/v1/transfers", `{"from":"A","to":"B","amount":1,"idempotency_key":"x"}`, "/idempotency_key"},
		{"/v1/transfers", `{"from":"A","from":"B","to":"B","amount":1}`, "/from"},
		{"/v1/transfers", `{"from":"A","to":"B","amount":1,"to_fencing_token":0}`, "/to_fencing_token"},
		{"/v1/transactions", `{}`, "/legs"},
		{"/v1/transactions", `{"legs":{}}`, "/legs"},
		{"/v1/transactions", `{"legs":[]}`, "/legs"},
		{"/v1/transactions", `{"legs":[` + leg + `,1]}`, "/legs/1"},
		{"/v1/transactions", `{"legs":[` + leg + `,{"account_id":"B","direction":"in","amount":1}]}`, "/legs/1/direction"},
		{"/v1/transactions", `{"legs":[` + leg + `,{"account_id":"B","direction":"credit"}]}`, "/legs/1/amount"},
		{"/v1/transactions", `{"legs":[` + leg + `,{"account_id":"B","direction":"credit","amount":2}]}`, "/legs"},
		{"/v1/transactions", `{"legs":[` + leg + `,{"account_id":"B","direction":"credit","amount":1,"x":1}]}`, "/legs/1/x"},
		{"/v1/transactions", `{"amount":1,"legs":[` + leg + `,{"account_id":"B","direction":"credit","amount":1}]}`, "/amount"},
	} {
		r := s.do("POST", tt.path, tt.body, headerKey, "k").refused(400, ledger.CodeInvalid).has("applied", false)
		errs, _ := r.get("errors").([]any)
		if len(errs) == 0 || errs[0].(map[string]any)["pointer"] != tt.pointer {
			t.Errorf("%s: the place is not %s: %s", tt.body, tt.pointer, r.text)
		}
	}
	for _, body := range []string{`{"legs":[`, `{"legs":[` + leg, `{"legs":[` + leg + `,`, `{"legs":[}`} {
		s.transact(body, "k").refused(400, ledger.CodeInvalid)
	}
	good := `{"from":"A","to":"B","amount":1}`
	s.transfer(good, "k", headerIfMatch, `"1"`).refused(400, ledger.CodeInvalid)
	s.do("POST", "/v1/transfers", good).refused(400, codeKeyMissing)
	s.do("POST", "/v1/transfers", good, "X-Idempotency", "k").refused(400, codeKeyMissing)
	s.do("POST", "/v1/transfers", good, headerKey, "a b").refused(400, codeKeyInvalid)
	s.do("POST", "/v1/transfers?x=1", good, headerKey, "k").refused(400, ledger.CodeInvalid)
	s.seqIs("A", 1)
}

func TestTokensOfLegs(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, id := range []string{"A", "B"} {
		s.do("PUT", "/v1/accounts/"+id, `{"currency":"EUR","fencing":{"source":"external","required":true}}`).expect(201)
	}
	s.credit("A", `{"amount":100}`, "in", headerToken, "5").expect(201)
	s.credit("B", `{"amount":100}`, "in", headerToken, "8").expect(201)
	const both = `{"from":"A","to":"B","amount":1,"to_fencing_token":8}`
	s.transfer(`{"from":"A","to":"B","amount":1}`, "k", headerToken, "5").refused(428, ledger.CodeTokenRequired)
	s.transfer(both, "k").refused(428, ledger.CodeTokenRequired)
	s.transfer(both, "k", headerToken, "4").refused(409, ledger.CodeStaleToken).has("presented_token", 4, "current_token", 5)
	s.transfer(`{"from":"A","to":"B","amount":1,"to_fencing_token":7}`, "k", headerToken, "5").refused(409, ledger.CodeStaleToken).has("presented_token", 7, "current_token", 8)
	s.transfer(both, "k", headerToken, "5").expect(201)
	s.transfer(both, "k", headerToken, "1").expect(201).headerIs("Idempotency-Replayed", "true") // the key comes first

	// The header speaks for every leg of the first account.
	const legs = `{"legs":[{"account_id":"A","direction":"debit","amount":2%s},{"account_id":"B","direction":"credit","amount":1,"fencing_token":9},{"account_id":"A","direction":"credit","amount":1}]}`
	s.transact(fmt.Sprintf(legs, ""), "t", headerToken, "6").expect(201)
	s.transact(fmt.Sprintf(legs, `,"fencing_token":7`), "t2", headerToken, "6").refused(400, ledger.CodeInvalid)
	s.do("GET", "/v1/accounts/A", "").expect(200).has("fence", 6)
	s.do("GET", "/v1/accounts/B", "").expect(200).has("fence", 9)
}

// TestConcurrentTransfers are cases 12, 13 and 15: exactly as many transfers are
// accepted as there is money for, opposite ones never fail, and no one is ever
// told of what PostgreSQL throws meanwhile.
func TestConcurrentTransfers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, id := range []string{"A", "B", "C", "D"} {
		s.open(id)
	}
	s.credit("A", `{"amount":100}`, "in").expect(201)
	s.credit("C", `{"amount":1000}`, "in").expect(201)
	s.credit("D", `{"amount":1000}`, "in").expect(201)
	var accepted, declines atomic.Int64
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			switch r := s.transfer(`{"from":"A","to":"B","amount":3}`, fmt.Sprint("k", i)); r.status {
			case 201:
				accepted.Add(1)
			case 422:
				declines.Add(1)
			default:
				t.Errorf("%d: %s", r.status, r.text)
			}
		})
	}
	for i := range 200 {
		body := `{"from":"C","to":"D","amount":1}`
		if i%2 == 1 {
			body = `{"from":"D","to":"C","amount":1}`
		}
		wg.Go(func() {
			if r := s.transfer(body, fmt.Sprint("k", i)); r.status != 201 {
				t.Errorf("%d: %s", r.status, r.text)
			}
		})
	}
	wg.Wait()
	if accepted.Load() != 33 || declines.Load() != 17 {
		t.Errorf("%d accepted and %d declined of 50 transfers of 3 on 100", accepted.Load(), declines.Load())
	}
	s.balanceIs("A", 1)
	s.balanceIs("B", 99)
	s.balanceIs("C", 1000)
	s.balanceIs("D", 1000)
}
