package projection

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// fixture is a database with a real writer on it. When the test ends,
// everything is verified.
type fixture struct {
	t      testing.TB
	url    string
	pool   *pgxpool.Pool // as the service
	owner  *pgxpool.Pool // as one who can damage things
	writer *ledger.Writer
	// hinted is told of commits, when a test wants hints.
	hinted atomic.Pointer[Projector]
	keys   int
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	db := pgtest.Database(t)
	f := &fixture{t: t, url: db.URL, pool: db.Pool(t), owner: db.OwnerPool(t)}
	t.Cleanup(f.verify)
	f.openWriter()
	return f
}

func (f *fixture) openWriter() {
	f.t.Helper()
	w, err := ledger.OpenWriter(postgres.Config{URL: f.url, Role: postgres.ServiceRole}, ledger.WriterConfig{
		Log: slog.New(slog.DiscardHandler), Deadline: 20 * time.Second,
		Committed: func(c []ledger.Committed) {
			if p := f.hinted.Load(); p != nil {
				p.Hint(c)
			}
		},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.writer = w
	f.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			f.t.Errorf("close writer: %v", err)
		}
	})
}

// verify fails the test when anything in the database is not as it must be.
func (f *fixture) verify() {
	f.t.Helper()
	report, err := Verify(context.Background(), f.pool, VerifyConfig{})
	if err != nil {
		f.t.Errorf("verify: %v", err)
	}
	for _, finding := range report.Findings {
		f.t.Errorf("verify: %v", finding)
	}
}

// findings returns what a verification finds, as rule by account.
func (f *fixture) findings() map[ledger.AccountID][]ledger.Rule {
	f.t.Helper()
	report, err := Verify(context.Background(), f.pool, VerifyConfig{})
	if err != nil {
		f.t.Fatalf("verify: %v", err)
	}
	found := make(map[ledger.AccountID][]ledger.Rule)
	for _, finding := range report.Findings {
		found[finding.AccountID] = append(found[finding.AccountID], finding.Rule)
	}
	return found
}

func accountIDs(prefix string, n int) []ledger.AccountID {
	ids := make([]ledger.AccountID, n)
	for i := range ids {
		ids[i] = ledger.AccountID(fmt.Sprintf("%s%04d", prefix, i))
	}
	return ids
}

func (f *fixture) apply(op *ledger.Operation) *ledger.Receipt {
	f.t.Helper()
	r, err := f.writer.Apply(context.Background(), op)
	if err != nil {
		f.t.Fatalf("%s on %s: %v", op.Kind, op.AccountID, err)
	}
	return r
}

func (f *fixture) open(ids ...ledger.AccountID) {
	f.t.Helper()
	for _, id := range ids {
		f.apply(&ledger.Operation{Kind: ledger.KindOpened, AccountID: id, Opening: &ledger.Opening{
			Currency: "CZK", Exponent: 2, Fencing: ledger.Fencing{Source: ledger.SourceLease}}})
	}
}

func (f *fixture) key() string {
	f.keys++
	return fmt.Sprintf("key-%d", f.keys)
}

func (f *fixture) credit(id ledger.AccountID, amount ledger.Amount) {
	f.t.Helper()
	f.apply(&ledger.Operation{Kind: ledger.KindCredit, AccountID: id, Amount: amount, Key: f.key()})
}

func (f *fixture) debit(id ledger.AccountID, amount ledger.Amount) {
	f.t.Helper()
	f.apply(&ledger.Operation{Kind: ledger.KindDebit, AccountID: id, Amount: amount, Key: f.key()})
}

// damage runs SQL as the owner.
func (f *fixture) damage(sql string, args ...any) {
	f.t.Helper()
	tag, err := f.owner.Exec(context.Background(), sql, args...)
	if err != nil {
		f.t.Fatal(err)
	}
	if tag.RowsAffected() == 0 {
		f.t.Fatalf("nothing was damaged by %s", sql)
	}
}

func (f *fixture) row(id ledger.AccountID) balanceRow {
	f.t.Helper()
	rows, err := newStore(f.pool).rows(context.Background(), []string{string(id)})
	if err != nil {
		f.t.Fatal(err)
	}
	return rows[id]
}

// eventually polls until ok.
func (f *fixture) eventually(what string, ok func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("did not happen: %s", what)
		}
	}
}

