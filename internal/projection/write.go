package projection

import (
	"context"
	"time"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// lockedWait is how long an account is left alone whose row somebody has locked.
const lockedWait = time.Second

// write sends one statement for the folds and judges each row that did not come
// back. A stopped process may wake up anywhere in here, its leases long gone:
// the statement then meets rows with higher tokens, or rows that were moved on,
// and changes nothing.
//
// The statement runs under a context that the end of a lease does not cancel: a
// cancelled statement may take effect all the same, so nothing would be gained.
func (w *worker) write(ctx context.Context, folds []*fold) error {
	tokens := make(map[int]lease.ProjectionToken)
	var writes []write
	for _, f := range folds {
		n := f.accountID.Shard()
		s := w.shards[n]
		if !s.usable() {
			continue
		}
		token, ok := tokens[n]
		if !ok {
			var err error
			if token, err = s.token(); err != nil {
				w.log.Info("shard given up", "error", err)
				continue
			}
			tokens[n] = token
		}
		writes = append(writes, write{f, token})
	}
	if len(writes) == 0 {
		return nil
	}
	if w.cfg.BeforeWrite != nil {
		w.cfg.BeforeWrite()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.StatementTimeout)
	defer cancel()
	w.metrics.writes.Inc()
	applied, err := w.store.apply(ctx, writes)
	if err != nil {
		return w.writeFailed(ctx, writes, err)
	}
	return w.settle(ctx, writes, applied)
}

// writeFailed isolates what PostgreSQL refused, when it says that nothing was
// applied, and otherwise returns the error: the folds are then made again from
// the rows, whatever became of the statement.
func (w *worker) writeFailed(ctx context.Context, writes []write, err error) error {
	folds := make([]*fold, len(writes))
	for i := range writes {
		folds[i] = writes[i].fold
	}
	switch postgres.Classify(err) {
	case postgres.ClassData:
		if len(folds) == 1 {
			f := folds[0]
			w.park(w.shards[f.accountID.Shard()], f, true, "%v", err)
			return nil
		}
		half := len(folds) / 2
		if err := w.write(ctx, folds[:half]); err != nil {
			return err
		}
		return w.write(ctx, folds[half:])
	case postgres.ClassLock:
		free, freeErr := w.store.free(ctx, ids(writes))
		if freeErr != nil {
			return freeErr
		}
		var rest []*fold
		for _, f := range folds {
			if free[f.accountID] {
				rest = append(rest, f)
				continue
			}
			s := w.shards[f.accountID.Shard()]
			s.want(f.accountID, f.from, f.to, lockedWait)
			s.note("the balance row of %s is locked by another session", f.accountID)
		}
		if len(rest) == len(folds) {
			return err // nobody holds a lock now: the next round tries again
		}
		return w.write(ctx, rest)
	}
	return err
}

// settle takes note of what was applied and judges the rest.
func (w *worker) settle(ctx context.Context, writes []write, applied map[ledger.AccountID]time.Time) error {
	var refused []write
	for _, wr := range writes {
		at, ok := applied[wr.accountID]
		if !ok {
			refused = append(refused, wr)
			continue
		}
		s := w.shards[wr.accountID.Shard()]
		delete(s.attempts, wr.accountID)
		if s.parked[wr.accountID].retrying { // else these are the entries before the bad one
			w.unpark(s, wr.accountID)
		}
		delay := at.Sub(wr.oldest)
		w.delay = max(w.delay, delay)
		w.metrics.delay.Observe(delay.Seconds())
		w.metrics.applied.Add(float64(wr.len()))
	}
	if len(refused) == 0 {
		return nil
	}
	rows, err := w.store.rows(ctx, ids(refused))
	if err != nil {
		return err
	}
	var absent []write
	for _, wr := range refused {
		row, ok := rows[wr.accountID]
		if !ok {
			absent = append(absent, wr)
			continue
		}
		if err := w.judge(ctx, w.shards[wr.accountID.Shard()], wr, row); err != nil {
			return err
		}
	}
	if len(absent) == 0 {
		return nil
	}
	return w.restore(ctx, absent)
}

// judge says why a row was not written. The order matters: a row of a newer
// owner may also have been moved on, and then it is the owner that counts.
func (w *worker) judge(ctx context.Context, s *shard, wr write, row balanceRow) error {
	switch {
	case row.lastToken.Rank() > s.term.Rank():
		given, err := w.given(ctx, s.number, row.lastToken.Rank())
		if err != nil {
			return err
		}
		if !given {
			w.park(s, wr.fold, true, "the balance row has token %d of a term that never was", row.lastToken)
			return nil
		}
		w.fenced(s, wr, row)
	case row.appliedSeq >= wr.to:
		// Applied already, by an earlier write whose outcome was not known.
	case row.appliedSeq != wr.from:
		s.want(wr.accountID, row.appliedSeq, wr.to, 0)
	case row.balance+wr.balance != wr.balanceAfter || row.held+wr.held != wr.heldAfter:
		w.park(s, wr.fold, true, "the balance row has balance %d and held %d at seq %d; the entries say %d and %d",
			row.balance, row.held, row.appliedSeq, wr.balanceAfter-wr.balance, wr.heldAfter-wr.held)
	default:
		s.attempts[wr.accountID]++
		if s.attempts[wr.accountID] >= attemptsMax {
			w.park(s, wr.fold, false, "the balance row refuses writes with token %d; it has %d", wr.token, row.lastToken)
			return nil
		}
		s.want(wr.accountID, wr.from, wr.to, 0)
	}
	return nil
}

// given reports whether a term of the shard with the rank, or a later one, was
// ever handed out. A row with a higher rank was changed by somebody else: it
// must not end the term of every owner for ever.
func (w *worker) given(ctx context.Context, number int, rank lease.Rank) (bool, error) {
	leases, err := w.leases.Look(ctx, shardNames()[number:number+1])
	if err != nil {
		return false, err
	}
	return len(leases) == 1 && rank <= leases[0].Rank(), nil
}

// fenced gives up a shard that a newer owner has written to.
func (w *worker) fenced(s *shard, wr write, row balanceRow) {
	w.metrics.fenced.Inc()
	if s.usable() || s.lastError == "" {
		w.log.Warn("late write refused by the database", "account", wr.accountID, "shard", s.number,
			"token", wr.token, "row_token", row.lastToken)
	}
	s.note("a write with token %d was refused: %s has token %d of a newer owner", wr.token, wr.accountID, row.lastToken)
	s.giveUp()
}

// park leaves an account alone and raises the alarm. All others go on.
func (w *worker) park(s *shard, f *fold, drift bool, format string, args ...any) {
	p, known := s.parked[f.accountID]
	p.since, p.lag, p.retrying = time.Now(), max(p.lag, f.len()), false
	if !known {
		p.oldest = f.oldest
		w.metrics.parked.Inc()
		if drift {
			w.metrics.drift.Inc()
		}
	}
	s.parked[f.accountID] = p
	s.pending.take(f.accountID)
	delete(s.attempts, f.accountID)
	s.note("%s is parked: "+format, append([]any{f.accountID}, args...)...)
	if !known {
		w.log.Error("account parked by the projection", "account", f.accountID, "drift", drift, "reason", s.lastError)
	}
}

// unpark forgets that an account was parked.
func (w *worker) unpark(s *shard, id ledger.AccountID) {
	if _, ok := s.parked[id]; ok {
		delete(s.parked, id)
		w.metrics.parked.Dec()
		s.changed = true
	}
}

// restore inserts empty rows for accounts that lost theirs, and has them folded
// from their first entry.
func (w *worker) restore(ctx context.Context, absent []write) error {
	if err := w.store.insertMissing(ctx, ids(absent)); err != nil {
		return err
	}
	w.log.Warn("missing balance rows made again", "accounts", len(absent), "first", absent[0].accountID)
	for _, wr := range absent {
		w.shards[wr.accountID.Shard()].want(wr.accountID, 0, wr.to, 0)
	}
	return nil
}

func ids(writes []write) []string {
	ids := make([]string, len(writes))
	for i := range writes {
		ids[i] = string(writes[i].accountID)
	}
	return ids
}
