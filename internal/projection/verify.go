package projection

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// The rules that a verification adds to those of the chain itself.
const (
	// RuleAccount: the account's row says what its chain says.
	RuleAccount ledger.Rule = "account"
	// RuleBalanceRow: the balance row is the fold of the entries up to its seq.
	RuleBalanceRow ledger.Rule = "balance_row"
	// RuleOrphan: entries and balance rows belong to an account.
	RuleOrphan ledger.Rule = "orphan"
)

// VerifyConfig says how to verify. Zero fields get the defaults.
type VerifyConfig struct {
	// Parallel is how many shards are read at once, each over a connection of
	// its own; default 2.
	Parallel int
	// FindingsMax bounds the findings that are kept; all are counted. Default 1000.
	FindingsMax int
	// Progress, when not nil, is called after each page of accounts, from
	// several goroutines, never at once.
	Progress func(VerifyReport)
}

// VerifyReport is what a verification has found so far.
type VerifyReport struct {
	// AccountsTotal counts the accounts when it began, AccountsDone and
	// EntriesDone what was checked.
	AccountsTotal int64
	AccountsDone  int64
	EntriesDone   int64
	// Count is the number of findings, Findings the first of them.
	Count    int64
	Findings []ledger.Finding
	// Lagging counts balance rows that are right and behind their head.
	Lagging int64
}

// Clean reports that nothing was found.
func (r VerifyReport) Clean() bool { return r.Count == 0 }

// verifyPage is how many accounts are checked in one snapshot, and
// verifyEntriesMax how many entries, when it is more than one account: it bounds
// what PostgreSQL has to sort.
const (
	verifyPage       = 200
	verifyEntriesMax = 100_000
)

