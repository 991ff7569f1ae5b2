package projection

import (
	"context"
	"fmt"
	"slices"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// A rebuild passes over balance rows that another session has locked, comes back
// to them, and is not finished before they were done.

// takeJobs makes the jobs this process's. One whose shard had locked rows goes on
// where it was, unless the progress was moved since.
func (w *worker) takeJobs(jobs []*rebuildJob) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, j := range jobs {
		s := w.shards[j.shard]
		if s == nil {
			continue
		}
		if old := s.rebuild; old != nil && len(old.locked) > 0 && old.id == j.id && old.after == j.after {
			jobs[i] = old
			continue
		}
		j.owned, s.rebuild = s, j
	}
}

// retryLocked comes back to accounts whose rows were locked. Those that still
// are cost no fold and no wait.
func (w *worker) retryLocked(ctx context.Context, j *rebuildJob) error {
	if len(j.locked) == 0 {
		return nil
	}
	rows, err := w.store.rows(ctx, j.locked)
	if err != nil {
		return err
	}
	free, err := w.store.free(ctx, j.locked)
	if err != nil {
		return err
	}
	for _, id := range slices.Clone(j.locked) {
		if _, ok := rows[ledger.AccountID(id)]; ok && !free[ledger.AccountID(id)] {
			continue
		}
		replays, err := w.replay(ctx, []string{id}) // alone: chains have any length
		if err != nil {
			return err
		}
		if err := w.rewritePage(ctx, j, replays, j.scanned, j.ended); err != nil {
			return err
		}
	}
	return nil
}

// rewriteAll writes all replays that can be written. It returns those whose rows
// somebody else has locked.
func (w *worker) rewriteAll(ctx context.Context, s *shard, left []*replay) (locked []*replay, err error) {
	for attempt := 0; len(left) > 0; attempt++ {
		if attempt == attemptsMax {
			return nil, fmt.Errorf("the balance row of %s refuses to be rewritten", left[0].accountID)
		}
		again, err := w.rewrite(ctx, s, left)
		if err != nil && postgres.Classify(err) == postgres.ClassLock {
			var more []*replay
			if again, more, err = w.splitLocked(ctx, left, err); err == nil {
				locked = append(locked, more...)
			}
		}
		if err != nil {
			return nil, err
		}
		left = again
	}
	return locked, nil
}

// splitLocked tells the replays whose rows are free from those whose rows are
// locked. It returns lockErr when nobody holds a lock now.
func (w *worker) splitLocked(ctx context.Context, replays []*replay, lockErr error) (rest, locked []*replay, err error) {
	free, err := w.store.free(ctx, replayIDs(replays))
	if err != nil {
		return nil, nil, err
	}
	for _, r := range replays {
		if free[r.accountID] {
			rest = append(rest, r)
		} else {
			locked = append(locked, r)
		}
	}
	if len(locked) == 0 {
		return nil, nil, lockErr
	}
	return rest, locked, nil
}

// setLocked notes which rows of a page are locked, and that the others are not.
func (w *worker) setLocked(j *rebuildJob, page, locked []*replay) {
	known := make(map[string]bool)
	for _, id := range j.locked {
		known[id] = true
	}
	j.locked = slices.DeleteFunc(j.locked, func(id string) bool {
		return slices.ContainsFunc(page, func(r *replay) bool { return string(r.accountID) == id })
	})
	for _, r := range locked {
		j.locked = append(j.locked, string(r.accountID))
		if !known[string(r.accountID)] {
			w.log.Warn("a rebuild waits for a balance row that another session has locked", "account", r.accountID)
		}
	}
	if n := len(j.locked); n > 0 {
		j.owned.note("the rebuild waits for %d balance rows that other sessions have locked, %s for one", n, j.locked[n-1])
	}
}
