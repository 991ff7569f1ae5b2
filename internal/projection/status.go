package projection

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// ShardStatus is what is known about one shard: its lease, and what its owner
// last said.
type ShardStatus struct {
	// Shard is 0 … ledger.Shards-1.
	Shard int
	// Owner is the process that holds the lease, "" when nobody does.
	Owner string
	// Incarnation and Generation are the term's, 0 when there never was one.
	Incarnation int
	Generation  int64
	AcquiredAt  time.Time
	ExpiresAt   time.Time
	// LagEntries counts entries that were found and not applied yet, parked
	// accounts included, and LagSeconds is the age of the oldest of them.
	LagEntries int64
	LagSeconds float64
	// Parked counts the accounts that cannot be applied; Examples has some.
	Parked   int64
	Examples []string
	// LastError is the last trouble in words, "" when there was none in this term.
	LastError string
	// ReportedAt is when the owner last said so; it does when something changes.
	ReportedAt time.Time
}

// examplesMax bounds the parked accounts that a report names.
const examplesMax = 20

// reportEvery is the shortest time between two reports of a process.
const reportEvery = time.Second

// reportLoop writes down what changed, for the status that any process gives.
func (w *worker) reportLoop(ctx context.Context) {
	ticker := time.NewTicker(min(reportEvery, w.cfg.RenewEvery))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		reports := w.reports(time.Now())
		if len(reports) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, w.cfg.StatementTimeout)
		if err := w.store.report(ctx, reports); err != nil && ctx.Err() == nil {
			w.log.Warn("projection report failed", "error", err)
		}
		cancel()
	}
}

// report is the state of a shard with the token of its owner.
type report struct {
	ShardStatus
	token lease.ProjectionToken
}

// reports collects the shards that have something new to say.
func (w *worker) reports(now time.Time) []report {
	w.mu.Lock()
	defer w.mu.Unlock()
	var reports []report
	behind := now.Sub(w.lastGood)
	for _, s := range w.shards {
		if !s.usable() || !s.changed && behind < reportEvery {
			continue
		}
		token, err := s.term.ProjectionToken(max(s.writes, 1))
		if err != nil {
			continue // the term is being given up
		}
		r := report{token: token}
		r.Shard, r.LastError = s.number, s.lastError
		r.LagEntries, r.Parked = s.pending.entries, int64(len(s.parked))
		var age time.Duration
		for id, p := range s.parked {
			r.LagEntries += p.lag
			if p.lag > 0 {
				age = max(age, now.Sub(p.oldest))
			}
			r.Examples = append(r.Examples, string(id))
		}
		slices.Sort(r.Examples)
		r.Examples = r.Examples[:min(len(r.Examples), examplesMax)]
		if behind >= reportEvery {
			age = max(age, behind)
		}
		r.LagSeconds = age.Seconds()
		s.changed = r.LagEntries > 0 || age > 0 // the age goes on
		reports = append(reports, r)
	}
	return reports
}

// reportStatement never lets an older owner speak after a newer one.
const reportStatement = `
insert into projection_shards as s (shard, last_token, lag_entries, lag_ms, parked, examples, last_error, reported_at)
select q.shard, q.token, q.lag_entries, q.lag_ms, q.parked, string_to_array(q.examples, ' '), q.last_error, clock_timestamp()
  from unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::text[])
       as q (shard, token, lag_entries, lag_ms, parked, examples, last_error)
 order by q.shard
    on conflict (shard) do update
   set last_token = excluded.last_token,
       lag_entries = excluded.lag_entries,
       lag_ms = excluded.lag_ms,
       parked = excluded.parked,
       examples = excluded.examples,
       last_error = excluded.last_error,
       reported_at = excluded.reported_at
 where s.last_token <= excluded.last_token`

