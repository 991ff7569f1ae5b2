package ledger

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Reader answers questions about accounts and their chains. Everything it
// returns was committed; "strong" answers come from the chain itself. Its
// errors are *Refusal for what does not exist, and otherwise those of the
// database.
type Reader struct{ pool *pgxpool.Pool }

// NewReader returns a reader over the pool, which should be in the service role.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool: pool} }

// headColumns go with scanHead: the last entry e of the account a.
const headColumns = EntryColumns + `, a.currency, a.exponent, a.metadata, a.opened_at`

// lastEntry is the head of the account a as a lateral item called e.
const lastEntry = `
 cross join lateral (
       select *
         from entries as h
        where h.account_id = a.account_id
        order by h.seq desc
        limit 1) as e`

// accountRow receives what belongs to an account beside its entries.
type accountRow struct {
	currency, metadata string
	exponent           int16
	openedAt           time.Time
}

func (r *accountRow) dest() []any {
	return []any{&r.currency, &r.exponent, &r.metadata, &r.openedAt}
}

func (r *accountRow) account(id AccountID) (Account, error) {
	meta, err := ParseMetadata(r.metadata)
	if err != nil {
		return Account{}, fmt.Errorf("account %s: %w", id, err)
	}
	return Account{ID: id, Currency: Currency(r.currency), Exponent: int(r.exponent), Metadata: meta, OpenedAt: r.openedAt.UTC()}, nil
}

// scanEntryOf reads EntryColumns, the account's columns and further ones.
func scanEntryOf(row pgx.Row, more ...any) (Account, Entry, error) {
	var e entryRow
	var a accountRow
	if err := row.Scan(append(append(e.dest(), a.dest()...), more...)...); err != nil {
		return Account{}, Entry{}, err
	}
	entry, err := e.entry()
	if err != nil {
		return Account{}, Entry{}, err
	}
	account, err := a.account(entry.AccountID)
	return account, entry, err
}

func headOf(a Account, e *Entry) Head {
	return Head{Account: a, Seq: e.Seq, State: e.After, PostedAt: e.PostedAt, Hash: e.Hash}
}

// notFound returns r when err says that there was no row, and err otherwise.
func notFound(err error, r *Refusal) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return r
	}
	return err
}

func noAccount(id AccountID) *Refusal {
	return refuse(CodeAccountNotFound, "There is no account %s.", id)
}

const readHeadStatement = `select ` + headColumns + ` from accounts as a` + lastEntry + ` where a.account_id = $1`

// Head returns the account and its state now. The error is account_not_found
// when it was never opened.
func (r *Reader) Head(ctx context.Context, id AccountID) (Head, error) {
	a, e, err := scanEntryOf(r.pool.QueryRow(ctx, readHeadStatement, string(id)))
	if err != nil {
		return Head{}, fmt.Errorf("read head: %w", notFound(err, noAccount(id)))
	}
	return headOf(a, &e), nil
}

// AccountQuery selects accounts in the order of their ids.
type AccountQuery struct {
	// Currency and Status filter when they are not empty.
	Currency Currency
	Status   Status
	// After is the id that the page starts after, "" for the first page.
	After AccountID
	// Limit is the size of the page, at least 1.
	Limit int
}

const readAccountsStatement = `
select ` + headColumns + `
  from accounts as a` + lastEntry + `
 where a.account_id > $1
   and ($2 = '' or a.currency = $2)
   and ($3 = '' or e.status_after = $3)
 order by a.account_id
 limit $4`

// Accounts returns one page of accounts with their state now.
func (r *Reader) Accounts(ctx context.Context, q AccountQuery) ([]Head, error) {
	rows, err := r.pool.Query(ctx, readAccountsStatement, string(q.After), string(q.Currency), string(q.Status), q.Limit)
	if err != nil {
		return nil, fmt.Errorf("list accounts: %w", err)
	}
	heads, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Head, error) {
		a, e, err := scanEntryOf(row)
		return headOf(a, &e), err
	})
	if err != nil {
		return nil, fmt.Errorf("list accounts: %w", err)
	}
	return heads, nil
}

// Projected is the balance row of an account: what the projection has applied.
type Projected struct {
	Balance      Amount
	Held         Amount
	CreditsTotal string // an integer of up to 38 digits
	DebitsTotal  string // an integer of up to 38 digits
	AppliedSeq   Seq
	UpdatedAt    time.Time
}

// Balance is the head of an account and its balance row in one snapshot.
type Balance struct {
	Head Head
	// Row is nil when the balance row is missing; the projection makes it again.
	Row *Projected
}

