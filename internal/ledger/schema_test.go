package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// refusedSQL runs the statement in a transaction that is rolled back and returns
// PostgreSQL's refusal, nil when there is none.
func refusedSQL(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) *pgconn.PgError {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), sql, args...)
	var refused *pgconn.PgError
	if err != nil && !errors.As(err, &refused) {
		t.Fatalf("%s: %v", sql, err)
	}
	return refused
}

// TestServiceOnlyAdds: append-only is a matter of privilege. The service cannot
// change what is written, by no way around either.
func TestServiceOnlyAdds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A")
	must(t, w, credit("A", 1, "k"))
	pool := f.db.Pool(t)
	const insufficientPrivilege = "42501"
	for _, sql := range []string{
		"update entries set amount = 2",
		"update entries set amount = 2 where false",
		"update entries set position = default",
		"delete from entries",
		"truncate entries",
		"truncate accounts, entries, balances",
		"insert into entries overriding system value select * from entries on conflict (account_id, seq) do update set amount = 2",
		"merge into entries as e using accounts as a on a.account_id = e.account_id when matched then update set amount = 2",
		"merge into entries as e using accounts as a on a.account_id = e.account_id when matched then delete",
		"select * from entries for update",
		"lock table entries in access exclusive mode",
		"alter table entries disable trigger all",
		"alter table entries drop constraint entries_pkey",
		"alter table entries add column extra text",
		"alter table entries rename to others",
		"drop table entries",
		"create rule quiet as on insert to entries do instead nothing",
		"create trigger quiet before insert on entries for each row execute function suppress_redundant_updates_trigger()",
		"create index more on entries (amount)",
		"alter table entries owner to ledgerd_service",
		"create table others (account_id text)",
		"update accounts set currency = 'EUR'",
		"update accounts set opened_at = now()",
		"delete from accounts",
		"delete from balances",
		"truncate balances",
		"update incarnations set timeline = 1",
		"delete from incarnations",
		"delete from leases",
		"insert into goose_db_version (version_id, is_applied) values (99, true)",
		"delete from goose_db_version",
		"alter role ledgerd_service superuser",
		"copy entries to program 'true'",
		"set session_replication_role = replica",
	} {
		if r := refusedSQL(t, pool, sql); r == nil || r.Code != insufficientPrivilege {
			t.Errorf("%s: %v", sql, r)
		}
	}
	// This is not refused: it warns and grants nothing.
	if _, err := pool.Exec(t.Context(), "grant all on entries to ledgerd_service"); err != nil {
		t.Error(err)
	}
	var may bool
	if err := pool.QueryRow(t.Context(), "select has_table_privilege(current_user, 'entries', 'update, delete, truncate, trigger, references')").Scan(&may); err != nil || may {
		t.Errorf("the service may change entries: %v, %v", may, err)
	}
	if got := f.balanceOf("A"); got != 1 {
		t.Errorf("balance %d, want 1", got)
	}
}

// row is a table row as JSON: column to value.
type row map[string]any

func (r row) with(changes row) row {
	all := maps.Clone(r)
	maps.Copy(all, changes)
	return all
}