func (s *store) report(ctx context.Context, reports []report) error {
	var shards []int16
	var tokens, lags, ages, parked []int64
	var examples, lastErrors []string
	for _, r := range reports {
		shards = append(shards, int16(r.Shard))
		tokens = append(tokens, int64(r.token))
		lags = append(lags, r.LagEntries)
		ages = append(ages, int64(r.LagSeconds*1000))
		parked = append(parked, r.Parked)
		// account ids contain no spaces
		examples = append(examples, strings.Join(r.Examples, " "))
		lastErrors = append(lastErrors, r.LastError)
	}
	if _, err := s.db.Exec(ctx, reportStatement, shards, tokens, lags, ages, parked, examples, lastErrors); err != nil {
		return fmt.Errorf("report shards: %w", err)
	}
	return nil
}

const statusStatement = `
select shard, lag_entries, lag_ms, parked, examples, last_error, reported_at
  from projection_shards`

// idleLagStatement counts what waits in shards that nobody works on.
const idleLagStatement = `
select a.shard, sum(e.seq - coalesce(b.applied_seq, 0))::bigint,
       max(extract(epoch from clock_timestamp() - o.posted_at))::double precision
  from accounts as a
 cross join lateral (
       select h.seq
         from entries as h
        where h.account_id = a.account_id
        order by h.seq desc
        limit 1) as e
  left join balances as b
    on b.account_id = a.account_id
  left join entries as o
    on o.account_id = a.account_id
   and o.seq = coalesce(b.applied_seq, 0) + 1
 where a.shard = any($1::smallint[])
   and e.seq > coalesce(b.applied_seq, 0)
 group by a.shard`

// idleLagTimeout bounds the count. On a large ledger it does not finish, and
// the last report stands.
const idleLagTimeout = 2 * time.Second

// idleLag fills in the lag of shards without an owner, who would report it.
func (s *store) idleLag(ctx context.Context, all []ShardStatus) error {
	var idle []int16
	for i := range all {
		if all[i].Owner == "" {
			idle = append(idle, int16(i))
		}
	}
	if len(idle) == 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, idleLagTimeout)
	defer cancel()
	counted := make(map[int]ShardStatus)
	rows, err := s.db.Query(limited, idleLagStatement, idle)
	if err == nil {
		var c ShardStatus
		var seconds *float64
		_, err = pgx.ForEachRow(rows, []any{&c.Shard, &c.LagEntries, &seconds}, func() error {
			c.LagSeconds = 0
			if seconds != nil {
				c.LagSeconds = *seconds
			}
			counted[c.Shard] = c
			return nil
		})
	}
	if err != nil && limited.Err() == nil {
		return fmt.Errorf("count what waits in idle shards: %w", err)
	}
	if err == nil {
		for _, i := range idle {
			all[i].LagEntries, all[i].LagSeconds = counted[int(i)].LagEntries, counted[int(i)].LagSeconds
		}
	}
	return ctx.Err()
}

// Status returns the state of every shard, in order, from whichever process
// owns it.
func (p *Projector) Status(ctx context.Context) ([]ShardStatus, error) {
	leases, err := p.leases.Look(ctx, shardNames())
	if err != nil {
		return nil, err
	}
	rows, err := p.store.db.Query(ctx, statusStatement)
	if err != nil {
		return nil, fmt.Errorf("read status of shards: %w", err)
	}
	status, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ShardStatus, error) {
		var s ShardStatus
		var ms int64
		err := row.Scan(&s.Shard, &s.LagEntries, &ms, &s.Parked, &s.Examples, &s.LastError, &s.ReportedAt)
		s.LagSeconds, s.ReportedAt = float64(ms)/1000, s.ReportedAt.UTC()
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("read status of shards: %w", err)
	}
	all := make([]ShardStatus, ledger.Shards)
	for i := range all {
		all[i].Shard = i
	}
	for _, s := range status {
		all[s.Shard] = s
	}
	for _, l := range leases {
		s := &all[shardOf(l.Name)]
		s.Incarnation, s.Generation = l.Incarnation, l.Generation
		s.AcquiredAt, s.ExpiresAt = l.AcquiredAt.UTC(), l.ExpiresAt.UTC()
		if l.Live {
			s.Owner = l.Holder
		}
	}
	return all, p.store.idleLag(ctx, all)
}
