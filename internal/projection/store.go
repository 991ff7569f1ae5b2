package projection

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// applyStatement is the commit point of the projection: it moves the balance
// rows of many accounts forward. Each row is judged on its own, on its locked
// version; a row that fails a guard is left as it is and does not come back.
// The token is a column because the accounts of one statement belong to several
// shards, each with a term of its own.
const applyStatement = `
update balances as b
   set balance = b.balance + d.balance_delta,
       held = b.held + d.held_delta,
       credits_total = b.credits_total + d.credits,
       debits_total = b.debits_total + d.debits,
       applied_seq = d.to_seq,
       last_token = d.token,
       updated_at = clock_timestamp()
  from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
       $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[])
       as d (account_id, token, from_seq, to_seq, balance_delta,
             held_delta, credits, debits, balance_after, held_after)
 where b.account_id = d.account_id
   and b.account_id = any($1::text[])                 -- lets a distributed engine prune shards
   and b.last_token < d.token                         -- late writers are rejected
   and b.applied_seq = d.from_seq                     -- nothing is applied twice or skipped
   and b.balance + d.balance_delta = d.balance_after  -- two computations of the same money
   and b.held + d.held_delta = d.held_after
returning b.account_id, b.updated_at`

// rewriteStatement puts the absolute result of a replay into balance rows,
// under the same guards.
const rewriteStatement = `
update balances as b
   set balance = d.balance,
       held = d.held,
       credits_total = d.credits::numeric,
       debits_total = d.debits::numeric,
       applied_seq = d.to_seq,
       last_token = d.token,
       updated_at = clock_timestamp()
  from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
       $6::bigint[], $7::text[], $8::text[])
       as d (account_id, token, seen_seq, to_seq, balance, held, credits, debits)
 where b.account_id = d.account_id
   and b.account_id = any($1::text[])                 -- lets a distributed engine prune shards
   and b.last_token < d.token                         -- late writers are rejected
   and b.applied_seq = d.seen_seq                     -- never backwards past a live write
returning b.account_id`

// replaceTokenStatement takes a token away that no term can have written: only
// that very token, so that it never lowers one that was handed out.
const replaceTokenStatement = `
update balances as b
   set last_token = $3
 where b.account_id = $1
   and b.last_token = $2`

const insertMissingStatement = `
insert into balances (account_id, balance, held, credits_total, debits_total, applied_seq, last_token, updated_at)
select q.account_id, 0, 0, 0, 0, 0, 0, clock_timestamp()
  from unnest($1::text[]) as q (account_id)
 order by q.account_id
    on conflict do nothing`

const stepColumns = `e.account_id, e.seq, e.kind, e.amount, e.balance_after, e.held_after, e.posted_at, e.position`

const tailStatement = `
select ` + stepColumns + `
  from entries as e
 where e.position > $1
 order by e.position
 limit $2`

// missingStatement asks for remembered positions. The lateral limit keeps each
// run a short walk of the index.
const missingStatement = `
select ` + stepColumns + `
  from unnest($1::bigint[], $2::bigint[]) as q (lo, hi)
 cross join lateral (
       select *
         from entries as m
        where m.position between q.lo and q.hi
        order by m.position
        limit 500) as e`

const lastPositionStatement = `select coalesce(max(position), 0) from entries`

// unappliedStatement reads what follows the balance row of each account.
const unappliedStatement = `
select ` + stepColumns + `
  from unnest($1::text[]) with ordinality as q (account_id, n)
  left join balances as b
    on b.account_id = q.account_id
 cross join lateral (
       select *
         from entries as u
        where u.account_id = q.account_id
          and u.seq > coalesce(b.applied_seq, 0)
        order by u.seq
        limit $2) as e
 order by q.n, e.seq
 limit $3`

const rowsStatement = `
select b.account_id, b.balance, b.held, b.applied_seq, b.last_token, b.credits_total::text, b.debits_total::text
  from balances as b
 where b.account_id = any($1::text[])`

// freeStatement returns those rows that nobody else has locked now.
const freeStatement = `
select b.account_id
  from balances as b
 where b.account_id = any($1::text[])
 order by b.account_id
   for update skip locked`

