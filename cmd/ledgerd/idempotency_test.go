package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestManyRequestsWithOneKeyAreOneEntry(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	answers := make([]answer, 50)
	parallel(t, len(answers), func(i int) (err error) {
		answers[i], err = n.post("credits", "a", 1, "k")
		return err
	})
	fresh := 0
	for _, a := range answers {
		if a.status != http.StatusCreated || !bytes.Equal(a.body, answers[0].body) {
			t.Errorf("an answer is %s, another one %s", a, answers[0])
		}
		if !a.replayed() {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("%d answers are not replays, only the first may be", fresh)
	}
	if b := n.balance("a"); b.Balance != 1 || b.Seq != 2 {
		t.Errorf("the balance is %d at seq %d, want 1 at 2", b.Balance, b.Seq)
	}
}

func TestKeyIsScopedToTheAccount(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	n.open("b")
	first, second := n.credit("a", 5, "k"), n.credit("b", 5, "k")
	if first.TransactionID == second.TransactionID {
		t.Error("one key on two accounts gave one transaction")
	}
	a, err := n.post("debits", "a", 5, "k")
	if err != nil || a.status != http.StatusUnprocessableEntity || a.read().Code != "idempotency_key_reused" {
		t.Errorf("the key of a credit used for a debit: %s %v", a, err)
	}
}

func TestKeyWithAnotherOperationIsRefusedAndWritesNothing(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	n.credit("a", 1, "k")
	for _, body := range []string{
		`{"amount":2}`,
		`{"amount":1,"description":"other"}`,
		`{"amount":1,"currency":"EUR"}`,
		`{"amount":1,"counterparty":"shop"}`,
		`{"amount":1,"effective_at":"2026-01-01T00:00:00Z"}`,
		`{"amount":1,"metadata":{"a":"b"}}`,
	} {
		r := n.want(http.StatusUnprocessableEntity, "POST", "/v1/accounts/a/credits", body, "Idempotency-Key", "k")
		if r.Code != "idempotency_key_reused" || r.Applied != false {
			t.Errorf("%s: code %s, applied %v", body, r.Code, r.Applied)
		}
	}
	if b := n.balance("a"); b.Seq != 2 || b.Balance != 1 {
		t.Errorf("the account is at seq %d with %d, want 2 with 1", b.Seq, b.Balance)
	}
}

func TestSpellingDoesNotMakeAnotherOperation(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	send := func(key, body string) answer {
		return n.do("POST", "/v1/accounts/a/credits", body, "Idempotency-Key", key)
	}
	first := send("k", `{"amount":7,"metadata":{"a":"1","b":"2"},"effective_at":"2026-01-02T12:00:00+04:00"}`)
	for _, spelling := range []struct{ key, body string }{
		{"k", `{"effective_at":"2026-01-02T08:00:00Z","metadata":{"b":"2","a":"1"},"amount":7}`},
		{`"k"`, `{ "amount" : 7, "metadata":{"a":"1","\u0062":"2"}, "effective_at":"2026-01-02T08:00:00.000000Z" }`},
	} {
		again := send(spelling.key, spelling.body)
		if again.status != http.StatusCreated || !again.replayed() || !bytes.Equal(again.body, first.body) {
			t.Errorf("key %s, body %s: %s, want a replay of %s", spelling.key, spelling.body, again, first)
		}
	}
}

func TestRetryAfterACrashIsAReplay(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serveProcess(t, b)
	n.open("a")
	first, err := n.post("credits", "a", 100, "k1")
	if err != nil {
		t.Fatal(err)
	}
	declined, err := n.post("debits", "a", 101, "k2")
	if err != nil {
		t.Fatal(err)
	}
	n.kill()
	again := serveProcess(t, b)
	checkReplays := func(when string) {
		t.Helper()
		for key, want := range map[string]answer{"k1": first, "k2": declined} {
			kind, amount := "credits", int64(100)
			if key == "k2" {
				kind, amount = "debits", 101
			}
			got, err := again.post(kind, "a", amount, key)
			if err != nil || got.status != want.status || !got.replayed() || !sameAnswer(got, want) {
				t.Errorf("%s: %s %v, want a replay of %s", when, got, err, want)
			}
		}
	}
	checkReplays("after kill -9")
	var out bytes.Buffer
	if code := run(t.Context(), []string{"replay", "--database-url=" + b.url}, &out, &out); code != exitOK {
		t.Fatalf("replay ended with %d: %s", code, &out)
	}
	checkReplays("after a replay of the projection")
}

// sameAnswer compares two answers without the id of the request, which belongs
// to a problem document.
func sameAnswer(a, b answer) bool {
	var x, y map[string]any
	if json.Unmarshal(a.body, &x) != nil || json.Unmarshal(b.body, &y) != nil {
		return false
	}
	delete(x, "request_id")
	delete(y, "request_id")
	return fmt.Sprint(x) == fmt.Sprint(y)
}

func TestRefusedBodyDoesNotUseUpTheKey(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	for _, body := range []string{`{"amount":0}`, `{"amount":"5"}`, `{"amount":5,"unknown":1}`, `{"amount":5`, `[]`} {
		n.want(http.StatusBadRequest, "POST", "/v1/accounts/a/credits", body, "Idempotency-Key", "k")
	}
	n.want(http.StatusNotFound, "POST", "/v1/accounts/nobody/credits", `{"amount":5}`, "Idempotency-Key", "k")
	n.want(http.StatusPreconditionFailed, "POST", "/v1/accounts/a/credits", `{"amount":5}`, "Idempotency-Key", "k", "If-Match", `"7"`)
	if r := n.credit("a", 5, "k"); r.Seq != 2 {
		t.Errorf("the corrected body became entry %d, want 2", r.Seq)
	}
}

func TestEqualBodiesWithDifferentKeysAreTwoOperations(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	n.credit("a", 5, "k1")
	if r := n.credit("a", 5, "k2"); r.Balance != 10 || r.Seq != 3 {
		t.Errorf("the balance is %d at seq %d, want 10 at 3", r.Balance, r.Seq)
	}
}

func TestMissingKeyIsRefused(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	for _, headers := range [][]string{nil, {"X-Idempotency", "k"}, {"Idempotency_Key", "k"}} {
		r := n.want(http.StatusBadRequest, "POST", "/v1/accounts/a/credits", `{"amount":5}`, headers...)
		if r.Code != "idempotency_key_missing" {
			t.Errorf("headers %q: code %s", headers, r.Code)
		}
	}
	for _, key := range []string{strings.Repeat("k", 256), "two words", `"unfinished`, "é"} {
		r := n.want(http.StatusBadRequest, "POST", "/v1/accounts/a/credits", `{"amount":5}`, "Idempotency-Key", key)
		if r.Code != "idempotency_key_invalid" {
			t.Errorf("key %.20q: code %s", key, r.Code)
		}
	}
	if b := n.balance("a"); b.Seq != 1 {
		t.Errorf("something was written: seq %d", b.Seq)
	}
}

func TestTwoBodiesRaceForOneKey(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	answers := make([]answer, 50)
	parallel(t, len(answers), func(i int) (err error) {
		answers[i], err = n.post("credits", "a", int64(1+i%2), "k")
		return err
	})
	balance := n.balance("a")
	if balance.Seq != 2 {
		t.Fatalf("the account is at seq %d, want 2", balance.Seq)
	}
	accepted := 0
	for i, a := range answers {
		r := a.read()
		switch mine := int64(1+i%2) == balance.Balance; {
		case mine && a.status == http.StatusCreated && r.Amount == balance.Balance:
			accepted++
		case mine || a.status != http.StatusUnprocessableEntity || r.Code != "idempotency_key_reused":
			t.Errorf("body %d of a race won by %d: %s", 1+i%2, balance.Balance, a)
		}
	}
	if accepted != 25 {
		t.Errorf("%d requests got the receipt, want 25", accepted)
	}
}

// The answer of the commit is lost on the way back: with effect, the INSERT was
// carried out; without, it never arrived. In both the client gets one receipt.
func TestLostAnswerOfTheCommitIsOneEntry(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name            string
		applied, silent bool
	}{
		{"connection cut after the commit", true, false},
		{"connection cut before the commit", false, false},
		{"answer swallowed after the commit", true, true},
		{"statement swallowed before the commit", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBooks(t)
			p := newProxy(t, b.url)
			n := serve(t, b, "--database-url="+p.url, "--write-deadline=9s")
			n.open("a")
			n.credit("a", 10, "before")
			body := `{"amount":5,"description":"marker-of-this-test"}`
			done := p.cutOnce("marker-of-this-test", c.applied, c.silent)
			first := n.do("POST", "/v1/accounts/a/credits", body, "Idempotency-Key", "k")
			select {
			case <-done:
			default:
				t.Fatal("the proxy did not see the statement")
			}
			if first.status != http.StatusCreated {
				t.Fatalf("the answer is %s", first)
			}
			again := n.do("POST", "/v1/accounts/a/credits", body, "Idempotency-Key", "k")
			if again.status != http.StatusCreated || !again.replayed() || !bytes.Equal(again.body, first.body) {
				t.Errorf("the retry is %s, want a replay of %s", again, first)
			}
			if got := n.balance("a"); got.Seq != 3 || got.Balance != 15 {
				t.Errorf("the account is at seq %d with %d, want 3 with 15", got.Seq, got.Balance)
			}
			if n.metric("ledgerd_append_unknown_total") == 0 {
				t.Error("no unknown outcome was counted")
			}
		})
	}
}

