package client_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

// lineService answers each line of a stream with what answer makes of its number,
// counted over all connections, and its key. "cut" cuts the connection.
func lineService(t *testing.T, answer func(n int, key string) string) *service {
	t.Helper()
	var lines atomic.Int64
	s := &service{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := control.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		w.WriteHeader(200)
		_ = control.Flush()
		in := bufio.NewScanner(r.Body)
		for in.Scan() {
			var item struct {
				Key string `json:"idempotency_key"`
			}
			if json.Unmarshal(in.Bytes(), &item) != nil {
				return // the connection was cut in the middle of the line
			}
			text := answer(int(lines.Add(1)), item.Key)
			if text == "cut" {
				panic(http.ErrAbortHandler)
			}
			fmt.Fprintln(w, text)
			_ = control.Flush()
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func done(key string) string {
	return fmt.Sprintf(`{"status":201,"idempotency_key":%q,"body":{"account_id":"a","seq":2,"kind":"credit","balance":5}}`, key)
}

func refusedWith(key string, status int, code string) string {
	return fmt.Sprintf(`{"status":%d,"idempotency_key":%q,"body":{"status":%d,"code":%q,"title":"","applied":false}}`, status, key, status, code)
}

func items(n int) <-chan client.Item {
	c := make(chan client.Item, n)
	for i := range n {
		c <- client.CreditItem(fmt.Sprint("k", i), "a", client.Operation{Amount: 5})
	}
	close(c)
	return c
}

// TestStreamRepeatsWhatIsUndecided gives a line 503, cuts at another and refuses a
// third for good: the caller sees one result for each item, in order.
func TestStreamRepeatsWhatIsUndecided(t *testing.T) {
	s := lineService(t, func(n int, key string) string {
		switch {
		case n == 3:
			return refusedWith(key, 503, "unavailable")
		case n == 9:
			return "cut"
		case key == "k5":
			return refusedWith(key, 404, "account_not_found")
		}
		return done(key)
	})
	got := 0
	for r, err := range s.client(t).Stream(t.Context(), items(20)) {
		var p *client.Problem
		wrong := errors.As(r.Err, &p) != (got == 5)
		if err != nil || wrong || r.Key != fmt.Sprint("k", got) || r.Err == nil && r.Entry().Balance != 5 {
			t.Fatalf("result %d: %+v, %v", got, r, err)
		}
		got++
	}
	if got != 20 {
		t.Errorf("%d results", got)
	}
}

func TestStreamSaysWhatIsUndecided(t *testing.T) {
	s := lineService(t, func(n int, key string) string {
		if n > 4 {
			return "cut"
		}
		return done(key)
	})
	got := 0
	var end error
	for r, err := range s.client(t, client.WithRetryFor(200*time.Millisecond)).Stream(t.Context(), items(20)) {
		if end = err; err == nil {
			got++
		} else if r.Key != "" {
			t.Errorf("an error with the result %+v", r)
		}
	}
	var unknown *client.UnknownOutcome
	if got != 4 || !errors.As(end, &unknown) || unknown.Key != "k4" {
		t.Errorf("%d results, then %v", got, end)
	}
}

// TestStreamThatIsRefused never had a stream: the answer is a problem document.
func TestStreamThatIsRefused(t *testing.T) {
	s := newService(t, answer(400, `{"status":400,"code":"invalid_request","title":"","applied":false}`))
	for r, err := range s.client(t).Stream(t.Context(), items(3)) {
		var p *client.Problem
		if !errors.As(err, &p) || p.Code != client.CodeInvalidRequest {
			t.Errorf("result %+v, %v", r, err)
		}
	}
}

func TestStreamEndsWithItsCaller(t *testing.T) {
	s := lineService(t, func(_ int, key string) string { return done(key) })
	c := s.client(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open := make(chan client.Item, 1)
	open <- client.CreditItem("k0", "a", client.Operation{Amount: 5})
	seen := 0
	for r, err := range c.Stream(ctx, open) {
		if seen++; seen == 1 {
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			continue
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("result %+v, %v", r, err)
		}
	}
	if seen != 2 {
		t.Errorf("%d results", seen)
	}
	for range c.Stream(t.Context(), items(500)) {
		break // and nothing waits for ever
	}
	bad := make(chan client.Item, 2)
	bad <- client.CreditItem("k0", "a", client.Operation{Amount: 5})
	bad <- client.Item{Type: client.KindCredit}
	seen = 0
	for _, err := range c.Stream(t.Context(), bad) {
		if seen++; (err != nil) != (seen == 2) {
			t.Errorf("result %d: %v", seen, err)
		}
	}
	none := make(chan client.Item)
	close(none)
	for r, err := range c.Stream(t.Context(), none) {
		t.Errorf("no items have the result %+v, %v", r, err)
	}
}

func TestBatchResultsAreTyped(t *testing.T) {
	s := newService(t, answer(200, `{"results":[`+done("k0")+`,`+refusedWith("k1", 422, "insufficient_funds")+
		`,{"status":201,"idempotency_key":"k2","replayed":true,"body":{"transaction_id":"t","entries":[{"account_id":"a","seq":3},{"account_id":"b","seq":4}]}}]}`))
	c := s.client(t)
	results, err := c.Batch(t.Context(), []client.Item{
		client.CreditItem("k0", "a", client.Operation{Amount: 5}),
		client.DebitItem("k1", "a", client.Operation{Amount: 50}),
		client.TransferItem("k2", client.Transfer{From: "a", To: "b", Amount: 1}),
	})
	if err != nil || len(results) != 3 {
		t.Fatalf("results %+v, %v", results, err)
	}
	if p := (*client.Problem)(nil); results[0].Entry().Seq != 2 || !errors.As(results[1].Err, &p) || p.Code != client.CodeInsufficientFunds ||
		len(results[2].Entries) != 2 || !results[2].Replayed || results[2].Entries[1].AccountID != "b" {
		t.Errorf("results %+v", results)
	}
	want := `{"items":[{"type":"credit","idempotency_key":"k0","account_id":"a","amount":5},` +
		`{"type":"debit","idempotency_key":"k1","account_id":"a","amount":50},` +
		`{"type":"transfer","idempotency_key":"k2","from":"a","to":"b","amount":1}]}`
	if got := s.requests()[0]; got.body != want || got.method != "POST" || got.uri != "/v1/batches" {
		t.Errorf("request %+v", got)
	}
	if _, err := c.Batch(t.Context(), []client.Item{{Type: client.KindCredit}}); err == nil {
		t.Error("an item without a key was sent")
	}
	if _, err := c.Batch(t.Context(), []client.Item{client.CreditItem("k", "a", client.Operation{Amount: 1})}); err == nil {
		t.Error("an answer with another number of results was taken")
	}
}

func TestTransfersAndTransactions(t *testing.T) {
	s := newService(t, answer(201, `{"transaction_id":"t","entries":[{"account_id":"a","seq":3,"kind":"debit"},{"account_id":"b","seq":4}]}`, "Idempotency-Replayed", "true"),
		answer(422, `{"status":422,"code":"account_closed","title":"","applied":false,"seq":7,"refused_by":"b"}`))
	c := s.client(t)
	r, err := c.Transfer(t.Context(), client.Transfer{From: "a", To: "b", Amount: 1, ToFencingToken: 4}, client.Key("k"), client.FencingToken(3))
	if err != nil || !r.Replayed || r.ID != "t" || len(r.Entries) != 2 || r.Entries[0].Kind != client.KindDebit {
		t.Errorf("receipt %+v, %v", r, err)
	}
	_, err = c.Transact(t.Context(), client.NewTransaction{Legs: []client.Leg{
		{AccountID: "a", Direction: client.KindDebit, Amount: 1}, {AccountID: "b", Direction: client.KindCredit, Amount: 1, FencingToken: 2}}})
	var p *client.Problem
	if !errors.As(err, &p) || p.RefusedBy != "b" || !p.Recorded() {
		t.Errorf("error %v", err)
	}
	seen := s.requests()
	if got := seen[0]; got.uri != "/v1/transfers" || got.body != `{"from":"a","to":"b","amount":1,"to_fencing_token":4}` ||
		got.header.Get("Idempotency-Key") != "k" || got.header.Get("Fencing-Token") != "3" {
		t.Errorf("request %+v", got)
	}
	if got := seen[1]; got.uri != "/v1/transactions" || len(got.header.Get("Idempotency-Key")) != 36 ||
		got.body != `{"legs":[{"account_id":"a","direction":"debit","amount":1},{"account_id":"b","direction":"credit","amount":1,"fencing_token":2}]}` {
		t.Errorf("request %+v", got)
	}
}
