package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// tally counts answers by status and code, from many goroutines.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) add(a answer) {
	name := fmt.Sprint(a.status)
	if code := a.read().Code; code != "" {
		name += " " + code
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = make(map[string]int)
	}
	c.counts[name]++
}

func (c *tally) want(t testing.TB, want map[string]int) {
	t.Helper()
	if fmt.Sprint(c.counts) != fmt.Sprint(want) { // maps print in the order of their keys
		t.Errorf("the answers are %v, want %v", c.counts, want)
	}
}

func TestDebitsAtOnceNeverOverdraw(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	for _, c := range []struct {
		name                   string
		funds, amount          int64
		debits, accepted, left int
	}{
		{"enough for all", 100, 1, 100, 100, 0},
		{"enough for half", 50, 1, 100, 50, 0},
		{"a rest that is too small", 100, 3, 50, 33, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			account := fmt.Sprintf("a-%d-%d", c.funds, c.amount)
			n.open(account)
			n.credit(account, c.funds, "funds")
			reading, stopReading := context.WithCancel(t.Context())
			var reader sync.WaitGroup
			reader.Go(func() {
				for reading.Err() == nil {
					a, err := n.try("GET", "/v1/accounts/"+account+"/balance", "")
					if err != nil || a.status != http.StatusOK || a.read().Balance < 0 {
						t.Errorf("a read while debits run: %s %v", a, err)
						return
					}
				}
			})
			var answers tally
			parallel(t, c.debits, func(i int) error {
				a, err := n.post("debits", account, c.amount, fmt.Sprint("d", i))
				answers.add(a)
				return err
			})
			stopReading()
			reader.Wait()
			want := map[string]int{"201": c.accepted}
			if declined := c.debits - c.accepted; declined > 0 {
				want["422 insufficient_funds"] = declined
			}
			answers.want(t, want)
			if b := n.balance(account); b.Balance != int64(c.left) || b.Seq != int64(2+c.debits) {
				t.Errorf("the account is at seq %d with %d, want %d with %d", b.Seq, b.Balance, 2+c.debits, c.left)
			}
		})
	}
}

// With ample funds nobody is ever told insufficient_funds, also while somebody
// ends the sessions of the writer again and again.
func TestBrokenSessionsDeclineNobody(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serve(t, b)
	n.open("a")
	n.credit("a", 1_000_000, "funds")
	ctx, stop := context.WithCancel(t.Context())
	var breaker sync.WaitGroup
	broken := 0
	end := func() {
		stop()
		breaker.Wait()
	}
	defer end()
	breaker.Go(func() {
		conn, err := pgx.Connect(context.Background(), b.url)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(context.Background())
		for ctx.Err() == nil {
			tag, err := conn.Exec(context.Background(), `
				select pg_terminate_backend(pid)
				  from pg_stat_activity
				 where datname = current_database()
				   and application_name = 'ledgerd writer'`)
			if err != nil {
				t.Error(err)
				return
			}
			broken += int(tag.RowsAffected())
			time.Sleep(100 * time.Millisecond) // the rate at which sessions break
		}
	})
	parallel(t, 20, func(worker int) error {
		for i := range 15 {
			if err := n.insist("debits", "a", 1, fmt.Sprintf("d-%d-%d", worker, i)); err != nil {
				return err
			}
		}
		return nil
	})
	end()
	b.settled("a")
	if broken == 0 {
		t.Error("no session was broken")
	}
	if got := n.balance("a"); got.Balance != 1_000_000-300 {
		t.Errorf("the balance is %d, want %d", got.Balance, 1_000_000-300)
	}
}

// insist repeats an operation, as a client does, until it has its receipt. Any
// answer but 201 and 503 is an error.
func (n *node) insist(kind, account string, amount int64, key string) error {
	deadline := time.Now().Add(patience)
	for {
		a, err := n.post(kind, account, amount, key)
		switch {
		case err == nil && a.status == http.StatusCreated:
			return nil
		case err == nil && a.status != http.StatusServiceUnavailable:
			return fmt.Errorf("%s of %d with key %s: %s", kind, amount, key, a)
		case time.Now().After(deadline):
			return fmt.Errorf("%s of %d with key %s: no receipt in %s, the last answer is %s %v", kind, amount, key, patience, a, err)
		}
		time.Sleep(20 * time.Millisecond) // as a client waits before it repeats
	}
}

func TestSteadyRateOnOneAccount(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	const rate, seconds = 200, 3
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	var answers tally
	var group sync.WaitGroup
	for i := range rate * seconds {
		<-tick.C
		group.Go(func() {
			a, err := n.post("credits", "a", 1, fmt.Sprint("c", i))
			if err != nil {
				t.Error(err)
			}
			answers.add(a)
		})
	}
	group.Wait()
	answers.want(t, map[string]int{"201": rate * seconds})
}

