package ledger

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// task is one operation on its way through the writer.
type task struct {
	op *Operation
	// accounts are the accounts of the operation, each once, its own first.
	accounts      []AccountID
	one           [1]AccountID // backs accounts of an operation without legs
	requestHash   [32]byte
	transactionID uuid.UUID
	fingerprint   uint64
	deadline      time.Time
	done          chan outcome // capacity 1; written once
	taken         atomic.Int32 // queued, then taken by the runner or abandoned by the caller

	// The rest is the runner's alone once it has taken the task.

	mustLook bool // heads and keys are read before the next decision
	// unknown is true once an append with this task had an unknown outcome. It
	// stays true until the task is answered.
	unknown bool
	// attempted is the seq of the link that was last sent for this task.
	attempted Seq
	// counted is true once the task took a decline out of its account's bucket.
	counted bool
}

const (
	taskQueued int32 = iota
	taskTaken
	taskAbandoned
)

// outcome is what a caller is told: one of the two.
type outcome struct {
	receipt *Receipt
	refusal *Refusal
}

// prepare completes what does not depend on the writer.
func prepare(op *Operation) *task {
	t := &task{op: op, requestHash: op.requestHash(), done: make(chan outcome, 1)}
	if len(op.Legs) == 0 {
		t.one[0] = op.AccountID
		t.accounts = t.one[:]
		return t
	}
	t.accounts = make([]AccountID, 0, len(op.Legs))
	seen := make(map[AccountID]bool, len(op.Legs))
	for i := range op.Legs {
		if id := op.Legs[i].AccountID; !seen[id] {
			seen[id] = true
			t.accounts = append(t.accounts, id)
		}
	}
	return t
}

func (t *task) succeed(r *Receipt) { t.done <- outcome{receipt: r} }

// fail answers with r, or with "unknown" in its place where an append of this
// task may still have an effect and r says nothing about that.
func (t *task) fail(r *Refusal) {
	if t.unknown {
		c := *r
		c.Applied = AppliedUnknown
		r = &c
	}
	t.done <- outcome{refusal: r}
}

// size is an upper estimate of the bytes that the task adds to a batch.
func (t *task) size() int {
	n := 512 + len(t.op.Key) + len(t.op.Description) + len(t.op.Counterparty)
	for k, v := range t.op.Metadata {
		n += 2*(len(k)+len(v)) + 8
	}
	return n * max(1, len(t.op.Legs))
}

// queue holds the tasks that wait for a runner. It is bounded in count for
// callers; tasks that move between runners are never turned away.
type queue struct {
	mu     sync.Mutex
	tasks  []*task
	closed bool
	max    int
	wake   chan struct{} // capacity 1
}

func newQueue(limit int) *queue { return &queue{max: limit, wake: make(chan struct{}, 1)} }

// offer adds a task, and reports whether there was room.
func (q *queue) offer(t *task) bool {
	q.mu.Lock()
	if q.closed || len(q.tasks) >= q.max {
		q.mu.Unlock()
		return false
	}
	q.tasks = append(q.tasks, t)
	q.mu.Unlock()
	q.signal()
	return true
}

// hand adds tasks that were taken from another queue. It reports false when the
// queue is closed.
func (q *queue) hand(tasks []*task) bool {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return false
	}
	q.tasks = append(q.tasks, tasks...)
	q.mu.Unlock()
	q.signal()
	return true
}

// putBack puts tasks in front of all others.
func (q *queue) putBack(tasks []*task) {
	if len(tasks) == 0 {
		return
	}
	q.mu.Lock()
	q.tasks = slices.Insert(q.tasks, 0, tasks...)
	q.mu.Unlock()
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take waits for tasks and moves up to countMax of them, or as many as fit into
// bytesMax, to into. It returns an empty slice when the queue is closed and drained.
// Tasks whose callers have left are dropped here, before anything was done for them.
func (q *queue) take(into []*task, countMax, bytesMax int) []*task {
	for {
		q.mu.Lock()
		bytes, n := 0, 0
		for _, t := range q.tasks {
			if len(into) >= countMax || bytes >= bytesMax {
				break
			}
			n++
			if t.taken.Load() == taskTaken || t.taken.CompareAndSwap(taskQueued, taskTaken) {
				into = append(into, t)
				bytes += t.size()
			}
		}
		rest := copy(q.tasks, q.tasks[n:])
		clear(q.tasks[rest:])
		q.tasks = q.tasks[:rest]
		closed := q.closed
		q.mu.Unlock()
		if len(into) > 0 || closed && rest == 0 {
			return into
		}
		if rest == 0 {
			<-q.wake
		}
	}
}

func (q *queue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.tasks)
}

// close lets no more tasks in. Those inside are still taken.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}
