package importer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

// bank is a service on HTTP that keeps accounts in memory and loses requests and
// answers on demand. What the real service does with a file is tested end to end
// in cmd/ledgerd; this one is for faults at a chosen moment.
type bank struct {
	*httptest.Server
	mu       sync.Mutex
	accounts map[string]*bankAccount
	// before is called for each operation before it is applied, fault after it
	// was: when that is true the connection is cut instead of answered.
	before func(account, key string)
	fault  func() bool
	busy   map[string]bool
	worst  int // most accounts that were worked on at the same time
	broken string
}

type bankAccount struct {
	opening string
	balance int64
	seq     int64
	answers map[string]string
	keys    []string
}

func newBank(t testing.TB) *bank {
	b := &bank{accounts: map[string]*bankAccount{}, busy: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/accounts/{id}", b.open)
	mux.HandleFunc("POST /v1/batches", b.stream)
	b.Server = httptest.NewServer(mux)
	t.Cleanup(b.Close)
	return b
}

func (b *bank) client(t testing.TB, options ...client.Option) *client.Client {
	c, err := client.New(b.URL, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func problem(w http.ResponseWriter, status int, code string, seq int64) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	extra := ""
	if seq > 0 {
		extra = fmt.Sprintf(`,"seq":%d`, seq)
	}
	fmt.Fprintf(w, `{"status":%d,"code":%q,"title":%q,"applied":false%s}`, status, code, code, extra)
}

func (b *bank) open(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	id := r.PathValue("id")
	a := b.accounts[id]
	if a != nil && a.opening != string(body) {
		problem(w, 409, "account_exists", 0)
		return
	}
	if a == nil {
		b.accounts[id] = &bankAccount{opening: string(body), seq: 1, answers: map[string]string{}}
		w.WriteHeader(201)
	}
	fmt.Fprintf(w, `{"account_id":%q}`, id)
}

// operation is one line of a stream.
type operation struct {
	Type    string
	Key     string `json:"idempotency_key"`
	Account string `json:"account_id"`
	Amount  int64
}

// stream answers line by line. What was read and has no answer counts as worked
// on, also when the connection is cut.
func (b *bank) stream(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	if err := control.EnableFullDuplex(); err != nil {
		panic(err)
	}
	w.WriteHeader(200)
	_ = control.Flush()
	lines := make(chan operation, 1000)
	go func() {
		defer close(lines)
		in := json.NewDecoder(r.Body)
		for {
			var op operation
			if in.Decode(&op) != nil {
				return
			}
			b.begin(op.Account)
			lines <- op
		}
	}()
	defer func() {
		_ = control.SetReadDeadline(time.Unix(1, 0))
		for op := range lines {
			b.end(op.Account)
		}
	}()
	for op := range lines {
		if b.before != nil {
			b.before(op.Account, op.Key)
		}
		answer, cut := b.apply(op)
		b.end(op.Account)
		if cut {
			panic(http.ErrAbortHandler)
		}
		if _, err := io.WriteString(w, answer+"\n"); err != nil {
			return
		}
		_ = control.Flush()
	}
}

func (b *bank) begin(account string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy[account] {
		b.broken = "two operations of " + account + " at once"
	}
	b.busy[account] = true
	b.worst = max(b.worst, len(b.busy))
}

func (b *bank) end(account string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.busy, account)
}

// apply returns the result of one line, and whether the connection is to be cut
// instead of giving it.
func (b *bank) apply(op operation) (answer string, cut bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[op.Account]
	if a == nil {
		return `{"status":404,"body":{"status":404,"code":"account_not_found","title":"","applied":false}}`, false
	}
	replayed := ""
	if _, replay := a.answers[op.Key]; replay {
		replayed = `"replayed":true,`
	} else {
		a.seq++
		a.keys = append(a.keys, op.Key)
		delta := op.Amount
		if op.Type == "debit" {
			delta = -delta
		}
		if a.balance+delta < 0 {
			a.answers[op.Key] = fmt.Sprintf(`"status":422,"body":{"status":422,"code":"insufficient_funds","title":"","applied":false,"seq":%d}}`, a.seq)
		} else {
			a.balance += delta
			a.answers[op.Key] = fmt.Sprintf(`"status":201,"body":{"account_id":%q,"seq":%d,"balance":%d}}`, op.Account, a.seq, a.balance)
		}
	}
	return "{" + replayed + a.answers[op.Key], b.fault != nil && b.fault()
}

// history makes a file of rows over accounts, with right balances.
func history(rng *rand.Rand, rows, accounts int) (file string, order map[string][]string) {
	var b strings.Builder
	b.WriteString("account_id,idempotency_key,direction,amount,balance_after,effective_at\n")
	balance := map[string]int64{}
	order = map[string][]string{}
	for i := range rows {
		id, key := fmt.Sprintf("a-%d", rng.IntN(accounts)), fmt.Sprintf("k-%d", i)
		direction, delta := "credit", 1+rng.Int64N(1000)
		if delta <= balance[id] && rng.IntN(3) == 0 {
			direction, delta = "debit", -delta
		}
		balance[id] += delta
		order[id] = append(order[id], key)
		fmt.Fprintf(&b, "%s,%s,%s,%d,%d,2026-01-01\n", id, key, direction, max(delta, -delta), balance[id])
	}
	return b.String(), order
}

func (b *bank) checkOrder(t *testing.T, order map[string][]string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != "" {
		t.Error(b.broken)
	}
	for id, keys := range order {
		if got := b.accounts[id].keys; strings.Join(got, " ") != strings.Join(keys, " ") {
			t.Errorf("%s has %v, want %v", id, got, keys)
		}
	}
}

var inCZK = &client.Opening{Currency: "CZK"}

// TestOrderWithinAnAccount cuts one answer in five and looks at what arrived in
// which order.
func TestOrderWithinAnAccount(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	file, order := history(rng, 600, 12)
	b := newBank(t)
	b.fault = func() bool { return rng.IntN(5) == 0 } // under the lock of the bank
	var lines []string
	sum, err := Run(t.Context(), strings.NewReader(file), Config{
		Client: b.client(t), Concurrency: 8, Open: inCZK,
		Report: func(l string) { lines = append(lines, l) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if sum.Rows != 600 || sum.Posted+sum.Replayed != 600 || sum.Checked != 600 || sum.Opened != 12 || !sum.Clean() {
		t.Errorf("summary %+v, %v", sum, lines)
	}
	if b.worst < 2 {
		t.Error("accounts were not worked on at the same time")
	}
	b.checkOrder(t, order)
}

func TestRunAgainReplays(t *testing.T) {
	file, order := history(rand.New(rand.NewPCG(1, 2)), 200, 5)
	b := newBank(t)
	cfg := Config{Client: b.client(t), Concurrency: 4, Open: inCZK}
	first, err := Run(t.Context(), strings.NewReader(file), cfg)
	if err != nil || first.Posted != 200 {
		t.Fatalf("summary %+v, %v", first, err)
	}
	second, err := Run(t.Context(), strings.NewReader(file), cfg)
	if err != nil || second.Replayed != 200 || second.Checked != 200 || second.Opened != 0 || !second.Clean() {
		t.Errorf("summary %+v, %v", second, err)
	}
	b.checkOrder(t, order)
}

// TestInterruptedRunIsFinishedByTheNext ends the context in the middle of an
// operation: it still gets its answer, and nothing else is begun.
func TestInterruptedRunIsFinishedByTheNext(t *testing.T) {
	file, order := history(rand.New(rand.NewPCG(3, 4)), 200, 5)
	b := newBank(t)
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	b.before = func(string, string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if seen++; seen == 50 {
			cancel()
		}
	}
	cfg := Config{Client: b.client(t), Concurrency: 4, Open: inCZK}
	first, err := Run(ctx, strings.NewReader(file), cfg)
	if !errors.Is(err, ErrInterrupted) {
		t.Fatalf("error %v", err)
	}
	if first.Posted < 50 || first.Posted > 54 {
		t.Errorf("%d rows posted, want 50 and at most one more for each worker", first.Posted)
	}
	second, err := Run(t.Context(), strings.NewReader(file), cfg)
	if err != nil || second.Replayed != first.Posted || second.Posted != 200-first.Posted || !second.Clean() {
		t.Errorf("summaries %+v then %+v, %v", first, second, err)
	}
	b.checkOrder(t, order)
}

func TestMismatchIsReported(t *testing.T) {
	file := "account_id,idempotency_key,direction,amount,balance_after,effective_at\n" +
		"a,k1,credit,100,100,\na,k2,debit,500,-400,\na,k3,credit,1,-399,\na,k4,credit,1,,\n"
	b := newBank(t)
	var lines []string
	cfg := Config{Client: b.client(t), Concurrency: 4, Open: inCZK, Report: func(l string) { lines = append(lines, l) }}
	for _, again := range []bool{false, true} {
		lines = nil
		sum, err := Run(t.Context(), strings.NewReader(file), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if sum.Declined != 1 || sum.Mismatches != 1 || sum.Checked != 2 || sum.Clean() || sum.Done() != 4 {
			t.Errorf("again %t: summary %+v", again, sum)
		}
		want := "line 3: account a, key k2: declined: insufficient_funds\n" +
			"line 4: account a, key k3: the balance is 101 after entry 4, the file has -399"
		if got := strings.Join(lines, "\n"); got != want {
			t.Errorf("again %t: report\n%s\nwant\n%s", again, got, want)
		}
	}
}

// TestRefusedAccountIsLeftThere has one account that does not exist: its later
// rows must not overtake the refused one, other accounts go on.
func TestRefusedAccountIsLeftThere(t *testing.T) {
	b := newBank(t)
	if _, _, err := b.client(t).OpenAccount(t.Context(), "b", *inCZK); err != nil {
		t.Fatal(err)
	}
	file := "account_id,idempotency_key,direction,amount,effective_at\na,k1,credit,1,\nb,k1,credit,1,\na,k2,credit,1,\n"
	sum, err := Run(t.Context(), strings.NewReader(file), Config{Client: b.client(t), Concurrency: 1})
	if err != nil || sum.Refused != 1 || sum.Skipped != 1 || sum.Posted != 1 || sum.Clean() {
		t.Errorf("summary %+v, %v", sum, err)
	}
}

func TestServiceGoneStopsTheImport(t *testing.T) {
	file, _ := history(rand.New(rand.NewPCG(5, 6)), 200, 5)
	b := newBank(t)
	gone := 0
	b.fault = func() bool { gone++; return gone > 20 }
	sum, err := Run(t.Context(), strings.NewReader(file), Config{
		Client: b.client(t, client.WithRetryFor(100*time.Millisecond)), Concurrency: 4, Open: inCZK,
	})
	var service *ServiceError
	var unknown *client.UnknownOutcome
	if !errors.As(err, &service) || !errors.As(err, &unknown) || sum.Posted != 20 {
		t.Errorf("summary %+v, %v", sum, err)
	}
}

func TestBeginCanStopTheImport(t *testing.T) {
	b := newBank(t)
	file, _ := history(rand.New(rand.NewPCG(7, 8)), 3, 1)
	gone := errors.New("nobody there")
	sum, err := Run(t.Context(), strings.NewReader(file), Config{
		Client: b.client(t), Concurrency: 1, Open: inCZK,
		Begin: func(_ context.Context, rows int64) error {
			if rows != 3 {
				t.Errorf("%d rows, want 3", rows)
			}
			return gone
		},
	})
	var service *ServiceError
	if !errors.As(err, &service) || !errors.Is(err, gone) || sum.Rows != 3 || len(b.accounts) != 0 {
		t.Errorf("summary %+v, %v", sum, err)
	}
}

func TestBadFileSendsNothing(t *testing.T) {
	b := newBank(t)
	file := "account_id,idempotency_key,direction,amount,effective_at\na,k1,credit,1,\na,k2,credit,0,\n"
	_, err := Run(t.Context(), strings.NewReader(file), Config{Client: b.client(t), Concurrency: 1, Open: inCZK})
	var faults *FileError
	if !errors.As(err, &faults) || len(b.accounts) != 0 {
		t.Errorf("error %v, %d accounts", err, len(b.accounts))
	}
}

// TestOneAccountLongerThanTheWindow must neither deadlock nor starve the account
// behind it.
func TestOneAccountLongerThanTheWindow(t *testing.T) {
	s := newSchedule()
	const rows = window + 1000
	go func() {
		for i := range rows {
			id := "a"
			if i >= rows-10 {
				id = "b"
			}
			if s.put(t.Context(), row{line: i, accountID: id}) != nil {
				return
			}
		}
		s.finish()
	}()
	next := map[string]int{"b": rows - 10}
	for l := range s.ready {
		rw := s.take(l)
		if rw.line != next[l.accountID] {
			t.Fatalf("row %d of %s, want %d", rw.line, l.accountID, next[l.accountID])
		}
		next[l.accountID]++
		s.done(l)
	}
	if next["a"] != rows-10 || next["b"] != rows {
		t.Errorf("ended at %v", next)
	}
}
