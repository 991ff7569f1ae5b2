package projection

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// stepper is a worker that does nothing by itself: a test moves it.
func (f *fixture) stepper() *worker {
	return f.projector().worker
}

func (f *fixture) round(w *worker) {
	f.t.Helper()
	if _, _, err := w.round(context.Background()); err != nil {
		f.t.Fatal(err)
	}
}

// folded reads what is to be applied to the account, and folds it.
func (f *fixture) folded(id ledger.AccountID) *fold {
	f.t.Helper()
	steps, err := newStore(f.pool).unapplied(context.Background(), []string{string(id)}, 1000, 1000)
	if err != nil {
		f.t.Fatal(err)
	}
	fd := new(fold)
	for i := range steps {
		if err := fd.add(&steps[i]); err != nil {
			f.t.Fatal(err)
		}
	}
	return fd
}

// TestLateWriteIsRefusedByTheDatabase is the story of the whole project: a
// worker stops between its fold and its write, another takes the shard over and
// applies the entry, then the first one's write arrives.
func TestLateWriteIsRefusedByTheDatabase(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	f.credit("A", 100)
	first, second := f.stepper(), f.stepper()
	owned(second, "A", 2)
	late := owned(first, "A", 1)
	first.cfg.BeforeWrite = func() {
		first.cfg.BeforeWrite = nil
		f.round(second)
	}
	f.round(first)
	if got := value(first.metrics.fenced); got != 1 {
		t.Errorf("%v late writes were counted", got)
	}
	if late.usable() {
		t.Error("the late worker did not give its shard up")
	}
	if row := f.row("A"); row.balance != 100 || row.appliedSeq != 2 || row.lastToken.Rank() != 2 {
		t.Errorf("the row is %+v", row)
	}
	f.credit("A", 1)
	f.round(first)
	if row := f.row("A"); row.appliedSeq != 2 {
		t.Error("a worker that was fenced wrote again")
	}
	f.round(second)
	if row := f.row("A"); row.balance != 101 || row.appliedSeq != 3 {
		t.Errorf("the row is %+v", row)
	}
}

// TestLateWriteAfterTheRowMovedOnIsFenced has the new owner apply more entries
// meanwhile: it is still the newer owner that counts.
func TestLateWriteAfterTheRowMovedOnIsFenced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	f.credit("A", 100)
	first, second := f.stepper(), f.stepper()
	owned(second, "A", 2)
	owned(first, "A", 1)
	first.cfg.BeforeWrite = func() {
		first.cfg.BeforeWrite = nil
		f.credit("A", 5)
		f.round(second)
		f.credit("A", 6)
		f.round(second)
	}
	f.round(first)
	if got := value(first.metrics.fenced); got != 1 {
		t.Errorf("%v late writes were counted", got)
	}
	if row := f.row("A"); row.balance != 111 || row.appliedSeq != 4 {
		t.Errorf("the row is %+v", row)
	}
}

// TestRowSetBackIsNotAppliedTwice: case 32. The entries are in the balance, and
// its seq says that they are not.
func TestRowSetBackIsNotAppliedTwice(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	for range 5 {
		f.credit("A", 10)
	}
	w := f.stepper()
	s := owned(w, "A", 1)
	f.round(w)
	f.damage(`update balances set applied_seq = applied_seq - 3`)
	f.credit("A", 1)
	for range 3 {
		f.round(w)
	}
	if row := f.row("A"); row.balance != 50 || row.appliedSeq != 3 {
		t.Errorf("the row is %+v", row)
	}
	if value(w.metrics.drift) != 1 || value(w.metrics.parked) != 1 || len(s.parked) != 1 {
		t.Errorf("drift %v, parked %v", value(w.metrics.drift), value(w.metrics.parked))
	}
	f.rebuild(w)
	if len(s.parked) != 0 || value(w.metrics.parked) != 0 {
		t.Error("the account is parked after its row was repaired")
	}
	f.credit("A", 1)
	f.round(w)
	if row := f.row("A"); row.balance != 52 {
		t.Errorf("the row is %+v", row)
	}
}

// rebuild has the stepper do its part of a new rebuild, and returns it.
func (f *fixture) rebuild(w *worker) Rebuild {
	f.t.Helper()
	r, _, err := requestRebuild(context.Background(), f.pool, "test")
	if err != nil {
		f.t.Fatal(err)
	}
	if err := w.rebuildOwned(context.Background()); err != nil {
		f.t.Fatal(err)
	}
	if r, err = readRebuild(context.Background(), f.pool, r.ID); err != nil {
		f.t.Fatal(err)
	}
	return r
}

