package projection

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestEntriesAreApplied(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := accountIDs("a", 50)
	f.open(ids...)
	p := f.projector()
	f.hinted.Store(p)
	f.run(p)
	for i := range 500 {
		f.credit(ids[i%len(ids)], 3)
		if i%3 == 0 {
			f.debit(ids[i%len(ids)], 2)
		}
	}
	f.caughtUp()
	if got := value(p.worker.metrics.applied); got != 50+500+167 {
		t.Errorf("%v entries were applied", got)
	}
}

// TestLeasesAreReleasedAtTheEnd: the next process need not wait for a lease to
// run out.
func TestLeasesAreReleasedAtTheEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	stop := f.run(f.projector())
	f.caughtUp()
	stop()
	leases, err := lease.NewStore(f.pool).Look(t.Context(), append(shardNames(), memberNames()...))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		if !l.Free {
			t.Errorf("%s is held by %s", l.Name, l.Holder)
		}
	}
}

// load posts to accounts from several goroutines until it is stopped, and fails
// the test when a post is refused.
func (f *fixture) load(ids []ledger.AccountID) (stop func() int64) {
	var posted atomic.Int64
	var wg sync.WaitGroup
	quit := make(chan struct{})
	for g := range 4 {
		wg.Go(func() {
			for i := g; ; i++ {
				select {
				case <-quit:
					return
				default:
				}
				op := &ledger.Operation{Kind: ledger.KindCredit, AccountID: ids[i%len(ids)], Amount: 1, Key: uuid.NewString()}
				var err error
				for range 50 { // a client repeats the identical request
					if _, err = f.writer.Apply(context.Background(), op); err == nil {
						posted.Add(1)
						break
					}
				}
				if err != nil {
					f.t.Errorf("post: %v", err)
					return
				}
			}
		})
	}
	return func() int64 { close(quit); wg.Wait(); return posted.Load() }
}

