package ledger

import (
	"context"
	"fmt"
	"time"
)

// plan is one round of one runner: what is asked, what was learnt, what was
// decided. It is reused from round to round and belongs to the runner's goroutine.
type plan struct {
	r  *runner
	st *guardState
	at time.Time // the database's clock, for everything decided in this round

	question question
	asked    map[AccountID]bool
	keyTask  []*task // by index in question.keys
	linkTask []*task // by index in question.seqs
	found    map[*task]*Entry

	accounts map[AccountID]int // index in working
	working  []working
	byKey    map[scopedKey]int // index in links
	links    []link
	follow   []follower
	write    write
	// waiting are the tasks that another round, with a look, has to answer.
	waiting []*task
	// foreign is true when a look found links of other processes.
	foreign bool
}

// working is the head that the next operation on an account is decided from:
// what was remembered or read, and then the links of this batch on top.
type working struct {
	head   Head
	exists bool
	// fresh is true for a head that was read in this round and has no link of
	// this batch on top. Only from a fresh head is an operation refused.
	fresh bool
	added int
}

type scopedKey struct {
	account AccountID
	key     string
}

// link is a task together with the receipt it gets once its entry is durable.
type link struct {
	task    *task
	receipt *Receipt
}

// follower is a task that repeats the key of a link of the same batch.
type follower struct {
	task *task
	link int
}

func newPlan(r *runner, st *guardState) *plan {
	p := &r.plan
	if p.accounts == nil {
		p.r = r
		p.asked, p.found = map[AccountID]bool{}, map[*task]*Entry{}
		p.accounts, p.byKey = map[AccountID]int{}, map[scopedKey]int{}
	}
	p.st, p.at, p.foreign = st, st.clock.now(), false
	clear(p.asked)
	clear(p.found)
	clear(p.accounts)
	clear(p.byKey)
	clear(p.working)
	clear(p.links)
	clear(p.follow)
	p.keyTask, p.linkTask = p.keyTask[:0], p.linkTask[:0]
	p.working, p.links, p.follow = p.working[:0], p.links[:0], p.follow[:0]
	p.waiting = nil // handed to the caller
	p.question.reset()
	p.write.reset(st.life)
	return p
}

func (q *question) reset() {
	q.accounts, q.keyOf, q.keys = q.accounts[:0], q.keyOf[:0], q.keys[:0]
	q.linkOf, q.seqs = q.linkOf[:0], q.seqs[:0]
}

// ask collects what has to be read before the tasks can be decided, everything
// when all is set. It reports whether there is anything.
func (p *plan) ask(tasks []*task, all bool) bool {
	for _, t := range tasks {
		id := t.op.AccountID
		if p.asked[id] || !all && !t.mustLook && p.remembered(id) && !p.r.lane.keys.has(t.fingerprint) {
			continue
		}
		p.asked[id] = true
		p.question.accounts = append(p.question.accounts, string(id))
	}
	if len(p.question.accounts) == 0 {
		return false
	}
	// A head that was read is one that refusals are answered from. So the keys
	// of all operations on its account are read with it: they come first.
	for _, t := range tasks {
		if p.asked[t.op.AccountID] {
			t.mustLook = false
			p.addQuestion(t)
		}
	}
	return true
}

// remembered takes the account's head from the cache, if it is there.
func (p *plan) remembered(id AccountID) bool {
	if _, ok := p.accounts[id]; ok {
		return true
	}
	head, ok := p.r.lane.heads.get(id, p.st.life)
	if ok {
		p.accounts[id] = len(p.working)
		p.working = append(p.working, working{head: head, exists: true})
	}
	return ok
}

func (p *plan) addQuestion(t *task) {
	q, id := &p.question, t.op.AccountID
	switch {
	case t.op.Key != "":
		p.keyTask = append(p.keyTask, t)
		q.keyOf, q.keys = append(q.keyOf, string(id)), append(q.keys, t.op.Key)
	case t.op.Kind == KindOpened:
		p.addLinkQuestion(t, 1) // the opening that is there, ours or a rival's
	case t.attempted != 0:
		p.addLinkQuestion(t, t.attempted)
	}
}

func (p *plan) addLinkQuestion(t *task, seq Seq) {
	q := &p.question
	p.linkTask = append(p.linkTask, t)
	q.linkOf, q.seqs = append(q.linkOf, string(t.op.AccountID)), append(q.seqs, int64(seq))
}

// learn takes in what a look found.
func (p *plan) learn(a *answer) {
	p.at = a.clock.now()
	until := time.Now().Add(p.r.w.cfg.ContendedFor)
	for id := range p.asked {
		w := working{fresh: true}
		if head := a.heads[id]; head != nil {
			w.head, w.exists = *head, true
			if p.r.lane.heads.observed(*head, p.st.life, until) {
				p.foreign = true
			}
		}
		if i, ok := p.accounts[id]; ok {
			p.working[i] = w
			continue
		}
		p.accounts[id] = len(p.working)
		p.working = append(p.working, w)
	}
	for i, e := range a.keys {
		p.found[p.keyTask[i]] = e
	}
	for i, e := range a.links {
		t := p.linkTask[i]
		if t.op.Kind == KindOpened || e.TransactionID == t.transactionID {
			p.found[t] = e
		}
	}
}

// decide answers the tasks whose entry was found and folds the others, in their
// order, into the write.
func (p *plan) decide(ctx context.Context, tasks []*task) error {
	if len(p.found) > 0 && p.st.standbys {
		if err := p.r.w.barrier(ctx); err != nil {
			return fmt.Errorf("commit barrier: %w", err)
		}
	}
	for _, t := range tasks {
		if e := p.found[t]; e != nil {
			p.answerFound(t, e)
			continue
		}
		p.fold(t)
	}
	return nil
}