// TestBadAccountParksAlone: case 36. One entry cannot be applied; all other
// accounts of the same statement go on.
func TestBadAccountParksAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, damage, repair string
	}{
		{"entry that contradicts the one before", `update entries set amount = 99 where account_id = 'A' and seq = 3`,
			`update entries set amount = 10 where account_id = 'A' and seq = 3`},
		{"row that leaves the range of a number", `update balances set balance = 9223372036854775807 where account_id = 'A'`,
			`update balances set balance = 0 where account_id = 'A'`},
		{"total that leaves the range of a number", `update balances set credits_total = 99999999999999999999999999999999999999 where account_id = 'A'`,
			`update balances set credits_total = 0 where account_id = 'A'`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			ids := append(sameShard("A", 20), "A")
			slices.Sort(ids)
			f.open(ids...)
			w := f.stepper()
			s := owned(w, "A", 1)
			f.round(w)
			for _, id := range ids {
				f.credit(id, 10)
				f.credit(id, 10)
			}
			f.damage(c.damage)
			f.round(w)
			f.round(w)
			for _, id := range ids {
				if row := f.row(id); id != "A" && (row.balance != 20 || row.appliedSeq != 3) {
					t.Errorf("%s was not applied: %+v", id, row)
				}
			}
			if _, ok := s.parked["A"]; !ok || len(s.parked) != 1 || value(w.metrics.parked) != 1 {
				t.Errorf("parked are %v", s.parked)
			}
			if !strings.Contains(s.lastError, "A is parked") {
				t.Errorf("the shard says %q", s.lastError)
			}
			f.damage(c.repair)
			f.retryParked(w, s)
			if row := f.row("A"); row.balance != 20 || row.appliedSeq != 3 || len(s.parked) != 0 {
				t.Errorf("after the repair: %+v, parked %v", row, s.parked)
			}
		})
	}
}

// TestReasonIsTextAndNoFormat: PostgreSQL quotes values in its errors, and those
// may hold anything.
func TestReasonIsTextAndNoFormat(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	w := f.stepper()
	s := owned(w, "A", 1)
	refused := &pgconn.PgError{Code: "22003", Message: "100%d is out of range"}
	if err := w.writeFailed(t.Context(), []write{{fold: f.folded("A")}}, refused); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.lastError, refused.Message) {
		t.Errorf("the shard says %q", s.lastError)
	}
}

// retryParked is what a sweep does when its time has come.
func (f *fixture) retryParked(w *worker, s *shard) {
	f.t.Helper()
	w.mu.Lock()
	for id, p := range s.parked {
		p.since = p.since.Add(-time.Hour)
		s.parked[id] = p
	}
	w.mu.Unlock()
	if err := w.sweep(context.Background(), s); err != nil {
		f.t.Fatal(err)
	}
	f.round(w)
}

// sameShard returns other accounts of the account's shard.
func sameShard(id ledger.AccountID, n int) []ledger.AccountID {
	var ids []ledger.AccountID
	for _, other := range accountIDs("s", 64*n*4) {
		if other.Shard() == id.Shard() && len(ids) < n {
			ids = append(ids, other)
		}
	}
	return ids
}

// TestMissingRowIsMadeAgain: case 31, a deleted row.
func TestMissingRowIsMadeAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	f.credit("A", 10)
	w := f.stepper()
	s := owned(w, "A", 1)
	f.round(w)
	f.damage(`delete from balances`)
	f.credit("A", 5)
	f.round(w)
	f.round(w)
	if row := f.row("A"); row.balance != 15 || row.appliedSeq != 3 {
		t.Errorf("the row is %+v", row)
	}
	f.damage(`delete from balances`)
	if err := w.sweep(t.Context(), s); err != nil { // no new entry leads to it
		t.Fatal(err)
	}
	f.round(w)
	f.round(w)
	if row := f.row("A"); row.balance != 15 || row.appliedSeq != 3 {
		t.Errorf("the row is %+v", row)
	}
}

// TestChangedRowIsFoundBySweep: case 31, an altered row without new entries.
func TestChangedRowIsFoundBySweep(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"balance": `update balances set balance = balance + 1`,
		"held":    `update balances set held = held + 1`,
		"ahead":   `update balances set applied_seq = applied_seq + 4`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.open("A")
			f.credit("A", 10)
			w := f.stepper()
			s := owned(w, "A", 1)
			f.round(w)
			f.damage(damage)
			if err := w.sweep(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if len(s.parked) != 1 || value(w.metrics.drift) != 1 {
				t.Errorf("parked %v, drift %v", s.parked, value(w.metrics.drift))
			}
			if found := f.findings(); !slices.Contains(found["A"], RuleBalanceRow) {
				t.Errorf("the verification found %v", found)
			}
			if r := f.rebuild(w); r.Repaired != 1 || len(s.parked) != 0 {
				t.Errorf("the rebuild is %+v, parked %v", r, s.parked)
			}
		})
	}
}

