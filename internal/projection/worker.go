package projection

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// The limits of one round.
const (
	tailMax      = 20_000 // entries of one scan of the tail
	tailOverlap  = 5_000  // positions below the end at which the first scan starts
	pendingMax   = 500    // accounts that are read by their rows
	pendingEach  = 1_000  // entries of one of them
	pendingSteps = 50_000 // entries of all of them
	writeMax     = 5_000  // accounts of one statement
)

// worker applies entries for all shards that this process owns. One round at a
// time finds entries, folds them and writes; a rebuild writes between rounds.
// So a process has one write in flight, and with it every shard.
type worker struct {
	store   *store
	leases  *lease.Store
	cfg     *Config
	metrics *metrics
	log     *slog.Logger
	// wake holds at most one hint. Losing hints costs latency only.
	wake chan struct{}
	// sweepWake says that a shard was acquired, rebuildWake that a rebuild was
	// asked for.
	sweepWake, rebuildWake chan struct{}
	// owned has a bit for each shard, for hints that must not wait for mu.
	owned atomic.Uint64

	mu     sync.Mutex // held for a round, a rewrite, or a change of ownership
	shards [ledger.Shards]*shard
	tail   tail
	began  bool // tail.high was read from the database
	turn   int  // the shard whose waiting accounts are read first
	// delay is the longest time that an entry waited for this round's writes.
	delay time.Duration
	// lastGood is when a round ended without an error.
	lastGood time.Time
}

func newWorker(s *store, leases *lease.Store, cfg *Config, m *metrics) *worker {
	return &worker{
		store: s, leases: leases, cfg: cfg, metrics: m, log: cfg.Logger, lastGood: time.Now(),
		wake: make(chan struct{}, 1), sweepWake: make(chan struct{}, 1), rebuildWake: make(chan struct{}, 1),
	}
}

// hint says that entries were committed. It never blocks.
func (w *worker) hint(committed []ledger.Committed) {
	owned := w.owned.Load()
	for _, c := range committed {
		if owned&(1<<c.AccountID.Shard()) != 0 {
			kick(w.wake)
			return
		}
	}
}

