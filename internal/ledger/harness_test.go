package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// fixture is a database with writers on it, audited when the test ends.
type fixture struct {
	t  testing.TB
	db *pgtest.DB
	r  *Reader
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	db := pgtest.Database(t)
	f := &fixture{t: t, db: db, r: NewReader(db.Pool(t))}
	t.Cleanup(func() { f.audit() })
	return f
}

// writer opens a writer in the service role; change adapts its configuration.
func (f *fixture) writer(change ...func(*postgres.Config, *WriterConfig)) *Writer {
	f.t.Helper()
	return openWriter(f.t, f.db.URL, change...)
}

func openWriter(t testing.TB, url string, change ...func(*postgres.Config, *WriterConfig)) *Writer {
	t.Helper()
	pg := postgres.Config{URL: url, Role: postgres.ServiceRole}
	cfg := WriterConfig{Log: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(&pg, &cfg)
	}
	w, err := OpenWriter(pg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			t.Errorf("close writer: %v", err)
		}
	})
	return w
}

// audit checks every chain of the database.
func (f *fixture) audit() {
	f.t.Helper()
	auditAll(f.t, f.r)
}

func auditAll(t testing.TB, r *Reader) {
	t.Helper()
	ctx := context.Background()
	rows, err := r.pool.Query(ctx, "select "+EntryColumns+" from entries as e order by e.account_id, e.seq")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := pgx.CollectRows(rows, ScanEntry)
	if err != nil {
		t.Fatal(err)
	}
	var a *Auditor
	for i := range entries {
		e := &entries[i]
		if a == nil || a.id != e.AccountID {
			a = NewAuditor(e.AccountID)
		}
		for _, finding := range a.Add(e) {
			t.Errorf("audit: %v", finding)
		}
	}
}

// open opens accounts in CZK.
func open(t testing.TB, w *Writer, ids ...AccountID) {
	t.Helper()
	for _, id := range ids {
		op := &Operation{Kind: KindOpened, AccountID: id, Opening: &Opening{Currency: "CZK", Exponent: 2, Fencing: Fencing{Source: SourceLease}}}
		if _, err := w.Apply(context.Background(), op); err != nil {
			t.Fatalf("open %s: %v", id, err)
		}
	}
}

func credit(id AccountID, amount Amount, key string) *Operation {
	return &Operation{Kind: KindCredit, AccountID: id, Amount: amount, Key: key}
}

func debit(id AccountID, amount Amount, key string) *Operation {
	return &Operation{Kind: KindDebit, AccountID: id, Amount: amount, Key: key}
}

func settings(id AccountID, c Change) *Operation {
	return &Operation{Kind: KindSettings, AccountID: id, Change: &c}
}

// must applies the operation and fails the test when it is refused.
func must(t testing.TB, w *Writer, op *Operation) *Receipt {
	t.Helper()
	r, err := w.Apply(context.Background(), op)
	if err != nil {
		t.Fatalf("%s on %s: %v", op.Kind, op.AccountID, err)
	}
	return r
}

// refused applies the operation and fails the test unless it is refused so.
func refused(t testing.TB, w *Writer, op *Operation, want Code) *Refusal {
	t.Helper()
	r, err := w.Apply(context.Background(), op)
	if err == nil {
		t.Fatalf("%s on %s gave %s at seq %d, want the refusal %s", op.Kind, op.AccountID, r.Entry.Kind, r.Entry.Seq, want)
	}
	refusal := err.(*Refusal) //nolint:errorlint // the contract of Apply
	if refusal.Code != want {
		t.Fatalf("%s on %s was refused with %v, want %s", op.Kind, op.AccountID, refusal, want)
	}
	return refusal
}

// together runs f n times at once and waits.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

// balanceOf reads the head.
func (f *fixture) balanceOf(id AccountID) Amount {
	f.t.Helper()
	h, err := f.r.Head(context.Background(), id)
	if err != nil {
		f.t.Fatal(err)
	}
	return h.State.Balance
}

func keyN(prefix string, i int) string { return fmt.Sprintf("%s-%d", prefix, i) }