// TestLockedRowDoesNotStopItsNeighbours: somebody else has a balance row locked.
func TestLockedRowDoesNotStopItsNeighbours(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := append(sameShard("A", 5), "A")
	f.open(ids...)
	w := f.stepper()
	s := owned(w, "A", 1)
	f.round(w)
	for _, id := range ids {
		f.credit(id, 10)
	}
	tx, err := f.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `select from balances where account_id = 'A' for update`); err != nil {
		t.Fatal(err)
	}
	f.round(w)
	if n := f.behind(); n != 1 {
		t.Errorf("%d rows are behind while one is locked", n)
	}
	if len(s.parked) != 0 || len(s.pending.accounts) != 1 {
		t.Errorf("parked %v, pending %v", s.parked, s.pending.accounts)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.want("A", 0, 0, 0)
	f.round(w)
	if n := f.behind(); n != 0 {
		t.Errorf("%d rows are behind", n)
	}
}

// TestIdleTransactionDoesNotStallOthers: case 29. A session inserts entries and
// does not commit: their positions are missing, everything else is applied, and
// they are when they come.
func TestIdleTransactionDoesNotStallOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A", "B")
	w := f.stepper()
	owned(w, "A", 1)
	owned(w, "B", 1)
	f.round(w)
	tx, err := f.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	next := f.honestNext("B", 7)
	if _, err := tx.Exec(t.Context(), insertEntry, next...); err != nil {
		t.Fatal(err)
	}
	f.credit("A", 10)
	f.round(w)
	if row := f.row("A"); row.balance != 10 {
		t.Fatalf("the row is %+v", row)
	}
	if w.tail.count != 1 {
		t.Errorf("%d positions are missing", w.tail.count)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.eventually("the late entry is applied", func() bool {
		f.round(w)
		return f.row("B").balance == 7
	})
	if w.tail.count != 0 {
		t.Errorf("%d positions are missing", w.tail.count)
	}
}

// TestLostHintsAndLostPositionsAreSwept: whatever discovery misses, the sweep
// finds.
func TestLostHintsAndLostPositionsAreSwept(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	w := f.stepper()
	s := owned(w, "A", 1)
	f.round(w)
	f.credit("A", 10)
	w.tail.high += 1000
	f.round(w)
	if f.behind() != 1 {
		t.Fatal("the entry was found by the tail")
	}
	if err := w.sweep(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	f.round(w)
	if f.behind() != 0 {
		t.Error("the sweep did not find the entry")
	}
	if w.tail.high > 100 {
		t.Errorf("the tail scan stands at %d, beyond the last position", w.tail.high)
	}
}

// TestWriteNumbersDoNotRunOut: near the end of the numbers the term is given up.
func TestWriteNumbersDoNotRunOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	w := f.stepper()
	s := owned(w, "A", 1)
	s.writes = lease.WriteNumberMax - writesSpare - 1
	f.round(w)
	if f.behind() != 0 || !s.usable() {
		t.Fatal("the last number was not used")
	}
	f.credit("A", 1)
	f.round(w)
	if s.usable() || f.behind() != 1 {
		t.Error("the term was not given up")
	}
	owned(w, "A", 2).want("A", 0, 0, 0)
	f.round(w)
	if f.behind() != 0 {
		t.Error("the next term does not go on")
	}
}

// TestTokenOfNobodyParksOneAccount: a row whose token no term can have written
// must not look like a newer owner, or nobody could own its shard.
func TestTokenOfNobodyParksOneAccount(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := sameShard("A", 1)[0]
	f.open("A", other)
	w := f.stepper()
	s := owned(w, "A", 1)
	f.round(w)
	f.damage(`update balances set last_token = 1::bigint << 60 where account_id = 'A'`)
	f.credit("A", 10)
	f.credit(other, 10)
	f.round(w)
	if !s.usable() || len(s.parked) != 1 || f.row(other).balance != 10 || value(w.metrics.fenced) != 0 {
		t.Errorf("usable %v, parked %v, the other row is %+v", s.usable(), s.parked, f.row(other))
	}
	if r := f.rebuild(w); r.Repaired != 1 || len(s.parked) != 0 || f.row("A").balance != 10 {
		t.Errorf("the rebuild is %+v, parked %v, the row is %+v", r, s.parked, f.row("A"))
	}
}