// answerFound answers a task from the entry that its key, or its link, has.
func (p *plan) answerFound(t *task, e *Entry) {
	account := p.working[p.accounts[t.op.AccountID]].head.Account
	own := e.TransactionID == t.transactionID
	switch {
	case e.RequestHash == t.requestHash:
		if !own {
			p.r.w.metrics.replays.Inc()
		}
		t.succeed(&Receipt{Entry: *e, Account: account, Replayed: !own, Unchanged: !own && e.Kind == KindOpened})
	case t.op.Kind == KindOpened:
		t.fail(refuse(CodeAccountExists, "The account %s exists with other attributes.", t.op.AccountID))
	default:
		t.fail(refuse(CodeKeyReused, "The idempotency key was used on %s for another operation, at seq %d.", t.op.AccountID, e.Seq))
	}
}

// fold decides one task on top of what the batch has so far.
func (p *plan) fold(t *task) {
	i, ok := p.accounts[t.op.AccountID]
	if !ok { // forgotten between ask and now; cannot happen, and costs one look
		p.wait(t)
		return
	}
	key := scopedKey{t.op.AccountID, t.op.Key}
	if n, ok := p.byKey[key]; ok && t.op.Key != "" {
		p.follow = append(p.follow, follower{t, n})
		return
	}
	w := &p.working[i]
	head := &w.head
	if !w.exists {
		head = nil
	}
	e, refusal := decide(head, t.op, p.at)
	if refusal == nil && e != nil && e.Kind == KindDeclined {
		refusal = p.limitDeclines(t)
	}
	switch {
	case refusal != nil && w.fresh:
		t.fail(refusal)
	case e == nil && refusal == nil && w.fresh:
		t.succeed(&Receipt{Entry: headEntry(&w.head), Account: w.head.Account, Unchanged: true})
	case refusal != nil || e == nil:
		p.wait(t)
	default:
		p.add(t, w, e)
	}
}

// limitDeclines refuses a decline that the account has no room for. A task
// whose first append may still succeed is not refused: its link may exist.
func (p *plan) limitDeclines(t *task) *Refusal {
	if t.unknown || t.counted {
		return nil
	}
	if p.r.lane.heads.mayDecline(t.op.AccountID, p.r.w.cfg.Declines, time.Now()) {
		t.counted = true
		return nil
	}
	return refuse(CodeTooManyDeclines, "Too many operations on %s were declined lately. Repeat the request later.", t.op.AccountID)
}

func (p *plan) add(t *task, w *working, e *Entry) {
	seal(e, t, w.head.Hash)
	account := w.head.Account
	w.head = headAfter(account, e, t.op)
	w.exists, w.fresh = true, false
	w.added++
	t.attempted = e.Seq
	receipt := &Receipt{Entry: *e, Account: w.head.Account}
	if t.op.Key != "" {
		p.byKey[scopedKey{t.op.AccountID, t.op.Key}] = len(p.links)
	}
	p.links = append(p.links, link{t, receipt})
	p.write.entries = append(p.write.entries, &receipt.Entry)
	if e.Kind == KindOpened {
		p.write.opened = append(p.write.opened, w.head)
	}
	if e.Kind == KindSettings && t.op.Change.Metadata != nil {
		p.write.change(w.head)
	}
}

// wait leaves the task for another round, which reads before it decides.
func (p *plan) wait(t *task) {
	t.mustLook = true
	p.waiting = append(p.waiting, t)
}

// committed remembers the new heads and answers everybody whose link is durable now.
func (p *plan) committed() {
	lane, m := p.r.lane, p.r.w.metrics
	var hints []Committed
	for i := range p.working {
		if w := &p.working[i]; w.added > 0 {
			lane.heads.put(w.head, p.st.life)
			if p.r.w.cfg.Committed != nil {
				hints = append(hints, Committed{w.head.Account.ID, w.head.Seq})
			}
		}
	}
	for _, l := range p.links {
		e := &l.receipt.Entry
		m.entries.WithLabelValues(string(e.Kind)).Inc()
		if e.Kind == KindDeclined {
			m.declines.WithLabelValues(e.Reason).Inc()
		}
		if e.Key != "" {
			lane.keys.add(l.task.fingerprint)
		}
	}
	for _, f := range p.follow {
		p.answerFound(f.task, &p.links[f.link].receipt.Entry)
	}
	for _, l := range p.links {
		l.task.succeed(l.receipt)
	}
	if len(hints) > 0 {
		p.r.w.cfg.Committed(hints)
	}
}

// unanswered returns every task of a round whose write did not happen.
func (p *plan) unanswered() []*task {
	tasks := make([]*task, 0, len(p.links)+len(p.follow)+len(p.waiting))
	for _, l := range p.links {
		tasks = append(tasks, l.task)
	}
	for _, f := range p.follow {
		tasks = append(tasks, f.task)
	}
	return append(tasks, p.waiting...)
}

// headEntry is the answer to a settings change that changed nothing: the head
// as far as a head knows it.
func headEntry(h *Head) Entry {
	return Entry{AccountID: h.Account.ID, Seq: h.Seq, Kind: KindSettings, After: h.State, PostedAt: h.PostedAt, EffectiveAt: h.PostedAt, Hash: h.Hash, HashVersion: HashVersion}
}
