package ledger

import (
	"cmp"
	"context"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/postgres"
)

// WriterConfig tunes a Writer. The zero value of each field means its default.
type WriterConfig struct {
	// Lanes is how many batches can be in flight at once; accounts are spread
	// over them by hash. Default 1: on two cores more did not help.
	Lanes int
	// QueueMax bounds the operations that wait in one lane; more are refused
	// with overloaded. Default 8192.
	QueueMax int
	// BatchMax and BatchBytesMax bound one batch. Defaults 1024 and 4 MiB.
	BatchMax      int
	BatchBytesMax int
	// HeadsMax bounds the remembered heads of a lane, each some 500 bytes.
	// Default 100,000.
	HeadsMax int
	// Deadline is how long an operation is tried while the database does not
	// answer. Default 5 s.
	Deadline time.Duration
	// AppendTimeout is how long one round of a batch, look and append together,
	// may take before its connection is given up and the outcome is read over
	// another. Default a third of Deadline, so that there is time for that.
	AppendTimeout time.Duration
	// ContendedFor is how long an account is written under a lock after another
	// process was seen writing it. Default 5 s.
	ContendedFor time.Duration
	// Declines bounds recorded declines per account. Default 20/s, burst 100.
	Declines DeclineLimit
	// Promotion says what a new WAL timeline means.
	Promotion Promotion
	// Committed, when not nil, is told of every commit. It must not block.
	Committed func([]Committed)
	// Registry, when not nil, gets the writer's metrics.
	Registry prometheus.Registerer
	// Log defaults to slog.Default.
	Log *slog.Logger
	// Pause, when not nil, is called between the decision and the append of
	// every batch. It exists for tests that stop a process there.
	Pause func()
}

// Committed names the last link that a commit added to an account.
type Committed struct {
	AccountID AccountID
	Seq       Seq
}

func (c WriterConfig) withDefaults() WriterConfig {
	c.Lanes = cmp.Or(c.Lanes, 1)
	c.QueueMax = cmp.Or(c.QueueMax, 8192)
	c.BatchMax = cmp.Or(c.BatchMax, 1024)
	c.BatchBytesMax = cmp.Or(c.BatchBytesMax, 4<<20)
	c.HeadsMax = cmp.Or(c.HeadsMax, 100_000)
	c.Deadline = cmp.Or(c.Deadline, 5*time.Second)
	c.AppendTimeout = cmp.Or(c.AppendTimeout, c.Deadline/3)
	c.ContendedFor = cmp.Or(c.ContendedFor, 5*time.Second)
	c.Declines.PerSecond = cmp.Or(c.Declines.PerSecond, 20)
	c.Declines.Burst = cmp.Or(c.Declines.Burst, 100)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// Writer adds links to chains, many operations a commit. It is safe for
// concurrent use, and any number of writers in any number of processes may work
// on one database: what they remember is only a guess that the database checks.
type Writer struct {
	cfg     WriterConfig
	pool    *pgxpool.Pool
	guard   *guard
	metrics *metrics
	lanes   []*lane
	// wide are the runners of operations whose accounts are in several lanes.
	// With one lane they have nothing to do.
	wide pair
	seed maphash.Seed
	// reported is the state that was logged last.
	reported atomic.Pointer[guardState]

	stop    context.CancelFunc // ends the life check
	running sync.WaitGroup
}

// lockTimeout keeps one blocked account from stalling its neighbours.
const lockTimeout = 200 * time.Millisecond

// idleInTransaction bounds how long a stopped process can hold the lock of a
// contended account.
const idleInTransaction = time.Second

// recentKeySlots is how many keys of a lane are remembered, 8 bytes each.
const recentKeySlots = 1 << 18

// OpenWriter starts a writer with a small connection pool of its own, made from
// pg with the session settings that the write path needs. It does not wait for
// the database: while that is away, operations are refused as unavailable.
func OpenWriter(pg postgres.Config, cfg WriterConfig) (*Writer, error) {
	cfg = cfg.withDefaults()
	w := &Writer{cfg: cfg, guard: newGuard(cfg.Promotion), seed: maphash.MakeSeed()}
	pg.MaxConns = int32(2*cfg.Lanes + 4) // runners of the lanes, the wide ones, the watch, a barrier
	pg.LockTimeout = lockTimeout
	pg.NoCancel = true
	pg.IdleInTransactionTimeout = idleInTransaction
	pg.Settings = map[string]string{
		// Every statement of the write path goes through an index, whatever
		// statistics a young table has.
		"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
		"plan_cache_mode": "force_generic_plan", "jit": "off",
	}
	pg.OnConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := w.guard.check(ctx, conn)
		return err
	}
	pool, err := postgres.Open(pg)
	if err != nil {
		return nil, err
	}
	w.pool = pool
	w.metrics = newMetrics(cfg.Registry, w.queued)
	for range cfg.Lanes {
		w.lanes = append(w.lanes, &lane{pair: newPair(w), heads: newHeadCache(cfg.HeadsMax), keys: newRecentKeys(recentKeySlots)})
	}
	w.wide = newPair(w)
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	w.running.Go(func() { w.watch(ctx) })
	for _, p := range w.pairs() {
		w.running.Go(p.plain.run)
		w.running.Go(p.contended.run)
	}
	return w, nil
}

