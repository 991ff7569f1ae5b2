package projection

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// insertRebuildStatement opens a rebuild unless one is open: a unique index has
// room for one.
const insertRebuildStatement = `
insert into rebuilds (rebuild_id, reason, requested_at)
values ($1, $2, clock_timestamp())
    on conflict do nothing`

const insertRebuildShardsStatement = `
insert into rebuild_shards (rebuild_id, shard, after_account, accounts_total, accounts_done, entries_done, repaired, damaged, last_token)
select $1, s.shard, '', count(a.account_id), 0, 0, 0, 0, 0
  from generate_series(0, $2::integer - 1) as s (shard)
  left join accounts as a
    on a.shard = s.shard
 group by s.shard`

const openRebuildStatement = `select rebuild_id from rebuilds where finished_at is null`

// openRebuild returns the id of the open rebuild, and opens one when there is
// none. joined is true when it was open already.
func openRebuild(ctx context.Context, pool *pgxpool.Pool, reason string) (id uuid.UUID, joined bool, err error) {
	for range 10 { // a rebuild can be finished between the two statements
		id, err = uuid.NewV7()
		if err != nil {
			return uuid.Nil, false, fmt.Errorf("request rebuild: %w", err)
		}
		opened, err := insertRebuild(ctx, pool, id, reason)
		if err != nil {
			return uuid.Nil, false, fmt.Errorf("request rebuild: %w", err)
		}
		if opened {
			return id, false, nil
		}
		err = pool.QueryRow(ctx, openRebuildStatement).Scan(&id)
		if err == nil {
			return id, true, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return uuid.Nil, false, fmt.Errorf("request rebuild: %w", err)
		}
	}
	return uuid.Nil, false, errors.New("request rebuild: others are opened and finished all the time")
}

func insertRebuild(ctx context.Context, pool *pgxpool.Pool, id uuid.UUID, reason string) (bool, error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	tag, err := tx.Exec(ctx, insertRebuildStatement, id, reason)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	if _, err := tx.Exec(ctx, insertRebuildShardsStatement, id, ledger.Shards); err != nil {
		return false, err
	}
	return true, tx.Commit(ctx)
}

const rebuildStatement = `
select r.rebuild_id, r.reason, r.requested_at, r.finished_at,
       sum(s.accounts_total)::bigint, sum(s.accounts_done)::bigint, sum(s.entries_done)::bigint,
       sum(s.repaired)::bigint, sum(s.damaged)::bigint, count(s.done_at)
  from rebuilds as r
  join rebuild_shards as s
    on s.rebuild_id = r.rebuild_id
 where r.rebuild_id = $1
 group by r.rebuild_id`

// ErrRebuildNotFound says that no rebuild has the id.
var ErrRebuildNotFound = errors.New("there is no such rebuild")

func readRebuild(ctx context.Context, db querier, id uuid.UUID) (Rebuild, error) {
	var r Rebuild
	var finished *time.Time
	err := db.QueryRow(ctx, rebuildStatement, id).Scan(&r.ID, &r.Reason, &r.RequestedAt, &finished,
		&r.AccountsTotal, &r.AccountsDone, &r.EntriesDone, &r.Repaired, &r.Damaged, &r.ShardsDone)
	if errors.Is(err, pgx.ErrNoRows) {
		return Rebuild{}, ErrRebuildNotFound
	}
	if err != nil {
		return Rebuild{}, fmt.Errorf("read rebuild: %w", err)
	}
	r.RequestedAt = r.RequestedAt.UTC()
	if finished != nil {
		r.FinishedAt = finished.UTC()
	}
	return r, nil
}

const rebuildJobsStatement = `
select s.rebuild_id, s.shard, s.after_account
  from rebuild_shards as s
  join rebuilds as r
    on r.rebuild_id = s.rebuild_id
 where r.finished_at is null
   and s.done_at is null
   and s.shard = any($1::smallint[])
 order by s.shard`

// rebuildJob is a shard that an open rebuild waits for.
type rebuildJob struct {
	id    uuid.UUID
	shard int
	// after is the last account that is done, and so are all before it. The
	// database has it; whoever takes the shard over begins there.
	after ledger.AccountID
	done  bool
	// owned is the shard as this process owns it, nil when it does not.
	owned *shard

	// scanned is the last account that was looked at. It is ahead of after while
	// accounts in between are locked; ahead is what was done there besides. ended
	// is true when no account follows.
	scanned ledger.AccountID
	ended   bool
	locked  []string
	ahead   tally
}

func (s *store) rebuildJobs(ctx context.Context, shards []int16) ([]*rebuildJob, error) {
	rows, err := s.db.Query(ctx, rebuildJobsStatement, shards)
	if err != nil {
		return nil, fmt.Errorf("look for rebuilds: %w", err)
	}
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*rebuildJob, error) {
		var j rebuildJob
		err := row.Scan(&j.id, &j.shard, (*string)(&j.after))
		j.scanned = j.after
		return &j, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for rebuilds: %w", err)
	}
	return jobs, nil
}

