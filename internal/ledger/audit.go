package ledger

import (
	"fmt"
	"strings"
)

// Finding is one way in which a chain is not what it must be.
type Finding struct {
	AccountID AccountID
	Seq       Seq
	Rule      Rule
	// Detail is one sentence for a person.
	Detail string
}

// String returns the finding as one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s/%d: %s: %s", f.AccountID, f.Seq, f.Rule, f.Detail)
}

// Rule names an invariant of the chain.
type Rule string

// The rules that an Auditor checks.
const (
	// RuleSeq: the seqs of an account are 1, 2, 3 … without gaps.
	RuleSeq Rule = "seq"
	// RuleHash: an entry's hash is that of its content and its predecessor's hash.
	RuleHash Rule = "hash"
	// RuleState: the state after an entry is the state before it plus what its
	// kind and amount do.
	RuleState Rule = "state"
	// RuleFence: the fence never falls, but by a reset.
	RuleFence Rule = "fence"
	// RuleTime: posting times never go back.
	RuleTime Rule = "time"
	// RuleContent: an entry is readable and has what its kind needs.
	RuleContent Rule = "content"
)

// Auditor checks the chain of one account, entry by entry, from what the
// entries themselves say. It shares no code with the decision: a defect there
// is found here. It needs no memory beyond the last entry.
type Auditor struct {
	id      AccountID
	seq     Seq
	hash    [32]byte
	last    Entry
	account Account
}

// NewAuditor returns an auditor that expects the first entry of the account.
func NewAuditor(id AccountID) *Auditor { return &Auditor{id: id, hash: genesis} }

// Seq returns the seq of the last entry that was added, 0 before the first.
func (a *Auditor) Seq() Seq { return a.seq }

// State returns the state after the last entry that was added.
func (a *Auditor) State() State { return a.last.After }

// Account returns what the chain says about the account: what it was opened
// with, and its metadata now.
func (a *Auditor) Account() Account { return a.account }

// Add checks the next entry, in the order of the seqs, and returns what is
// wrong with it. After a finding it goes on from the entry as it is, so that one
// damage is reported once.
func (a *Auditor) Add(e *Entry) []Finding {
	var found []Finding
	report := func(rule Rule, format string, args ...any) {
		found = append(found, Finding{a.id, e.Seq, rule, fmt.Sprintf(format, args...)})
	}
	first := a.seq == 0
	if e.AccountID != a.id {
		report(RuleContent, "the entry belongs to %s", e.AccountID)
	}
	if e.Seq != a.seq+1 {
		report(RuleSeq, "the entry after %d has seq %d", a.seq, e.Seq)
	}
	if first != (e.Kind == KindOpened) {
		report(RuleContent, "an account is opened by its first entry and by no other; this one is %s", e.Kind)
	}
	if e.HashVersion != HashVersion {
		report(RuleHash, "hash version %d is unknown", e.HashVersion)
	} else if ChainHash(a.hash, e) != e.Hash {
		report(RuleHash, "the hash does not fit the content and the entry before")
	}
	if !first && e.PostedAt.Before(a.last.PostedAt) {
		report(RuleTime, "posted before the entry before it")
	}
	a.checkState(e, report)
	a.checkFence(e, report)
	a.checkContent(e, report)
	a.seq, a.hash, a.last = e.Seq, e.Hash, *e
	return found
}

type reporter func(rule Rule, format string, args ...any)

