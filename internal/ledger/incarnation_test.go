package ledger

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// healthySight is a server that fits its incarnation.
func healthySight(flushed int64) *sight {
	return &sight{
		life: life{startedAt: 1, entriesOID: 20}, system: 30, timeline: 1, flushed: flushed,
		incarnation: Incarnation{Number: 2, SystemIdentifier: 30, Timeline: 1, EntriesOID: 20},
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*sight)
		want   Code
	}{
		"healthy":                    {func(*sight) {}, ""},
		"restarted":                  {func(s *sight) { s.life.startedAt++ }, ""},
		"the log has grown":          {func(s *sight) { s.flushed++ }, ""},
		"the log is as long":         {func(s *sight) { s.flushed = 100 }, ""},
		"a standby":                  {func(s *sight) { s.inRecovery, s.flushed = true, 0 }, CodeUnavailable},
		"not in the service role":    {func(s *sight) { s.mayChange = true }, CodeUnavailable},
		"another cluster":            {func(s *sight) { s.system++ }, CodeIncarnationMismatch},
		"another table":              {func(s *sight) { s.life.entriesOID++ }, CodeIncarnationMismatch},
		"promoted":                   {func(s *sight) { s.timeline++ }, CodeIncarnationMismatch},
		"an older timeline":          {func(s *sight) { s.timeline-- }, CodeIncarnationMismatch},
		"the log is shorter":         {func(s *sight) { s.flushed = 99 }, CodeIncarnationMismatch},
		"an older incarnation":       {func(s *sight) { s.incarnation.Number = 1 }, CodeIncarnationMismatch},
		"bumped, with a shorter log": {func(s *sight) { s.incarnation.Number, s.flushed = 3, 1 }, ""},
		"bumped after a promotion": {func(s *sight) {
			s.incarnation.Number, s.incarnation.Timeline, s.timeline, s.flushed = 3, 2, 2, 1
		}, ""},
	} {
		var g guard
		if st := g.judge(healthySight(100)); st.refusal != nil {
			t.Fatal(st.refusal)
		}
		s := healthySight(100)
		c.change(s)
		st := g.judge(s)
		if st.refusal == nil && c.want != "" || st.refusal != nil && st.refusal.Code != c.want {
			t.Errorf("%s: %v, want %q", name, st.refusal, c.want)
		}
		if st != g.current() || st.life != s.life || st.incarnation != s.incarnation.Number || st.standby != s.inRecovery {
			t.Errorf("%s: state %+v", name, st)
		}
	}
}

// TestLostLogStaysLost: that rows were lost is known to the processes that ran
// before. They go on refusing when the log has grown again, until the
// incarnation is above every one that they have seen.
func TestLostLogStaysLost(t *testing.T) {
	t.Parallel()
	var g guard
	judged := func(number int, flushed int64) bool {
		s := healthySight(flushed)
		s.incarnation.Number = number
		return g.judge(s).refusal == nil
	}
	for i, step := range []struct {
		number  int
		flushed int64
		writes  bool
	}{
		{2, 100, true}, {2, 50, false}, {2, 200, false}, {3, 60, true}, {3, 59, false}, {4, 10, true},
		{2, 500, false}, {3, 500, false}, {4, 500, false}, {5, 5, true},
	} {
		if got := judged(step.number, step.flushed); got != step.writes {
			t.Errorf("step %d: writes %v", i, got)
		}
	}
}

// TestChecksTakeTurns: a look that began earlier and was judged later would seem
// to have lost rows, so nobody looks before it is its turn.
func TestChecksTakeTurns(t *testing.T) {
	t.Parallel()
	g := newGuard(PromotionAny)
	conn := acquire(t, pgtest.Database(t).Pool(t))
	g.turn <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if st, err := g.check(ctx, conn); !errors.Is(err, context.Canceled) || st != nil || g.current() != nil {
		t.Fatalf("looked out of turn: %+v, %v", st, err)
	}
	looked := make(chan error)
	go func() {
		_, err := g.check(t.Context(), conn)
		looked <- err
	}()
	<-g.turn
	if err := <-looked; err != nil || g.current() == nil || g.current().refusal != nil {
		t.Fatalf("state %+v, %v", g.current(), err)
	}
	if len(g.turn) != 0 {
		t.Fatal("the turn was not given back")
	}
}

func TestPromotedSafely(t *testing.T) {
	t.Parallel()
	promoted := func(change func(*sight)) *sight {
		s := healthySight(100)
		s.timeline++
		change(s)
		return s
	}
	for name, c := range map[string]struct {
		promotion Promotion
		s         *sight
		want      bool
	}{
		"promoted":                   {PromotionSynchronous, promoted(func(*sight) {}), true},
		"nobody said that it loses":  {PromotionAny, promoted(func(*sight) {}), false},
		"not promoted":               {PromotionSynchronous, promoted(func(s *sight) { s.timeline-- }), false},
		"back to an older timeline":  {PromotionSynchronous, promoted(func(s *sight) { s.timeline = 0 }), false},
		"still a standby":            {PromotionSynchronous, promoted(func(s *sight) { s.inRecovery = true }), false},
		"another cluster as well":    {PromotionSynchronous, promoted(func(s *sight) { s.system++ }), false},
		"another table as well":      {PromotionSynchronous, promoted(func(s *sight) { s.life.entriesOID++ }), false},
		"not in the service's role":  {PromotionSynchronous, promoted(func(s *sight) { s.mayChange = true }), false},
		"two promotions in one time": {PromotionSynchronous, promoted(func(s *sight) { s.timeline++ }), true},
	} {
		g := guard{promotion: c.promotion}
		if got := g.promotedSafely(c.s); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestBump: of many operators who bump at once each bumps once or is refused,
// numbers have no gaps, leases end, and there is a last one.
func TestBump(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	owner := db.OwnerPool(t)
	_, err := owner.Exec(t.Context(), `insert into leases (name, incarnation, generation, holder, nonce, ttl_ms, lock_delay_ms, acquired_at, expires_at)
		values ('L', 1, 1, 'h', gen_random_uuid(), 1000, 0, clock_timestamp(), clock_timestamp() + interval '1 hour')`)
	if err != nil {
		t.Fatal(err)
	}
	pool := db.Pool(t)
	var bumped atomic.Int64
	together(6, func(int) {
		conn, err := pool.Acquire(context.Background())
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Release()
		_, err = BumpIncarnation(context.Background(), conn.Conn(), "test")
		var refused *pgconn.PgError
		switch {
		case err == nil:
			bumped.Add(1)
		case !errors.As(err, &refused) || refused.Code != "23505":
			t.Error(err)
		}
	})
	conn := acquire(t, pool)
	status, err := ReadIncarnation(t.Context(), conn)
	if err != nil || !status.Matches || status.Current.Reason != "test" || int64(status.Current.Number) != 1+bumped.Load() || bumped.Load() == 0 {
		t.Fatalf("%d bumps, status %+v, %v", bumped.Load(), status, err)
	}
	var live bool
	if err := conn.QueryRow(t.Context(), "select expires_at > clock_timestamp() from leases").Scan(&live); err != nil || live {
		t.Errorf("the lease is live: %v, %v", live, err)
	}
	if _, err := owner.Exec(t.Context(), "insert into incarnations select 255, system_identifier, timeline, entries_oid, 'the last' from incarnations where incarnation = 1"); err != nil {
		t.Fatal(err)
	}
	if _, err := BumpIncarnation(t.Context(), conn, "one more"); !errors.Is(err, ErrIncarnationLimit) {
		t.Errorf("bump of the last: %v", err)
	}
}
