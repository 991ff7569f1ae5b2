package ledger

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/postgres"
)

// runner commits the tasks of one queue, one batch at a time. While a batch is
// on its way the next one gathers in the queue: there is no timer, and batches
// grow only under load.
type runner struct {
	w     *Writer
	queue *queue
	// contended is the runner that contended accounts are handed to; nil for
	// that runner itself.
	contended *runner
	appender  appender
	plan      plan
	batch     []*task
	moved     []*task // the batch of a contended runner, to be counted off

	// blocked are accounts, of a contended runner, that somebody else held
	// locked for longer than the lock timeout, until when they count as such.
	blocked map[AccountID]time.Time
	// knownBlocked is true while tasks on blocked accounts are committed.
	knownBlocked bool
	// aside are tasks of this batch that wait for such a lock, in their order,
	// and asideOf the accounts that they are on.
	aside   []*task
	asideOf map[AccountID]bool

	said   postgres.Class // what was logged last
	saidAt time.Time
}

func newRunner(w *Writer, contended *runner) *runner {
	return &runner{w: w, contended: contended, queue: newQueue(w.cfg.QueueMax),
		blocked: make(map[AccountID]time.Time), asideOf: make(map[AccountID]bool)}
}

// takesLocks says whether this is a runner of contended accounts.
func (r *runner) takesLocks() bool { return r.contended == nil }

func (r *runner) run() {
	for {
		r.batch = r.queue.take(r.batch[:0], r.w.cfg.BatchMax, r.w.cfg.BatchBytesMax)
		if len(r.batch) == 0 {
			break
		}
		if r.takesLocks() {
			r.commitContended()
		} else {
			r.commit(r.batch)
		}
		clear(r.batch)
	}
	if !r.takesLocks() {
		r.contended.queue.close() // nothing is handed over any more
	}
}

// commit answers every task: it goes round until each is in the chain, refused,
// handed to the other runner, or past its deadline.
func (r *runner) commit(tasks []*task) {
	for trouble := 0; len(tasks) > 0; {
		if tasks = r.withoutAside(r.expire(tasks)); len(tasks) == 0 {
			return
		}
		var class verdict
		tasks, class = r.round(tasks)
		switch class {
		case verdictFine:
			trouble = 0
		case verdictSplit:
			if len(tasks) > 1 {
				r.w.metrics.splits.Inc()
				half := len(tasks) / 2
				r.commit(tasks[:half])
				r.commit(tasks[half:])
				return
			}
			r.pause(&trouble)
		case verdictTrouble:
			r.pause(&trouble)
		}
	}
}

// pause waits a little longer each time, 5 to 200 ms.
func (r *runner) pause(trouble *int) {
	time.Sleep(min(200*time.Millisecond, 5*time.Millisecond<<min(*trouble, 6)))
	*trouble++
}

// verdict says how the tasks that a round left over go on.
type verdict int

const (
	verdictFine    verdict = iota // at once
	verdictSplit                  // in halves: one of them is bad or blocked
	verdictTrouble                // after a moment: the database is in trouble
)

// expire answers the tasks whose time is over and returns the others.
func (r *runner) expire(tasks []*task) []*task {
	now := time.Now()
	kept := tasks[:0]
	for _, t := range tasks {
		if now.Before(t.deadline) {
			kept = append(kept, t)
			continue
		}
		t.fail(refuse(CodeUnavailable, "The database did not answer in time. Repeat the request as it is."))
	}
	return kept
}

// round takes the tasks through look, decision and append once. It returns the
// tasks that are not answered yet.
func (r *runner) round(tasks []*task) ([]*task, verdict) {
	ctx, cancel := context.WithTimeout(context.Background(), r.w.cfg.AppendTimeout)
	defer cancel()
	conn, err := r.w.pool.Acquire(ctx)
	if err != nil {
		r.w.cfg.Log.Debug("no connection for the write path", "error", err)
		return tasks, verdictTrouble
	}
	defer conn.Release()
	st := r.w.guard.current()
	if st == nil || st.refusal != nil {
		if st, err = r.judge(ctx, conn); err != nil {
			return tasks, verdictTrouble
		}
	}
	if st.refusal != nil {
		for _, t := range tasks {
			t.fail(st.refusal)
		}
		return nil, verdictFine
	}
	if r.takesLocks() {
		return r.lockedRound(ctx, conn, st, tasks)
	}
	defer r.w.lockLanes(tasks)()
	return r.plainRound(ctx, conn, st, tasks)
}

