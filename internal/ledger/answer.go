package ledger

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// answerKnown answers the tasks whose entry was found by reading. What was read
// may not be on the synchronous standbys yet, so that is waited for first, once
// for all of them.
func (p *plan) answerKnown(ctx context.Context, conn *pgx.Conn, known []*task) error {
	if len(known) == 0 {
		return nil
	}
	if p.st.standbys {
		if err := p.r.w.barrier(ctx); err != nil {
			return fmt.Errorf("commit barrier: %w", err)
		}
	}
	if err := p.findLegs(ctx, conn, known); err != nil {
		return err
	}
	for _, t := range known {
		p.answerFound(t, p.found[t])
	}
	return nil
}

// findLegs reads the other entries of the transactions that keys have led to.
// They never change, so they need not be of the look's snapshot.
func (p *plan) findLegs(ctx context.Context, conn *pgx.Conn, known []*task) error {
	var ids []uuid.UUID
	for _, t := range known {
		e := p.found[t]
		if len(t.op.Legs) > 0 && e.Kind != KindDeclined && e.RequestHash == t.requestHash {
			ids = append(ids, e.TransactionID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	entries, err := readTransactions(ctx, conn, ids)
	if err != nil {
		return err
	}
	p.legs = entries
	return nil
}

// answerFound answers a task from the entry that its key, or its link, has.
func (p *plan) answerFound(t *task, e *Entry) {
	own := e.TransactionID == t.transactionID
	switch {
	case e.RequestHash == t.requestHash:
		if !own {
			p.r.w.metrics.replays.Inc()
		}
		account := p.working[p.accounts[t.op.AccountID]].head.Account
		r := &Receipt{Entry: *e, Account: account, Replayed: !own, Unchanged: !own && e.Kind == KindOpened}
		if len(t.op.Legs) > 0 && e.Kind != KindDeclined {
			var ok bool
			if r.Legs, ok = inLegOrder(t.op.Legs, p.legs[e.TransactionID]); !ok {
				t.fail(refuse(CodeInternal, "The entries of transaction %s are damaged.", e.TransactionID))
				return
			}
		}
		t.succeed(r)
	case t.op.Kind == KindOpened:
		t.fail(refuse(CodeAccountExists, "The account %s exists with other attributes.", t.op.AccountID))
	default:
		t.fail(keyReused(t, e))
	}
}

func keyReused(t *task, e *Entry) *Refusal {
	return refuse(CodeKeyReused, "The idempotency key was used on %s for another operation, at seq %d.", t.op.AccountID, e.Seq)
}

// inLegOrder brings the entries of a transaction, which come by account and
// seq, into the order of the legs. It reports false when they are not those of
// the legs, as in a damaged database.
func inLegOrder(legs []Leg, entries []TransactionEntry) ([]TransactionEntry, bool) {
	next := make(map[AccountID]int, len(entries)) // where the account's entries start
	for i := len(entries) - 1; i >= 0; i-- {
		next[entries[i].Entry.AccountID] = i
	}
	ordered := make([]TransactionEntry, 0, len(legs))
	for i := range legs {
		n, ok := next[legs[i].AccountID]
		if !ok || n >= len(entries) || entries[n].Entry.AccountID != legs[i].AccountID {
			return nil, false
		}
		next[legs[i].AccountID]++
		ordered = append(ordered, entries[n])
	}
	return ordered, len(entries) == len(legs)
}

// committed remembers the new heads and answers everybody whose link is durable now.
func (p *plan) committed() {
	w, m := p.r.w, p.r.w.metrics
	var hints []Committed
	for i := range p.working {
		if a := &p.working[i]; a.added > 0 {
			id := a.head.Account.ID
			w.laneOf(id).heads.put(a.head, p.st.life)
			if w.cfg.Committed != nil {
				hints = append(hints, Committed{id, a.head.Seq})
			}
		}
	}
	for _, e := range p.write.entries {
		m.entries.WithLabelValues(string(e.Kind)).Inc()
		if e.Kind == KindDeclined {
			m.declines.WithLabelValues(e.Reason).Inc()
		}
	}
	for _, l := range p.links {
		if l.task.op.Key != "" {
			w.laneOf(l.task.op.AccountID).keys.add(l.task.fingerprint)
		}
	}
	for _, f := range p.follow {
		p.answerFollower(f.task, p.links[f.link].receipt)
	}
	for _, l := range p.links {
		l.task.succeed(l.receipt)
	}
	if len(hints) > 0 {
		w.cfg.Committed(hints)
	}
}

// answerFollower answers a task whose key a link of this very batch has.
func (p *plan) answerFollower(t *task, r *Receipt) {
	if r.Entry.RequestHash != t.requestHash {
		t.fail(keyReused(t, &r.Entry))
		return
	}
	p.r.w.metrics.replays.Inc()
	again := *r
	again.Replayed = true
	t.succeed(&again)
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
