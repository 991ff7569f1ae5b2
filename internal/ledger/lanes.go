package ledger

import (
	"hash/maphash"
	"sync"
	"time"
)

// lane owns the accounts of one part of the hash space: what is remembered of
// them, and two runners.
type lane struct {
	pair
	heads *headCache
	keys  *recentKeys
	// turn is held while a batch that was decided from the lane's heads is on
	// its way. With it two batches of this process do not spoil each other.
	turn sync.Mutex
}

// pair is two runners with a queue each. Every operation goes into the first;
// that one hands it on where a lock is needed.
type pair struct {
	plain     *runner // optimistic: remembered heads, one INSERT
	contended *runner // accounts that other processes write too: lock, look, INSERT
}

func newPair(w *Writer) pair {
	contended := newRunner(w, nil)
	return pair{plain: newRunner(w, contended), contended: contended}
}

// laneOf returns the lane of an account.
func (w *Writer) laneOf(id AccountID) *lane {
	if len(w.lanes) == 1 {
		return w.lanes[0]
	}
	return w.lanes[maphash.String(w.seed, string(id))%uint64(len(w.lanes))]
}

// pairOf returns the runners of a task: those of its lane, or the wide ones.
func (w *Writer) pairOf(t *task) *pair {
	l := w.laneOf(t.op.AccountID)
	for _, id := range t.accounts[1:] {
		if w.laneOf(id) != l {
			return &w.wide
		}
	}
	return &l.pair
}

func (w *Writer) pairs() []*pair {
	all := []*pair{&w.wide}
	for _, l := range w.lanes {
		all = append(all, &l.pair)
	}
	return all
}

// lockLanes takes the turn of every lane that the tasks touch, in the order of
// the lanes, and returns what gives them back.
func (w *Writer) lockLanes(tasks []*task) (unlock func()) {
	if len(w.lanes) == 1 {
		return func() {} // its plain runner alone is there
	}
	touched := make(map[*lane]bool, len(w.lanes))
	for _, t := range tasks {
		for _, id := range t.accounts {
			touched[w.laneOf(id)] = true
		}
	}
	for _, l := range w.lanes {
		if touched[l] {
			l.turn.Lock()
		}
	}
	return func() {
		for l := range touched {
			l.turn.Unlock()
		}
	}
}

// needsLock reports whether the task has to go by the contended path. Settings
// always do: they write the account's row too.
func (w *Writer) needsLock(t *task, now time.Time) bool {
	if t.op.Kind == KindSettings {
		return true
	}
	for _, id := range t.accounts {
		if w.laneOf(id).heads.contended(id, now) {
			return true
		}
	}
	return false
}

// contend sends the later operations on the task's accounts by the contended path.
func (w *Writer) contend(t *task) {
	until := time.Now().Add(w.cfg.ContendedFor)
	for _, id := range t.accounts {
		w.laneOf(id).heads.contend(id, until)
	}
}

// countMoved notes that tasks went to a contended runner, or came out of it.
func (w *Writer) countMoved(tasks []*task, n int) {
	for _, t := range tasks {
		for _, id := range t.accounts {
			w.laneOf(id).heads.move(id, n)
		}
	}
}

// fingerprint stands for the account and the key of an operation; it is not 0.
func (w *Writer) fingerprint(op *Operation) uint64 {
	var h maphash.Hash
	h.SetSeed(w.seed)
	_, _ = h.WriteString(string(op.AccountID)) // never fails
	_ = h.WriteByte(0)
	_, _ = h.WriteString(op.Key)
	return h.Sum64() | 1
}