// compareStatement is one page of a sweep: heads and balance rows of a shard in
// one snapshot.
const compareStatement = `
select a.account_id, e.seq, e.balance_after, e.held_after, e.posted_at,
       b.account_id is not null, coalesce(b.applied_seq, 0), coalesce(b.balance, 0), coalesce(b.held, 0)
  from (select account_id
          from accounts
         where shard = $1
           and account_id > $2
         order by account_id
         limit $3) as a
 cross join lateral (
       select *
         from entries as h
        where h.account_id = a.account_id
        order by h.seq desc
        limit 1) as e
  left join balances as b
    on b.account_id = a.account_id
 order by a.account_id`

// store has all SQL of the projection's live work.
type store struct {
	db  querier
	sql statements
}

// statements are the guarded writes; tests break their guards one by one.
type statements struct{ apply, rewrite string }

// querier is what the store needs of a pool or a connection.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func newStore(db querier) *store {
	return &store{db: db, sql: statements{applyStatement, rewriteStatement}}
}

// planned makes PostgreSQL plan a statement for the arrays that it gets. A
// generic plan knows nothing of their length, and compares each row with each
// element.
const planned = pgx.QueryExecModeCacheDescribe

// write is a fold with the token that it is written with.
type write struct {
	*fold
	token lease.ProjectionToken
}

// apply writes folds and returns when each of those that took effect was
// applied, by the database's clock. The error leaves it open which did.
func (s *store) apply(ctx context.Context, writes []write) (map[ledger.AccountID]time.Time, error) {
	n := len(writes)
	ids := make([]string, n)
	cols := make([][]int64, 9)
	for i := range cols {
		cols[i] = make([]int64, n)
	}
	for i, w := range writes {
		ids[i] = string(w.accountID)
		for c, v := range [...]int64{int64(w.token), int64(w.from), int64(w.to), int64(w.balance), int64(w.held),
			int64(w.credits.lo), int64(w.debits.lo), int64(w.balanceAfter), int64(w.heldAfter)} {
			cols[c][i] = v
		}
	}
	rows, err := s.db.Query(ctx, s.sql.apply, planned, ids, cols[0], cols[1], cols[2], cols[3], cols[4], cols[5], cols[6], cols[7], cols[8])
	if err != nil {
		return nil, fmt.Errorf("apply folds: %w", err)
	}
	applied := make(map[ledger.AccountID]time.Time, n)
	var id string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &at}, func() error {
		applied[ledger.AccountID(id)] = at
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("apply folds: %w", err)
	}
	return applied, nil
}

// absolute is a fold from entry 1 that replaces a row seen at a seq.
type absolute struct {
	*fold
	seen  ledger.Seq
	token lease.ProjectionToken
}

// rewrite writes absolute values and returns the accounts that took effect.
func (s *store) rewrite(ctx context.Context, writes []absolute) (map[ledger.AccountID]bool, error) {
	n := len(writes)
	ids, credits, debits := make([]string, n), make([]string, n), make([]string, n)
	cols := make([][]int64, 5)
	for i := range cols {
		cols[i] = make([]int64, n)
	}
	for i, w := range writes {
		ids[i], credits[i], debits[i] = string(w.accountID), w.credits.String(), w.debits.String()
		for c, v := range [...]int64{int64(w.token), int64(w.seen), int64(w.to), int64(w.balance), int64(w.held)} {
			cols[c][i] = v
		}
	}
	rows, err := s.db.Query(ctx, s.sql.rewrite, planned, ids, cols[0], cols[1], cols[2], cols[3], cols[4], credits, debits)
	if err != nil {
		return nil, fmt.Errorf("rewrite balance rows: %w", err)
	}
	return collectIDs(rows, "rewrite balance rows")
}

func (s *store) replaceToken(ctx context.Context, id ledger.AccountID, old, new lease.ProjectionToken) error {
	if _, err := s.db.Exec(ctx, replaceTokenStatement, string(id), int64(old), int64(new)); err != nil {
		return fmt.Errorf("replace token of balance row: %w", err)
	}
	return nil
}

// insertMissing adds empty rows for accounts that have none.
func (s *store) insertMissing(ctx context.Context, ids []string) error {
	if _, err := s.db.Exec(ctx, insertMissingStatement, ids); err != nil {
		return fmt.Errorf("insert missing balance rows: %w", err)
	}
	return nil
}

