package ledger

import (
	"cmp"
	"time"

	"github.com/google/uuid"
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
	legs     map[uuid.UUID][]TransactionEntry // of found transactions
	single   [1]*Entry                        // the link of an operation without legs

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
	// blocked is true once an operation on the account was left for another
	// round: those behind it wait too, so that their order stays.
	blocked bool
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
	p.legs = nil
	p.waiting = nil // handed to the caller
	p.question.reset()
	p.write.reset(st.life, p.at)
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
		whole := all || t.mustLook || p.r.w.laneOf(t.op.AccountID).keys.has(t.fingerprint)
		for _, id := range t.accounts {
			if p.asked[id] || !whole && p.remembered(id) {
				continue
			}
			p.asked[id] = true
			p.question.accounts = append(p.question.accounts, string(id))
		}
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
	head, ok := p.r.w.laneOf(id).heads.get(id, p.st.life)
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
	p.write.at = p.at
	until := time.Now().Add(p.r.w.cfg.ContendedFor)
	for id := range p.asked {
		w := working{fresh: true}
		if head := a.heads[id]; head != nil {
			w.head, w.exists = *head, true
			if p.r.w.laneOf(id).heads.observed(*head, p.st.life, until) {
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

// known takes out the tasks whose entry the look found.
func (p *plan) known(tasks []*task) (rest, known []*task) {
	if len(p.found) == 0 {
		return tasks, nil
	}
	rest = make([]*task, 0, len(tasks))
	for _, t := range tasks {
		if p.found[t] != nil {
			known = append(known, t)
		} else {
			rest = append(rest, t)
		}
	}
	return rest, known
}

// foldAll folds the tasks, in their order, into the write.
func (p *plan) foldAll(tasks []*task) {
	for _, t := range tasks {
		p.fold(t)
	}
}

// fold decides one task on top of what the batch has so far.
func (p *plan) fold(t *task) {
	for _, id := range t.accounts {
		if p.of(id).blocked {
			p.wait(t)
			return
		}
	}
	if t.op.Key != "" {
		if n, ok := p.byKey[scopedKey{t.op.AccountID, t.op.Key}]; ok {
			p.follow = append(p.follow, follower{t, n})
			return
		}
	}
	links, blamed, refusal := p.decideTask(t)
	declined := len(links) > 0 && links[0].Kind == KindDeclined
	if declined {
		// The INSERT checks the head that the decline is written on, but not that
		// of another account which is the reason for it.
		if w := p.of(blamed); blamed != t.op.AccountID && !w.fresh && w.added == 0 {
			p.wait(t)
			return
		}
		refusal = p.limitDeclines(t)
	}
	fresh := p.of(blamed).fresh && p.asked[t.op.AccountID]
	switch {
	case refusal != nil && fresh:
		t.fail(refusal)
	case len(links) == 0 && refusal == nil && fresh:
		w := p.of(t.op.AccountID)
		t.succeed(&Receipt{Entry: headEntry(&w.head), Account: w.head.Account, Unchanged: true})
	case refusal != nil || len(links) == 0:
		p.wait(t)
	default:
		p.add(t, links)
	}
}

// decideTask returns the links of the task, or why there are none, and the
// account that is the reason.
func (p *plan) decideTask(t *task) ([]*Entry, AccountID, *Refusal) {
	if len(t.op.Legs) > 0 {
		links, blamed, r := decideLegs(p.head, t.op, p.at)
		return links, cmp.Or(blamed, t.op.AccountID), r
	}
	e, r := decide(p.head(t.op.AccountID), t.op, p.at)
	if e == nil {
		return nil, t.op.AccountID, r
	}
	p.single[0] = e
	return p.single[:], t.op.AccountID, nil
}

func (p *plan) of(id AccountID) *working { return &p.working[p.accounts[id]] }

// head returns the head of an account as this batch sees it, nil when the
// account does not exist.
func (p *plan) head(id AccountID) *Head {
	if w := p.of(id); w.exists {
		return &w.head
	}
	return nil
}

// limitDeclines refuses a decline that the account has no room for. A task
// whose first append may still succeed is not refused: its link may exist.
func (p *plan) limitDeclines(t *task) *Refusal {
	if t.unknown || t.counted {
		return nil
	}
	if p.r.w.laneOf(t.op.AccountID).heads.mayDecline(t.op.AccountID, p.r.w.cfg.Declines, time.Now()) {
		t.counted = true
		return nil
	}
	return refuse(CodeTooManyDeclines, "Too many operations on %s were declined lately. Repeat the request later.", t.op.AccountID)
}

// add puts the links of a task into the write and moves the heads on.
func (p *plan) add(t *task, links []*Entry) {
	receipt := &Receipt{}
	if len(links) > 1 {
		receipt.Legs = make([]TransactionEntry, len(links))
	}
	for i, e := range links {
		w := p.of(e.AccountID)
		if i == 0 {
			seal(e, t, w.head.Hash)
		} else {
			sealFurther(e, t, w.head.Hash)
		}
		w.head = headAfter(w.head.Account, e, t.op)
		w.exists, w.fresh = true, false
		w.added++
		if i == 0 {
			t.attempted = e.Seq
			receipt.Entry, receipt.Account = *e, w.head.Account
		}
		stored := &receipt.Entry
		if receipt.Legs != nil {
			receipt.Legs[i] = TransactionEntry{Account: w.head.Account, Entry: *e}
			stored = &receipt.Legs[i].Entry
		}
		p.write.entries = append(p.write.entries, stored)
		if e.Kind == KindOpened {
			p.write.opened = append(p.write.opened, w.head)
		}
		if e.Kind == KindSettings && t.op.Change.Metadata != nil {
			p.write.change(w.head)
		}
	}
	if t.op.Key != "" {
		p.byKey[scopedKey{t.op.AccountID, t.op.Key}] = len(p.links)
	}
	p.links = append(p.links, link{t, receipt})
}

// wait leaves the task, and those behind it on its accounts, for another round,
// which reads before it decides.
func (p *plan) wait(t *task) {
	t.mustLook = true
	for _, id := range t.accounts {
		p.of(id).blocked = true
	}
	p.waiting = append(p.waiting, t)
}
