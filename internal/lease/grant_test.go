package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// grantScript goes through everything that the guards of Grants are there for,
// on one name, and returns the first step that is not as it should be.
type grantScript struct {
	ctx    context.Context
	grants *Grants
	owner  *pgxpool.Pool
	failed error
}

func (s *grantScript) fail(format string, args ...any) {
	if s.failed == nil {
		s.failed = fmt.Errorf(format, args...)
	}
}

func (s *grantScript) exec(sql string, args ...any) {
	if _, err := s.owner.Exec(s.ctx, sql, args...); err != nil {
		s.fail("%s: %w", sql, err)
	}
}

// expire moves the end of the lease to d from now.
func (s *grantScript) expire(d time.Duration) {
	s.exec(`update leases set expires_at = clock_timestamp() + $1::bigint * interval '1 millisecond'`, d.Milliseconds())
}

func (s *grantScript) acquires(step, holder string, delay time.Duration, token Token) Grant {
	g, err := s.grants.Acquire(s.ctx, "n", holder, TTLMax, delay)
	if err != nil || g.Token() != token || g.State != StateHeld || g.Holder != holder {
		s.fail("%s: %s acquires %+v %w, want token %d", step, holder, g, err, token)
	}
	return g
}

func (s *grantScript) isHeld(step string, state State) {
	var held *Held
	g, err := s.grants.Acquire(s.ctx, "n", "other", TTLMax, 0)
	if !errors.As(err, &held) || held.State != state || held.FreeIn <= 0 || held.FreeIn > TTLMax+LockDelayMax {
		s.fail("%s: an acquisition gives %+v %w, want state %s", step, g, err, state)
	}
}

func (s *grantScript) renews(step, holder string, token Token, want error) {
	g, err := s.grants.Renew(s.ctx, "n", holder, token, TTLMax)
	if !errors.Is(err, want) || want == nil && (g.Token() != token || time.Until(g.ExpiresAt) < TTLMax/2) {
		s.fail("%s: renewal of %s %d gives %+v %w, want %w", step, holder, token, g, err, want)
	}
}

func (s *grantScript) releases(step, holder string, token Token, want error) {
	if g, err := s.grants.Release(s.ctx, "n", holder, token); !errors.Is(err, want) || want == nil && g.State != StateFree {
		s.fail("%s: release of %s %d gives %+v %w, want %w", step, holder, token, g, err, want)
	}
}

func (s *grantScript) mismatch(step string, err error) {
	var refusal *ledger.Refusal
	if !errors.As(err, &refusal) || refusal.Code != ledger.CodeIncarnationMismatch {
		s.fail("%s: %w, want incarnation_mismatch", step, err)
	}
}

func (s *grantScript) run() error {
	s.renews("nobody had it", "A", 1, ErrNotFound)
	s.acquires("the first", "A", time.Minute, 1)
	s.isHeld("it is held", StateHeld)
	s.renews("another holder", "B", 1, ErrTermOver)
	s.renews("a token that is too high", "A", 2, ErrTermOver)
	s.renews("another incarnation", "A", 1<<40+1, ErrTermOver)
	s.releases("another holder", "B", 1, ErrTermOver)
	s.renews("it stands", "A", 1, nil)

	s.expire(-10 * time.Millisecond)
	s.renews("it ran out", "A", 1, ErrTermOver)
	s.releases("it ran out", "A", 1, ErrTermOver)
	s.isHeld("its lock delay runs", StateLockDelay)
	s.expire(-time.Hour)
	s.acquires("all is over", "B", time.Minute, 2)
	s.renews("superseded", "A", 1, ErrTermOver)
	s.releases("superseded", "A", 1, ErrTermOver)
	s.renews("same holder, old token", "B", 1, ErrTermOver)
	s.releases("same holder, old token", "B", 1, ErrTermOver)

	s.releases("it stands", "B", 2, nil)
	s.releases("again", "B", 2, nil)
	s.expire(time.Minute) // the clock was set back by a minute
	s.renews("released", "B", 2, ErrTermOver)
	g := s.acquires("after a release no delay runs", "A", time.Minute, 3)
	s.renews("after a release", "A", 3, nil)

	if forced, err := s.grants.ForceRelease(s.ctx, "n", "ana", "gone"); err != nil || forced.State != StateLockDelay {
		s.fail("force release: %+v %w", forced, err)
	}
	if f, err := s.grants.Forced(s.ctx, g.Term); err != nil || f != (Forced{"ana", "gone"}) {
		s.fail("the forced release is kept as %+v %w", f, err)
	}
	s.isHeld("after a forced release the delay runs", StateLockDelay)
	if _, err := s.grants.ForceRelease(s.ctx, "n", "ana", "again"); !errors.Is(err, ErrTermOver) {
		s.fail("a second forced release: %w", err)
	}
	s.expire(time.Hour) // the clock was set back by an hour
	s.acquires("the clock went back", "B", 0, 4)

	s.exec(`update incarnations set timeline = timeline + 1`)
	_, err := s.grants.Acquire(s.ctx, "new", "B", TTLMax, 0)
	s.mismatch("acquire on another timeline", err)
	_, err = s.grants.Renew(s.ctx, "n", "B", 4, TTLMax)
	s.mismatch("renew on another timeline", err)
	_, err = s.grants.Release(s.ctx, "n", "B", 4)
	s.mismatch("release on another timeline", err)
	_, err = s.grants.ForceRelease(s.ctx, "n", "ana", "gone")
	s.mismatch("force release on another timeline", err)
	s.exec(`update incarnations set timeline = timeline - 1`)
	s.renews("the timeline is right again", "B", 4, nil)

	s.exec(`insert into incarnations (incarnation, system_identifier, timeline, entries_oid, reason)
		select incarnation + 1, system_identifier, timeline, entries_oid, 'test' from incarnations`)
	s.renews("a bump ends all leases", "B", 4, ErrTermOver)
	s.acquires("after a bump", "A", 0, 1<<40+5)
	s.exec(`update leases set incarnation = 3, expires_at = clock_timestamp() - interval '1 hour'`)
	if g, err := s.grants.Acquire(s.ctx, "n", "B", TTLMax, 0); err == nil {
		s.fail("a token fell to %d", g.Token())
	}
	return s.failed
}