// TestEveryCheckRefusesWhatItNames inserts a good row with one thing wrong, as
// the owner, for whom nothing but the schema is in the way.
func TestEveryCheckRefusesWhatItNames(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).OwnerPool(t)
	hash := `\x` + strings.Repeat("ab", 32)
	const limit = int64(MaxAmount)
	good := map[string]row{
		"accounts": {"account_id": "A", "currency": "CZK", "exponent": 2, "shard": 0, "metadata": "{}", "opened_at": "2026-03-01T12:00:00Z"},
		"entries": {"account_id": "A", "seq": 2, "kind": "credit", "amount": 1, "balance_after": 1, "held_after": 0, "fence_after": 0, "min_balance_after": 0,
			"status_after": "active", "fencing_after": "lease", "transaction_id": "0195f000-0000-7000-8000-000000000001", "idempotency_key": "k", "request_hash": hash,
			"effective_at": "2026-03-01T12:00:00Z", "posted_at": "2026-03-01T12:00:00Z", "hash": hash, "hash_version": 1, "position": 1},
		"balances":     {"account_id": "A", "balance": 0, "held": 0, "credits_total": 0, "debits_total": 0, "applied_seq": 0, "last_token": 0, "updated_at": "2026-03-01T12:00:00Z"},
		"incarnations": {"incarnation": 2, "system_identifier": 1, "timeline": 1, "entries_oid": 1, "reason": "r", "started_at": "2026-03-01T12:00:00Z"},
	}
	insert := func(table string, r row) *pgconn.PgError {
		t.Helper()
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return refusedSQL(t, pool, "insert into "+table+" overriding system value select * from jsonb_populate_record(null::"+table+", $1::jsonb)", string(text))
	}
	for table, r := range good {
		if refused := insert(table, r); refused != nil {
			t.Errorf("%s: the good row is refused: %v", table, refused)
		}
	}
	allowed := []row{
		{"balance_after": limit}, {"balance_after": -limit}, {"amount": limit}, {"held_after": limit}, {"fence_after": limit}, {"min_balance_after": int64(LowestMinBalance)},
		{"seq": int64(1<<63 - 1)}, {"seq": 1, "kind": "opened", "amount": 0, "idempotency_key": nil}, {"kind": "settings", "amount": 0, "idempotency_key": nil},
		{"kind": "fenced", "amount": 0, "idempotency_key": nil}, {"kind": "declined", "reason": "r"}, {"status_after": "closed", "balance_after": 0},
		{"fencing_after": "external_required"}, {"effective_at": "0001-01-01T00:00:00Z", "posted_at": "9999-12-31T23:59:59.999999Z"},
	}
	for _, changes := range allowed {
		if refused := insert("entries", good["entries"].with(changes)); refused != nil {
			t.Errorf("%v is refused: %v", changes, refused)
		}
	}
	checked := map[string]bool{}
	for _, c := range []struct {
		constraint string
		changes    []row
	}{
		{"accounts_id_form", []row{{"account_id": ""}, {"account_id": "-A"}, {"account_id": "A/B"}, {"account_id": "é"}, {"account_id": "A\n"}, {"account_id": strings.Repeat("A", 129)}}},
		{"accounts_currency_form", []row{{"currency": "C"}, {"currency": "czk"}, {"currency": "1CZ"}, {"currency": "CZ K"}, {"currency": strings.Repeat("C", 17)}}},
		{"accounts_exponent_range", []row{{"exponent": -1}, {"exponent": 19}}},
		{"accounts_shard_range", []row{{"shard": -1}, {"shard": Shards}}},
		{"entries_seq_positive", []row{{"seq": 0}, {"seq": -1}}},
		{"entries_kind_known", []row{{"kind": "gift"}, {"kind": ""}}},
		{"entries_first_is_opened", []row{{"seq": 1}, {"kind": "opened", "amount": 0, "idempotency_key": nil}}},
		{"entries_amount_range", []row{{"amount": -1}, {"amount": limit + 1}}},
		{"entries_money_has_amount", []row{{"amount": 0}, {"amount": 0, "kind": "declined", "reason": "r"}}},
		{"entries_balance_range", []row{{"balance_after": limit + 1}, {"balance_after": -limit - 1}}},
		{"entries_held_range", []row{{"held_after": -1}, {"held_after": limit + 1}}},
		{"entries_fence_range", []row{{"fence_after": -1}, {"fence_after": limit + 1}}},
		{"entries_min_balance_range", []row{{"min_balance_after": 1}, {"min_balance_after": int64(LowestMinBalance) - 1}}},
		{"entries_status_known", []row{{"status_after": "asleep"}}},
		{"entries_closed_is_empty", []row{{"status_after": "closed"}, {"status_after": "closed", "balance_after": 0, "held_after": 1}}},
		{"entries_fencing_known", []row{{"fencing_after": "redis"}, {"fencing_after": "lease "}}},
		{"entries_key_is_for_money", []row{{"kind": "settings", "amount": 0}, {"kind": "fenced", "amount": 0}}},
		{"entries_declined_has_key", []row{{"kind": "declined", "reason": "account_frozen", "idempotency_key": nil}}},
		{"entries_declined_has_reason", []row{{"kind": "declined"}}},
		{"entries_hash_sizes", []row{{"hash": `\xab`}, {"request_hash": `\x`}, {"hash": hash + "00"}}},
		{"balances_applied_seq_range", []row{{"applied_seq": -1}}},
		{"balances_last_token_range", []row{{"last_token": -1}}},
		{"incarnations_range", []row{{"incarnation": 0}, {"incarnation": 256}}},
	} {
		checked[c.constraint] = true
		table, _, _ := strings.Cut(c.constraint, "_")
		for _, changes := range c.changes {
			refused := insert(table, good[table].with(changes))
			if refused == nil || refused.Code != "23514" || refused.ConstraintName != c.constraint {
				t.Errorf("%s with %v: %v", c.constraint, changes, refused)
			}
		}
	}
	for _, name := range constraints(t, pool) {
		if !checked[name] {
			t.Errorf("the constraint %s is in no test", name)
		}
	}
}

