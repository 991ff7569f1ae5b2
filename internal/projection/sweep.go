package projection

import (
	"context"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// sweepPage is how many accounts one statement of a sweep compares.
const sweepPage = 1000

// sweepLoop compares heads with balance rows: at once for a shard that was just
// acquired, then slowly. It finds whatever the tail did not, and rows that were
// changed behind the service.
func (w *worker) sweepLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.sweepWake:
		case <-timer.C:
		}
		pause := min(w.cfg.SweepEvery/2, time.Second)
		for s := w.nextSweep(); s != nil && ctx.Err() == nil; s = w.nextSweep() {
			if err := w.sweep(ctx, s); err != nil {
				if ctx.Err() == nil {
					w.log.Warn("projection sweep failed", "shard", s.number, "error", err)
				}
				break
			}
		}
		timer.Reset(pause)
	}
}

// nextSweep returns the shard whose sweep is due the longest.
func (w *worker) nextSweep() *shard {
	w.mu.Lock()
	defer w.mu.Unlock()
	var next *shard
	for _, s := range w.shards {
		if s.usable() && (next == nil || s.swept.Before(next.swept)) {
			next = s
		}
	}
	if next == nil || time.Since(next.swept) < w.cfg.SweepEvery {
		return nil
	}
	return next
}

// sweep compares all accounts of the shard. The first sweep of a term goes at
// full speed; a later one takes at most a fifth of a connection's time.
func (w *worker) sweep(ctx context.Context, s *shard) error {
	if err := w.checkPositions(ctx); err != nil {
		return err
	}
	first := s.swept.IsZero()
	var after ledger.AccountID
	for {
		if err := w.awaitRoom(ctx, s); err != nil {
			return err
		}
		began := time.Now()
		page, err := w.comparePage(ctx, s.number, after)
		if err != nil {
			return err
		}
		if !w.takeUp(s, page) {
			return nil // the shard is somebody else's by now
		}
		if len(page) < sweepPage {
			break
		}
		after = page[len(page)-1].accountID
		if first {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(4 * time.Since(began)):
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.swept = time.Now()
	return nil
}

// awaitRoom returns when few enough accounts wait for a sweep to add some, or
// when the shard is somebody else's.
func (w *worker) awaitRoom(ctx context.Context, s *shard) error {
	for {
		w.mu.Lock()
		waiting := w.waiting()
		w.mu.Unlock()
		if waiting <= sweepWaitingMax {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return nil
		case <-s.over:
			return nil
		case <-time.After(w.cfg.PollEvery):
		}
	}
}

func (w *worker) comparePage(ctx context.Context, shard int, after ledger.AccountID) ([]comparison, error) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.StatementTimeout)
	defer cancel()
	return w.store.compare(ctx, shard, after, sweepPage)
}

// checkPositions restarts the tail scan when the database has lost positions
// that were seen: it was restored.
func (w *worker) checkPositions(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, w.cfg.StatementTimeout)
	defer cancel()
	last, err := w.store.lastPosition(ctx)
	if err != nil {
		return err
	}
	if w.began && last < w.tail.high {
		w.log.Warn("the database has fewer entries than before", "position", last, "seen", w.tail.high)
		w.tail.restart(max(0, last-tailOverlap))
	}
	return nil
}

// takeUp has what a page of a sweep found looked into.
func (w *worker) takeUp(s *shard, page []comparison) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shards[s.number] != s || !s.usable() {
		return false
	}
	var found bool
	for i := range page {
		c := &page[i]
		switch {
		case !c.hasRow || c.row.appliedSeq < c.head.seq:
			if p, ok := s.parked[c.accountID]; ok {
				p.lag, p.retrying = int64(c.head.seq-c.row.appliedSeq), !p.damaged && time.Since(p.since) >= w.cfg.SweepEvery
				s.parked[c.accountID] = p
				s.changed = true
				if !p.retrying {
					continue
				}
			}
			s.want(c.accountID, c.row.appliedSeq, c.head.seq, 0)
			found = true
		case c.row.appliedSeq > c.head.seq:
			w.park(s, c.asFold(), true, "the balance row is at seq %d, ahead of the last entry %d", c.row.appliedSeq, c.head.seq)
		case c.row.balance != c.head.balance || c.row.held != c.head.held:
			w.park(s, c.asFold(), true, "the balance row has balance %d and held %d at seq %d; the entry says %d and %d",
				c.row.balance, c.row.held, c.head.seq, c.head.balance, c.head.held)
		case !s.parked[c.accountID].damaged:
			w.unpark(s, c.accountID)
		}
	}
	if found {
		kick(w.wake)
	}
	return true
}

// comparison is a head and a balance row in one snapshot.
type comparison struct {
	accountID ledger.AccountID
	head      step
	hasRow    bool
	row       balanceRow
}

func (c *comparison) asFold() *fold {
	return &fold{accountID: c.accountID, from: c.head.seq, to: c.head.seq, oldest: c.head.postedAt}
}
