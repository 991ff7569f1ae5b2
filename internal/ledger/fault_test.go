package ledger

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/postgres"
)

// TestBadOperationFailsAlone lets PostgreSQL refuse one amount, as it refuses
// anything that validation has missed.
func TestBadOperationFailsAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	owner := f.db.OwnerPool(t)
	if _, err := owner.Exec(context.Background(), "alter table entries add constraint unlucky check (amount <> 13)"); err != nil {
		t.Fatal(err)
	}
	w := f.writer()
	open(t, w, "A", "B")
	var refusedN atomic.Int64
	together(64, func(i int) {
		id, amount := AccountID("A"), Amount(i)
		if i%2 == 0 {
			id = "B"
		}
		if i == 0 {
			amount = 64
		}
		_, err := w.Apply(context.Background(), credit(id, amount, keyN("k", i)))
		if err != nil {
			refusedN.Add(1)
			if r := err.(*Refusal); r.Code != CodeInternal || r.Applied != NotApplied || i != 13 { //nolint:errorlint // the contract of Apply
				t.Errorf("operation %d: %v", i, r)
			}
		}
	})
	if refusedN.Load() != 1 {
		t.Fatalf("%d operations were refused, want 1", refusedN.Load())
	}
}

// TestBlockedAccountDoesNotStallItsNeighbours holds the next link of an account
// in an open transaction of somebody else.
func TestBlockedAccountDoesNotStallItsNeighbours(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer(func(_ *postgres.Config, c *WriterConfig) { c.Deadline = 3 * time.Second })
	open(t, w, "A", "B")
	must(t, w, credit("A", 1, "k1"))
	owner := f.db.OwnerPool(t)
	tx, err := owner.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(context.Background(), `insert into entries (account_id, seq, kind, amount, balance_after, held_after, fence_after,
		min_balance_after, status_after, fencing_after, transaction_id, idempotency_key, request_hash, effective_at, posted_at, hash, hash_version)
		select account_id, seq + 1, kind, amount, balance_after, held_after, fence_after, min_balance_after, status_after, fencing_after,
		       transaction_id, 'blocker', request_hash, effective_at, posted_at, hash, hash_version
		  from entries where account_id = 'A' and seq = 2`)
	if err != nil {
		t.Fatal(err)
	}
	blocked := make(chan error, 1)
	go func() {
		_, err := w.Apply(context.Background(), credit("A", 1, "blocked"))
		blocked <- err
	}()
	for i := range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		if _, err := w.Apply(ctx, credit("B", 1, keyN("n", i))); err != nil {
			t.Fatalf("the neighbour waits: %v", err)
		}
		cancel()
	}
	err = <-blocked
	if r, ok := err.(*Refusal); !ok || r.Code != CodeUnavailable || r.Applied != NotApplied { //nolint:errorlint // the contract of Apply
		t.Fatalf("the blocked operation ended with %v", err)
	}
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	must(t, w, credit("A", 1, "blocked"))
}

// TestBlockedAccountKeepsItsOrder locks one account for longer than the lock
// timeout while operations on it and on another contended account go on.
func TestBlockedAccountKeepsItsOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer(func(_ *postgres.Config, c *WriterConfig) { c.Deadline = 20 * time.Second })
	open(t, w, "A", "B")
	for _, id := range []AccountID{"A", "B"} {
		w.laneOf(id).heads.contend(id, time.Now().Add(time.Hour))
	}
	tx, err := f.db.OwnerPool(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select from accounts where account_id = 'A' for update"); err != nil {
		t.Fatal(err)
	}
	var pending []Pending
	for i := range 20 { // each debit only fits behind its credit
		pending = append(pending, w.Start(t.Context(), credit("A", 1, keyN("in", i))), w.Start(t.Context(), debit("A", 1, keyN("out", i))))
	}
	for i := range 10 {
		must(t, w, credit("B", 1, keyN("n", i)))
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, p := range pending {
		if r, err := p.Wait(t.Context()); err != nil || r.Declined() {
			t.Errorf("operation %d: %+v, %v", i, r, err)
		}
	}
}

// TestLostAnswerIsReadInTime swallows the answer of an append with the timeouts
// that a service has: the outcome is read before the caller's time is over.
func TestLostAnswerIsReadInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	net := &wire{}
	w := f.writer(func(pg *postgres.Config, _ *WriterConfig) { pg.Dial = net.dial })
	w.stop()
	open(t, w, "A")
	must(t, w, credit("A", 1, "warm"))
	net.arm(1, cutSwallow)
	if r := must(t, w, credit("A", 1, "k")); r.Entry.Seq != 3 {
		t.Fatalf("seq %d, want 3", r.Entry.Seq)
	}
}

// TestOldDecisionIsMadeAgain stops a writer between its decision and its append
// for longer than a decision is good for, with nobody else on the account: the
// entry must not be posted in a past that was already read.
func TestOldDecisionIsMadeAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A")
	first := must(t, w, credit("A", 1, "k"))
	owner := f.db.OwnerPool(t)
	conn, err := owner.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	e := first.Entry
	e.Seq, e.Key = e.Seq+1, "old"
	var a appender
	st := w.guard.current()
	e.After.Balance++
	e.Hash = ChainHash(first.Entry.Hash, &e)
	for _, age := range []time.Duration{6 * time.Second, 0} {
		old := &write{life: st.life, at: st.clock.now().Add(-age), entries: []*Entry{&e}}
		written, err := a.send(t.Context(), conn.Conn(), old, false)
		if err != nil || written != (age == 0) {
			t.Fatalf("a decision that is %v old: written %v, %v", age, written, err)
		}
	}
}
