package ledger

import (
	"fmt"
	"maps"
)

// model is the ledger as plain Go, written from the contract and not from the
// code: accounts in a map, one operation at a time. TestModel holds the real
// writers against it.
type model struct{ accounts map[AccountID]*modelAccount }

type modelAccount struct {
	opening  string // what it was opened with
	currency Currency
	metadata Metadata
	seq      Seq
	state    State
	keys     map[string]modelLink
}

// modelLink is an entry as far as the model has it.
type modelLink struct {
	meaning string
	kind    Kind
	reason  Code
	seq     Seq
	after   State
	legs    string // of an operation with several: all links of it
}

// modelAnswer is what a caller is told: refusal alone, or the rest.
type modelAnswer struct {
	refusal             Code
	link                modelLink
	replayed, unchanged bool
}

func (a modelAnswer) String() string {
	if a.refusal != "" {
		return "refused: " + string(a.refusal)
	}
	return fmt.Sprintf("%s %s at %d, %+v, replayed %v, unchanged %v%s", a.link.kind, a.link.reason, a.link.seq, a.link.after, a.replayed, a.unchanged, a.link.legs)
}

func newModel() *model { return &model{accounts: map[AccountID]*modelAccount{}} }

func (m *model) clone() *model {
	c := newModel()
	for id, a := range m.accounts {
		copied := *a
		copied.keys = maps.Clone(a.keys)
		c.accounts[id] = &copied
	}
	return c
}

// apply does the operation and returns the answer to it.
func (m *model) apply(op *Operation) modelAnswer {
	a := m.accounts[op.AccountID]
	if op.Kind == KindOpened {
		return m.open(a, op)
	}
	if a == nil {
		return modelAnswer{refusal: CodeAccountNotFound}
	}
	if old, ok := a.keys[op.Key]; ok && op.Key != "" {
		if old.meaning != meaning(op) {
			return modelAnswer{refusal: CodeKeyReused}
		}
		return modelAnswer{link: old, replayed: true}
	}
	switch op.Kind {
	case KindTransfer, KindTransaction:
		return m.together(a, op)
	case KindFenced:
		return a.fenced(op)
	}
	if refusal := a.token(op.Kind, op.Token); refusal != "" {
		return modelAnswer{refusal: refusal}
	}
	if op.IfMatch != 0 && op.IfMatch != a.seq {
		return modelAnswer{refusal: CodeSeqMismatch}
	}
	if op.Kind == KindSettings {
		return a.settings(op)
	}
	return a.movement(op)
}

func (m *model) open(a *modelAccount, op *Operation) modelAnswer {
	if a != nil {
		if a.opening != meaning(op) {
			return modelAnswer{refusal: CodeAccountExists}
		}
		first := State{MinBalance: op.Opening.MinBalance, Status: Active, Fencing: op.Opening.Fencing}
		return modelAnswer{link: modelLink{kind: KindOpened, seq: 1, after: first}, replayed: true, unchanged: true}
	}
	a = &modelAccount{
		opening: meaning(op), currency: op.Opening.Currency, metadata: op.Metadata, seq: 1, keys: map[string]modelLink{},
		state: State{MinBalance: op.Opening.MinBalance, Status: Active, Fencing: op.Opening.Fencing},
	}
	m.accounts[op.AccountID] = a
	return modelAnswer{link: modelLink{kind: KindOpened, seq: 1, after: a.state}}
}

// together does all legs of an operation, or none.
func (m *model) together(first *modelAccount, op *Operation) modelAnswer {
	sums := map[Currency]Amount{}
	for _, leg := range op.Legs {
		a := m.accounts[leg.AccountID]
		if a == nil {
			return modelAnswer{refusal: CodeAccountNotFound}
		}
		if refusal := a.token(leg.Kind, leg.Token); refusal != "" {
			return modelAnswer{refusal: refusal}
		}
		if leg.Kind == KindDebit {
			leg.Amount = -leg.Amount
		}
		sums[a.currency] += leg.Amount
	}
	declined := func(reason Code) modelAnswer {
		after := first.state
		after.Fence = max(after.Fence, op.Legs[0].Token)
		return first.link(op, KindDeclined, reason, after)
	}
	if op.Kind == KindTransfer && op.Legs[0].AccountID == op.Legs[1].AccountID {
		return declined(CodeSameAccount)
	}
	for _, sum := range sums {
		if sum != 0 {
			return declined(CodeCurrencyMismatch)
		}
	}
	after := m.clone()
	var links []modelLink
	for _, leg := range op.Legs {
		a := after.accounts[leg.AccountID]
		one := &Operation{Kind: leg.Kind, AccountID: leg.AccountID, Amount: leg.Amount, Currency: op.Currency, Token: leg.Token}
		if reason := a.refusal(one); reason != "" {
			return declined(reason)
		}
		if refusal := a.token(leg.Kind, leg.Token); refusal != "" {
			return modelAnswer{refusal: refusal}
		}
		links = append(links, a.movement(one).link)
	}
	l := links[0]
	l.meaning, l.legs = meaning(op), ""
	for i, leg := range op.Legs {
		l.legs += legText(leg.AccountID, links[i].kind, links[i].seq, links[i].after)
	}
	after.accounts[op.AccountID].keys[op.Key] = l
	m.accounts = after.accounts
	return modelAnswer{link: l}
}

