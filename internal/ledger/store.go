package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// EntryColumns are the columns that ScanEntry reads, of a table that the
// statement calls e.
const EntryColumns = `e.account_id, e.seq, e.kind, e.amount,
	e.balance_after, e.held_after, e.fence_after, e.min_balance_after, e.status_after, e.fencing_after,
	e.transaction_id, e.idempotency_key, e.request_hash, e.counterparty, e.hold_seq, e.reverses,
	e.reason, e.effective_at, e.details, e.posted_at, e.hash, e.hash_version, e.position`

// entryRow receives EntryColumns. It is reused over the rows of a result.
type entryRow struct {
	accountID, kind, status, fencing           string
	seq, amount, balance, held, fence, minimum int64
	transactionID                              uuid.UUID
	key, counterparty, reason, details         *string
	requestHash, hash                          []byte
	holdSeq                                    *int64
	reverses                                   *uuid.UUID
	effectiveAt, postedAt                      time.Time
	hashVersion                                int16
	position                                   int64
}

func (r *entryRow) dest() []any {
	return []any{&r.accountID, &r.seq, &r.kind, &r.amount,
		&r.balance, &r.held, &r.fence, &r.minimum, &r.status, &r.fencing,
		&r.transactionID, &r.key, &r.requestHash, &r.counterparty, &r.holdSeq, &r.reverses,
		&r.reason, &r.effectiveAt, &r.details, &r.postedAt, &r.hash, &r.hashVersion, &r.position}
}

