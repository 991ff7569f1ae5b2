package ledger

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// statements are all constants of the package that hold SQL to be sent.
func statements() map[string]string {
	return map[string]string{
		"lifeStatement": lifeStatement, "lookStatement": lookStatement, "lockStatement": lockStatement,
		"appendStatement": appendStatement, "openAccountsStatement": openAccountsStatement, "openBalancesStatement": openBalancesStatement,
		"metadataStatement": metadataStatement, "barrierStatement": barrierStatement,
		"readHeadStatement": readHeadStatement, "readAccountsStatement": readAccountsStatement, "readBalanceStatement": readBalanceStatement,
		"readProjectedStatement": readProjectedStatement, "readAtStatement": readAtStatement, "readEntriesUpStatement": readEntriesUpStatement,
		"readFilteredUpStatement": readFilteredUpStatement, "readFilteredDownStatement": readFilteredDownStatement,
		"readSeqAtStatement": readSeqAtStatement, "trialBalanceStatement": trialBalanceStatement,
		"readEntriesDownStatement": readEntriesDownStatement, "readAccountStatement": readAccountStatement, "readEntryStatement": readEntryStatement,
		"readTransactionsStatement": readTransactionsStatement, "lockedStatement": lockedStatement, "readTransactionStatement": readTransactionStatement,
		"sightStatement": sightStatement, "bumpStatement": bumpStatement, "expireLeasesStatement": expireLeasesStatement,
	}
}