// behind counts the accounts whose row is not at their head; -1 says that the
// database is away.
func (f *fixture) behind() (n int) {
	err := f.owner.QueryRow(context.Background(), `
		select count(*)
		  from accounts as a
		 cross join lateral (select seq from entries where account_id = a.account_id order by seq desc limit 1) as h
		  left join balances as b using (account_id)
		 where b.applied_seq is distinct from h.seq`).Scan(&n)
	if err != nil {
		return -1
	}
	return n
}

func (f *fixture) caughtUp() {
	f.t.Helper()
	f.eventually("all balance rows at their heads", func() bool { return f.behind() == 0 })
}

// config is one for tests: fast, and without hints as good as with them.
func config() Config {
	return Config{
		Process: "test", LeaseTTL: 2 * time.Second, RenewEvery: 30 * time.Millisecond,
		PollEvery: 5 * time.Millisecond, GatherIdle: time.Millisecond, Gather: 10 * time.Millisecond,
		SweepEvery: 100 * time.Millisecond, StatementTimeout: 5 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	}
}

// projector makes a projector that does not run yet.
func (f *fixture) projector(change ...func(*Config)) *Projector {
	f.t.Helper()
	return f.projectorOn(f.pool, change...)
}

func (f *fixture) projectorOn(pool *pgxpool.Pool, change ...func(*Config)) *Projector {
	f.t.Helper()
	cfg := config()
	cfg.Registerer = prometheus.NewRegistry()
	for _, c := range change {
		c(&cfg)
	}
	p, err := New(pool, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// run starts a projector; the returned function stops it and waits.
func (f *fixture) run(p *Projector) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { p.Run(ctx); close(done) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-done
		}
	}
	f.t.Cleanup(stop)
	return stop
}

// owned gives the worker a shard without a holder, as if it had just got the
// term. Tests that take one step at a time use it.
func owned(w *worker, id ledger.AccountID, generation int64) *shard {
	n := id.Shard()
	_, err := w.store.db.Exec(context.Background(), `
		insert into leases as l (name, incarnation, generation, holder, nonce, ttl_ms, lock_delay_ms, acquired_at, expires_at)
		select $1, 1, $2, 'stepper', gen_random_uuid(), 1000, 0, clock_timestamp(), clock_timestamp()
		    on conflict (name) do update set generation = greatest(l.generation, excluded.generation)`, shardNames()[n], generation)
	if err != nil {
		panic(err)
	}
	s := newShard(n, lease.Term{Name: shardNames()[n], Incarnation: 1, Generation: generation}, context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shards[n] = s
	return s
}

// value reads a counter or gauge.
func value(m prometheus.Metric) float64 {
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		panic(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// histogram reads the cumulative counts of a histogram by upper bound.
func histogram(m prometheus.Metric) string {
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		panic(err)
	}
	var text string
	for _, b := range out.GetHistogram().GetBucket() {
		text += fmt.Sprintf("%gs:%.4f ", b.GetUpperBound(), float64(b.GetCumulativeCount())/float64(out.GetHistogram().GetSampleCount()))
	}
	return text
}

// insertEntry adds an entry the way no service does: by hand.
const insertEntry = `
insert into entries (account_id, seq, kind, amount, balance_after, held_after, fence_after, min_balance_after, status_after, fencing_after,
       transaction_id, idempotency_key, request_hash, effective_at, posted_at, hash, hash_version)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`

// honestNext returns the columns of an honest credit after the account's head.
func (f *fixture) honestNext(id ledger.AccountID, amount ledger.Amount) []any {
	f.t.Helper()
	head, err := ledger.NewReader(f.pool).Head(context.Background(), id)
	if err != nil {
		f.t.Fatal(err)
	}
	e := ledger.Entry{
		AccountID: id, Seq: head.Seq + 1, Kind: ledger.KindCredit, Amount: amount, After: head.State,
		TransactionID: uuid.New(), Key: f.key(), EffectiveAt: head.PostedAt, PostedAt: head.PostedAt, HashVersion: ledger.HashVersion,
	}
	e.After.Balance += amount
	e.Hash = ledger.ChainHash(head.Hash, &e)
	return []any{string(e.AccountID), int64(e.Seq), string(e.Kind), int64(e.Amount), int64(e.After.Balance), int64(e.After.Held),
		int64(e.After.Fence), int64(e.After.MinBalance), string(e.After.Status), e.After.Fencing.String(),
		e.TransactionID, e.Key, e.RequestHash[:], e.EffectiveAt, e.PostedAt, e.Hash[:], int16(e.HashVersion)}
}