func legText(id AccountID, kind Kind, seq Seq, after State) string {
	return fmt.Sprintf("\n    %s of %s at %d, %+v", kind, id, seq, after)
}

// fenced raises the fence for a new owner.
func (a *modelAccount) fenced(op *Operation) modelAnswer {
	after := a.state
	switch after.Fence = op.Token; {
	case after.Fencing.Source == SourceExternal:
		return modelAnswer{refusal: CodeFencingExternal}
	case after.Status == Closed:
		return modelAnswer{refusal: CodeAccountClosed}
	case op.Token <= a.state.Fence:
		return modelAnswer{refusal: CodeLeaseHeld}
	}
	return a.link(op, KindFenced, "", after)
}

func (a *modelAccount) token(kind Kind, token Token) Code {
	s := a.state
	if token == 0 {
		if s.Fencing.Required && kind != KindSettings {
			return CodeTokenRequired
		}
		return ""
	}
	if token < s.Fence {
		return CodeStaleToken
	}
	if token > s.Fence && s.Fencing.Source == SourceLease {
		return CodeTokenFromTheFuture
	}
	return ""
}

// link adds a link with the state; the token of the operation is the fence then.
func (a *modelAccount) link(op *Operation, kind Kind, reason Code, after State) modelAnswer {
	a.seq++
	a.state = after
	l := modelLink{meaning: meaning(op), kind: kind, reason: reason, seq: a.seq, after: after}
	if op.Key != "" {
		a.keys[op.Key] = l
	}
	return modelAnswer{link: l}
}

func (a *modelAccount) settings(op *Operation) modelAnswer {
	before, c := a.state, op.Change
	if before.Status == Closed {
		return modelAnswer{refusal: CodeAccountClosed}
	}
	after := before
	after.Fence = max(before.Fence, op.Token)
	after.Status = or(c.Status, before.Status)
	after.MinBalance = or(c.MinBalance, before.MinBalance)
	after.Fencing = Fencing{or(c.FencingSource, before.Fencing.Source), or(c.Required, before.Fencing.Required)}
	if c.ResetFence != nil {
		if before.Fencing.Source == SourceLease && after.Fencing.Source == SourceLease || *c.ResetFence > before.Fence {
			return modelAnswer{refusal: CodeFencingResetRefused}
		}
		after.Fence = *c.ResetFence
	}
	if after.Status == Closed && before.Balance != 0 {
		return modelAnswer{refusal: CodeAccountNotEmpty}
	}
	if before.Balance-after.MinBalance > MaxAmount {
		return modelAnswer{refusal: CodeBalanceLimit}
	}
	metadata := a.metadata
	if c.Metadata != nil {
		metadata = c.Metadata
	}
	if after == before && metadata.String() == a.metadata.String() {
		return modelAnswer{link: modelLink{kind: KindSettings, seq: a.seq, after: before}, unchanged: true}
	}
	a.metadata = metadata
	return a.link(op, KindSettings, Code(c.Reason), after)
}

func (a *modelAccount) movement(op *Operation) modelAnswer {
	after := a.state
	after.Fence = max(after.Fence, op.Token)
	reason := a.refusal(op)
	if reason != "" {
		return a.link(op, KindDeclined, reason, after)
	}
	if op.Kind == KindCredit {
		after.Balance += op.Amount
	} else {
		after.Balance -= op.Amount
	}
	return a.link(op, op.Kind, "", after)
}

func (a *modelAccount) refusal(op *Operation) Code {
	in := op.Kind == KindCredit
	switch s := a.state; {
	case op.Currency != "" && op.Currency != a.currency:
		return CodeCurrencyMismatch
	case s.Status == Closed:
		return CodeAccountClosed
	case s.Status == Frozen && !in:
		return CodeAccountFrozen
	case !in && s.Balance-op.Amount < s.MinBalance:
		return CodeInsufficientFunds
	case in && (s.Balance+op.Amount > MaxAmount || s.Balance+op.Amount-s.MinBalance > MaxAmount):
		return CodeBalanceLimit
	}
	return ""
}

func or[T any](p *T, otherwise T) T {
	if p != nil {
		return *p
	}
	return otherwise
}
