package projection

import (
	"context"
	"slices"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// TestVerifyFindsEveryDamage changes one thing behind the service at a time and
// expects the rules that notice it, on that account alone.
func TestVerifyFindsEveryDamage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, damage string
		rules        []ledger.Rule
	}{
		{"balance of the row", `update balances set balance = balance + 1 where account_id = 'A'`, []ledger.Rule{RuleBalanceRow}},
		{"held of the row", `update balances set held = held + 1 where account_id = 'A'`, []ledger.Rule{RuleBalanceRow}},
		{"credits of the row", `update balances set credits_total = credits_total + 1 where account_id = 'A'`, []ledger.Rule{RuleBalanceRow}},
		{"debits of the row", `update balances set debits_total = debits_total + 1 where account_id = 'A'`, []ledger.Rule{RuleBalanceRow}},
		{"row set back", `update balances set applied_seq = applied_seq - 1 where account_id = 'A'`, []ledger.Rule{RuleBalanceRow}},
		{"row set back to nothing", `update balances set applied_seq = 0 where account_id = 'A'`, []ledger.Rule{RuleBalanceRow}},
		{"row set ahead", `update balances set applied_seq = applied_seq + 1 where account_id = 'A'`, []ledger.Rule{RuleBalanceRow}},
		{"token of the row", `update balances set last_token = last_token + (1::bigint << 40) where account_id = 'A'`, []ledger.Rule{RuleBalanceRow}},
		{"row deleted", `delete from balances where account_id = 'A'`, []ledger.Rule{RuleBalanceRow}},
		{"row of nobody", `insert into balances select 'A2', 0, 0, 0, 0, 0, 0, now()`, []ledger.Rule{RuleOrphan}},
		{"amount of an entry", `update entries set amount = amount + 1 where account_id = 'A' and seq = 2`, []ledger.Rule{ledger.RuleHash, ledger.RuleState}},
		{"running balance of an entry", `update entries set balance_after = balance_after + 1 where account_id = 'A' and seq = 2`, []ledger.Rule{ledger.RuleHash, ledger.RuleState}},
		{"last running balance", `update entries set balance_after = balance_after + 1 where account_id = 'A' and seq = 3`, []ledger.Rule{RuleBalanceRow, ledger.RuleHash, ledger.RuleState}},
		{"business date of an entry", `update entries set effective_at = effective_at - interval '1 day' where account_id = 'A' and seq = 2`, []ledger.Rule{ledger.RuleHash}},
		{"counterparty of an entry", `update entries set counterparty = 'me' where account_id = 'A' and seq = 2`, []ledger.Rule{ledger.RuleHash}},
		{"hash of an entry", `update entries set hash = sha256(hash) where account_id = 'A' and seq = 2`, []ledger.Rule{ledger.RuleHash}},
		{"fence that falls", `update entries set fence_after = 5 where account_id = 'A' and seq = 2`, []ledger.Rule{ledger.RuleFence, ledger.RuleHash}},
		{"gap", `delete from entries where account_id = 'A' and seq = 2`, []ledger.Rule{ledger.RuleHash, ledger.RuleSeq, ledger.RuleState}},
		{"lost last entry", `delete from entries where account_id = 'A' and seq = 3`, []ledger.Rule{RuleBalanceRow}},
		{"lost account", `delete from accounts where account_id = 'A'`, []ledger.Rule{RuleOrphan}},
		{"lost chain", `delete from entries where account_id = 'A'`, []ledger.Rule{RuleAccount}},
		{"currency of the account", `update accounts set currency = 'EUR' where account_id = 'A'`, []ledger.Rule{RuleAccount}},
		{"exponent of the account", `update accounts set exponent = 3 where account_id = 'A'`, []ledger.Rule{RuleAccount}},
		{"metadata of the account", `update accounts set metadata = '{"a":"b"}' where account_id = 'A'`, []ledger.Rule{RuleAccount}},
		{"unreadable metadata", `update accounts set metadata = '{' where account_id = 'A'`, []ledger.Rule{RuleAccount}},
		{"opening of the account", `update accounts set opened_at = opened_at - interval '1 s' where account_id = 'A'`, []ledger.Rule{RuleAccount}},
		{"shard of the account", `update accounts set shard = (shard + 1) % 64 where account_id = 'A'`, []ledger.Rule{RuleAccount}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.open("A", "B")
			for _, id := range []ledger.AccountID{"A", "B"} {
				f.credit(id, 100)
				f.debit(id, 30)
			}
			stop := f.run(f.projector())
			f.caughtUp()
			stop()
			f.verify()
			f.damage(`create table saved_balances as table balances`)
			f.damage(`create table saved_accounts as table accounts`)
			f.damage(`create table saved_entries as table entries`)
			f.damage(c.damage)
			for id, rules := range f.findings() {
				slices.Sort(rules)
				if rules = slices.Compact(rules); id[0] != 'A' || !slices.Equal(rules, c.rules) {
					t.Errorf("%s broke %v, expected %v", id, rules, c.rules)
				}
			}
			if len(f.findings()) != 1 {
				t.Errorf("%d accounts were named", len(f.findings()))
			}
			f.restore()
		})
	}
}