// TestRebuildUnderLoad: case 33. Two requests at once are one rebuild, its
// progress never goes back, posts go on, and damaged rows are right in the end.
func TestRebuildUnderLoad(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := accountIDs("a", 40)
	f.open(ids...)
	a, b := f.projector(), f.projector()
	f.run(a)
	f.run(b)
	f.caughtUp()
	f.damage(`update balances set balance = balance + 7 where account_id = 'a0001'`)
	f.damage(`delete from balances where account_id = 'a0002'`)
	f.damage(`update balances set applied_seq = 100000 where account_id = 'a0003'`)
	stop := f.load(ids)

	var requests [2]Rebuild
	var joins [2]bool
	var wg sync.WaitGroup
	for i, p := range []*Projector{a, b} {
		wg.Go(func() {
			var err error
			if requests[i], joins[i], err = p.RequestRebuild(context.Background(), "twice at once"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if requests[0].ID != requests[1].ID || joins[0] == joins[1] {
		t.Errorf("the requests are %+v (joined %v) and %+v (joined %v)", requests[0], joins[0], requests[1], joins[1])
	}
	var last Rebuild
	f.eventually("the rebuild is finished", func() bool {
		r, err := b.Rebuild(context.Background(), requests[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		if r.AccountsDone < last.AccountsDone || r.EntriesDone < last.EntriesDone || r.ShardsDone < last.ShardsDone {
			t.Fatalf("the progress went from %+v to %+v", last, r)
		}
		last = r
		return r.Finished()
	})
	if last.AccountsDone != 40 || last.ShardsDone != ledger.Shards || last.Damaged != 0 {
		t.Errorf("the rebuild ended with %+v", last)
	}
	f.eventually("some posts", func() bool { return f.row("a0001").appliedSeq > 5 })
	t.Logf("%d posts went on", stop())
	f.caughtUp()
	if _, err := a.Rebuild(context.Background(), uuid.New()); !errors.Is(err, ErrRebuildNotFound) {
		t.Errorf("an unknown rebuild gives %v", err)
	}
}

// TestReplayWithoutAService: the command campaigns for the shards itself.
func TestReplayWithoutAService(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := accountIDs("a", 30)
	f.open(ids...)
	for _, id := range ids {
		f.credit(id, 5)
	}
	f.damage(`update balances set balance = 9999, applied_seq = 2 where account_id = 'a0005'`)
	f.damage(`delete from balances where account_id = 'a0006'`)
	var reports int
	r, err := Replay(t.Context(), f.pool, config(), "command", func(Rebuild) { reports++ })
	if err != nil {
		t.Fatal(err)
	}
	if !r.Finished() || r.AccountsDone != 30 || r.EntriesDone != 60 || r.Repaired == 0 || r.Damaged != 0 || reports == 0 {
		t.Errorf("the replay is %+v, after %d reports", r, reports)
	}
	if n := f.behind(); n != 0 {
		t.Errorf("%d rows are behind", n)
	}
}

// TestReplayLeavesDamagedChainsAlone: a rebuild repairs rows, never entries, and
// does not choose between them.
func TestReplayLeavesDamagedChainsAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A", "B")
	f.credit("A", 5)
	f.credit("B", 5)
	stop := f.run(f.projector())
	f.caughtUp()
	stop()
	f.damage(`update entries set amount = 6 where account_id = 'A' and seq = 2`)
	f.damage(`update balances set balance = 4 where account_id = 'B'`)
	before := f.row("A")
	r, err := Replay(t.Context(), f.pool, config(), "command", nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Damaged != 1 || r.Repaired != 1 {
		t.Errorf("the replay is %+v", r)
	}
	if f.row("A") != before || f.row("B").balance != 5 {
		t.Errorf("the rows are %+v and %+v", f.row("A"), f.row("B"))
	}
	if found := f.findings(); len(found) != 1 || len(found["A"]) < 2 {
		t.Errorf("the verification found %v", found)
	}
	f.damage(`update entries set amount = 5 where account_id = 'A' and seq = 2`)
}

// TestDamagedChainStaysParked: entries behind the damage fit the balance row, and
// still the alarm does not end before a rebuild has found the chain right.
func TestDamagedChainStaysParked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	// The others are in the shard of A, so that their sweeps are its sweeps.
	ids := []ledger.AccountID{"A"}
	for i := 0; len(ids) < 4; i++ {
		if id := ledger.AccountID(fmt.Sprintf("sweep-%d", i)); id.Shard() == ids[0].Shard() {
			ids = append(ids, id)
		}
	}
	f.open(ids...)
	f.credit("A", 5)
	p := f.projector(func(c *Config) { c.SweepEvery = 10 * time.Millisecond })
	f.run(p)
	f.caughtUp()
	f.damage(`update entries set amount = 6 where account_id = 'A' and seq = 2`)
	if r, err := Replay(t.Context(), f.pool, config(), "command", nil); err != nil || r.Damaged != 1 {
		t.Fatalf("the replay is %+v, %v", r, err)
	}
	f.credit("A", 1)
	for i, id := range ids[1:] { // each is found by one more sweep
		f.damage(`update balances set balance = 1 where account_id = $1`, id)
		f.eventually("the sweep parks "+string(id), func() bool { return value(p.worker.metrics.parked) == float64(i+2) })
	}
	f.damage(`update entries set amount = 5 where account_id = 'A' and seq = 2`)
	if r, err := Replay(t.Context(), f.pool, config(), "command", nil); err != nil || r.Damaged != 0 {
		t.Fatalf("the replay is %+v, %v", r, err)
	}
	f.eventually("nothing is parked", func() bool { return value(p.worker.metrics.parked) == 0 })
	f.caughtUp()
}

// TestReplayJoinsALiveService: with a process there, the command takes no shard.
func TestReplayJoinsALiveService(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	p := f.projector()
	f.run(p)
	f.caughtUp()
	r, err := Replay(t.Context(), f.pool, config(), "command", nil)
	if err != nil || r.AccountsDone != 1 {
		t.Errorf("the replay is %+v (%v)", r, err)
	}
	if got := value(p.worker.metrics.rebuilt); got != 1 {
		t.Errorf("the service rebuilt %v entries", got)
	}
}

// TestDatabaseRestartsUnderLoad: case 35.
func TestDatabaseRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	f := &fixture{t: t, url: server.URL, pool: server.Pool(t), owner: server.OwnerPool(t)}
	t.Cleanup(f.verify)
	f.openWriter()
	ids := accountIDs("a", 20)
	f.open(ids...)
	a, b := f.projector(), f.projector()
	f.run(a)
	f.run(b)
	f.caughtUp()
	stop := f.load(ids)
	for i := range 3 {
		seen := f.row(ids[0]).appliedSeq
		f.eventually("entries are applied", func() bool { return f.tryRow(ids[0]).appliedSeq > seen+5 })
		if i == 1 {
			server.Restart(t)
		} else {
			server.Kill(t)
			server.Start(t)
		}
	}
	posted := stop()
	f.caughtUp()
	var sum int64
	if err := f.owner.QueryRow(t.Context(), `select sum(balance)::bigint from balances`).Scan(&sum); err != nil {
		t.Fatal(err)
	}
	if sum != posted {
		t.Errorf("the rows add up to %d, %d was posted", sum, posted)
	}
}

// tryRow is row while the database may be away.
func (f *fixture) tryRow(id ledger.AccountID) balanceRow {
	rows, err := newStore(f.pool).rows(context.Background(), []string{string(id)})
	if err != nil {
		return balanceRow{}
	}
	return rows[id]
}

// TestStartsWithoutADatabase: a projector needs none to start, and finds it
// when it comes.
func TestStartsWithoutADatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	f := &fixture{t: t, url: server.URL, pool: server.Pool(t), owner: server.OwnerPool(t)}
	t.Cleanup(f.verify)
	f.openWriter()
	f.open("A")
	server.Stop(t)
	p := f.projector()
	f.run(p)
	f.eventually("a round failed", func() bool { return p.worker.tail.high == 0 && p.worker.owned.Load() == 0 })
	server.Start(t)
	f.caughtUp()
}

// TestStatusTellsWhoOwnsWhat reads the status through a process that owns
// nothing.
func TestStatusTellsWhoOwnsWhat(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	p := f.projector(func(c *Config) { c.Process = "worker" })
	stop := f.run(p)
	f.caughtUp()
	f.damage(`update balances set balance = 1`)
	f.credit("A", 1)
	reader := f.projector()
	shard := ledger.AccountID("A").Shard()
	var status []ShardStatus
	f.eventually("the parked account is reported", func() bool {
		var err error
		if status, err = reader.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
		return status[shard].Parked == 1 && status[shard].LagSeconds > 0
	})
	for i, s := range status {
		if s.Shard != i || s.Owner[:7] != "worker/" || s.Generation != 1 || s.Incarnation != 1 || s.ExpiresAt.IsZero() {
			t.Errorf("shard %d is %+v", i, s)
		}
	}
	s := status[shard]
	if s.LagEntries != 1 || len(s.Examples) != 1 || s.Examples[0] != "A" || s.LastError == "" {
		t.Errorf("the shard with the parked account is %+v", s)
	}
	r, _, err := p.RequestRebuild(t.Context(), "repair")
	if err != nil {
		t.Fatal(err)
	}
	f.eventually("the report is empty again", func() bool {
		if r, err = reader.Rebuild(t.Context(), r.ID); err != nil {
			t.Fatal(err)
		}
		status, err = reader.Status(t.Context())
		return err == nil && r.Finished() && status[shard].Parked == 0 && status[shard].LagEntries == 0
	})
	stop()
	f.credit("A", 1)
	f.credit("A", 1)
	status, err = reader.Status(t.Context())
	if s := status[shard]; err != nil || s.Owner != "" || s.LagEntries != 2 || s.LagSeconds <= 0 || s.Parked != 0 {
		t.Errorf("without an owner the shard is %+v (%v)", s, err)
	}
}

// TestEveryStatementFitsTheSchema prepares all SQL in the service role.
func TestEveryStatementFitsTheSchema(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	conn, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for i, statement := range []string{
		applyStatement, rewriteStatement, replaceTokenStatement, verifyTermStatement, insertMissingStatement, tailStatement, missingStatement, lastPositionStatement,
		unappliedStatement, rowsStatement, compareStatement, freeStatement, reportStatement, statusStatement, idleLagStatement,
		insertRebuildStatement, insertRebuildShardsStatement, openRebuildStatement, rebuildStatement, rebuildJobsStatement,
		progressStatement, finishStatement, accountPagesStatement, chainStatement,
		orphanStatement, verifyAccountsStatement, verifyEntriesStatement,
	} {
		if _, err := conn.Conn().Prepare(t.Context(), fmt.Sprint("s", i), statement); err != nil {
			t.Errorf("%v in %s", err, statement)
		}
	}
}

func TestConfigRules(t *testing.T) {
	t.Parallel()
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	for name, c := range map[string]Config{
		"short lease":       {LeaseTTL: 10 * time.Millisecond},
		"long lease":        {LeaseTTL: time.Hour},
		"rare renewal":      {LeaseTTL: time.Second, RenewEvery: 600 * time.Millisecond},
		"large margin":      {LeaseTTL: time.Second, LeaseMargin: 600 * time.Millisecond},
		"gather below idle": {GatherIdle: time.Second},
		"fast sweep":        {SweepEvery: 1},
		"no time":           {StatementTimeout: 1},
		"many rebuilds":     {RebuildParallel: 65},
	} {
		if err := c.Validate(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