const readBalanceStatement = `
select ` + headColumns + `,
       b.balance, b.held, b.credits_total::text, b.debits_total::text, b.applied_seq, b.updated_at
  from accounts as a` + lastEntry + `
  left join balances as b
    on b.account_id = a.account_id
 where a.account_id = $1`

// Balance returns the state of the account now, and how far the projection is,
// in one snapshot: a client always reads its own writes.
func (r *Reader) Balance(ctx context.Context, id AccountID) (Balance, error) {
	var (
		balance, held, applied *int64
		credits, debits        *string
		updated                *time.Time
	)
	a, e, err := scanEntryOf(r.pool.QueryRow(ctx, readBalanceStatement, string(id)),
		&balance, &held, &credits, &debits, &applied, &updated)
	if err != nil {
		return Balance{}, fmt.Errorf("read balance: %w", notFound(err, noAccount(id)))
	}
	b := Balance{Head: headOf(a, &e)}
	if balance != nil {
		b.Row = &Projected{
			Balance: Amount(*balance), Held: Amount(deref(held)), CreditsTotal: deref(credits), DebitsTotal: deref(debits),
			AppliedSeq: Seq(deref(applied)), UpdatedAt: deref(updated).UTC(),
		}
	}
	return b, nil
}

const readProjectedStatement = `
select b.balance, b.held, b.credits_total::text, b.debits_total::text, b.applied_seq, b.updated_at,
       a.currency, a.exponent, a.metadata, a.opened_at
  from balances as b
  join accounts as a
    on a.account_id = b.account_id
 where b.account_id = $1`

// Projected returns the balance row alone, which can be behind the chain. The
// error is account_not_found when there is no row.
func (r *Reader) Projected(ctx context.Context, id AccountID) (Account, Projected, error) {
	var p Projected
	var a accountRow
	err := r.pool.QueryRow(ctx, readProjectedStatement, string(id)).Scan(append([]any{
		(*int64)(&p.Balance), (*int64)(&p.Held), &p.CreditsTotal, &p.DebitsTotal, (*int64)(&p.AppliedSeq), &p.UpdatedAt,
	}, a.dest()...)...)
	if err != nil {
		return Account{}, Projected{}, fmt.Errorf("read balance row: %w", notFound(err, noAccount(id)))
	}
	p.UpdatedAt = p.UpdatedAt.UTC()
	account, err := a.account(id)
	return account, p, err
}

// readAtStatement finds the last entry that was posted at or before $2. Posting
// times never fall along a chain, so it halves the range of seqs until one is
// left: some twenty look-ups by primary key in a chain of a million entries.
const readAtStatement = `
with recursive range (low, high) as (
       select 0::bigint, (select max(seq) from entries where account_id = $1)
        union all
       select case when m.posted_at <= $2 then m.seq else range.low end,
              case when m.posted_at <= $2 then range.high else m.seq - 1 end
         from range
         join entries as m
           on m.account_id = $1
          and m.seq = (range.low + range.high + 1) / 2
        where range.low < range.high)
select ` + headColumns + `
  from range
  join entries as e
    on e.account_id = $1
   and e.seq = range.low
  join accounts as a
    on a.account_id = e.account_id
 where range.low = range.high`

// BalanceAt returns the state of the account as it was at the moment t, by
// posting time. The error is entry_not_found when the account was opened after
// it, and account_not_found when it was never opened.
func (r *Reader) BalanceAt(ctx context.Context, id AccountID, t time.Time) (Head, error) {
	a, e, err := scanEntryOf(r.pool.QueryRow(ctx, readAtStatement, string(id), t))
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := r.Head(ctx, id); err != nil {
			return Head{}, err
		}
		return Head{}, refuse(CodeEntryNotFound, "The account %s was opened after %s.", id, t.UTC().Format(time.RFC3339Nano))
	}
	if err != nil {
		return Head{}, fmt.Errorf("read balance at: %w", err)
	}
	return headOf(a, &e), nil
}

// EntryQuery selects entries of one account.
type EntryQuery struct {
	// After is the seq that the page starts after, in the order that is asked
	// for; 0 for the first page.
	After Seq
	// Ascending asks for the oldest first; the default is the newest first.
	Ascending bool
	// Limit is the size of the page, at least 1.
	Limit int
}

const readEntriesUpStatement = `
select ` + EntryColumns + `
  from entries as e
 where e.account_id = $1
   and e.seq > $2
 order by e.seq
 limit $3`

