package ledger

import (
	"context"
	"fmt"
	"time"
)

// TrialBalance adds up the balance rows of one currency, and what the entries say
// about where the money came from. All of it is of one snapshot, and covers
// exactly the entries that the projection had applied then. Totals are integers
// of up to 38 digits.
//
// It adds up in two ways that are computed apart from each other:
// Credits - Debits = Balance from the balance rows, and
// In - Out + InTransit = Balance with the first three from the entries.
type TrialBalance struct {
	Currency Currency
	// Accounts is how many the currency has, Entries how many of their entries
	// are applied, and Behind how many are not.
	Accounts, Entries, Behind int64
	// AsOf is the database's clock at the snapshot.
	AsOf time.Time
	// Credits and Debits are all that ever went into the accounts and out of
	// them, transfers too; Balance and Held are the sums of what they have.
	Credits, Debits, Balance, Held string
	// In is what came in by single credits, Out what went out by single debits;
	// InTransit is what transactions have moved by those of their entries that
	// are applied. It is not 0 only while the projection has applied one part
	// of a transaction and not the other.
	In, Out, InTransit string
	// Declines is how many declined entries are applied.
	Declines int64
}

// trialBalanceStatement reads all entries of the currency once. A transaction
// has an entry alone exactly when money crossed the border of the ledger.
const trialBalanceStatement = `
with covered as (
       select a.account_id, b.balance, b.held, b.credits_total, b.debits_total, coalesce(b.applied_seq, 0) as applied
         from accounts as a
         left join balances as b
           on b.account_id = a.account_id
        where a.currency = $1),
     moved as (
       select count(*) as legs,
              coalesce(sum(e.amount) filter (where e.kind = 'credit' and e.seq <= c.applied), 0) as credits,
              coalesce(sum(e.amount) filter (where e.kind = 'debit' and e.seq <= c.applied), 0) as debits,
              count(*) filter (where e.kind = 'declined' and e.seq <= c.applied) as declines
         from covered as c
         join entries as e
           on e.account_id = c.account_id
        group by e.transaction_id),
     flows as (
       select coalesce(sum(legs), 0) as entries,
              coalesce(sum(credits) filter (where legs = 1), 0) as money_in,
              coalesce(sum(debits) filter (where legs = 1), 0) as money_out,
              coalesce(sum(credits - debits) filter (where legs > 1), 0) as in_transit,
              coalesce(sum(declines), 0) as declines
         from moved)
select count(c.account_id), coalesce(sum(c.applied), 0)::bigint, (f.entries - coalesce(sum(c.applied), 0))::bigint, statement_timestamp(),
       coalesce(sum(c.credits_total), 0)::text, coalesce(sum(c.debits_total), 0)::text,
       coalesce(sum(c.balance), 0)::text, coalesce(sum(c.held), 0)::text,
       f.money_in::text, f.money_out::text, f.in_transit::text, f.declines::bigint
  from flows as f
  left join covered as c
    on true
 group by f.entries, f.money_in, f.money_out, f.in_transit, f.declines`

// TrialBalance returns the trial balance of a currency, of zeros when it has no
// accounts. It reads every entry of the currency: some seconds a million.
func (r *Reader) TrialBalance(ctx context.Context, currency Currency) (TrialBalance, error) {
	t := TrialBalance{Currency: currency}
	err := r.pool.QueryRow(ctx, trialBalanceStatement, string(currency)).Scan(
		&t.Accounts, &t.Entries, &t.Behind, &t.AsOf, &t.Credits, &t.Debits, &t.Balance, &t.Held, &t.In, &t.Out, &t.InTransit, &t.Declines)
	if err != nil {
		return TrialBalance{}, fmt.Errorf("read trial balance: %w", err)
	}
	t.AsOf = t.AsOf.UTC()
	return t, nil
}