func (a *Auditor) checkState(e *Entry, report reporter) {
	before, want := a.last.After, a.last.After
	want.Fence = e.After.Fence // has a rule of its own
	switch e.Kind {
	case KindOpened:
		want = State{MinBalance: e.After.MinBalance, Status: Active, Fencing: e.After.Fencing}
	case KindSettings:
		want.Status, want.MinBalance, want.Fencing = e.After.Status, e.After.MinBalance, e.After.Fencing
		if before.Status == Closed {
			report(RuleState, "settings changed after the account was closed")
		}
	case KindCredit:
		want.Balance += e.Amount
	case KindDebit:
		want.Balance -= e.Amount
		if before.Available() < e.Amount {
			report(RuleState, "debit of %d with %d available", e.Amount, before.Available())
		}
	case KindDeclined, KindFenced:
	default:
		report(RuleContent, "kind %q is unknown", e.Kind)
		return
	}
	if e.After != want {
		report(RuleState, "after %s with amount %d: %s", e.Kind, e.Amount, stateDifference(before, e.After, want))
	}
	if before.Status != Active && e.Kind == KindDebit || before.Status == Closed && e.Kind == KindCredit {
		report(RuleState, "%s on an account that is %s", e.Kind, before.Status)
	}
	if e.Kind == KindSettings && e.After.Status == Closed && (e.After.Balance != 0 || e.After.Held != 0) {
		report(RuleState, "closed with balance %d and held %d", e.After.Balance, e.After.Held)
	}
	if b := e.After.Balance; b > MaxAmount || b < -MaxAmount || e.After.Available() > MaxAmount {
		report(RuleState, "balance %d or available %d is out of range", b, e.After.Available())
	}
}

// stateDifference names what is not as expected after an entry.
func stateDifference(before, after, want State) string {
	var found []string
	for _, f := range []struct {
		name                string
		before, after, want any
	}{
		{"balance", before.Balance, after.Balance, want.Balance},
		{"held", before.Held, after.Held, want.Held},
		{"min_balance", before.MinBalance, after.MinBalance, want.MinBalance},
		{"status", before.Status, after.Status, want.Status},
		{"fencing", before.Fencing, after.Fencing, want.Fencing},
	} {
		if f.after != f.want {
			found = append(found, fmt.Sprintf("%s %v before it, %v after it, expected %v", f.name, f.before, f.after, f.want))
		}
	}
	return strings.Join(found, "; ")
}

func (a *Auditor) checkFence(e *Entry, report reporter) {
	before, after := a.last.After.Fence, e.After.Fence
	details, _ := ParseDetails(e.Details) // unreadable details are reported by checkContent
	switch {
	case e.Kind == KindFenced && after <= before:
		report(RuleFence, "a new owner got token %d, not above %d", after, before)
	case e.Kind == KindSettings && details.Reset:
		if e.Reason == "" {
			report(RuleFence, "the fence was reset without a reason")
		}
		if after > before {
			report(RuleFence, "a reset raised the fence from %d to %d", before, after)
		}
	case after < before:
		report(RuleFence, "the fence fell from %d to %d", before, after)
	case after > before && e.Kind != KindFenced && a.last.After.Fencing.Source != SourceExternal:
		report(RuleFence, "the fence rose from %d to %d without a new owner", before, after)
	}
}

func (a *Auditor) checkContent(e *Entry, report reporter) {
	details, err := ParseDetails(e.Details)
	if err != nil {
		report(RuleContent, "details are not readable: %v", err)
		return
	}
	if details.String() != e.Details {
		report(RuleContent, "details are not in canonical form")
	}
	money := e.Kind == KindCredit || e.Kind == KindDebit || e.Kind == KindDeclined
	if !money && e.Key != "" || e.Kind == KindDeclined && e.Key == "" || money != (e.Amount > 0) {
		report(RuleContent, "%s with amount %d and key %q", e.Kind, e.Amount, e.Key)
	}
	if (e.Kind == KindDeclined) != (details.Attempted != "") || e.Kind == KindDeclined && e.Reason == "" {
		report(RuleContent, "a declined entry, and no other, says what was attempted and why not")
	}
	switch {
	case e.Kind == KindOpened:
		a.account = Account{ID: a.id, Currency: details.Currency, Metadata: details.Metadata, OpenedAt: e.PostedAt}
		if details.Exponent == nil || details.Currency == "" {
			report(RuleContent, "the opening names no currency or exponent")
			return
		}
		a.account.Exponent = *details.Exponent
	case e.Kind == KindSettings && details.Metadata != nil:
		a.account.Metadata = details.Metadata
	}
}