// constraints lists the CHECKs of the tables of this package.
func constraints(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		select conname from pg_constraint
		 where contype = 'c' and conrelid = any(array['accounts', 'entries', 'balances', 'incarnations']::regclass[])`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) < 20 {
		t.Fatalf("constraints %q, %v", names, err)
	}
	slices.Sort(names)
	return names
}

// TestKeysOfTheSchema: a link and a key exist once.
func TestKeysOfTheSchema(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A")
	must(t, w, credit("A", 1, "k"))
	pool := f.db.OwnerPool(t)
	const again = `
		insert into entries (account_id, seq, kind, amount, balance_after, held_after, fence_after, min_balance_after, status_after, fencing_after,
		       transaction_id, idempotency_key, request_hash, effective_at, posted_at, hash, hash_version)
		select account_id, seq + $1, kind, amount, balance_after, held_after, fence_after, min_balance_after, status_after, fencing_after,
		       transaction_id, $2, request_hash, effective_at, posted_at, hash, hash_version
		  from entries where account_id = 'A' and seq = 2`
	for _, c := range []struct {
		ahead      int64
		key        string
		constraint string
	}{{0, "other", "entries_pkey"}, {1, "k", "entries_idempotency_key"}, {1, "other", ""}} {
		refused := refusedSQL(t, pool, again, c.ahead, c.key)
		if c.constraint == "" && refused != nil || c.constraint != "" && (refused == nil || refused.Code != "23505" || refused.ConstraintName != c.constraint) {
			t.Errorf("%d links ahead with the key %s: %v, want %q", c.ahead, c.key, refused, c.constraint)
		}
	}
}

// TestSessionThatMayChangeEntriesIsRefused: a service that was not put into its
// role does not write at all.
func TestSessionThatMayChangeEntriesIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer(func(pg *postgres.Config, _ *WriterConfig) { pg.Role = "" })
	_, head := opening("A")
	op := &Operation{Kind: KindOpened, AccountID: head.Account.ID, Opening: &Opening{Currency: "CZK", Fencing: head.State.Fencing}}
	if r := refused(t, w, op, CodeUnavailable); r.Applied != NotApplied || !strings.Contains(r.Detail, postgres.ServiceRole) {
		t.Errorf("refusal %+v", r)
	}
	if err := w.Ready(t.Context()); err == nil {
		t.Error("the writer says that it is ready")
	}
	if _, err := f.r.Head(t.Context(), "A"); err == nil {
		t.Error("the account was opened")
	}
}