// judge checks the life again over this very connection.
func (r *runner) judge(ctx context.Context, conn *pgxpool.Conn) (*guardState, error) {
	st, err := r.w.guard.check(ctx, conn.Conn())
	if err != nil {
		r.w.cfg.Log.Debug("the database's life could not be read", "error", err)
		return nil, err
	}
	r.w.report(st)
	if st.standby {
		_ = conn.Conn().Close(ctx) // the next connection may find the primary
	}
	return st, nil
}

// plainRound is the normal path: remembered heads, a look only for what is not
// remembered or was refused, and one INSERT. It holds no lock and no
// transaction, so a process that stops anywhere in it harms nobody, and its
// INSERT is refused when it wakes too late.
func (r *runner) plainRound(ctx context.Context, conn *pgxpool.Conn, st *guardState, tasks []*task) ([]*task, verdict) {
	if tasks = r.handOver(tasks); len(tasks) == 0 {
		return nil, verdictFine
	}
	p := newPlan(r, st)
	if asked := p.ask(tasks, false); asked {
		a, err := look(ctx, conn.Conn(), &p.question)
		if err != nil {
			return r.afterError(tasks, err)
		}
		if a.life != st.life {
			return r.otherLife(ctx, conn, tasks)
		}
		p.learn(a)
	}
	if p.foreign { // the look found links of other processes
		if tasks = r.handOver(tasks); len(tasks) == 0 {
			return nil, verdictFine
		}
	}
	tasks, known := p.known(tasks)
	if err := p.answerKnown(ctx, conn.Conn(), known); err != nil {
		return r.afterError(append(known, tasks...), err)
	}
	p.foldAll(tasks)
	return r.append(ctx, conn, p, false)
}

// lockedRound is the path of contended accounts: their rows are locked in the
// order of their ids, and only a second statement looks, so that what it sees
// is what the last holder committed. Two round trips; a holder that is stopped
// loses its session after idleInTransaction.
func (r *runner) lockedRound(ctx context.Context, conn *pgxpool.Conn, st *guardState, tasks []*task) ([]*task, verdict) {
	p := newPlan(r, st)
	p.ask(tasks, true)
	a, err := lockAndLook(ctx, conn.Conn(), &p.question)
	if err != nil {
		r.rollback(conn)
		return r.afterError(tasks, err)
	}
	if a.life != st.life {
		r.rollback(conn)
		return r.otherLife(ctx, conn, tasks)
	}
	p.learn(a)
	tasks, known := p.known(tasks)
	p.foldAll(tasks)
	if len(p.links) == 0 {
		r.rollback(conn)
	}
	rest, v := r.append(ctx, conn, p, true)
	// Behind the end of the transaction: nothing is read while a lock is held.
	if err := p.answerKnown(ctx, conn.Conn(), known); err != nil {
		return r.afterError(append(known, rest...), err)
	}
	return rest, v
}

// handOver moves the tasks that need the lock of an account to the other runner
// and returns the rest. Every task comes by here, so the tasks of an account
// keep their order also when they change the path.
func (r *runner) handOver(tasks []*task) []*task {
	now := time.Now()
	var moved []*task
	for _, t := range tasks {
		if r.w.needsLock(t, now) {
			moved = append(moved, t)
		}
	}
	if len(moved) == 0 || !r.moveToContended(moved) {
		return tasks
	}
	kept := make([]*task, 0, len(tasks)-len(moved))
	for _, t := range tasks {
		if len(moved) > 0 && t == moved[0] {
			moved = moved[1:]
			continue
		}
		kept = append(kept, t)
	}
	return kept
}

// moveToContended reports false when the other runner takes no more.
func (r *runner) moveToContended(tasks []*task) bool {
	r.w.countMoved(tasks, 1)
	if !r.contended.queue.hand(tasks) {
		r.w.countMoved(tasks, -1)
		return false
	}
	return true
}

