package ledger

import (
	"context"
	"maps"
	"slices"
	"time"
)

// This file keeps accounts whose row or next link somebody holds in an open
// transaction out of the way of all others: their tasks wait in front of the
// queue, in their order, until the lock is free or their time is over.

// blockedFor is how long an account counts as blocked after a lock timeout.
const blockedFor = time.Second

// blockedPause is the rest between two looks when nothing but blocked tasks is there.
const blockedPause = 20 * time.Millisecond

// commitContended commits the batch of a contended runner, the accounts that are
// blocked behind the others.
func (r *runner) commitContended() {
	r.moved = append(r.moved[:0], r.batch...)
	now := time.Now()
	maps.DeleteFunc(r.blocked, func(_ AccountID, until time.Time) bool { return now.After(until) })
	free, blocked := r.batch, []*task(nil)
	if len(r.blocked) > 0 {
		blocked, free = splitTasks(r.batch, func(id AccountID) bool { _, ok := r.blocked[id]; return ok })
	}
	r.commit(free)
	r.commitBlocked(blocked)
	if len(r.aside) == len(r.moved) {
		time.Sleep(blockedPause)
	}
	r.w.countMoved(r.aside, 1)
	r.w.countMoved(r.moved, -1)
	r.queue.putBack(r.aside)
	clear(r.moved)
	clear(r.aside)
	clear(r.asideOf)
	r.aside = r.aside[:0]
}

// commitBlocked asks which of the accounts are still locked before it waits for
// any of them.
func (r *runner) commitBlocked(tasks []*task) {
	if len(tasks) == 0 {
		return
	}
	r.knownBlocked = true
	defer func() { r.knownBlocked = false }()
	tasks, err := r.leaveLocked(r.expire(tasks))
	if err != nil {
		r.complain(err)
		for _, t := range tasks {
			r.setAside(t)
		}
		return
	}
	r.commit(tasks)
}

// sortOutBlocked decides how tasks go on of which one ran into a lock timeout:
// those on locked accounts wait, the others are committed at once.
func (r *runner) sortOutBlocked(tasks []*task) ([]*task, verdict) {
	rest, err := r.leaveLocked(tasks)
	switch {
	case err != nil:
		r.complain(err)
		return tasks, verdictTrouble
	case len(rest) < len(tasks):
		return rest, verdictFine
	case len(tasks) > 1 && !r.knownBlocked:
		return tasks, verdictSplit
	}
	// No row is locked: the next link itself is held by an open transaction, or
	// the lock has just been given back.
	for _, t := range tasks {
		r.block(t)
	}
	return nil, verdictFine
}

// leaveLocked sets the tasks aside that have a locked account and returns the
// others.
func (r *runner) leaveLocked(tasks []*task) ([]*task, error) {
	ctx, cancel := context.WithTimeout(context.Background(), r.w.cfg.AppendTimeout)
	defer cancel()
	asked := make(map[AccountID]bool)
	var ids []string
	for _, t := range tasks {
		for _, id := range t.accounts {
			if !asked[id] {
				asked[id] = true
				ids = append(ids, string(id))
			}
		}
	}
	locked, err := readLocked(ctx, r.w.pool, ids)
	if err != nil {
		return tasks, err
	}
	waiting, rest := splitTasks(tasks, func(id AccountID) bool { return locked[id] })
	for _, t := range waiting {
		r.block(t)
	}
	return rest, nil
}

// block sets the task aside and remembers its accounts as blocked.
func (r *runner) block(t *task) {
	until := time.Now().Add(blockedFor)
	for _, id := range t.accounts {
		r.blocked[id] = until
	}
	r.setAside(t)
}

// setAside leaves the task for the next batch.
func (r *runner) setAside(t *task) {
	r.aside = append(r.aside, t)
	for _, id := range t.accounts {
		r.asideOf[id] = true
	}
}

// withoutAside sets aside the tasks on accounts of which one is aside already,
// so that they do not overtake it, and returns the others.
func (r *runner) withoutAside(tasks []*task) []*task {
	if len(r.asideOf) == 0 {
		return tasks
	}
	kept := make([]*task, 0, len(tasks))
	for _, t := range tasks {
		if slices.ContainsFunc(t.accounts, func(id AccountID) bool { return r.asideOf[id] }) {
			r.setAside(t)
		} else {
			kept = append(kept, t)
		}
	}
	return kept
}

// splitTasks returns the tasks that have such an account, and the others.
func splitTasks(tasks []*task, such func(AccountID) bool) (with, without []*task) {
	for _, t := range tasks {
		if slices.ContainsFunc(t.accounts, such) {
			with = append(with, t)
		} else {
			without = append(without, t)
		}
	}
	return with, without
}