func kick(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// own makes a shard this process's until its lease ends or the database refuses
// a write. It returns after the last round that could write under the term.
func (w *worker) own(ctx context.Context, number int, term lease.Term) {
	s := newShard(number, term, ctx)
	w.mu.Lock()
	w.shards[number] = s
	w.owned.Or(1 << number)
	w.mu.Unlock()
	kick(w.sweepWake)
	kick(w.rebuildWake)
	select {
	case <-ctx.Done():
	case <-s.over:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.metrics.parked.Sub(float64(len(s.parked)))
	w.shards[number] = nil
	w.owned.And(^(uint64(1) << number))
}

// run works until ctx ends. A round starts at once after a hint when there was
// little to do, so that an idle system has no delay; under load it waits, so
// that each statement moves many accounts.
func (w *worker) run(ctx context.Context) {
	var failures int
	for ctx.Err() == nil {
		began := time.Now()
		found, more, err := w.round(ctx)
		pause := w.cfg.PollEvery
		gather := w.cfg.GatherIdle
		switch {
		case err != nil && ctx.Err() != nil:
			return
		case err != nil:
			failures++
			w.metrics.failures.Inc()
			w.log.Warn("projection round failed", "error", err)
			pause = min(w.cfg.PollEvery<<min(failures, 5), 2*time.Second)
			gather = pause
		default:
			failures = 0
			if found >= w.cfg.GatherEntries {
				gather = w.cfg.Gather
			}
			if more {
				gather, pause = 0, 0
			}
		}
		if !w.wait(ctx, began, gather, pause) {
			return
		}
	}
}

// wait returns when the next round is due: not before gather has passed since
// the last one began, then at the next hint, and after pause in any case.
func (w *worker) wait(ctx context.Context, began time.Time, gather, pause time.Duration) bool {
	timer := time.NewTimer(time.Until(began.Add(gather)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	timer.Reset(time.Until(began.Add(max(pause, gather))))
	select {
	case <-ctx.Done():
		return false
	case <-w.wake:
	case <-timer.C:
	}
	return true
}

// round finds entries, folds them, and writes. It returns how many entries it
// found for the shards of this process, and whether there are more to be read
// at once. After an error everything that it found is read again from the
// balance rows.
func (w *worker) round(ctx context.Context) (found int, more bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A network that swallows packets must not hold mu, and with it the end of
	// the leases, for ever.
	ctx, cancel := context.WithTimeout(ctx, w.cfg.StatementTimeout)
	defer cancel()
	w.delay = 0
	if !w.owns() {
		w.lastGood = time.Now()
		w.began = false // what was committed meanwhile is found by sweeps
		return 0, false, w.observe(ctx, false)
	}
	defer func() {
		if err != nil {
			w.metrics.lagSeconds.Set(time.Since(w.lastGood).Seconds())
		}
	}()
	var folds []*fold
	full := w.waiting() >= tailWaitingMax
	if !full {
		if folds, found, more, err = w.discover(ctx); err != nil {
			return 0, false, err
		}
	}
	waiting, err := w.discoverPending(ctx)
	if err != nil {
		w.postpone(folds)
		return 0, false, err
	}
	for _, f := range waiting {
		found += int(f.len())
	}
	folds = append(folds, waiting...)
	slices.SortFunc(folds, func(a, b *fold) int { return cmp.Compare(a.accountID, b.accountID) })
	for len(folds) > 0 {
		n := min(len(folds), writeMax)
		if err := w.write(ctx, folds[:n]); err != nil {
			w.postpone(folds)
			return 0, false, err
		}
		folds = folds[n:]
	}
	w.lastGood = time.Now()
	return found, more || len(w.due(w.lastGood, 1)) > 0, w.observe(ctx, more || full)
}

// observe sets the gauges after a good round. unread says that the tail has more
// than was read.
func (w *worker) observe(ctx context.Context, unread bool) error {
	var waiting int64
	for _, s := range w.shards {
		if s != nil {
			waiting += s.pending.entries
		}
	}
	if unread {
		last, err := w.store.lastPosition(ctx)
		if err != nil {
			return err
		}
		waiting += last - w.tail.high
	}
	w.metrics.lagEntries.Set(float64(waiting))
	w.metrics.lagSeconds.Set(w.delay.Seconds())
	return nil
}

// owns reports whether a shard can be worked on.
func (w *worker) owns() bool {
	for _, s := range w.shards {
		if s.usable() {
			return true
		}
	}
	return false
}

// postpone has the accounts read from their rows in the next round.
func (w *worker) postpone(folds []*fold) {
	for _, f := range folds {
		if s := w.shards[f.accountID.Shard()]; s.usable() {
			s.want(f.accountID, f.from, f.to, 0)
		}
	}
}

// discover scans the tail and asks for missing positions.
func (w *worker) discover(ctx context.Context) (folds []*fold, found int, more bool, err error) {
	now := time.Now()
	if !w.began {
		last, err := w.store.lastPosition(ctx)
		if err != nil {
			return nil, 0, false, err
		}
		// What was committed before is found by the first sweep of a shard; what
		// was under way is seen as missing positions of this overlap.
		w.tail.restart(max(0, last-tailOverlap))
		w.began = true
	}
	var late []step
	if lo, hi := w.tail.due(now); len(lo) > 0 {
		if late, err = w.store.missing(ctx, lo, hi); err != nil {
			return nil, 0, false, err
		}
	}
	steps, err := w.store.after(ctx, w.tail.high, tailMax)
	if err != nil {
		return nil, 0, false, err
	}
	w.tail.found(positions(late))
	w.tail.advance(positions(steps), now)
	folds, found = w.fold(append(late, steps...))
	return folds, found, len(steps) == tailMax, nil
}

func positions(steps []step) []int64 {
	p := make([]int64, len(steps))
	for i := range steps {
		p[i] = steps[i].position
	}
	return p
}

// fold folds the steps of accounts that are this process's and not waiting.
// Whatever does not fit together is read again from the balance row.
func (w *worker) fold(steps []step) ([]*fold, int) {
	byAccount := make(map[ledger.AccountID]*fold)
	var folds []*fold
	found := 0
	for i := range steps {
		st := &steps[i]
		s := w.shards[st.accountID.Shard()]
		if !s.usable() {
			continue
		}
		found++
		if s.pending.seen(st.accountID, st.seq) {
			continue
		}
		if p, ok := s.parked[st.accountID]; ok && !p.retrying {
			continue
		}
		f := byAccount[st.accountID]
		if f == nil {
			f = new(fold)
			byAccount[st.accountID] = f
			folds = append(folds, f)
		}
		w.addStep(s, f, st)
	}
	return slices.DeleteFunc(folds, func(f *fold) bool { return f.to == f.from }), found
}

// addStep folds one step, or sees to it that the account is looked at again.
func (w *worker) addStep(s *shard, f *fold, st *step) {
	if f.full() {
		s.want(st.accountID, f.to, st.seq, 0)
		return
	}
	err := f.add(st)
	var bad *damage
	switch {
	case errors.As(err, &bad):
		w.park(s, &fold{accountID: st.accountID, from: st.seq - 1, to: st.seq, oldest: st.postedAt}, true, "%v", bad)
	case err != nil:
		s.want(st.accountID, f.to, st.seq, 0)
	}
}

// discoverPending reads accounts that wait, from their balance rows on.
func (w *worker) discoverPending(ctx context.Context) ([]*fold, error) {
	ids := w.due(time.Now(), pendingMax)
	w.turn = (w.turn + 1) % len(w.shards)
	if len(ids) == 0 {
		return nil, nil
	}
	steps, err := w.store.unapplied(ctx, ids, pendingEach, pendingSteps)
	if err != nil {
		return nil, err
	}
	taken := make(map[ledger.AccountID]waiting, len(ids))
	for _, s := range ids {
		id := ledger.AccountID(s)
		taken[id], _ = w.shards[id.Shard()].pending.take(id)
	}
	count := make(map[ledger.AccountID]int)
	for i := range steps {
		id := steps[i].accountID
		count[id]++
		taken[id] = waiting{from: steps[i].seq, to: taken[id].to}
	}
	folds, _ := w.fold(steps)
	again := func(id ledger.AccountID) { w.shards[id.Shard()].want(id, taken[id].from, taken[id].to, 0) }
	if len(steps) == pendingSteps { // cut: the last account may have more, and those after it were not read
		last := string(steps[len(steps)-1].accountID)
		i, _ := slices.BinarySearch(ids, last)
		for _, id := range ids[i:] {
			again(ledger.AccountID(id))
		}
	}
	for id, n := range count {
		if n == pendingEach {
			again(id)
		}
	}
	return folds, nil
}

// due returns at most limit accounts that wait and may be read now, sorted. It
// begins with the shard whose turn it is, so that a sweep that fills one shard
// all the time holds up no other.
func (w *worker) due(now time.Time, limit int) []string {
	var ids []string
	for i := range w.shards {
		if len(ids) >= limit {
			break
		}
		if s := w.shards[(w.turn+i)%len(w.shards)]; s.usable() {
			ids = s.pending.appendDue(ids, limit, now)
		}
	}
	slices.Sort(ids)
	return ids
}

// waiting counts the accounts that wait.
func (w *worker) waiting() (n int) {
	for _, s := range w.shards {
		if s != nil {
			n += len(s.pending.accounts)
		}
	}
	return n
}
