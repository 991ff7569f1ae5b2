package projection

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// membersMax is the most processes that share the shards; further ones wait for
// a free slot.
const membersMax = ledger.Shards

// Projector keeps the balance rows of its share of the accounts up to date.
type Projector struct {
	cfg    Config
	pool   *pgxpool.Pool
	store  *store
	leases *lease.Store
	holder *lease.Holder
	worker *worker
}

// New returns a projector over the pool, whose sessions are in the service role,
// commit durably, and have a short lock_timeout, so that a row that somebody
// locked holds up no others, and no statement_timeout below StatementTimeout. It
// uses at most 3 + RebuildParallel connections at once.
// It does nothing before Run. The error says what is wrong with cfg.
func New(pool *pgxpool.Pool, cfg Config) (*Projector, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Projector{cfg: cfg.withDefaults(), pool: pool, store: newStore(pool), leases: lease.NewStore(pool)}
	p.worker = newWorker(p.store, p.leases, &p.cfg, newMetrics(p.cfg.Registerer))
	p.holder = lease.NewHolder(p.leases, lease.Config{
		Holder:     p.cfg.Process + "/" + uuid.NewString()[:8],
		Names:      shardNames(),
		Members:    memberNames(),
		TTL:        p.cfg.LeaseTTL,
		RenewEvery: p.cfg.RenewEvery,
		Margin:     p.cfg.LeaseMargin,
		Work: func(ctx context.Context, term lease.Term) {
			p.worker.own(ctx, shardOf(term.Name), term)
		},
		Metrics: lease.NewMetrics(p.cfg.Registerer),
		Logger:  p.cfg.Logger,
	})
	return p, nil
}

// Run takes part in the projection until ctx ends; then it finishes the round
// that is under way and releases its leases. It needs no database to start, and
// goes on by itself when one comes back.
func (p *Projector) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { p.worker.run(ctx) })
	wg.Go(func() { p.worker.sweepLoop(ctx) })
	wg.Go(func() { p.worker.reportLoop(ctx) })
	wg.Go(func() { p.worker.rebuildLoop(ctx) })
	p.holder.Run(ctx)
	wg.Wait()
}

// Hint tells that entries were committed, so that they are applied at once. It
// never blocks, and may be called never or for nothing.
func (p *Projector) Hint(committed []ledger.Committed) { p.worker.hint(committed) }

func shardNames() []string {
	names := make([]string, ledger.Shards)
	for i := range names {
		names[i] = fmt.Sprintf("shard/%02d", i)
	}
	return names
}

func memberNames() []string {
	names := make([]string, membersMax)
	for i := range names {
		names[i] = fmt.Sprintf("member/%02d", i)
	}
	return names
}

// shardOf is the inverse of shardNames.
func shardOf(name string) int {
	var n int
	if _, err := fmt.Sscanf(name, "shard/%02d", &n); err != nil || n < 0 || n >= ledger.Shards {
		panic("projection: lease of an unknown shard: " + name)
	}
	return n
}
