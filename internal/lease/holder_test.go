package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// network stands between a holder and the leases: it delays replies, swallows
// them, or swallows requests.
type network struct {
	Leases
	mu        sync.Mutex
	delay     func() time.Duration
	cut       bool // nothing gets through, and nobody says so
	loseReply bool // the next acquisition happens, its reply is lost
}

var errLost = errors.New("the reply was lost")

func (n *network) pass(ctx context.Context) error {
	n.mu.Lock()
	cut, delay := n.cut, n.delay
	n.mu.Unlock()
	if cut {
		<-ctx.Done()
		return ctx.Err()
	}
	if delay != nil {
		time.Sleep(delay()) // fake time: see synctest
	}
	return nil
}

func (n *network) set(f func(*network)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n)
}

func (n *network) Acquire(ctx context.Context, holder string, ttl, delay time.Duration, names []string) ([]Term, error) {
	if err := n.pass(ctx); err != nil {
		return nil, err
	}
	terms, err := n.Leases.Acquire(ctx, holder, ttl, delay, names)
	n.mu.Lock()
	lost := n.loseReply && len(names) > 1
	n.mu.Unlock()
	if lost {
		n.set(func(n *network) { n.loseReply = false })
		return nil, errLost
	}
	if err := n.pass(ctx); err != nil {
		return nil, err
	}
	return terms, err
}

func (n *network) Renew(ctx context.Context, ttl time.Duration, terms []Term) ([]string, error) {
	if err := n.pass(ctx); err != nil {
		return nil, err
	}
	names, err := n.Leases.Renew(ctx, ttl, terms)
	if err := n.pass(ctx); err != nil {
		return nil, err
	}
	return names, err
}

func (n *network) Look(ctx context.Context, names []string) ([]Lease, error) {
	if err := n.pass(ctx); err != nil {
		return nil, err
	}
	return n.Leases.Look(ctx, names)
}

// desk records who works on what, and what ended the work.
type desk struct {
	mu      sync.Mutex
	working map[string]string // name → holder
	terms   map[string]Term
	ended   map[string]time.Time
	cause   map[string]error
	clashes int
}

func newDesk() *desk {
	return &desk{
		working: make(map[string]string), terms: make(map[string]Term),
		ended: make(map[string]time.Time), cause: make(map[string]error),
	}
}

func (d *desk) work(holder string) func(context.Context, Term) {
	return func(ctx context.Context, term Term) {
		d.mu.Lock()
		if d.working[term.Name] != "" {
			d.clashes++
		}
		d.working[term.Name] = holder
		d.terms[term.Name] = term
		d.mu.Unlock()
		<-ctx.Done()
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.working[term.Name] == holder {
			delete(d.working, term.Name)
		}
		d.ended[term.Name] = time.Now()
		d.cause[term.Name] = context.Cause(ctx)
	}
}

// shares counts the names that each holder works on.
func (d *desk) shares() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := make(map[string]int)
	for _, holder := range d.working {
		n[holder]++
	}
	return n
}

func manyNames(prefix string, n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("%s/%02d", prefix, i))
	}
	return names
}

const (
	testTTL    = 5 * time.Second
	testRenew  = time.Second
	testMargin = 500 * time.Millisecond
)

func testHolder(leases Leases, name string, d *desk) *Holder {
	return NewHolder(leases, Config{
		Holder: name, Names: manyNames("shard", 64), Members: manyNames("member", 8),
		TTL: testTTL, RenewEvery: testRenew, Margin: testMargin,
		Work:    d.work(name),
		Metrics: NewMetrics(prometheus.NewRegistry()),
		Logger:  slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
}

func start(ctx context.Context, h *Holder) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { h.Run(ctx); close(done) }()
	return func() { cancel(); <-done }
}

// TestHolderStopsByItsOwnClock cuts the network without a word: the work must
// end before the database would give the lease to somebody else.
func TestHolderStopsByItsOwnClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, d := newModel(time.Now), newDesk()
		n := &network{Leases: m}
		stop := start(t.Context(), testHolder(n, "a", d))
		defer stop()
		time.Sleep(10*testRenew + testRenew/2)
		if got := d.shares()["a"]; got != 64 {
			t.Fatalf("the only holder has %d names", got)
		}
		n.set(func(n *network) { n.cut = true })
		time.Sleep(testTTL)
		synctest.Wait()
		if got := d.shares()["a"]; got != 0 {
			t.Fatalf("%d names are worked on after their leases ran out", got)
		}
		for name, ended := range d.ended {
			if r := m.rows[name]; r.ExpiresAt.Sub(ended) != testMargin {
				t.Fatalf("the work on %s ended %v before its lease, want %v", name, r.ExpiresAt.Sub(ended), testMargin)
			}
			if !errors.Is(d.cause[name], ErrExpired) {
				t.Fatalf("the work on %s ended with %v", name, d.cause[name])
			}
		}
	})
}

// TestTrustCountsFromBeforeTheRequest has replies that come 1.4 s late.
func TestTrustCountsFromBeforeTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, d := newModel(time.Now), newDesk()
		n := &network{Leases: m, delay: func() time.Duration { return 1400 * time.Millisecond }}
		began := time.Now()
		stop := start(t.Context(), testHolder(n, "a", d))
		defer stop()
		// Look 1.4 s; the slot: 1.4 s there, 1.4 s back; Look 1.4 s; the names
		// are asked for at 5.6 s, granted at 7 s, known at 8.4 s, trusted until
		// 5.6 s + TTL - margin.
		asked := 5600 * time.Millisecond
		time.Sleep(8400*time.Millisecond + time.Millisecond)
		synctest.Wait()
		if got := d.shares()["a"]; got != 64 {
			t.Fatalf("%d names after %v", got, time.Since(began))
		}
		n.set(func(n *network) { n.cut = true })
		time.Sleep(testTTL)
		synctest.Wait()
		for name, ended := range d.ended {
			if got, want := ended.Sub(began), asked+testTTL-testMargin; got != want {
				t.Fatalf("the work on %s ended after %v, want %v", name, got, want)
			}
		}
		if len(d.ended) != 64 {
			t.Fatalf("the work on %d names ended", len(d.ended))
		}
	})
}

func TestNamesAreSharedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, d := newModel(time.Now), newDesk()
		rng := rand.New(rand.NewPCG(1, 1))
		var mu sync.Mutex
		var stops []func()
		want := map[int][]int{1: {64}, 2: {32, 32}, 3: {21, 21, 22}, 4: {16, 16, 16, 16}, 5: {12, 13, 13, 13, 13}}
		check := func(n int) {
			time.Sleep(5 * testRenew)
			synctest.Wait()
			var got []int
			for _, share := range d.shares() {
				got = append(got, share)
			}
			slices.Sort(got)
			if !slices.Equal(got, want[n]) {
				t.Fatalf("%d holders share %v, want %v", n, got, want[n])
			}
		}
		for n := 1; n <= 5; n++ {
			network := &network{Leases: m, delay: func() time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(rng.IntN(50)) * time.Millisecond
			}}
			stops = append(stops, start(t.Context(), testHolder(network, fmt.Sprint(n), d)))
			check(n)
		}
		for n := 4; n >= 1; n-- {
			stops[n]() // releases, so no lease has to run out
			check(n)
		}
		stops[0]()
		if d.clashes > 0 {
			t.Fatalf("%d times two holders worked on one name", d.clashes)
		}
	})
}

func TestNamesOfTheDeadAreTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, d := newModel(time.Now), newDesk()
		dead := &network{Leases: m}
		stopA := start(t.Context(), testHolder(dead, "a", d))
		defer stopA()
		stopB := start(t.Context(), testHolder(m, "b", d))
		defer stopB()
		time.Sleep(5 * testRenew)
		dead.set(func(n *network) { n.cut = true })
		time.Sleep(testTTL + testRenew + time.Millisecond)
		synctest.Wait()
		if got := d.shares()["b"]; got != 64 {
			t.Fatalf("after TTL + RenewEvery the live holder has %d names", got)
		}
		dead.set(func(n *network) { n.cut = false })
		time.Sleep(2 * testTTL)
		synctest.Wait()
		if got := d.shares(); got["a"] != 32 || got["b"] != 32 {
			t.Fatalf("after the return of the other: %v", got)
		}
		if d.clashes > 0 {
			t.Fatalf("%d times two holders worked on one name", d.clashes)
		}
	})
}

// TestTermWithoutReplyIsNotUsed loses the reply of an acquisition: the term is
// released and another one taken, so that nobody could have used it before.
func TestTermWithoutReplyIsNotUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, d := newModel(time.Now), newDesk()
		n := &network{Leases: m, loseReply: true}
		stop := start(t.Context(), testHolder(n, "a", d))
		defer stop()
		time.Sleep(2*testRenew + time.Millisecond)
		synctest.Wait()
		if got := d.shares()["a"]; got != 64 {
			t.Fatalf("%d names", got)
		}
		for name, term := range d.terms {
			if term.Generation != 2 {
				t.Fatalf("%s is worked on in generation %d, want 2", name, term.Generation)
			}
		}
	})
}

// TestWorkThatReturnsGivesItsTermUp is what a fenced worker does.
func TestWorkThatReturnsGivesItsTermUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, d := newModel(time.Now), newDesk()
		h := testHolder(m, "a", d)
		h.cfg.Work = func(ctx context.Context, term Term) {
			if term.Name == "shard/07" && term.Generation < 4 {
				return
			}
			d.work("a")(ctx, term)
		}
		stop := start(t.Context(), h)
		defer stop()
		time.Sleep(5 * testRenew)
		synctest.Wait()
		if got := d.terms["shard/07"].Generation; got != 4 {
			t.Fatalf("generation %d, want 4", got)
		}
	})
}

// TestHoldersShareARealTable runs two holders on PostgreSQL.
func TestHoldersShareARealTable(t *testing.T) {
	t.Parallel()
	store := NewStore(pgtest.Database(t).Pool(t))
	d := newDesk()
	fast := func(name string) *Holder {
		h := testHolder(store, name, d)
		h.cfg.RenewEvery = 20 * time.Millisecond
		return h
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not in time: %s, shares are %v", what, d.shares())
			}
		}
	}
	stopA := start(t.Context(), fast("a"))
	until("a has all", func() bool { return d.shares()["a"] == 64 })
	stopB := start(t.Context(), fast("b"))
	until("both have half", func() bool { s := d.shares(); return s["a"] == 32 && s["b"] == 32 })
	stopA()
	until("b has all", func() bool { return d.shares()["b"] == 64 })
	stopB()
	leases, err := store.Look(context.Background(), manyNames("shard", 64))
	if err != nil || len(leases) != 64 {
		t.Fatalf("look: %d leases, %v", len(leases), err)
	}
	for _, l := range leases {
		if l.Live || !l.Free {
			t.Fatalf("%s was not released: %+v", l.Name, l)
		}
	}
	if d.clashes > 0 {
		t.Fatalf("%d times two holders worked on one name", d.clashes)
	}
}