func TestDeclineStaysUnderItsKey(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	first, err := n.post("debits", "a", 50, "k")
	if err != nil || first.status != http.StatusUnprocessableEntity || first.read().Code != "insufficient_funds" {
		t.Fatalf("a debit without funds: %s %v", first, err)
	}
	n.credit("a", 100, "top-up")
	again, err := n.post("debits", "a", 50, "k")
	if err != nil || again.status != first.status || !again.replayed() || !sameAnswer(again, first) {
		t.Errorf("after the top-up: %s %v, want a replay of %s", again, err, first)
	}
	accepted, err := n.post("debits", "a", 50, "k2")
	if err != nil || accepted.status != http.StatusCreated || accepted.read().Balance != 50 {
		t.Errorf("with a new key: %s %v", accepted, err)
	}
}

func TestCallersThatGoAwayHoldNothingUp(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serve(t, b)
	n.open("a")
	var left sync.WaitGroup
	for i := range 100 {
		left.Go(func() {
			// Between at once and after the answer, so that callers leave at every stage.
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*50*time.Microsecond)
			defer cancel()
			_, _ = n.tryContext(ctx, "POST", "/v1/accounts/a/credits", `{"amount":1}`, "Idempotency-Key", fmt.Sprint("k", i))
		})
	}
	left.Wait()
	begun := time.Now()
	n.credit("a", 1000, "after")
	if took := time.Since(begun); took > time.Second {
		t.Errorf("the next write took %s", took)
	}
	parallel(t, 100, func(i int) error {
		a, err := n.post("credits", "a", 1, fmt.Sprint("k", i))
		if err == nil && a.status != http.StatusCreated {
			err = fmt.Errorf("the repetition of k%d is %s", i, a)
		}
		return err
	})
	b.settled("a")
	if got := n.balance("a"); got.Balance != 1100 || got.Seq != 102 {
		t.Errorf("the account is at seq %d with %d, want 102 with 1100", got.Seq, got.Balance)
	}
}
