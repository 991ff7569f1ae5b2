package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// acquireStatement takes every name of $1 that is free and returns those terms.
//
// ON CONFLICT locks the row before the WHERE and the SET are computed, so the
// clock that decides is read after the wait for the lock. The rows come in the
// order of their names, so two acquirers never deadlock.
const acquireStatement = `
insert into leases as l (name, incarnation, generation, holder, nonce, ttl_ms, lock_delay_ms, acquired_at, expires_at)
select q.name, i.incarnation, 1, $3::text, q.nonce, $4::integer, $5::integer,
       clock_timestamp(), clock_timestamp() + $4::integer * interval '1 millisecond'
  from unnest($1::text[], $2::uuid[]) as q (name, nonce)
 cross join (select max(incarnation) as incarnation from incarnations) as i
 order by q.name
    on conflict (name) do update
   set incarnation = excluded.incarnation,
       generation = l.generation + 1,
       holder = excluded.holder,
       nonce = excluded.nonce,
       ttl_ms = excluded.ttl_ms,
       lock_delay_ms = excluded.lock_delay_ms,
       acquired_at = clock_timestamp(),
       expires_at = clock_timestamp() + excluded.ttl_ms * interval '1 millisecond',
       released_at = null
 where excluded.incarnation >= l.incarnation -- a token never falls
   and (l.released_at is not null
        or l.incarnation < excluded.incarnation -- a bump ends all leases
        or l.expires_at + l.lock_delay_ms * interval '1 millisecond' <= clock_timestamp()
        or ` + clockWentBack + `)
returning l.name, l.incarnation, l.generation, l.nonce`

// clockWentBack is true when a lease ends later than any renewal can have
// said: the database's clock was set back, and its time would not come for as
// long as the clock jumped.
const clockWentBack = `l.expires_at > clock_timestamp() + 2 * l.ttl_ms * interval '1 millisecond'`

// lockTerms locks the rows of a renewal or a release before anything about time
// is computed. A plain UPDATE would read the clock first and wait for the lock
// after, and so revive a term that expired during the wait.
const lockTerms = `
with locked as materialized (
  select l.name, l.expires_at
    from leases as l
   where l.name = any($1::text[])
   order by l.name
     for update
)`

// exactTerm is what a renewal or a release must match.
const exactTerm = `
  from locked, unnest($1::text[], $2::bigint[], $3::uuid[]) as q (name, generation, nonce)
 where l.name = locked.name
   and l.name = q.name
   and l.generation = q.generation
   and l.nonce = q.nonce
   and l.released_at is null
   and l.incarnation = (select max(incarnation) from incarnations)
   and locked.expires_at > clock_timestamp() -- an expired term is never revived`

const renewStatement = lockTerms + `
update leases as l
   set ttl_ms = $4::integer,
       expires_at = clock_timestamp() + $4::integer * interval '1 millisecond'` + exactTerm + `
returning l.name`

const releaseStatement = lockTerms + `
update leases as l
   set expires_at = clock_timestamp(),
       released_at = clock_timestamp()` + exactTerm + `
returning l.name`

// lookStatement reads leases and judges them by the database's clock.
const lookStatement = `
select l.name, l.incarnation, l.generation, l.nonce, l.holder, l.acquired_at, l.expires_at,
       l.released_at is null and l.incarnation = i.incarnation and l.expires_at > clock_timestamp()
         and not ` + clockWentBack + `,
       l.released_at is not null
         or l.incarnation < i.incarnation
         or l.expires_at + l.lock_delay_ms * interval '1 millisecond' <= clock_timestamp()
         or ` + clockWentBack + `
  from leases as l
 cross join (select max(incarnation) as incarnation from incarnations) as i
 where l.name = any($1::text[])
 order by l.name`

// Querier is what a Store needs of a pool.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Store keeps leases in PostgreSQL. Every method is one statement; an error
// means that the outcome is not known, and Look tells it.
type Store struct {
	db  Querier
	sql statements
}

// statements are the writes of a store; tests break their guards one by one.
type statements struct{ acquire, renew, release string }

// NewStore returns the store behind db, whose sessions must commit durably: a
// lost acquisition would hand out its token twice.
func NewStore(db Querier) *Store {
	return &Store{db: db, sql: statements{acquireStatement, renewStatement, releaseStatement}}
}

// Lease is a row as the database judged it when it was read.
type Lease struct {
	Term
	// Holder named itself when it acquired the lease.
	Holder     string
	AcquiredAt time.Time
	ExpiresAt  time.Time
	// Live is true while the term can be renewed.
	Live bool
	// Free is true when the name can be acquired. A lease that is neither live
	// nor free waits for its lock delay.
	Free bool
}

// Acquire takes those of the names that are free, for ttl, and returns their
// new terms in any order. A name that is not returned is held by somebody, or
// waits for the lock delay of its last holder. With a lock delay nobody can
// acquire the name for that long after the lease ran out without a release.
func (s *Store) Acquire(ctx context.Context, holder string, ttl, lockDelay time.Duration, names []string) ([]Term, error) {
	nonces := make([]uuid.UUID, len(names))
	for i := range nonces {
		nonces[i] = uuid.New()
	}
	rows, err := s.db.Query(ctx, s.sql.acquire, names, nonces, holder, ttl.Milliseconds(), lockDelay.Milliseconds())
	if err != nil {
		return nil, fmt.Errorf("acquire leases: %w", err)
	}
	terms, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Term])
	if err != nil {
		return nil, fmt.Errorf("acquire leases: %w", err)
	}
	for _, t := range terms {
		if err := t.validate(); err != nil {
			return nil, fmt.Errorf("acquire leases: %w", err)
		}
	}
	return terms, nil
}

// Renew lets the terms run for ttl from now on, all in one statement, and
// returns the names whose terms still stood. The others are lost.
func (s *Store) Renew(ctx context.Context, ttl time.Duration, terms []Term) ([]string, error) {
	names, generations, nonces := columns(terms)
	return s.names(ctx, "renew leases", s.sql.renew, names, generations, nonces, ttl.Milliseconds())
}

// Release ends the terms at once and returns the names whose terms still
// stood. No lock delay follows.
func (s *Store) Release(ctx context.Context, terms []Term) ([]string, error) {
	names, generations, nonces := columns(terms)
	return s.names(ctx, "release leases", s.sql.release, names, generations, nonces)
}

// Look returns the leases of those names that were ever acquired, by name.
func (s *Store) Look(ctx context.Context, names []string) ([]Lease, error) {
	rows, err := s.db.Query(ctx, lookStatement, names)
	if err != nil {
		return nil, fmt.Errorf("look at leases: %w", err)
	}
	leases, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Lease, error) {
		var l Lease
		err := row.Scan(&l.Name, &l.Incarnation, &l.Generation, &l.Nonce, &l.Holder, &l.AcquiredAt, &l.ExpiresAt, &l.Live, &l.Free)
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("look at leases: %w", err)
	}
	return leases, nil
}

func (s *Store) names(ctx context.Context, action, statement string, args ...any) ([]string, error) {
	rows, err := s.db.Query(ctx, statement, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", action, err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", action, err)
	}
	return names, nil
}

func columns(terms []Term) (names []string, generations []int64, nonces []uuid.UUID) {
	for _, t := range terms {
		names = append(names, t.Name)
		generations = append(generations, t.Generation)
		nonces = append(nonces, t.Nonce)
	}
	return names, generations, nonces
}