const readEntriesDownStatement = `
select ` + EntryColumns + `
  from entries as e
 where e.account_id = $1
   and e.seq < $2
 order by e.seq desc
 limit $3`

// Entries returns one page of the account's chain. The error is
// account_not_found when it was never opened.
func (r *Reader) Entries(ctx context.Context, id AccountID, q EntryQuery) (Account, []Entry, error) {
	account, err := r.account(ctx, id)
	if err != nil {
		return Account{}, nil, err
	}
	statement := readEntriesDownStatement
	if q.Ascending {
		statement = readEntriesUpStatement
	} else if q.After == 0 {
		q.After = math.MaxInt64
	}
	rows, err := r.pool.Query(ctx, statement, string(id), int64(q.After), q.Limit)
	if err != nil {
		return Account{}, nil, fmt.Errorf("list entries: %w", err)
	}
	entries, err := pgx.CollectRows(rows, ScanEntry)
	if err != nil {
		return Account{}, nil, fmt.Errorf("list entries: %w", err)
	}
	return account, entries, nil
}

const readAccountStatement = `
select a.currency, a.exponent, a.metadata, a.opened_at
  from accounts as a
 where a.account_id = $1`

// account returns what never changes about the account.
func (r *Reader) account(ctx context.Context, id AccountID) (Account, error) {
	var a accountRow
	if err := r.pool.QueryRow(ctx, readAccountStatement, string(id)).Scan(a.dest()...); err != nil {
		return Account{}, fmt.Errorf("read account: %w", notFound(err, noAccount(id)))
	}
	return a.account(id)
}

const readEntryStatement = `
select ` + headColumns + `
  from entries as e
  join accounts as a
    on a.account_id = e.account_id
 where e.account_id = $1
   and e.seq = $2`

// Entry returns one link. The error is account_not_found or entry_not_found.
func (r *Reader) Entry(ctx context.Context, id AccountID, seq Seq) (Account, Entry, error) {
	a, e, err := scanEntryOf(r.pool.QueryRow(ctx, readEntryStatement, string(id), int64(seq)))
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := r.account(ctx, id); err != nil {
			return Account{}, Entry{}, err
		}
		return Account{}, Entry{}, refuse(CodeEntryNotFound, "The account %s has no entry %d.", id, seq)
	}
	if err != nil {
		return Account{}, Entry{}, fmt.Errorf("read entry: %w", err)
	}
	return a, e, nil
}

// TransactionEntry is an entry together with its account.
type TransactionEntry struct {
	Account Account
	Entry   Entry
}

const readTransactionStatement = `
select ` + headColumns + `
  from entries as e
  join accounts as a
    on a.account_id = e.account_id
 where e.transaction_id = $1
 order by e.account_id, e.seq`

// Transaction returns all entries that were committed for one request, by
// account and seq. The error is transaction_not_found when there is none.
func (r *Reader) Transaction(ctx context.Context, id uuid.UUID) ([]TransactionEntry, error) {
	rows, err := r.pool.Query(ctx, readTransactionStatement, id)
	if err != nil {
		return nil, fmt.Errorf("read transaction: %w", err)
	}
	entries, err := pgx.CollectRows(rows, scanTransactionEntry)
	if err != nil {
		return nil, fmt.Errorf("read transaction: %w", err)
	}
	if len(entries) == 0 {
		return nil, refuse(CodeTransactionNotFound, "There is no transaction %s.", id)
	}
	return entries, nil
}

const readTransactionsStatement = `
select ` + headColumns + `
  from entries as e
  join accounts as a
    on a.account_id = e.account_id
 where e.transaction_id = any($1::uuid[])
 order by e.account_id, e.seq`

// readTransactions returns the entries of each transaction, by account and seq.
func readTransactions(ctx context.Context, conn *pgx.Conn, ids []uuid.UUID) (map[uuid.UUID][]TransactionEntry, error) {
	rows, err := conn.Query(ctx, readTransactionsStatement, ids)
	if err != nil {
		return nil, fmt.Errorf("read transactions: %w", err)
	}
	all := make(map[uuid.UUID][]TransactionEntry, len(ids))
	entries, err := pgx.CollectRows(rows, scanTransactionEntry)
	if err != nil {
		return nil, fmt.Errorf("read transactions: %w", err)
	}
	for _, e := range entries {
		all[e.Entry.TransactionID] = append(all[e.Entry.TransactionID], e)
	}
	return all, nil
}

func scanTransactionEntry(row pgx.CollectableRow) (TransactionEntry, error) {
	a, e, err := scanEntryOf(row)
	return TransactionEntry{a, e}, err
}
