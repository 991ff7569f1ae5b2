package projection

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// lock locks the balance row of an account until the returned function is called.
func (f *fixture) lock(id ledger.AccountID) (unlock func()) {
	f.t.Helper()
	tx, err := f.owner.Begin(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	unlock = func() { _ = tx.Rollback(context.Background()) } // the second time it does nothing
	f.t.Cleanup(unlock)
	if _, err := tx.Exec(context.Background(), `select from balances where account_id = $1 for update`, string(id)); err != nil {
		f.t.Fatal(err)
	}
	return unlock
}

// flood has n accounts of the shard wait that do not exist.
func flood(s *shard, n int) {
	for i := 0; n > 0; i++ {
		if id := ledger.AccountID(fmt.Sprint("flood", i)); id.Shard() == s.number {
			s.want(id, 0, 1, 0)
			n--
		}
	}
}

// TestLagCountsEntries: entries wait, not accounts.
func TestLagCountsEntries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	w := f.stepper()
	s := owned(w, "A", 1)
	f.round(w)
	lags := func() (reported int64, gauge float64) {
		return w.reports(time.Now())[0].LagEntries, value(w.metrics.lagEntries)
	}
	unlock := f.lock("A")
	for range 3 {
		f.credit("A", 1)
	}
	f.round(w) // folds them
	if reported, gauge := lags(); reported != 3 || gauge != 3 {
		t.Errorf("3 entries of a locked row: %d are reported, the gauge is %v", reported, gauge)
	}
	f.credit("A", 1)
	f.credit("A", 1)
	f.round(w)                                      // sees them
	if err := w.sweep(t.Context(), s); err != nil { // and finds them all again
		t.Fatal(err)
	}
	if reported, _ := lags(); reported != 5 {
		t.Errorf("5 entries of a locked row: %d are reported", reported)
	}
	unlock()
	f.round(w)
	if reported, gauge := lags(); reported != 0 || gauge != 0 || f.behind() != 0 {
		t.Errorf("without entries that wait %d are reported, the gauge is %v, %d rows are behind", reported, gauge, f.behind())
	}
}

// TestSweepWaitsForRoom: what waits is bounded; the sweep comes back for the rest.
func TestSweepWaitsForRoom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	w := f.stepper()
	s := owned(w, "A", 1)
	flood(s, sweepWaitingMax+1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.sweep(ctx, s); !errors.Is(err, context.DeadlineExceeded) || w.waiting() != sweepWaitingMax+1 {
		t.Errorf("a sweep beside %d accounts that wait ended with %v, then %d wait", sweepWaitingMax+1, err, w.waiting())
	}
	swept := make(chan error, 1)
	go func() { swept <- w.sweep(t.Context(), s) }()
	f.round(w) // accounts without entries are forgotten
	if err := <-swept; err != nil {
		t.Fatal(err)
	}
	if s.swept.IsZero() {
		t.Error("the sweep did not come to its end")
	}
}

// TestTailWaitsForRoom: with too many accounts that wait the tail is read later,
// not forgotten.
func TestTailWaitsForRoom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	w := f.stepper()
	s := owned(w, "A", 1)
	f.round(w)
	for _, id := range accountIDs("locked", tailWaitingMax) {
		s.want(id, 0, 1, time.Hour)
	}
	f.credit("A", 1)
	if _, more, err := w.round(t.Context()); err != nil || more {
		t.Errorf("a round with nothing to read ended with more %v (%v)", more, err)
	}
	if w.waiting() != tailWaitingMax || f.behind() != 1 {
		t.Errorf("%d accounts wait, %d rows are behind", w.waiting(), f.behind())
	}
	if got := value(w.metrics.lagEntries); got != tailWaitingMax+1 {
		t.Errorf("the gauge is %v", got)
	}
	s.pending.take(accountIDs("locked", 1)[0])
	f.round(w)
	if f.behind() != 0 {
		t.Error("the entry was forgotten")
	}
}

// TestFloodOfOneShardHoldsUpNoOther: a sweep can fill one shard faster than it
// is emptied.
func TestFloodOfOneShardHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, last := ledger.AccountID("A"), ledger.AccountID("B")
	if first.Shard() > last.Shard() {
		first, last = last, first
	}
	f.open(last)
	w := f.stepper()
	flooded := owned(w, first, 1)
	owned(w, last, 1).want(last, 0, 1, 0)
	w.began = true // the tail is past the entry
	w.tail.high = 1 << 40
	for range ledger.Shards {
		flood(flooded, 2*pendingMax)
		if ids := w.due(time.Now(), pendingMax); len(ids) != pendingMax {
			t.Fatalf("%d accounts are due", len(ids))
		}
		f.round(w)
	}
	if f.behind() != 0 {
		t.Errorf("%s was not applied in %d rounds", last, ledger.Shards)
	}
}
