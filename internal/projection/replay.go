package projection

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// A rebuild reads the chains of rebuildGroup shards at once, rebuildPage accounts
// of each: entries of different accounts lie side by side on disk, and each page
// of the table is then read a few times instead of once for every shard.
const (
	rebuildGroup = 8
	rebuildPage  = 160
	// rebuildEntriesMax bounds what PostgreSQL has to sort for one page.
	rebuildEntriesMax = 50_000
	// rebuildLockedMax is how many locked rows of a shard are passed over.
	rebuildLockedMax = 1000
)

// rebuildTimeout bounds the work on one group of shards, in case the network
// swallows an answer. The next attempt goes on from the progress.
const rebuildTimeout = 10 * time.Minute

// rebuildLoop does this process's part of open rebuilds: the shards it owns.
func (w *worker) rebuildLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.rebuildWake:
		case <-timer.C:
		}
		if err := w.rebuildOwned(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("rebuild goes on later", "error", err)
		}
		timer.Reset(min(w.cfg.RenewEvery, time.Second))
	}
}

func (w *worker) rebuildOwned(ctx context.Context) error {
	var owned []int16
	w.mu.Lock()
	for _, s := range w.shards {
		if s.usable() {
			owned = append(owned, int16(s.number))
		}
	}
	w.mu.Unlock()
	if len(owned) == 0 {
		return nil
	}
	jobs, err := w.openJobs(ctx, owned)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(w.cfg.RebuildParallel)
	for group := range slices.Chunk(jobs, rebuildGroup) {
		g.Go(func() error { return w.rebuildShards(gctx, group) })
	}
	if err := g.Wait(); err != nil || len(jobs) == 0 {
		return err
	}
	_, err = w.openJobs(ctx, owned)
	return err
}

// openJobs returns what open rebuilds want of the shards, and closes a rebuild
// that wants nothing more of anybody.
func (w *worker) openJobs(ctx context.Context, shards []int16) ([]*rebuildJob, error) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.StatementTimeout)
	defer cancel()
	jobs, err := w.store.rebuildJobs(ctx, shards)
	if err != nil || len(jobs) > 0 {
		return jobs, err
	}
	return nil, w.store.finishRebuilds(ctx)
}

// errNotOwner ends the work on a shard that is somebody else's by now.
var errNotOwner = errors.New("the shard is not this process's any more")

// rebuildShards folds the accounts of some shards page by page and rewrites
// their rows. Reading and folding need no ownership and go on beside the live
// work; the rewrite takes its turn with it. It returns when only accounts are
// left whose rows somebody else has locked.
func (w *worker) rebuildShards(ctx context.Context, jobs []*rebuildJob) error {
	w.takeJobs(jobs)
	ctx, cancel := context.WithTimeout(ctx, rebuildTimeout)
	defer cancel()
	for _, j := range jobs {
		if err := w.retryLocked(ctx, j); err != nil && !errors.Is(err, errNotOwner) {
			return err
		}
	}
	for {
		jobs = slices.DeleteFunc(jobs, func(j *rebuildJob) bool {
			return j.ended || len(j.locked) >= rebuildLockedMax || !j.owned.usable()
		})
		if len(jobs) == 0 {
			return nil
		}
		pages, err := w.store.accountPages(ctx, jobs, rebuildPage, rebuildEntriesMax)
		if err != nil {
			return err
		}
		var ids []string
		for _, p := range pages {
			ids = append(ids, p.ids...)
		}
		replays, err := w.replay(ctx, ids)
		if err != nil {
			return err
		}
		for i, j := range jobs {
			n, to := len(pages[i].ids), j.scanned
			if n > 0 {
				to = ledger.AccountID(pages[i].ids[n-1])
			}
			err := w.rewritePage(ctx, j, replays[:n], to, pages[i].last)
			if errors.Is(err, errNotOwner) {
				j.owned = nil
			} else if err != nil {
				return err
			}
			replays = replays[n:]
		}
	}
}

// replay is the fold of one account from its first entry on.
type replay struct {
	*fold
	// seen is the balance row before the fold began, nil when it was missing.
	seen *balanceRow
	// drifted is true when seen is not what the entries up to its seq add up to.
	drifted bool
	bad     error // the chain cannot be folded
}

// next folds an entry and, when the row had been there, compares.
func (r *replay) next(st *step) {
	if r.bad != nil {
		return
	}
	if r.bad = r.add(st); r.bad == nil && r.seen != nil && r.seen.appliedSeq == r.to {
		r.drifted = !r.matches(r.seen)
	}
}

// matches reports whether a row at the fold's seq has the fold's values.
func (r *replay) matches(row *balanceRow) bool {
	return row.balance == r.balance && row.held == r.held && row.credits == r.credits.String() && row.debits == r.debits.String()
}

// replay folds whole chains, without any lock.
func (w *worker) replay(ctx context.Context, ids []string) ([]*replay, error) {
	rows, err := w.store.rows(ctx, ids)
	if err != nil {
		return nil, err
	}
	replays := make([]*replay, len(ids))
	for i, id := range ids {
		replays[i] = &replay{fold: &fold{accountID: ledger.AccountID(id)}}
		if row, ok := rows[ledger.AccountID(id)]; ok {
			replays[i].seen = &row
			replays[i].drifted = row.appliedSeq == 0 && !replays[i].matches(&row)
		}
	}
	err = w.store.chains(ctx, ids, make([]int64, len(ids)), func(n int, st *step) { replays[n].next(st) })
	return replays, err
}