// append sends what the plan decided and answers its tasks. This is where an
// operation becomes true: once the statement has returned, its links are in the
// chain for ever, and only then is anybody told.
func (r *runner) append(ctx context.Context, conn *pgxpool.Conn, p *plan, locked bool) ([]*task, verdict) {
	if len(p.links) == 0 {
		return p.waiting, verdictFine
	}
	if pause := r.w.cfg.Pause; pause != nil {
		pause()
	}
	path := "plain"
	if locked {
		path = "contended"
	}
	p.write.sort()
	start := time.Now()
	written, err := r.appender.send(ctx, conn.Conn(), &p.write, locked)
	r.w.metrics.appendSeconds.WithLabelValues(path).Observe(time.Since(start).Seconds())
	if err == nil && written {
		r.w.metrics.batchSize.WithLabelValues(path).Observe(float64(len(p.write.entries)))
		p.committed()
		return p.waiting, verdictFine
	}
	if locked && err != nil {
		r.rollback(conn)
	}
	tasks := p.unanswered()
	if err == nil {
		r.w.metrics.lives.Inc()
		return r.otherLife(ctx, conn, tasks)
	}
	if class := postgres.Classify(err); class == postgres.ClassUnknown {
		r.w.metrics.unknown.Inc()
		for i := range p.links {
			p.links[i].task.unknown = true
		}
	} else if class == postgres.ClassData && len(p.links) == 1 {
		r.refuseBad(p.links[0].task, err)
		return without(tasks, p.links[0].task), verdictFine
	}
	return r.afterError(tasks, err)
}

// refuseBad answers the one operation that PostgreSQL does not take. It is a
// defect of ours when it happens: validation should have caught it.
func (r *runner) refuseBad(t *task, err error) {
	r.w.cfg.Log.Error("PostgreSQL refused an operation", "account_id", t.op.AccountID, "kind", t.op.Kind, "error", err)
	t.fail(&Refusal{Code: CodeInternal, Detail: "The operation could not be stored.", Applied: NotApplied, Err: err})
}

// afterError decides how tasks go on after a statement failed. Whatever it was,
// everything remembered about them is read again before the next decision.
func (r *runner) afterError(tasks []*task, err error) ([]*task, verdict) {
	for _, t := range tasks {
		t.mustLook = true
	}
	switch postgres.Classify(err) {
	case postgres.ClassUnique:
		r.w.metrics.conflicts.Inc()
		return tasks, verdictFine
	case postgres.ClassData:
		return tasks, verdictSplit
	case postgres.ClassLock:
		if r.takesLocks() {
			return r.sortOutBlocked(tasks)
		}
		if len(tasks) > 1 {
			return tasks, verdictSplit
		}
		// The one that is blocked waits with the contended, out of the way.
		r.w.contend(tasks[0])
		if r.moveToContended(tasks) {
			return nil, verdictFine
		}
		return tasks, verdictTrouble
	default:
		r.complain(err)
		return tasks, verdictTrouble
	}
}

// complainEvery is how often the same trouble is logged.
const complainEvery = 10 * time.Second

// complain logs trouble with the database, the same kind of it not again and again.
func (r *runner) complain(err error) {
	class := postgres.Classify(err)
	if class == r.said && time.Since(r.saidAt) < complainEvery {
		return
	}
	r.said, r.saidAt = class, time.Now()
	switch class {
	case postgres.ClassSchema, postgres.ClassReadOnly:
		r.w.cfg.Log.Error("the database refuses the write path", "error", err)
	case postgres.ClassUnknown:
		r.w.cfg.Log.Warn("the write path lost a connection and reads what became of its statement", "error", err)
	default:
		r.w.cfg.Log.Warn("the write path has to repeat a statement", "error", err)
	}
}

// otherLife drops everything remembered: the database restarted, or it is
// another one. The heads carry their life, so a new state alone makes all of
// them unknown.
func (r *runner) otherLife(ctx context.Context, conn *pgxpool.Conn, tasks []*task) ([]*task, verdict) {
	for _, t := range tasks {
		t.mustLook = true
	}
	if _, err := r.judge(ctx, conn); err != nil {
		return tasks, verdictTrouble
	}
	return tasks, verdictFine
}

// rollback ends a transaction whose work is not wanted. When that fails the
// connection is closed by the pool, and the server rolls back.
func (r *runner) rollback(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		_ = conn.Conn().Close(ctx) // it is lost either way
	}
}

func without(tasks []*task, gone *task) []*task {
	kept := tasks[:0]
	for _, t := range tasks {
		if t != gone {
			kept = append(kept, t)
		}
	}
	return kept
}