// Two processes write one account as fast as they can: no errors, nobody waits
// for long, and both make progress all the time.
func TestTwoProcessesOnOneAccount(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	nodes := []*node{serveProcess(t, b), serveProcess(t, b)}
	nodes[0].open("hot")
	const workers, each = 4, 60
	var mu sync.Mutex
	var slowest time.Duration
	seqs := make([][]int64, 2)
	parallel(t, 2*workers, func(w int) error {
		n := nodes[w%2]
		for i := range each {
			begun := time.Now()
			a, err := n.post("credits", "hot", 1, fmt.Sprintf("c-%d-%d", w, i))
			if err != nil || a.status != http.StatusCreated {
				return fmt.Errorf("worker %d: %s %w", w, a, err)
			}
			mu.Lock()
			slowest = max(slowest, time.Since(begun))
			seqs[w%2] = append(seqs[w%2], a.read().Seq)
			mu.Unlock()
		}
		return nil
	})
	if slowest > 5*time.Second {
		t.Errorf("a request took %s", slowest)
	}
	first, second := span(seqs[0]), span(seqs[1])
	if first.high < second.low || second.high < first.low {
		t.Errorf("one process was served entirely before the other: seqs %v and %v", first, second)
	}
	if got := nodes[1].balance("hot"); got.Balance != 2*workers*each {
		t.Errorf("the balance is %d, want %d", got.Balance, 2*workers*each)
	}
	if nodes[0].metric("ledgerd_append_conflicts_total")+nodes[1].metric("ledgerd_append_conflicts_total") == 0 {
		t.Error("the processes never met")
	}
}

type bounds struct{ low, high int64 }

func span(seqs []int64) bounds {
	b := bounds{seqs[0], seqs[0]}
	for _, s := range seqs {
		b.low, b.high = min(b.low, s), max(b.high, s)
	}
	return b
}

func TestOpeningAtOnceIsOneAccount(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	var answers tally
	parallel(t, 10, func(int) error {
		a, err := n.try("PUT", "/v1/accounts/a", `{"currency":"EUR"}`)
		answers.add(a)
		return err
	})
	answers.want(t, map[string]int{"200": 9, "201": 1})
	if r := n.credit("a", 5, "k"); r.Seq != 2 {
		t.Errorf("the first credit is entry %d, want 2", r.Seq)
	}
}

// What one process wrote, another one sees and spends at once, although it
// remembers an older state of the account.
func TestSpendThroughAnotherProcess(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	one, two := serve(t, b), serve(t, b)
	one.open("a")
	for i := range 30 {
		one.credit("a", 10, fmt.Sprint("c", i))
		if got := two.balance("a"); got.Balance != 10 {
			t.Fatalf("round %d: the other process reads %d, want 10", i, got.Balance)
		}
		a, err := two.post("debits", "a", 10, fmt.Sprint("d", i))
		if err != nil || a.status != http.StatusCreated {
			t.Fatalf("round %d: %s %v", i, a, err)
		}
		one, two = two, one
	}
}

func TestPoolOfTwoConnectionsOnlyWaits(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t), "--database-pool=2")
	n.open("a")
	var answers tally
	parallel(t, 100, func(i int) (err error) {
		var a answer
		if i%2 == 0 {
			a, err = n.post("credits", "a", 1, fmt.Sprint("c", i))
		} else {
			a, err = n.try("GET", "/v1/accounts/a/entries", "")
		}
		answers.add(a)
		return err
	})
	answers.want(t, map[string]int{"200": 50, "201": 50})
}

func TestRefusalsAreCountedAndNoAlarm(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t), "--declines-burst=3", "--declines-per-second=0.001")
	n.open("a")
	n.credit("a", 1, "k")
	for _, c := range []struct {
		body, code string
		status     int
		headers    []string
	}{
		{`{"amount":2}`, "insufficient_funds", 422, []string{"Idempotency-Key", "d1"}},
		{`{"amount":1,"currency":"USD"}`, "currency_mismatch", 422, []string{"Idempotency-Key", "d2"}},
		{`{"amount":3}`, "insufficient_funds", 422, []string{"Idempotency-Key", "d3"}},
		{`{"amount":4}`, "too_many_declines", 429, []string{"Idempotency-Key", "d4"}},
		{`{"amount":1}`, "idempotency_key_missing", 400, nil},
		{`{"amount":1}`, "idempotency_key_reused", 422, []string{"Idempotency-Key", "k"}},
		{`{"amount":1}`, "seq_mismatch", 412, []string{"Idempotency-Key", "d5", "If-Match", `"1"`}},
		{`{"amount":1}`, "token_from_the_future", 409, []string{"Idempotency-Key", "d6", "Fencing-Token", "7"}},
	} {
		r := n.want(c.status, "POST", "/v1/accounts/a/debits", c.body, c.headers...)
		if r.Code != c.code {
			t.Errorf("%s %q: code %s, want %s", c.body, c.headers, r.Code, c.code)
		}
		if n.metric("ledgerd_http_refusals_total", fmt.Sprintf("code=%q", c.code)) == 0 {
			t.Errorf("%s was not counted", c.code)
		}
	}
	if got := n.metric("ledgerd_declines_total", `reason="insufficient_funds"`); got != 2 {
		t.Errorf("%v declines for insufficient_funds were counted, want 2", got)
	}
	if loud := n.log.at("WARN", "ERROR"); len(loud) > 0 {
		t.Errorf("expected refusals were logged as trouble:\n%s", loud)
	}
}