// Verify checks every chain, account and balance row, and writes nothing. It
// may run while the ledger is used: each account is read in one snapshot, and a
// balance row that is behind its head is compared with the entries up to its
// seq. The error says why the database could not be read; findings are no error.
func Verify(ctx context.Context, pool *pgxpool.Pool, cfg VerifyConfig) (VerifyReport, error) {
	set(&cfg.Parallel, 2)
	set(&cfg.FindingsMax, 1000)
	v := &verification{pool: pool, cfg: cfg, entriesMax: verifyEntriesMax}
	err := pool.QueryRow(ctx, `select count(*) from accounts`).Scan(&v.report.AccountsTotal)
	if err != nil {
		return VerifyReport{}, fmt.Errorf("count accounts: %w", err)
	}
	if err := v.orphans(ctx); err != nil {
		return v.report, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(cfg.Parallel)
	for shard := range ledger.Shards {
		g.Go(func() error { return v.shard(ctx, shard) })
	}
	err = g.Wait()
	return v.report, err
}

type verification struct {
	pool *pgxpool.Pool
	cfg  VerifyConfig
	// entriesMax is verifyEntriesMax; a test sets it lower.
	entriesMax int64

	mu     sync.Mutex
	report VerifyReport
}

// add takes what a page found.
func (v *verification) add(page VerifyReport) {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := &v.report
	r.AccountsDone += page.AccountsDone
	r.EntriesDone += page.EntriesDone
	r.Lagging += page.Lagging
	r.Count += int64(len(page.Findings))
	room := max(0, v.cfg.FindingsMax-len(r.Findings))
	r.Findings = append(r.Findings, page.Findings[:min(room, len(page.Findings))]...)
	if v.cfg.Progress != nil {
		v.cfg.Progress(*r)
	}
}

// orphanStatement finds what no account leads to.
const orphanStatement = `
(select e.account_id, e.seq, 'an entry of an account that does not exist'
  from entries as e
  left join accounts as a
    on a.account_id = e.account_id
 where a.account_id is null
 limit $1)
union all
(select b.account_id, b.applied_seq, 'a balance row of an account that does not exist'
  from balances as b
  left join accounts as a
    on a.account_id = b.account_id
 where a.account_id is null
 limit $1)`

func (v *verification) orphans(ctx context.Context) error {
	rows, err := v.pool.Query(ctx, orphanStatement, v.cfg.FindingsMax)
	if err != nil {
		return fmt.Errorf("look for orphans: %w", err)
	}
	var page VerifyReport
	f := ledger.Finding{Rule: RuleOrphan}
	_, err = pgx.ForEachRow(rows, []any{(*string)(&f.AccountID), (*int64)(&f.Seq), &f.Detail}, func() error {
		page.Findings = append(page.Findings, f)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for orphans: %w", err)
	}
	v.add(page)
	return nil
}

func (v *verification) shard(ctx context.Context, shard int) error {
	var after ledger.AccountID
	for {
		page, last, err := v.page(ctx, shard, after)
		if err != nil {
			return fmt.Errorf("verify shard %d after %q: %w", shard, after, err)
		}
		v.add(page)
		if page.AccountsDone == 0 {
			return nil
		}
		after = last
	}
}

// accountCheck is the state of the check of one account.
type accountCheck struct {
	account ledger.Account
	row     *balanceRow
	// newest is the rank of the newest term of the account's shard.
	newest  lease.Rank
	auditor *ledger.Auditor
	fold    fold
	// folds is false after an entry that could not be folded, which the auditor
	// reports.
	folds bool
	// compared is true when the fold came by the seq of the balance row.
	compared bool
}

const verifyAccountsStatement = `
select a.account_id, a.currency, a.exponent, a.metadata, a.opened_at,
       b.account_id is not null, coalesce(b.balance, 0), coalesce(b.held, 0), coalesce(b.applied_seq, 0),
       coalesce(b.credits_total, 0)::text, coalesce(b.debits_total, 0)::text, coalesce(b.last_token, 0),
       coalesce(e.seq, 0)
  from accounts as a
  left join balances as b
    on b.account_id = a.account_id
  left join lateral (
       select h.seq
         from entries as h
        where h.account_id = a.account_id
        order by h.seq desc
        limit 1) as e
    on true
 where a.shard = $1
   and a.account_id > $2
 order by a.account_id
 limit $3`

// verifyTermStatement reads the newest term of a shard.
const verifyTermStatement = `
select incarnation, generation
  from leases
 where name = $1`

const verifyEntriesStatement = `
select ` + ledger.EntryColumns + `
  from entries as e
 where e.account_id = any($1::text[])
 order by e.account_id, e.seq`

// page checks the next accounts of a shard in one snapshot.
func (v *verification) page(ctx context.Context, shard int, after ledger.AccountID) (page VerifyReport, last ledger.AccountID, err error) {
	tx, err := v.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return page, "", err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	checks, ids, err := v.accounts(ctx, tx, shard, after, &page)
	if err != nil || len(ids) == 0 {
		return page, "", err
	}
	rows, err := tx.Query(ctx, verifyEntriesStatement, planned, ids)
	if err != nil {
		return page, "", err
	}
	defer rows.Close()
	for rows.Next() {
		e, err := ledger.ScanEntry(rows)
		if err != nil {
			return page, "", err
		}
		page.EntriesDone++
		checks[e.AccountID].add(&e, &page)
	}
	if err := rows.Err(); err != nil {
		return page, "", err
	}
	for _, id := range ids {
		checks[ledger.AccountID(id)].finish(&page)
	}
	page.AccountsDone = int64(len(ids))
	return page, ledger.AccountID(ids[len(ids)-1]), nil
}

// accounts reads the accounts of a page and their balance rows.
func (v *verification) accounts(ctx context.Context, tx pgx.Tx, shard int, after ledger.AccountID, page *VerifyReport) (map[ledger.AccountID]*accountCheck, []string, error) {
	newest := lease.Term{Incarnation: 1}
	err := tx.QueryRow(ctx, verifyTermStatement, shardNames()[shard]).Scan(&newest.Incarnation, &newest.Generation)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, nil, err
	}
	rows, err := tx.Query(ctx, verifyAccountsStatement, shard, string(after), verifyPage)
	if err != nil {
		return nil, nil, err
	}
	checks := make(map[ledger.AccountID]*accountCheck)
	var ids []string
	var a ledger.Account
	var metadata string
	var hasRow, cut bool
	var row balanceRow
	var entries, total int64
	dest := []any{(*string)(&a.ID), (*string)(&a.Currency), &a.Exponent, &metadata, &a.OpenedAt,
		&hasRow, (*int64)(&row.balance), (*int64)(&row.held), (*int64)(&row.appliedSeq), &row.credits, &row.debits, (*int64)(&row.lastToken), &entries}
	_, err = pgx.ForEachRow(rows, dest, func() error {
		total += entries
		if cut = cut || len(ids) > 0 && total > v.entriesMax; cut {
			return nil
		}
		ids = append(ids, string(a.ID))
		c := &accountCheck{account: a, newest: newest.Rank(), auditor: ledger.NewAuditor(a.ID), folds: true}
		if hasRow {
			r := row
			c.row = &r
		}
		checks[a.ID] = c
		var err error
		if c.account.Metadata, err = ledger.ParseMetadata(metadata); err != nil {
			page.Findings = append(page.Findings, ledger.Finding{AccountID: a.ID, Rule: RuleAccount, Detail: err.Error()})
		}
		if a.ID.Shard() != shard {
			c.report(page, RuleAccount, "the account is filed under shard %d, it belongs to %d", shard, a.ID.Shard())
		}
		return nil
	})
	return checks, ids, err
}

func (c *accountCheck) report(page *VerifyReport, rule ledger.Rule, format string, args ...any) {
	page.Findings = append(page.Findings, ledger.Finding{
		AccountID: c.account.ID, Seq: c.auditor.Seq(), Rule: rule, Detail: fmt.Sprintf(format, args...),
	})
}

// add checks an entry, and the balance row when it stands at this entry.
func (c *accountCheck) add(e *ledger.Entry, page *VerifyReport) {
	page.Findings = append(page.Findings, c.auditor.Add(e)...)
	if !c.folds {
		return
	}
	st := step{accountID: e.AccountID, seq: e.Seq, kind: e.Kind, amount: e.Amount, balance: e.After.Balance, held: e.After.Held}
	if c.fold.add(&st) != nil {
		c.folds = false
		return
	}
	if c.row != nil && c.row.appliedSeq == e.Seq {
		c.compare(page)
	}
}

// compare holds the balance row against the fold, which is at the row's seq.
func (c *accountCheck) compare(page *VerifyReport) {
	c.compared = true
	row, f := c.row, &c.fold
	if row.balance != f.balance || row.held != f.held || row.credits != f.credits.String() || row.debits != f.debits.String() {
		c.report(page, RuleBalanceRow, "the row has balance %d, held %d, credits %s, debits %s at seq %d; the entries add up to %d, %d, %s, %s",
			row.balance, row.held, row.credits, row.debits, row.appliedSeq, f.balance, f.held, f.credits, f.debits)
	}
}

// finish checks what only the whole chain tells.
func (c *accountCheck) finish(page *VerifyReport) {
	head := c.auditor.Seq()
	if head == 0 {
		c.report(page, RuleAccount, "the account has no entries")
		return
	}
	chain := c.auditor.Account()
	if c.account.Currency != chain.Currency || c.account.Exponent != chain.Exponent || !c.account.OpenedAt.Equal(chain.OpenedAt) ||
		!maps.Equal(c.account.Metadata, chain.Metadata) {
		c.report(page, RuleAccount, "the account's row is %v, its chain says %v", describe(c.account), describe(chain))
	}
	if c.row != nil && c.row.lastToken.Rank() > c.newest {
		c.report(page, RuleBalanceRow, "the row has token %d of a term that never was", c.row.lastToken)
	}
	switch {
	case c.row == nil:
		c.report(page, RuleBalanceRow, "the balance row is missing")
	case c.row.appliedSeq > head:
		c.report(page, RuleBalanceRow, "the row is at seq %d, ahead of the last entry %d", c.row.appliedSeq, head)
	case !c.folds && !c.compared:
		if s := c.auditor.State(); c.row.appliedSeq == head && (c.row.balance != s.Balance || c.row.held != s.Held) {
			c.report(page, RuleBalanceRow, "the row has balance %d and held %d, the last entry %d and %d", c.row.balance, c.row.held, s.Balance, s.Held)
		}
	case c.row.appliedSeq == 0:
		c.fold = fold{}
		c.compare(page)
		page.Lagging++
	case c.row.appliedSeq < head:
		page.Lagging++
	}
}

func describe(a ledger.Account) string {
	return fmt.Sprintf("%s with exponent %d, opened at %s, metadata %s", a.Currency, a.Exponent, a.OpenedAt.UTC().Format("2006-01-02T15:04:05.000000Z"), a.Metadata)
}