func runScript(t *testing.T, broken func(*Grants)) error {
	t.Helper()
	db := pgtest.Database(t)
	grants := NewGrants(db.Pool(t))
	broken(grants)
	return (&grantScript{ctx: t.Context(), grants: grants, owner: db.OwnerPool(t)}).run()
}

func TestGrantsFollowTheRules(t *testing.T) {
	t.Parallel()
	if err := runScript(t, func(*Grants) {}); err != nil {
		t.Error(err)
	}
}

// TestBrokenGrantsAreCaught takes one guard at a time out of the statements and
// expects the script to notice.
func TestBrokenGrantsAreCaught(t *testing.T) {
	t.Parallel()
	acquire := func(g *Grants) *string { return &g.sql.acquire }
	renew := func(g *Grants) *string { return &g.sql.renew }
	release := func(g *Grants) *string { return &g.sql.release }
	force := func(g *Grants) *string { return &g.sql.force }
	for _, mu := range []struct {
		name     string
		of       func(*Grants) *string
		old, new string
	}{
		{"acquire without the free check", acquire, "(l.released_at is not null\n        or", "(true or"},
		{"acquire keeps the generation", acquire, "generation = l.generation + 1", "generation = l.generation"},
		{"acquire forgets the lock delay", acquire, "l.expires_at + l.lock_delay_ms * interval '1 millisecond' <=", "l.expires_at <="},
		{"acquire at the wrong side of expiry", acquire, "interval '1 millisecond' <= clock_timestamp()", "interval '1 millisecond' >= clock_timestamp()"},
		{"acquire keeps the release", acquire, "released_at = null", "released_at = l.released_at"},
		{"acquire ignores a release", acquire, "l.released_at is not null\n        or", ""},
		{"acquire waits for a clock that went back", acquire, "or " + clockWentBack, ""},
		{"acquire does not see the bump", acquire, "or l.incarnation < excluded.incarnation", ""},
		{"acquire lets a token fall", acquire, "excluded.incarnation >= l.incarnation", "true"},
		{"acquire in a database that lost rows", acquire, "where i.mine", "where true"},
		{"renew revives", renew, "and locked.expires_at > clock_timestamp()", ""},
		{"renew without the generation", renew, "and l.generation = $3::bigint", "and l.generation >= $3::bigint"},
		{"renew without the incarnation of the token", renew, "l.incarnation = $2::integer", "$2::integer > 0"},
		{"renew without the holder", renew, "and l.holder = $4::text", "and $4::text <> ''"},
		{"renew after a release", renew, "and l.released_at is null", ""},
		{"renew after a bump", renew, "and l.incarnation = i.incarnation", ""},
		{"renew in a database that lost rows", renew, "and i.mine", ""},
		{"release without the generation", release, "and l.generation = $3::bigint", "and l.generation >= $3::bigint"},
		{"release without the holder", release, "and l.holder = $4::text", "and $4::text <> ''"},
		{"release of an expired term", release, "and locked.expires_at > clock_timestamp()", ""},
		{"release in a database that lost rows", release, "and i.mine", ""},
		{"force release of an expired term", force, "and locked.expires_at > clock_timestamp()", ""},
		{"force release in a database that lost rows", force, "and i.mine", ""},
	} {
		t.Run(mu.name, func(t *testing.T) {
			t.Parallel()
			err := runScript(t, func(g *Grants) {
				text := mu.of(g)
				broken := strings.Replace(*text, mu.old, mu.new, 1)
				if broken == *text {
					t.Fatalf("the statement has no %q", mu.old)
				}
				*text = broken
			})
			if err == nil {
				t.Error("nothing noticed it")
			} else {
				t.Log(err)
			}
		})
	}
}
