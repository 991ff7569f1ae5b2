package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// machine drives the real store and the model through the same steps. Time
// passes only when a step moves expires_at back, because the TTL is ten minutes.
type machine struct {
	store *Store
	owner *pgxpool.Pool
	model *model
	draw  func(n int, label string) int
	names []string
	terms []Term // every term that was ever handed out
	last  map[string]Token
}

const machineTTL = 10 * time.Minute

func newMachine(store *Store, owner *pgxpool.Pool, draw func(int, string) int) (*machine, error) {
	// A fresh set of names for each run: rows are never deleted.
	prefix := uuid.NewString()
	start := time.Now()
	m := &machine{store: store, owner: owner, draw: draw, last: make(map[string]Token)}
	m.model = newModel(func() time.Time { return start })
	for i := range 3 {
		m.names = append(m.names, fmt.Sprintf("%s/%d", prefix, i))
	}
	return m, owner.QueryRow(context.Background(), `select max(incarnation) from incarnations`).Scan(&m.model.incarnation)
}

func (m *machine) subset(label string) []string {
	mask := m.draw(1<<len(m.names), label)
	var names []string
	for i, name := range m.names {
		if mask&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// presented is a choice of terms, old and new, some of them forged.
func (m *machine) presented() []Term {
	var terms []Term
	for _, name := range m.subset("terms of") {
		var of []Term
		for _, t := range m.terms {
			if t.Name == name {
				of = append(of, t)
			}
		}
		if len(of) == 0 {
			continue
		}
		t := of[len(of)-1]
		switch m.draw(5, "which term") {
		case 0:
			t = of[m.draw(len(of), "old term")]
		case 1:
			t.Nonce = uuid.New()
		case 2:
			t.Generation++
		}
		terms = append(terms, t)
	}
	return terms
}

func (m *machine) step() error {
	ctx := context.Background()
	switch m.draw(8, "step") {
	case 0, 1, 2:
		return m.acquire(ctx)
	case 3:
		terms := m.presented()
		got, err := m.store.Renew(ctx, machineTTL, terms)
		if err != nil {
			return err
		}
		want, _ := m.model.Renew(ctx, machineTTL, terms)
		return sameNames("renewed", got, want)
	case 4:
		terms := m.presented()
		got, err := m.store.Release(ctx, terms)
		if err != nil {
			return err
		}
		want, _ := m.model.Release(ctx, terms)
		return sameNames("released", got, want)
	case 5:
		return m.setExpiry(ctx, -time.Hour)
	case 6:
		return m.setExpiry(ctx, -10*time.Millisecond) // less than a lock delay ago
	default:
		return m.setExpiry(ctx, time.Hour) // the clock went back by an hour
	}
}

func (m *machine) acquire(ctx context.Context) error {
	names := m.subset("names")
	holder := fmt.Sprintf("holder %d", m.draw(2, "holder"))
	delay := time.Duration(m.draw(2, "lock delay")) * time.Minute
	got, err := m.store.Acquire(ctx, holder, machineTTL, delay, names)
	if err != nil {
		return err
	}
	want, _ := m.model.Acquire(ctx, holder, machineTTL, delay, names)
	var gotNames, wantNames []string
	for _, t := range got {
		gotNames = append(gotNames, t.Name)
		if t.Token() <= m.last[t.Name] {
			return fmt.Errorf("%s: token %d after %d", t.Name, t.Token(), m.last[t.Name])
		}
		m.last[t.Name] = t.Token()
	}
	for _, t := range want {
		wantNames = append(wantNames, t.Name)
	}
	if err := sameNames("acquired", gotNames, wantNames); err != nil {
		return err
	}
	for _, t := range got {
		m.model.rows[t.Name].Nonce = t.Nonce // the store chose it
	}
	m.terms = append(m.terms, got...)
	return nil
}

func (m *machine) setExpiry(ctx context.Context, d time.Duration) error {
	names := m.subset("expiry of")
	for _, name := range names {
		if r := m.model.rows[name]; r != nil {
			r.ExpiresAt = m.model.now().Add(d)
		}
	}
	_, err := m.owner.Exec(ctx, `update leases set expires_at = clock_timestamp() + $2::bigint * interval '1 microsecond'
		where name = any($1)`, names, d.Microseconds())
	return err
}

// compare holds every row against the model.
func (m *machine) compare() error {
	got, err := m.store.Look(context.Background(), m.names)
	if err != nil {
		return err
	}
	want, _ := m.model.Look(context.Background(), m.names)
	if len(got) != len(want) {
		return fmt.Errorf("%d rows, want %d", len(got), len(want))
	}
	for i, g := range got {
		w := want[i]
		g.AcquiredAt, g.ExpiresAt, w.AcquiredAt, w.ExpiresAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
		if g != w {
			return fmt.Errorf("row is %+v, want %+v", g, w)
		}
	}
	return nil
}

func (m *machine) run(steps int) error {
	for range steps {
		if err := m.step(); err != nil {
			return err
		}
		if err := m.compare(); err != nil {
			return err
		}
	}
	return nil
}

func sameNames(what string, got, want []string) error {
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s %v, want %v", what, got, want)
	}
	return nil
}

func TestStoreAgreesWithModel(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	store, owner := NewStore(db.Pool(t)), db.OwnerPool(t)
	rapid.Check(t, func(rt *rapid.T) {
		m, err := newMachine(store, owner, func(n int, label string) int { return rapid.IntRange(0, n-1).Draw(rt, label) })
		if err != nil {
			rt.Fatal(err)
		}
		if err := m.run(rapid.IntRange(1, 30).Draw(rt, "steps")); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestBrokenStatementsAreCaught takes one guard at a time out of the statements
// and expects the state machine to notice.
func TestBrokenStatementsAreCaught(t *testing.T) {
	t.Parallel()
	good := NewStore(nil).sql
	mutations := []struct {
		name     string
		of       func(*statements) *string
		old, new string
	}{
		{"acquire without the free check", acquireOf, "l.released_at is not null\n        or", "true or"},
		{"acquire keeps the generation", acquireOf, "generation = l.generation + 1", "generation = l.generation"},
		{"acquire restarts the generation", acquireOf, "generation = l.generation + 1", "generation = 1"},
		{"acquire forgets the lock delay", acquireOf, "l.expires_at + l.lock_delay_ms * interval '1 millisecond'", "l.expires_at"},
		{"acquire keeps the release", acquireOf, "released_at = null", "released_at = l.released_at"},
		{"acquire waits for a clock that went back", acquireOf, "or " + clockWentBack, ""},
		{"acquire ignores a release", acquireOf, "l.released_at is not null\n        or", ""},
		{"renew revives", renewOf, "and locked.expires_at > clock_timestamp()", ""},
		{"renew at the wrong side of expiry", renewOf, "locked.expires_at > clock_timestamp()", "locked.expires_at < clock_timestamp()"},
		{"renew without the nonce", renewOf, "and l.nonce = q.nonce", ""},
		{"renew without the generation", renewOf, "and l.generation = q.generation", "and l.generation <= q.generation"},
		{"renew after release", renewOf, "and l.released_at is null", "and true"},
		{"renew raises the generation", renewOf, "set ttl_ms", "set generation = l.generation + 1, ttl_ms"},
		{"release without the nonce", releaseOf, "and l.nonce = q.nonce", ""},
		{"release without the generation", releaseOf, "and l.generation = q.generation", "and l.generation <= q.generation"},
		{"release of an expired term", releaseOf, "and locked.expires_at > clock_timestamp()", ""},
	}
	for _, mu := range mutations {
		t.Run(mu.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			store, owner := NewStore(db.Pool(t)), db.OwnerPool(t)
			store.sql = good
			text := mu.of(&store.sql)
			broken := strings.Replace(*text, mu.old, mu.new, 1)
			if broken == *text {
				t.Fatalf("the statement has no %q", mu.old)
			}
			*text = broken
			for seed := uint64(1); seed <= 100; seed++ {
				rng := rand.New(rand.NewPCG(seed, 0))
				m, err := newMachine(store, owner, func(n int, _ string) int { return rng.IntN(n) })
				if err != nil {
					t.Fatal(err)
				}
				if err := m.run(60); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Fatal("nothing noticed it in 100 runs of 60 steps")
		})
	}
}

func acquireOf(s *statements) *string { return &s.acquire }
func renewOf(s *statements) *string   { return &s.renew }
func releaseOf(s *statements) *string { return &s.release }

func TestBumpEndsAllLeasesAndRaisesTokens(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := pgtest.Database(t)
	store, owner := NewStore(db.Pool(t)), db.OwnerPool(t)
	before, err := store.Acquire(ctx, "a", machineTTL, 0, []string{"x"})
	if err != nil || len(before) != 1 {
		t.Fatalf("acquire: %v %v", before, err)
	}
	if _, err := owner.Exec(ctx, `insert into incarnations (incarnation, system_identifier, timeline, entries_oid, reason)
		select incarnation + 1, system_identifier, timeline, entries_oid, 'test' from incarnations`); err != nil {
		t.Fatal(err)
	}
	if names, err := store.Renew(ctx, machineTTL, before); err != nil || len(names) != 0 {
		t.Fatalf("a term of the old incarnation was renewed: %v %v", names, err)
	}
	after, err := store.Acquire(ctx, "b", machineTTL, 0, []string{"x"})
	if err != nil || len(after) != 1 {
		t.Fatalf("the lease did not end with its incarnation: %v %v", after, err)
	}
	if after[0].Token() <= 1<<40 || after[0].Generation != before[0].Generation+1 {
		t.Fatalf("token %d (generation %d) after %d", after[0].Token(), after[0].Generation, before[0].Token())
	}
}

// TestClockIsReadAfterTheLock blocks a statement on a locked row until the lease
// has run out: a renewal must then fail, an acquisition succeed.
func TestClockIsReadAfterTheLock(t *testing.T) {
	t.Parallel()
	plain := strings.NewReplacer(
		lockTerms, "", "from locked, unnest", "from unnest", "l.name = locked.name\n   and ", "", "locked.expires_at", "l.expires_at",
	).Replace(renewStatement)

	t.Run("renew", func(t *testing.T) {
		t.Parallel()
		if renewed := renewWhileLocked(t, renewStatement); len(renewed) != 0 {
			t.Fatal("an expired term was revived")
		}
	})
	t.Run("a plain UPDATE would revive it", func(t *testing.T) {
		t.Parallel()
		if renewed := renewWhileLocked(t, plain); len(renewed) != 1 {
			t.Fatal("the scenario does not tell the two statements apart")
		}
	})
	t.Run("acquire", func(t *testing.T) {
		t.Parallel()
		var terms []Term
		whileLocked(t, func(ctx context.Context, store *Store, _ []Term) (err error) {
			terms, err = store.Acquire(ctx, "b", machineTTL, 0, []string{"x"})
			return err
		})
		if len(terms) != 1 {
			t.Fatal("a lease that ran out during the wait was not acquired")
		}
	})
}

func renewWhileLocked(t *testing.T, statement string) (renewed []string) {
	whileLocked(t, func(ctx context.Context, store *Store, held []Term) (err error) {
		store.sql.renew = statement
		renewed, err = store.Renew(ctx, time.Second, held)
		return err
	})
	return renewed
}

// whileLocked runs f on a lease whose row another session has locked until the
// lease has run out.
func whileLocked(t *testing.T, f func(context.Context, *Store, []Term) error) {
	ctx := t.Context()
	db := pgtest.Database(t)
	owner := db.OwnerPool(t)
	store := NewStore(owner) // as the owner: without the lock timeout of the service
	held, err := store.Acquire(ctx, "a", time.Second, 0, []string{"x"})
	if err != nil || len(held) != 1 {
		t.Fatalf("acquire: %v %v", held, err)
	}
	tx, err := owner.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, `select from leases where name = 'x' for update`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f(ctx, store, held) }()
	var waits, expired bool
	for deadline := time.Now().Add(10 * time.Second); !waits || !expired; {
		err := owner.QueryRow(ctx, `select expires_at <= clock_timestamp(),
			exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')
			from leases where name = 'x'`).Scan(&expired, &waits)
		if err != nil {
			t.Fatal(err)
		}
		if expired && !waits || time.Now().After(deadline) {
			t.Fatalf("the statement did not wait for the lock in time (expired: %v)", expired)
		}
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestOneOfManyAcquirersWins(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := pgtest.Database(t)
	store := NewStore(db.Pool(t))
	names := []string{"c", "a", "b"}
	var last int64
	for round := range 100 {
		var mu sync.Mutex
		winners := make(map[string]Term)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				terms, err := store.Acquire(ctx, fmt.Sprint(i), machineTTL, 0, names)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, term := range terms {
					if _, ok := winners[term.Name]; ok {
						t.Errorf("round %d: two winners of %s", round, term.Name)
					}
					winners[term.Name] = term
				}
			})
		}
		wg.Wait()
		if len(winners) != len(names) {
			t.Fatalf("round %d: %d of %d names have a winner", round, len(winners), len(names))
		}
		last++
		var terms []Term
		for _, term := range winners {
			if term.Generation != last {
				t.Fatalf("round %d: generation %d, want %d", round, term.Generation, last)
			}
			terms = append(terms, term)
		}
		if released, err := store.Release(ctx, terms); err != nil || len(released) != len(names) {
			t.Fatalf("release: %v %v", released, err)
		}
	}
}