// rewritePage writes a page of replays between two live rounds, and the
// progress after it. A crash in between repeats the page. While rows are locked
// the progress stays before the first of them, so that a crash forgets none.
func (w *worker) rewritePage(ctx context.Context, j *rebuildJob, replays []*replay, to ledger.AccountID, ended bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := j.owned
	if w.shards[j.shard] != s || !s.usable() {
		return errNotOwner
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.StatementTimeout)
	defer cancel()
	locked, err := w.rewriteAll(ctx, s, replays)
	if err != nil {
		return err
	}
	w.setLocked(j, replays, locked)
	for _, r := range replays {
		if !slices.Contains(locked, r) {
			w.settleReplay(s, r, &j.ahead)
		}
	}
	j.scanned, j.ended = to, ended
	if len(j.locked) > 0 {
		return nil
	}
	token, err := s.token()
	if err != nil {
		return err
	}
	moved, err := w.store.progress(ctx, j, token)
	if err != nil {
		return err
	}
	if !moved {
		return errNotOwner
	}
	j.after, j.done, j.ahead = j.scanned, j.ended, tally{}
	return nil
}

// settleReplay takes note of a replay that was written, or cannot be.
func (w *worker) settleReplay(s *shard, r *replay, t *tally) {
	t.accounts++
	t.entries += r.len()
	w.metrics.rebuilt.Add(float64(r.len()))
	switch {
	case r.bad != nil:
		t.damaged++
		w.park(s, r.fold, true, "%v", r.bad)
		p := s.parked[r.accountID]
		p.damaged = true
		s.parked[r.accountID] = p
	case r.drifted || r.seen == nil:
		t.repaired++
		w.metrics.drift.Inc()
		w.log.Warn("balance row repaired by a rebuild", "account", r.accountID, "seq", r.to)
		fallthrough
	default:
		w.unpark(s, r.accountID)
	}
}

func replayIDs(replays []*replay) []string {
	ids := make([]string, len(replays))
	for i, r := range replays {
		ids[i] = string(r.accountID)
	}
	return ids
}

// rewrite writes those replays that can be written, and returns those that have
// to be written again because their row was not as it was read.
func (w *worker) rewrite(ctx context.Context, s *shard, replays []*replay) ([]*replay, error) {
	if !s.usable() {
		return nil, errNotOwner
	}
	rows, err := w.catchUp(ctx, replays)
	if err != nil {
		return nil, err
	}
	token, err := s.token()
	if err != nil {
		return nil, err
	}
	var writes []absolute
	for _, r := range replays {
		if r.bad == nil && r.to > 0 {
			writes = append(writes, absolute{fold: r.fold, seen: rows[r.accountID].appliedSeq, token: token})
		}
	}
	written, err := w.store.rewrite(ctx, writes)
	if err != nil {
		return nil, err
	}
	var left []*replay
	var suspects []string
	for _, r := range replays {
		if r.bad == nil && r.to > 0 && !written[r.accountID] {
			left = append(left, r)
			suspects = append(suspects, string(r.accountID))
		}
	}
	if len(left) == 0 {
		return nil, nil
	}
	if rows, err = w.store.rows(ctx, suspects); err != nil {
		return nil, err
	}
	return left, w.judgeRewrites(ctx, s, left, rows, token)
}

// judgeRewrites says why rows were not rewritten. A token of a term that never
// was is damage: it is replaced, if it is still the same, and the row is
// rewritten after that.
func (w *worker) judgeRewrites(ctx context.Context, s *shard, left []*replay, rows map[ledger.AccountID]balanceRow, token lease.ProjectionToken) error {
	for _, r := range left {
		row := rows[r.accountID]
		if row.lastToken.Rank() <= s.term.Rank() {
			continue
		}
		given, err := w.given(ctx, s.number, row.lastToken.Rank())
		if err != nil {
			return err
		}
		if given {
			w.fenced(s, write{r.fold, token}, row)
			continue
		}
		r.drifted = true
		if err := w.store.replaceToken(ctx, r.accountID, row.lastToken, token); err != nil {
			return err
		}
	}
	return nil
}

// catchUp reads the rows as they are now and folds on where live work has moved
// a row past the fold, so that a rewrite never takes a row back. A row that is
// ahead of its last entry is damaged, and the one case where it does.
func (w *worker) catchUp(ctx context.Context, replays []*replay) (map[ledger.AccountID]balanceRow, error) {
	rows, err := w.store.rows(ctx, replayIDs(replays))
	if err != nil {
		return nil, err
	}
	var absent, behind []string
	var after []int64
	var folds []*replay
	for _, r := range replays {
		row, ok := rows[r.accountID]
		if !ok {
			absent = append(absent, string(r.accountID))
		}
		if row.appliedSeq > r.to && r.bad == nil {
			behind, after, folds = append(behind, string(r.accountID)), append(after, int64(r.to)), append(folds, r)
		}
	}
	if len(absent) > 0 {
		if err := w.store.insertMissing(ctx, absent); err != nil {
			return nil, err
		}
	}
	if len(behind) == 0 {
		return rows, nil
	}
	err = w.store.chains(ctx, behind, after, func(n int, st *step) { folds[n].next(st) })
	for _, r := range folds {
		if row := rows[r.accountID]; row.appliedSeq > r.to {
			r.drifted = true // ahead of its last entry
		}
	}
	return rows, err
}