func (r *entryRow) entry() (Entry, error) {
	fencing, err := ParseFencing(r.fencing)
	if err != nil {
		return Entry{}, fmt.Errorf("entry %s/%d: %w", r.accountID, r.seq, err)
	}
	e := Entry{
		AccountID: AccountID(r.accountID), Seq: Seq(r.seq), Kind: Kind(r.kind), Amount: Amount(r.amount),
		After: State{
			Balance: Amount(r.balance), Held: Amount(r.held), Fence: Token(r.fence),
			MinBalance: Amount(r.minimum), Status: Status(r.status), Fencing: fencing,
		},
		TransactionID: r.transactionID, Key: deref(r.key), Counterparty: deref(r.counterparty),
		HoldSeq: Seq(deref(r.holdSeq)), Reverses: deref(r.reverses), Reason: deref(r.reason), Details: deref(r.details),
		EffectiveAt: r.effectiveAt.UTC(), PostedAt: r.postedAt.UTC(),
		HashVersion: int(r.hashVersion), Position: r.position,
	}
	if copy(e.Hash[:], r.hash) != len(e.Hash) || copy(e.RequestHash[:], r.requestHash) != len(e.RequestHash) {
		return Entry{}, fmt.Errorf("entry %s/%d: a hash is too short", r.accountID, r.seq)
	}
	return e, nil
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// ScanEntry reads one row of EntryColumns. Use it with pgx.CollectRows or
// pgx.ForEachRow.
func ScanEntry(row pgx.CollectableRow) (Entry, error) {
	var r entryRow
	if err := row.Scan(r.dest()...); err != nil {
		return Entry{}, fmt.Errorf("scan entry: %w", err)
	}
	return r.entry()
}

// life identifies the database that a head was read from. The primary key
// proves that nobody was faster; only the life proves that the link below is
// still there after a failover or a restore. The first two parts are checked
// by the append itself. The incarnation covers what they cannot see, a table
// whose rows were replaced in place: an operator who does that bumps it.
type life struct {
	startedAt   int64 // pg_postmaster_start_time(), microseconds since 2000
	entriesOID  uint32
	incarnation int32
}

// lifeColumns are a life and the database's clock.
const lifeColumns = `(extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint - 946684800000000,
	'entries'::regclass::oid,
	(select max(incarnation) from incarnations),
	clock_timestamp()`

const lifeStatement = `select ` + lifeColumns

// lookStatement is the one look: heads, keys and single links in one snapshot.
//
// Part 0 is the head of each account in $1, with the account's own row; part 1
// the entry of each (account, key) in $2, $3, when there is one; part 2 the
// link (account, seq) in $4, $5, when there is one. The ordinality says which
// of the question's elements a row answers; rows come in any order.
const lookStatement = `
select 0, q.n, ` + EntryColumns + `, a.currency, a.exponent, a.metadata, a.opened_at
  from unnest($1::text[]) with ordinality as q (account_id, n)
  join accounts as a
    on a.account_id = q.account_id
 cross join lateral (
       select *
         from entries as h
        where h.account_id = q.account_id
        order by h.seq desc
        limit 1) as e
union all
select 1, q.n, ` + EntryColumns + `, null, null, null, null
  from unnest($2::text[], $3::text[]) with ordinality as q (account_id, idempotency_key, n)
  join entries as e
    on e.account_id = q.account_id
   and e.idempotency_key = q.idempotency_key
union all
select 2, q.n, ` + EntryColumns + `, null, null, null, null
  from unnest($4::text[], $5::bigint[]) with ordinality as q (account_id, seq, n)
  join entries as e
    on e.account_id = q.account_id
   and e.seq = q.seq`

// lockStatement takes the turn on contended accounts. The rows are locked in
// the order of their ids, in every process.
const lockStatement = `
select account_id
  from accounts
 where account_id = any($1::text[])
 order by account_id
   for update`

// appendStatement is the commit point of the whole ledger: it adds the links of
// a batch, all or none. The primary key refuses a link that exists; the guard
// refuses the batch when the database is not the one that its heads were read
// from, and then zero rows are inserted. So it does when the decision ($23, by
// the database's clock) is more than 5 s old: a process that was stopped decides
// again, so that its posting times do not lie in a past that was already read.
// now() is the start of the transaction, so it is the same for an opening.
//
// There is no ON CONFLICT: a skipped link with a following one would break the
// chain. The rows come sorted by account and seq: unsorted ones deadlock.
const appendStatement = `
insert into entries (account_id, seq, kind, amount,
       balance_after, held_after, fence_after, min_balance_after, status_after, fencing_after,
       transaction_id, idempotency_key, request_hash, counterparty, reason,
       effective_at, details, posted_at, hash, hash_version)
select *
  from unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[],
       $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[], $10::text[],
       $11::uuid[], $12::text[], $13::bytea[], $14::text[], $15::text[],
       $16::timestamptz[], $17::text[], $18::timestamptz[], $19::bytea[], $20::smallint[])
 where pg_postmaster_start_time() = $21::timestamptz
   and 'entries'::regclass::oid = $22::oid
   and $23::timestamptz > now() - interval '5 seconds'`

// openStatement adds what belongs to an account beside its first entry. It goes
// before the append in the same implicit transaction, under the same guard. A
// row that is there already belongs to a rival whose first entry refuses ours.
const openAccountsStatement = `
insert into accounts (account_id, currency, exponent, shard, metadata, opened_at)
select *
  from unnest($1::text[], $2::text[], $3::smallint[], $4::smallint[], $5::text[], $6::timestamptz[])
 where pg_postmaster_start_time() = $7::timestamptz
   and 'entries'::regclass::oid = $8::oid
   and $9::timestamptz > now() - interval '5 seconds'
    on conflict do nothing`

const openBalancesStatement = `
insert into balances (account_id, balance, held, credits_total, debits_total, applied_seq, last_token, updated_at)
select account_id, 0, 0, 0, 0, 0, 0, clock_timestamp()
  from unnest($1::text[]) as q (account_id)
 where pg_postmaster_start_time() = $2::timestamptz
   and 'entries'::regclass::oid = $3::oid
   and $4::timestamptz > now() - interval '5 seconds'
    on conflict do nothing`

// metadataStatement copies the metadata of settings entries to their accounts.
// It goes after the append in the same transaction: link first.
const metadataStatement = `
update accounts as a
   set metadata = q.metadata
  from unnest($1::text[], $2::text[]) as q (account_id, metadata)
 where a.account_id = q.account_id`

// barrierStatement is a tiny committed write. Once it is acknowledged, every
// commit that was visible before it was issued has reached the synchronous
// standbys too.
const barrierStatement = `select pg_logical_emit_message(true, 'ledgerd', 'barrier')`

// question is what one look asks: the heads of accounts, and for each key or
// link the entry that has it.
type question struct {
	accounts []string
	keyOf    []string // account ids of keys
	keys     []string
	linkOf   []string // account ids of seqs
	seqs     []int64
}

// answer is what a look found.
type answer struct {
	life  life
	clock clockReading
	heads map[AccountID]*Head
	keys  map[int]*Entry // by index in question.keys
	links map[int]*Entry // by index in question.seqs
}

// clockReading pairs the database's clock with the monotonic moment at which
// the reply was read.
type clockReading struct {
	database time.Time
	local    time.Time
}

// now returns the database's clock as far as this process knows it.
func (c clockReading) now() time.Time { return c.database.Add(time.Since(c.local)) }

// queueLook adds the two statements of a look to a batch. The life is read
// first: if the table were replaced between the two, the append would carry
// the old life and be refused.
func queueLook(b *pgx.Batch, q *question) {
	b.Queue(lifeStatement)
	b.Queue(lookStatement, q.accounts, q.keyOf, q.keys, q.linkOf, q.seqs)
}

func readLook(res pgx.BatchResults) (*answer, error) {
	a := &answer{heads: map[AccountID]*Head{}, keys: map[int]*Entry{}, links: map[int]*Entry{}}
	err := res.QueryRow().Scan(&a.life.startedAt, &a.life.entriesOID, &a.life.incarnation, &a.clock.database)
	if err != nil {
		return nil, fmt.Errorf("read life: %w", err)
	}
	a.clock.local = time.Now()
	rows, err := res.Query()
	if err != nil {
		return nil, fmt.Errorf("look: %w", err)
	}
	var (
		part, n            int64
		row                entryRow
		currency, metadata *string
		exponent           *int16
		openedAt           *time.Time
	)
	dest := append([]any{&part, &n}, row.dest()...)
	dest = append(dest, &currency, &exponent, &metadata, &openedAt)
	_, err = pgx.ForEachRow(rows, dest, func() error {
		e, err := row.entry()
		if err != nil {
			return err
		}
		switch part {
		case 1:
			a.keys[int(n)-1] = &e
		case 2:
			a.links[int(n)-1] = &e
		default:
			meta, err := ParseMetadata(deref(metadata))
			if err != nil {
				return fmt.Errorf("account %s: %w", e.AccountID, err)
			}
			a.heads[e.AccountID] = &Head{
				Account: Account{ID: e.AccountID, Currency: Currency(deref(currency)), Exponent: int(deref(exponent)), Metadata: meta, OpenedAt: deref(openedAt).UTC()},
				Seq:     e.Seq, State: e.After, PostedAt: e.PostedAt, Hash: e.Hash,
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look: %w", err)
	}
	return a, nil
}

// look asks the question on its own, outside a transaction.
func look(ctx context.Context, conn *pgx.Conn, q *question) (a *answer, err error) {
	var b pgx.Batch
	queueLook(&b, q)
	res := conn.SendBatch(ctx, &b)
	a, err = readLook(res)
	if closeErr := res.Close(); err == nil && closeErr != nil {
		return nil, fmt.Errorf("look: %w", closeErr)
	}
	return a, err
}

// lockAndLook begins a transaction, takes the turn on the accounts of the
// question, and only then, in a statement with a snapshot of its own, looks.
// All of it is one round trip.
func lockAndLook(ctx context.Context, conn *pgx.Conn, q *question) (a *answer, err error) {
	var b pgx.Batch
	b.Queue("begin")
	b.Queue(lockStatement, q.accounts)
	queueLook(&b, q)
	res := conn.SendBatch(ctx, &b)
	defer func() {
		if closeErr := res.Close(); err == nil && closeErr != nil {
			a, err = nil, fmt.Errorf("lock and look: %w", closeErr)
		}
	}()
	if _, err := res.Exec(); err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	if _, err := res.Exec(); err != nil {
		return nil, fmt.Errorf("lock accounts: %w", err)
	}
	return readLook(res)
}

// lockedStatement finds those of the accounts whose rows somebody holds locked.
// It gives back the locks on the others when it ends.
const lockedStatement = `
with free as materialized (
  select a.account_id
    from accounts as a
   where a.account_id = any($1::text[])
   order by a.account_id
     for update skip locked)
select a.account_id
  from accounts as a
 where a.account_id = any($1::text[])
   and not exists (
       select
         from free as f
        where f.account_id = a.account_id)`

func readLocked(ctx context.Context, pool *pgxpool.Pool, ids []string) (map[AccountID]bool, error) {
	rows, err := pool.Query(ctx, lockedStatement, ids)
	if err != nil {
		return nil, fmt.Errorf("find locked accounts: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find locked accounts: %w", err)
	}
	locked := make(map[AccountID]bool, len(found))
	for _, id := range found {
		locked[AccountID(id)] = true
	}
	return locked, nil
}
