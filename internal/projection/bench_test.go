package projection

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// fill copies honest chains into the database: accounts × each entries after
// the opening, in random order across accounts, as traffic leaves them.
func (f *fixture) fill(accounts, each int) {
	f.t.Helper()
	ctx := context.Background()
	f.openMany(accounts)
	reader := ledger.NewReader(f.pool)
	ids := accountIDs("n", accounts)
	entries := make([]ledger.Entry, accounts)
	for i, id := range ids {
		_, e, err := reader.Entry(ctx, id, 1)
		if err != nil {
			f.t.Fatal(err)
		}
		entries[i] = e
	}
	rng := rand.New(rand.NewPCG(1, 2))
	n, total := 0, accounts*each
	source := pgx.CopyFromFunc(func() ([]any, error) {
		if n == total {
			return nil, nil
		}
		n++
		e := &entries[rng.IntN(accounts)]
		prev := e.Hash
		e.Seq++
		e.Kind, e.Amount = ledger.KindCredit, ledger.Amount(rng.IntN(1000)+1)
		e.After.Balance += e.Amount
		e.TransactionID, e.Key, e.Details = uuid.New(), fmt.Sprintf("key-%d", n), ""
		e.RequestHash = sha256.Sum256([]byte(e.Key))
		e.PostedAt = e.PostedAt.Add(time.Microsecond)
		e.EffectiveAt = e.PostedAt
		e.Hash = ledger.ChainHash(prev, e)
		return []any{string(e.AccountID), int64(e.Seq), string(e.Kind), int64(e.Amount), int64(e.After.Balance), int64(0), int64(0), int64(0),
			"active", "lease", e.TransactionID, e.Key, e.RequestHash[:], e.EffectiveAt, e.PostedAt, e.Hash[:], int16(e.HashVersion)}, nil
	})
	_, err := f.owner.CopyFrom(ctx, pgx.Identifier{"entries"}, []string{"account_id", "seq", "kind", "amount", "balance_after", "held_after",
		"fence_after", "min_balance_after", "status_after", "fencing_after", "transaction_id", "idempotency_key", "request_hash",
		"effective_at", "posted_at", "hash", "hash_version"}, source)
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.owner.Exec(ctx, "analyze"); err != nil {
		f.t.Fatal(err)
	}
}

// openMany opens accounts at once.
func (f *fixture) openMany(n int) {
	f.t.Helper()
	ids := accountIDs("n", n)
	work := make(chan ledger.AccountID)
	done := make(chan error)
	for range 64 {
		go func() {
			for id := range work {
				_, err := f.writer.Apply(context.Background(), &ledger.Operation{Kind: ledger.KindOpened, AccountID: id, Opening: &ledger.Opening{
					Currency: "CZK", Exponent: 2, Fencing: ledger.Fencing{Source: ledger.SourceLease}}})
				if err != nil {
					panic(err)
				}
			}
			done <- nil
		}()
	}
	for _, id := range ids {
		work <- id
	}
	close(work)
	for range 64 {
		<-done
	}
}

// BenchmarkRebuild folds a million entries of 10,000 accounts and rewrites
// their rows.
func BenchmarkRebuild(b *testing.B) {
	f := newFixture(b)
	f.fill(10_000, 100)
	began := time.Now()
	stop := f.run(f.projector())
	f.caughtUp()
	b.Logf("caught up with %.0f entries/s", 1e6/time.Since(began).Seconds())
	stop()
	cfg := config()
	for b.Loop() {
		began := time.Now()
		cfg.Registerer = nil
		r, err := Replay(context.Background(), f.pool, cfg, "benchmark", nil)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(r.EntriesDone)/time.Since(began).Seconds(), "entries/s")
	}
	began = time.Now()
	report, err := Verify(context.Background(), f.pool, VerifyConfig{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(report.EntriesDone)/time.Since(began).Seconds(), "verified/s")
}

// BenchmarkApply measures the live work under 256 writers on 10,000 accounts.
func BenchmarkApply(b *testing.B) {
	f := newFixture(b)
	p := f.projector(func(c *Config) {
		*c = Config{Registerer: c.Registerer, Logger: c.Logger}
	})
	f.hinted.Store(p)
	f.run(p)
	f.openMany(10_000)
	f.caughtUp()
	ids := accountIDs("n", 10_000)
	b.SetParallelism(128)
	b.ResetTimer()
	began := time.Now()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			id := ids[rand.IntN(len(ids))]
			_, err := f.writer.Apply(context.Background(), &ledger.Operation{Kind: ledger.KindCredit, AccountID: id, Amount: 1, Key: uuid.NewString()})
			if err != nil {
				b.Error(err)
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "entries/s")
	b.Log(value(p.worker.metrics.writes), "writes")
	b.Log(histogram(p.worker.metrics.delay))
	f.caughtUp()
}