// Apply adds the operation's links to their chains and returns once they are
// durable. The error is always a *Refusal. Declines are receipts, because they
// are links: see Receipt.Declined.
//
// When ctx ends early the operation is dropped if nothing was done for it yet;
// otherwise the refusal says AppliedUnknown and the operation goes on.
func (w *Writer) Apply(ctx context.Context, op *Operation) (*Receipt, error) {
	return w.Start(ctx, op).Wait(ctx)
}

// Start begins what Apply does and returns at once. Operations on one account
// are decided in the order in which they were started.
func (w *Writer) Start(ctx context.Context, op *Operation) Pending {
	if err := op.Validate(); err != nil {
		return Pending{refusal: &Refusal{Code: CodeInvalid, Detail: err.Error(), Applied: NotApplied}}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Pending{refusal: &Refusal{Code: CodeInternal, Detail: "No transaction id could be made.", Applied: NotApplied, Err: err}}
	}
	t := prepare(op)
	t.transactionID, t.deadline = id, time.Now().Add(w.cfg.Deadline)
	t.fingerprint = w.fingerprint(op)
	if d, ok := ctx.Deadline(); ok && d.Before(t.deadline) {
		t.deadline = d
	}
	p := w.pairOf(t)
	if p.contended.queue.length() >= w.cfg.QueueMax || !p.plain.queue.offer(t) {
		return Pending{refusal: refuse(CodeOverloaded, "Too many operations are waiting. Repeat the request as it is.")}
	}
	return Pending{task: t}
}

func (o outcome) result() (*Receipt, error) {
	if o.refusal != nil {
		return nil, o.refusal
	}
	return o.receipt, nil
}

func (w *Writer) queued() float64 {
	n := 0
	for _, p := range w.pairs() {
		n += p.plain.queue.length() + p.contended.queue.length()
	}
	return float64(n)
}

// readyAge is how old the last look at the database may be for it to count as
// answering.
const readyAge = 3 * watchInterval

// Ready returns nil when the database answered lately and accepts writes, and
// otherwise the *Refusal that a write would get. It asks nothing itself, so any
// number of probes costs the write path nothing.
func (w *Writer) Ready(ctx context.Context) error {
	st := w.guard.current()
	if st == nil || time.Since(st.clock.local) > readyAge {
		return &Refusal{Code: CodeUnavailable, Detail: "The database does not answer.", Applied: NotApplied, Err: ctx.Err()}
	}
	if st.refusal != nil {
		return st.refusal
	}
	return nil
}

// Allowed returns the refusal that every write would get by the last look at the
// database, nil when there is none. It does not look: Ready does, and so does
// every new connection of the writer.
func (w *Writer) Allowed() error {
	if st := w.guard.current(); st != nil && st.refusal != nil {
		return st.refusal
	}
	return nil
}

// checkLife judges the server over a connection of the pool.
func (w *Writer) checkLife(ctx context.Context) (*guardState, error) {
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	st, err := w.guard.check(ctx, conn.Conn())
	if err != nil {
		return nil, err
	}
	w.report(st)
	if st.standby {
		_ = conn.Conn().Close(ctx) // the next connection may find the primary
	}
	return st, nil
}

// barrier returns once everything that was visible when it was called is on the
// synchronous standbys too. An answer that was found by reading must not be
// given earlier: a failover could take it back.
func (w *Writer) barrier(ctx context.Context) error {
	_, err := w.pool.Exec(ctx, barrierStatement)
	return err
}

// report sets the gauges and logs a state that is not the one logged last.
func (w *Writer) report(st *guardState) {
	before := w.reported.Swap(st)
	w.metrics.incarnation.Set(float64(st.incarnation))
	w.metrics.writable.Set(1)
	if st.refusal != nil {
		w.metrics.writable.Set(0)
	}
	if before != nil && before.life == st.life && before.incarnation == st.incarnation && (before.refusal == nil) == (st.refusal == nil) {
		return
	}
	if st.refusal != nil {
		w.cfg.Log.Error("writes are refused", "code", st.refusal.Code, "detail", st.refusal.Detail, "incarnation", st.incarnation)
		return
	}
	w.cfg.Log.Info("database accepts writes", "incarnation", st.incarnation)
}

// watchInterval is how soon a process notices a bump of the incarnation.
const watchInterval = time.Second

// watch repeats the check while the writer runs, so that a process notices a
// bump and a restored database without a write that fails.
func (w *Writer) watch(ctx context.Context) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		checkCtx, cancel := context.WithTimeout(ctx, w.cfg.AppendTimeout)
		_, err := w.checkLife(checkCtx)
		cancel()
		if err != nil && ctx.Err() == nil {
			w.metrics.writable.Set(0)
			w.cfg.Log.Debug("the database could not be checked", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Stat returns the state of the writer's connection pool.
func (w *Writer) Stat() *pgxpool.Stat { return w.pool.Stat() }

// Close lets no more operations in, finishes those inside and closes the pool.
// When ctx ends first it returns its error; the operations inside then end with
// their deadlines.
func (w *Writer) Close(ctx context.Context) error {
	for _, p := range w.pairs() {
		p.plain.queue.close()
	}
	w.stop()
	done := make(chan struct{})
	go func() {
		w.running.Wait()
		w.pool.Close()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
