package bench

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// TestGeneratedHistoryIsHonest audits every generated entry with the auditor
// that ledgerd verify uses.
func TestGeneratedHistoryIsHonest(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	if err := Generate(t.Context(), db.URL, 500, 7, 42); err != nil {
		t.Fatal(err)
	}
	pool := db.OwnerPool(t)
	rows, err := pool.Query(t.Context(), `select `+ledger.EntryColumns+` from entries as e order by account_id, seq`)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := pgx.CollectRows(rows, ledger.ScanEntry)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 500 {
		t.Fatalf("%d entries", len(entries))
	}
	auditors := map[ledger.AccountID]*ledger.Auditor{}
	for i := range entries {
		e := &entries[i]
		if auditors[e.AccountID] == nil {
			auditors[e.AccountID] = ledger.NewAuditor(e.AccountID)
		}
		for _, f := range auditors[e.AccountID].Add(e) {
			t.Error(f)
		}
	}
	var accounts, balances int
	err = pool.QueryRow(t.Context(), `select (select count(*) from balances),
       (select count(*) from accounts as a join entries as e on e.account_id = a.account_id and e.seq = 1 and e.posted_at = a.opened_at)`).Scan(&balances, &accounts)
	if err != nil {
		t.Fatal(err)
	}
	if len(auditors) != 7 || accounts != 7 || balances != 7 {
		t.Errorf("%d chains, %d accounts, %d balance rows", len(auditors), accounts, balances)
	}
}

// TestFloorLeavesNothingBehind measures for a moment: the real table stays as it
// was, and the scratch copy is gone.
func TestFloorLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	for _, w := range []Workload{Uniform, Hot} {
		f := &floor{databaseURL: db.URL, workload: w, accounts: 20, batch: 32, duration: 200 * time.Millisecond, seed: 7}
		rate, err := f.run(t.Context())
		if err != nil || rate < 32 {
			t.Errorf("%s: floor %.0f, %v", w, rate, err)
		}
	}
	var entries, schemas int
	err := db.OwnerPool(t).QueryRow(t.Context(),
		`select (select count(*) from entries), (select count(*) from pg_namespace where nspname = $1)`, floorSchema).Scan(&entries, &schemas)
	if err != nil || entries != 0 || schemas != 0 {
		t.Errorf("%d entries, %d schemas, %v", entries, schemas, err)
	}
}

// TestLagIsSeen looks at a balance row that lacks entries, and at one that does not.
func TestLagIsSeen(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	ctx := t.Context()
	if err := Generate(ctx, db.URL, 20, 2, 1); err != nil {
		t.Fatal(err)
	}
	pool := db.OwnerPool(t)
	_, err := pool.Exec(ctx, `update balances set account_id = 'bench-00000000' where account_id = 'history-00000000'`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `update entries set account_id = 'bench-00000000' where account_id = 'history-00000000'`); err != nil {
		t.Fatal(err)
	}
	l, err := newLag(ctx, db.URL, Hot, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if err := l.sample(); err != nil || l.seen.Max() < 1 {
		t.Errorf("lag %d µs, %v", l.seen.Max(), err)
	}
	if _, err := l.caughtUp(ctx, time.Millisecond); err == nil {
		t.Error("rows that are behind count as caught up")
	}
	_, err = pool.Exec(ctx, `update balances as b set applied_seq = (select max(seq) from entries as e where e.account_id = b.account_id)`)
	if err != nil {
		t.Fatal(err)
	}
	l.seen.Reset()
	if err := l.sample(); err != nil || l.seen.Max() != 0 || l.seen.TotalCount() != 1 {
		t.Errorf("lag %d µs in %d samples, %v", l.seen.Max(), l.seen.TotalCount(), err)
	}
	if _, err := l.caughtUp(ctx, time.Second); err != nil {
		t.Error(err)
	}
}