// restore puts the saved tables back, for the verification at the end.
func (f *fixture) restore() {
	f.t.Helper()
	for _, table := range []string{"balances", "accounts", "entries"} {
		if _, err := f.owner.Exec(context.Background(), `delete from `+table); err != nil {
			f.t.Fatal(err)
		}
		f.damage(`insert into ` + table + ` overriding system value table saved_` + table)
	}
}

// TestVerifyCountsWhatIsBehind: a row that is right and behind is no finding.
func TestVerifyCountsWhatIsBehind(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A", "B", "C")
	stop := f.run(f.projector())
	f.caughtUp()
	stop()
	f.credit("A", 1)
	f.open("D")
	calls := 0
	report, err := Verify(t.Context(), f.pool, VerifyConfig{Parallel: 4, Progress: func(VerifyReport) { calls++ }})
	if err != nil {
		t.Fatal(err)
	}
	if !report.Clean() || report.Lagging != 2 || report.AccountsDone != 4 || report.AccountsTotal != 4 || report.EntriesDone != 5 || calls < ledger.Shards {
		t.Errorf("the report is %+v after %d calls", report, calls)
	}
}

// TestVerifyKeepsSomeFindings: all are counted, a bounded number is kept.
func TestVerifyKeepsSomeFindings(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open(accountIDs("a", 30)...)
	f.damage(`update balances set balance = 1`)
	report, err := Verify(t.Context(), f.pool, VerifyConfig{FindingsMax: 7})
	if err != nil {
		t.Fatal(err)
	}
	if report.Count != 30 || len(report.Findings) != 7 {
		t.Errorf("%d findings, %d kept", report.Count, len(report.Findings))
	}
	f.damage(`update balances set balance = 0`)
}

// TestVerifyWhileTheLedgerIsUsed finds nothing in a ledger that moves.
func TestVerifyWhileTheLedgerIsUsed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := accountIDs("a", 50)
	f.open(ids...)
	f.run(f.projector())
	stop := f.load(ids)
	for range 5 {
		f.verify()
	}
	stop()
	f.caughtUp()
}

// TestPagesAreBoundedByEntries: a page ends early before accounts with many
// entries, and no account is left out.
func TestPagesAreBoundedByEntries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := append(sameShard("A", 6), "A")
	f.open(ids...)
	for _, id := range ids {
		for range 4 {
			f.credit(id, 1)
		}
	}
	for _, entriesMax := range []int64{1, 5, 9, 10, 11, 34, 35, 1000} {
		v := &verification{pool: f.pool, cfg: VerifyConfig{FindingsMax: 10}, entriesMax: entriesMax}
		if err := v.shard(t.Context(), ids[0].Shard()); err != nil {
			t.Fatal(err)
		}
		if v.report.AccountsDone != 7 || v.report.EntriesDone != 35 || v.report.Count != 0 {
			t.Errorf("with pages of %d entries the report is %+v", entriesMax, v.report)
		}
		job := &rebuildJob{shard: ids[0].Shard()}
		var got int
		for pages := 1; ; pages++ {
			p, err := newStore(f.pool).accountPages(t.Context(), []*rebuildJob{job}, 3, entriesMax)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(p[0].ids); n > 1 && p[0].entries > entriesMax || n > 3 {
				t.Errorf("a page has %d accounts with %d entries, at most %d", n, p[0].entries, entriesMax)
			}
			got += len(p[0].ids)
			if p[0].last {
				break
			}
			job.scanned = ledger.AccountID(p[0].ids[len(p[0].ids)-1])
		}
		if got != 7 {
			t.Errorf("with pages of %d entries %d accounts were read", entriesMax, got)
		}
	}
}