// TestEveryStatementFitsTheSchema prepares each statement in the role of the
// service, and proves that the list above has all of them.
func TestEveryStatementFitsTheSchema(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	conn := acquire(t, pool)
	for name, sql := range statements() {
		if _, err := conn.Prepare(t.Context(), name, sql); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range declaredStatements(t) {
		if _, ok := statements()[name]; !ok {
			t.Errorf("%s is in no test", name)
		}
	}
}

// declaredStatements finds the constants called …Statement in the source.
func declaredStatements(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, spec := range g.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if strings.HasSuffix(name.Name, "Statement") {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	if len(names) < 20 {
		t.Fatalf("found only %q", names)
	}
	return names
}

func acquire(t *testing.T, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	return conn.Conn()
}

// TestWritePathGoesThroughIndexes looks at the plans that a writer's sessions
// use, whatever statistics the tables have.
func TestWritePathGoesThroughIndexes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A")
	conn := acquire(t, w.pool)
	for name, arguments := range map[string]string{
		"lookStatement":     "array['A'], array['A'], array['k'], array['A'], array[1]",
		"lockStatement":     "array['A']",
		"metadataStatement": "array['A'], array['{}']",
	} {
		if _, err := conn.Exec(t.Context(), "prepare planned as "+statements()[name]); err != nil {
			t.Fatal(err)
		}
		rows, err := conn.Query(t.Context(), "explain execute planned ("+arguments+")", pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(plan, "\n")
		if strings.Contains(text, "Seq Scan") || !strings.Contains(text, "Index") {
			t.Errorf("%s:\n%s", name, text)
		}
		if _, err := conn.Exec(t.Context(), "deallocate planned"); err != nil {
			t.Fatal(err)
		}
	}
}

// serverLife reads the life of the server.
func serverLife(t *testing.T, conn *pgx.Conn) life {
	t.Helper()
	s, err := readSight(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return s.life
}

// opening is the first entry of the account, with the head that it makes.
func opening(id AccountID) (*Entry, Head) {
	op := &Operation{Kind: KindOpened, AccountID: id, Opening: &Opening{Currency: "CZK", Fencing: Fencing{Source: SourceLease}}}
	e, _ := decide(nil, op, noon)
	seal(e, &task{op: op, requestHash: op.requestHash(), transactionID: uuid.UUID{1}}, genesis)
	return e, headAfter(Account{}, e, op)
}

func countRows(t *testing.T, conn *pgx.Conn) (n [3]int) {
	t.Helper()
	err := conn.QueryRow(t.Context(), `select (select count(*) from entries), (select count(*) from accounts), (select count(*) from balances)`).
		Scan(&n[0], &n[1], &n[2])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAppendOfAnotherLifeWritesNothing: the statement itself compares the life
// that its heads were read from with the server that it runs on.
func TestAppendOfAnotherLifeWritesNothing(t *testing.T) {
	t.Parallel()
	conn := acquire(t, pgtest.Database(t).Pool(t))
	here := serverLife(t, conn)
	var a appender
	for name, l := range map[string]life{
		"an earlier start": {startedAt: here.startedAt - 1, entriesOID: here.entriesOID},
		"a later start":    {startedAt: here.startedAt + 1, entriesOID: here.entriesOID},
		"another table":    {startedAt: here.startedAt, entriesOID: here.entriesOID + 1},
		"none":             {},
	} {
		e, _ := opening("A")
		written, err := a.send(t.Context(), conn, &write{at: time.Now(), life: l, entries: []*Entry{e}, opened: []Head{{Account: Account{ID: "A", Currency: "CZK"}}}}, false)
		if written || err != nil {
			t.Errorf("%s: written %v, %v", name, written, err)
		}
		var rows int
		if err := conn.QueryRow(t.Context(), "select (select count(*) from accounts) + (select count(*) from balances)").Scan(&rows); err != nil || rows != 0 {
			t.Errorf("%s: %d rows of an account without an entry, %v", name, rows, err)
		}
	}
	if n := countRows(t, conn); n[0] != 0 {
		t.Errorf("%d entries", n[0])
	}
	e, _ := opening("A")
	if written, err := a.send(t.Context(), conn, &write{at: time.Now(), life: here, entries: []*Entry{e}}, false); !written || err != nil {
		t.Errorf("its own life: written %v, %v", written, err)
	}
}

// TestAppendIsAllOrNothing sends a write in which one link is taken.
func TestAppendIsAllOrNothing(t *testing.T) {
	t.Parallel()
	conn := acquire(t, pgtest.Database(t).Pool(t))
	here := serverLife(t, conn)
	var a appender
	first, head := opening("B")
	if written, err := a.send(t.Context(), conn, &write{at: time.Now(), life: here, entries: []*Entry{first}, opened: []Head{head}}, false); !written || err != nil {
		t.Fatalf("written %v, %v", written, err)
	}
	before := countRows(t, conn)
	again, againHead := opening("B")
	other, otherHead := opening("A")
	written, err := a.send(t.Context(), conn, &write{at: time.Now(), life: here, entries: []*Entry{other, again}, opened: []Head{otherHead, againHead}, changed: []Head{againHead}}, false)
	var refused *pgconn.PgError
	if written || !errors.As(err, &refused) || refused.Code != "23505" {
		t.Fatalf("written %v, %v", written, err)
	}
	if after := countRows(t, conn); after != before {
		t.Errorf("rows %v, before %v", after, before)
	}
}

// drawStored draws any entry that the CHECKs let in.
func drawStored(t *rapid.T, id AccountID, seq Seq) *Entry {
	amount := rapid.OneOf(rapid.Int64Range(1, int64(MaxAmount)), rapid.SampledFrom([]int64{1, int64(MaxAmount)}))
	signed := rapid.OneOf(rapid.Int64Range(-int64(MaxAmount), int64(MaxAmount)), rapid.SampledFrom([]int64{0, -int64(MaxAmount), int64(MaxAmount)}))
	text := rapid.Map(rapid.StringN(0, 40, -1), func(s string) string { return strings.ReplaceAll(s, "\x00", "") })
	moment := rapid.Map(rapid.OneOf(
		rapid.Int64Range(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC).UnixMicro()),
		rapid.SampledFrom([]int64{0, -1, 1, postgresEpoch, time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC).UnixMicro()}),
	), func(v int64) time.Time { return time.UnixMicro(v).UTC() })
	bytes := rapid.SliceOfN(rapid.Byte(), 32, 32)
	return &Entry{
		AccountID: id, Seq: seq, Kind: KindDebit, Amount: Amount(amount.Draw(t, "amount")),
		After: State{
			Balance: Amount(signed.Draw(t, "balance")), Held: Amount(amount.Draw(t, "held")), Fence: Token(amount.Draw(t, "fence")),
			MinBalance: drawMinBalance(t), Status: rapid.SampledFrom([]Status{Active, Frozen}).Draw(t, "status"), Fencing: drawFencing(t),
		},
		TransactionID: uuid.UUID(bytes.Draw(t, "transaction")[:16]), Key: "k" + text.Draw(t, "key"), RequestHash: [32]byte(bytes.Draw(t, "request hash")),
		Counterparty: text.Draw(t, "counterparty"), Reason: text.Draw(t, "reason"), Details: text.Draw(t, "details"),
		EffectiveAt: moment.Draw(t, "effective_at"), PostedAt: moment.Draw(t, "posted_at"),
		Hash: [32]byte(bytes.Draw(t, "hash")), HashVersion: rapid.IntRange(-32768, 32767).Draw(t, "hash version"),
	}
}

// TestWhatIsAppendedIsReadBack writes random entries, with nulls, awkward text
// and the ends of every range, and reads them back unchanged.
func TestWhatIsAppendedIsReadBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	conn := acquire(t, pool)
	here := serverLife(t, conn)
	var a appender
	seq := Seq(1)
	rapid.Check(t, func(t *rapid.T) {
		var entries []*Entry
		for range rapid.IntRange(1, 20).Draw(t, "entries") {
			seq++
			e := drawStored(t, "A", seq)
			e.Key = keyN(e.Key, int(seq))
			entries = append(entries, e)
		}
		if written, err := a.send(context.Background(), conn, &write{at: time.Now(), life: here, entries: entries}, false); !written || err != nil {
			t.Fatalf("written %v, %v", written, err)
		}
		rows, err := conn.Query(context.Background(), "select "+EntryColumns+" from entries as e where e.seq >= $1 order by e.seq", int64(entries[0].Seq))
		if err != nil {
			t.Fatal(err)
		}
		read, err := pgx.CollectRows(rows, ScanEntry)
		if err != nil || len(read) != len(entries) {
			t.Fatalf("%d entries of %d, %v", len(read), len(entries), err)
		}
		for i := range read {
			if read[i].Position == 0 {
				t.Fatal("no position was read")
			}
			read[i].Position = 0
			if read[i] != *entries[i] {
				t.Fatalf("read  %+v\nwrote %+v", read[i], *entries[i])
			}
		}
	})
}

// TestWhatIsOpenedIsReadBack does the same for accounts and their metadata.
func TestWhatIsOpenedIsReadBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	conn := acquire(t, pool)
	r := NewReader(pool)
	var a appender
	w := &write{at: time.Now(), life: serverLife(t, conn)}
	awkward := Metadata{"é": "e\u0301", "😀": "\"\\\n\x01", "k": strings.Repeat("ß", 4000)}
	for _, id := range []AccountID{"Z", "a", "A", AccountID(strings.Repeat("x", 128)), "0:._-"} {
		e, head := opening(id)
		head.Account.Exponent, head.Account.Metadata = MaxExponent, awkward
		head.Account.OpenedAt = time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
		w.entries, w.opened = append(w.entries, e), append(w.opened, head)
	}
	w.sort()
	if !slices.IsSortedFunc(w.opened, func(a, b Head) int { return strings.Compare(string(a.Account.ID), string(b.Account.ID)) }) {
		t.Error("the rows are not in one order")
	}
	if written, err := a.send(t.Context(), conn, w, false); !written || err != nil {
		t.Fatalf("written %v, %v", written, err)
	}
	check := func() {
		t.Helper()
		for _, want := range w.opened {
			got, err := r.Head(t.Context(), want.Account.ID)
			if err != nil || describe(got.Account) != describe(want.Account) {
				t.Errorf("read %s, %v, want %s", describe(got.Account), err, describe(want.Account))
			}
		}
	}
	check()
	var shard int
	if err := conn.QueryRow(t.Context(), "select shard from accounts where account_id = 'A'").Scan(&shard); err != nil || shard != AccountID("A").Shard() {
		t.Errorf("shard %d, %v", shard, err)
	}
	second := *w.entries[0]
	second.Seq, second.Kind = 2, KindSettings
	w.opened[0].Account.Metadata = Metadata{"new": ""}
	changed := &write{at: time.Now(), life: w.life, entries: []*Entry{&second}}
	changed.change(headOfSeq(w.opened[0].Account.ID, 2))
	changed.change(w.opened[0]) // the last one counts
	if written, err := a.send(t.Context(), conn, changed, false); !written || err != nil {
		t.Fatalf("written %v, %v", written, err)
	}
	check()
}