// after reads up to limit entries above a position, by position.
func (s *store) after(ctx context.Context, position int64, limit int) ([]step, error) {
	return s.steps(ctx, "scan the tail", tailStatement, position, limit)
}

// missing reads what has appeared in ranges of positions.
func (s *store) missing(ctx context.Context, lo, hi []int64) ([]step, error) {
	return s.steps(ctx, "look for missing positions", missingStatement, lo, hi)
}

// unapplied reads what follows the rows of accounts, at most each entries of an
// account and limit in all, account by account in the order of ids.
func (s *store) unapplied(ctx context.Context, ids []string, each, limit int) ([]step, error) {
	return s.steps(ctx, "read unapplied entries", unappliedStatement, planned, ids, each, limit)
}

func (s *store) steps(ctx context.Context, action, statement string, args ...any) ([]step, error) {
	rows, err := s.db.Query(ctx, statement, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", action, err)
	}
	var steps []step
	var e step
	var id, kind string
	dest := []any{&id, (*int64)(&e.seq), &kind, (*int64)(&e.amount), (*int64)(&e.balance), (*int64)(&e.held), &e.postedAt, &e.position}
	_, err = pgx.ForEachRow(rows, dest, func() error {
		e.accountID, e.kind = ledger.AccountID(id), ledger.Kind(kind)
		steps = append(steps, e)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", action, err)
	}
	return steps, nil
}

func (s *store) lastPosition(ctx context.Context) (position int64, err error) {
	if err := s.db.QueryRow(ctx, lastPositionStatement).Scan(&position); err != nil {
		return 0, fmt.Errorf("read last position: %w", err)
	}
	return position, nil
}

// balanceRow is a row of balances.
type balanceRow struct {
	balance, held   ledger.Amount
	appliedSeq      ledger.Seq
	lastToken       lease.ProjectionToken
	credits, debits string
}

// rows reads balance rows; one that is missing is not in the map.
func (s *store) rows(ctx context.Context, ids []string) (map[ledger.AccountID]balanceRow, error) {
	rows, err := s.db.Query(ctx, rowsStatement, planned, ids)
	if err != nil {
		return nil, fmt.Errorf("read balance rows: %w", err)
	}
	found := make(map[ledger.AccountID]balanceRow, len(ids))
	var id string
	var r balanceRow
	dest := []any{&id, (*int64)(&r.balance), (*int64)(&r.held), (*int64)(&r.appliedSeq), (*int64)(&r.lastToken), &r.credits, &r.debits}
	_, err = pgx.ForEachRow(rows, dest, func() error {
		found[ledger.AccountID(id)] = r
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read balance rows: %w", err)
	}
	return found, nil
}

// compare reads one page of a sweep, after an account id.
func (s *store) compare(ctx context.Context, shard int, after ledger.AccountID, limit int) ([]comparison, error) {
	rows, err := s.db.Query(ctx, compareStatement, shard, string(after), limit)
	if err != nil {
		return nil, fmt.Errorf("compare heads with balance rows: %w", err)
	}
	page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (comparison, error) {
		var c comparison
		err := row.Scan((*string)(&c.accountID), (*int64)(&c.head.seq), (*int64)(&c.head.balance), (*int64)(&c.head.held), &c.head.postedAt,
			&c.hasRow, (*int64)(&c.row.appliedSeq), (*int64)(&c.row.balance), (*int64)(&c.row.held))
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("compare heads with balance rows: %w", err)
	}
	return page, nil
}

// free returns the accounts whose rows nobody else has locked.
func (s *store) free(ctx context.Context, ids []string) (map[ledger.AccountID]bool, error) {
	rows, err := s.db.Query(ctx, freeStatement, planned, ids)
	if err != nil {
		return nil, fmt.Errorf("look for locked balance rows: %w", err)
	}
	return collectIDs(rows, "look for locked balance rows")
}

func collectIDs(rows pgx.Rows, action string) (map[ledger.AccountID]bool, error) {
	found := make(map[ledger.AccountID]bool)
	var id string
	_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
		found[ledger.AccountID(id)] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", action, err)
	}
	return found, nil
}