// progressStatement moves a shard's progress on: only from where this owner
// took it up, and never after a newer owner.
const progressStatement = `
update rebuild_shards as s
   set after_account = $4,
       accounts_done = s.accounts_done + $5,
       entries_done = s.entries_done + $6,
       repaired = s.repaired + $7,
       damaged = s.damaged + $8,
       last_token = $9,
       done_at = case when $10 then clock_timestamp() end
 where s.rebuild_id = $1
   and s.shard = $2
   and s.done_at is null
   and s.after_account = $3
   and s.last_token < $9`

// tally is what pages of a rebuild add to the progress.
type tally struct{ accounts, entries, repaired, damaged int64 }

// progress moves the progress to what was scanned. It returns false when it is
// not where the job left it.
func (s *store) progress(ctx context.Context, j *rebuildJob, token lease.ProjectionToken) (bool, error) {
	t := j.ahead
	tag, err := s.db.Exec(ctx, progressStatement, j.id, j.shard, string(j.after), string(j.scanned),
		t.accounts, t.entries, t.repaired, t.damaged, int64(token), j.ended)
	if err != nil {
		return false, fmt.Errorf("write progress of rebuild: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// finishStatement closes rebuilds whose shards are all done. Two processes that
// do the last two shards at once may both miss it; the next look finds it.
const finishStatement = `
update rebuilds as r
   set finished_at = clock_timestamp()
 where r.finished_at is null
   and not exists (
       select
         from rebuild_shards as s
        where s.rebuild_id = r.rebuild_id
          and s.done_at is null)`

func (s *store) finishRebuilds(ctx context.Context) error {
	if _, err := s.db.Exec(ctx, finishStatement); err != nil {
		return fmt.Errorf("finish rebuild: %w", err)
	}
	return nil
}

const accountPagesStatement = `
select q.n, a.account_id, coalesce(e.seq, 0)
  from unnest($1::smallint[], $2::text[]) with ordinality as q (shard, after, n)
 cross join lateral (
       select account_id
         from accounts
        where shard = q.shard
          and account_id > q.after
        order by account_id
        limit $3) as a
  left join lateral (
       select h.seq
         from entries as h
        where h.account_id = a.account_id
        order by h.seq desc
        limit 1) as e
    on true
 order by q.n, a.account_id`

// accountPage is the next accounts of a job, by id.
type accountPage struct {
	ids     []string
	entries int64
	last    bool // no account follows
}

// accountPages returns the next accounts of each job: at most limit, and when it
// is more than one, with at most entriesMax entries in all.
func (s *store) accountPages(ctx context.Context, jobs []*rebuildJob, limit int, entriesMax int64) ([]accountPage, error) {
	shards, after := make([]int16, len(jobs)), make([]string, len(jobs))
	for i, j := range jobs {
		shards[i], after[i] = int16(j.shard), string(j.scanned)
	}
	rows, err := s.db.Query(ctx, accountPagesStatement, shards, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read accounts of shards: %w", err)
	}
	pages, found := make([]accountPage, len(jobs)), make([]int, len(jobs))
	cut := make([]bool, len(jobs))
	var n, entries int64
	var id string
	_, err = pgx.ForEachRow(rows, []any{&n, &id, &entries}, func() error {
		p := &pages[n-1]
		found[n-1]++
		if cut[n-1] = cut[n-1] || len(p.ids) > 0 && p.entries+entries > entriesMax; !cut[n-1] {
			p.ids, p.entries = append(p.ids, id), p.entries+entries
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read accounts of shards: %w", err)
	}
	for i := range pages {
		pages[i].last = found[i] < limit && !cut[i]
	}
	return pages, nil
}

// chainStatement reads the entries of accounts after given seqs, in order. It
// sends the place of the account in the question instead of its id. The second
// condition on the account lets PostgreSQL read the table in its own order.
const chainStatement = `
select q.n, e.seq, e.kind, e.amount, e.balance_after, e.held_after
  from entries as e
  join unnest($1::text[], $2::bigint[]) with ordinality as q (account_id, seq, n)
    on e.account_id = q.account_id
   and e.seq > q.seq
 where e.account_id = any($1::text[])
 order by q.n, e.seq`

// chains calls f with each entry of the accounts that follows the seq, in order
// of accounts and seqs. It holds one entry at a time.
func (s *store) chains(ctx context.Context, ids []string, after []int64, f func(n int, st *step)) error {
	rows, err := s.db.Query(ctx, chainStatement, planned, ids, after)
	if err != nil {
		return fmt.Errorf("read chains: %w", err)
	}
	var st step
	var n int64
	var kind string
	dest := []any{&n, (*int64)(&st.seq), &kind, (*int64)(&st.amount), (*int64)(&st.balance), (*int64)(&st.held)}
	_, err = pgx.ForEachRow(rows, dest, func() error {
		st.accountID, st.kind = ledger.AccountID(ids[n-1]), ledger.Kind(kind)
		f(int(n-1), &st)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read chains: %w", err)
	}
	return nil
}
