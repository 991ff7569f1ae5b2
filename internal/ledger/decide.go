package ledger

import "time"

// decide computes the link that op adds after head, or why it adds none. It is
// pure: the same head, operation and time give the same answer. The caller
// fills in what does not depend on the state (transaction, key, hashes).
//
// The order of the checks is part of the contract: the token, then If-Match,
// then the business rules. (The key comes before all of them; the writer has
// looked it up, or the INSERT will.)
//
// A refusal that is recorded comes back as a link of KindDeclined; one that
// writes nothing as *Refusal; a settings change without effect as neither.
func decide(head *Head, op *Operation, at time.Time) (*Entry, *Refusal) {
	if op.Kind == KindOpened {
		return decideOpening(head, op, at)
	}
	if head == nil {
		return nil, refuse(CodeAccountNotFound, "There is no account %s.", op.AccountID)
	}
	if op.Kind == KindFenced {
		return decideFence(head, op, at)
	}
	fence, r := decideToken(head, op.Kind, op.Token)
	if r != nil {
		return nil, r
	}
	if op.IfMatch != 0 && op.IfMatch != head.Seq {
		r := refuse(CodeSeqMismatch, "The account is at seq %d, the request expects %d. Read again and decide again.", head.Seq, op.IfMatch)
		r.Presented, r.Current = int64(op.IfMatch), int64(head.Seq)
		return nil, r
	}
	if op.Kind == KindSettings {
		return decideSettings(head, op, fence, at)
	}
	leg := Leg{AccountID: op.AccountID, Kind: op.Kind, Amount: op.Amount, Token: op.Token}
	if reason := refuseMovement(head, op.Currency, &leg); reason != "" {
		return decline(head, op, fence, reason, op.AccountID, at), nil
	}
	return move(head, op, &leg, fence, op.Counterparty, at), nil
}

// decideToken applies the account's fencing rule to a write of the kind and
// returns the fence after it. Settings are the operator's and never need a
// token, so that a wrong rule can be taken back.
func decideToken(head *Head, kind Kind, token Token) (Token, *Refusal) {
	id, fence, rule := head.Account.ID, head.State.Fence, head.State.Fencing
	var r *Refusal
	switch {
	case token == 0 && rule.Required && kind != KindSettings:
		return 0, refuse(CodeTokenRequired, "Writes to %s must carry a Fencing-Token.", id)
	case token == 0 || token == fence:
		return fence, nil
	case token < fence:
		r = refuse(CodeStaleToken, "Token %d is older than %d: somebody else owns %s now. Stop.", token, fence, id)
	case rule.Source == SourceExternal:
		return token, nil
	default:
		r = refuse(CodeTokenFromTheFuture, "Token %d was never handed out for %s: its newest is %d.", token, id, fence)
	}
	r.Presented, r.Current, r.AccountID = int64(token), int64(fence), id
	return 0, r
}

// decideFence makes the link that shuts out every older token before a new
// owner of the account's lease is told that it is one. A token that is not
// above the fence belongs to an acquirer that lost meanwhile.
func decideFence(head *Head, op *Operation, at time.Time) (*Entry, *Refusal) {
	s := head.State
	switch {
	case s.Fencing.Source != SourceLease:
		return nil, refuse(CodeFencingExternal, "The tokens of %s come from another coordinator.", op.AccountID)
	case s.Status == Closed:
		return nil, refuse(CodeAccountClosed, "The account %s is closed.", op.AccountID)
	case op.Token <= s.Fence:
		r := refuse(CodeLeaseHeld, "Somebody else acquired the lease of %s meanwhile.", op.AccountID)
		r.Presented, r.Current = int64(op.Token), int64(s.Fence)
		return nil, r
	}
	e := next(head, op, at)
	e.After = s
	e.After.Fence = op.Token
	return e, nil
}

func decideOpening(head *Head, op *Operation, at time.Time) (*Entry, *Refusal) {
	if head != nil {
		return nil, refuse(CodeAccountExists, "The account %s exists with other attributes.", op.AccountID)
	}
	exponent := op.Opening.Exponent
	details := Details{Currency: op.Opening.Currency, Exponent: &exponent}
	if len(op.Metadata) > 0 {
		details.Metadata = op.Metadata
	}
	posted := at.UTC().Truncate(time.Microsecond)
	return &Entry{
		AccountID:   op.AccountID,
		Seq:         1,
		Kind:        KindOpened,
		After:       State{MinBalance: op.Opening.MinBalance, Status: Active, Fencing: op.Opening.Fencing},
		Details:     details.String(),
		EffectiveAt: posted,
		PostedAt:    posted,
	}, nil
}

func decideSettings(head *Head, op *Operation, fence Token, at time.Time) (*Entry, *Refusal) {
	c, before := op.Change, head.State
	after := before
	after.Fence = fence
	if c.Status != nil {
		after.Status = *c.Status
	}
	if c.MinBalance != nil {
		after.MinBalance = *c.MinBalance
	}
	if c.FencingSource != nil {
		after.Fencing.Source = *c.FencingSource
	}
	if c.Required != nil {
		after.Fencing.Required = *c.Required
	}
	if c.ResetFence != nil {
		external := before.Fencing.Source == SourceExternal || after.Fencing.Source == SourceExternal
		if !external || *c.ResetFence > before.Fence {
			return nil, refuse(CodeFencingResetRefused,
				"A reset lowers the fence (now %d) of an account whose token source is external before or after it.", before.Fence)
		}
		after.Fence = *c.ResetFence
	}
	sameMetadata := c.Metadata == nil || c.Metadata.String() == head.Account.Metadata.String()
	if after == before && sameMetadata {
		return nil, nil // also for a closed account, so that closing can be repeated
	}
	if before.Status == Closed {
		return nil, refuse(CodeAccountClosed, "The account %s is closed.", op.AccountID)
	}
	if after.Status == Closed && (after.Balance != 0 || after.Held != 0) {
		return nil, refuse(CodeAccountNotEmpty, "Only an account with balance and held at 0 can be closed; these are %d and %d.", after.Balance, after.Held)
	}
	if after.Available() > MaxAmount {
		return nil, refuse(CodeBalanceLimit, "The available amount would exceed %d.", MaxAmount)
	}
	details := Details{Metadata: op.Change.Metadata, Reset: c.ResetFence != nil}
	e := next(head, op, at)
	e.After, e.Reason, e.Details = after, c.Reason, details.String()
	return e, nil
}

// decideLegs computes the links of an operation with several legs, in their
// order: all of them, or one declined entry in the chain of the first account.
// head gives the head of an account, nil when there is none. With a refusal or
// a decline it also says which account is the reason.
//
// Like decide it is pure, and the order of the checks is the same: what writes
// nothing is found out for all legs before any business rule is asked.
func decideLegs(head func(AccountID) *Head, op *Operation, at time.Time) ([]*Entry, AccountID, *Refusal) {
	heads := make(map[AccountID]*Head, len(op.Legs))
	for i := range op.Legs {
		leg := &op.Legs[i]
		h := heads[leg.AccountID]
		if h == nil {
			before := head(leg.AccountID)
			if before == nil {
				return nil, leg.AccountID, refuse(CodeAccountNotFound, "There is no account %s.", leg.AccountID)
			}
			copied := *before
			h = &copied
			heads[leg.AccountID] = h
		}
		if _, r := decideToken(h, leg.Kind, leg.Token); r != nil {
			return nil, leg.AccountID, r
		}
	}
	first := *heads[op.AccountID]
	links := make([]*Entry, 0, len(op.Legs))
	reason, blamed := refuseTogether(heads, op)
	for i := range op.Legs {
		leg := &op.Legs[i]
		h := heads[leg.AccountID]
		if reason == "" {
			reason, blamed = refuseMovement(h, op.Currency, leg), leg.AccountID
		}
		if reason != "" {
			fence, _ := decideToken(&first, op.Legs[0].Kind, op.Legs[0].Token) // accepted above
			return []*Entry{decline(&first, op, fence, reason, blamed, at)}, blamed, nil
		}
		fence, r := decideToken(h, leg.Kind, leg.Token)
		if r != nil { // a later leg of the account has an older token than an earlier one
			return nil, leg.AccountID, r
		}
		e := move(h, op, leg, fence, op.counterparty(i), at)
		h.Seq, h.State, h.PostedAt = e.Seq, e.After, e.PostedAt
		links = append(links, e)
	}
	return links, "", nil
}

// refuseTogether returns what is wrong with the legs as a whole, and the
// account at which it shows.
func refuseTogether(heads map[AccountID]*Head, op *Operation) (Code, AccountID) {
	if op.Kind == KindTransfer && op.Legs[0].AccountID == op.Legs[1].AccountID {
		return CodeSameAccount, op.AccountID
	}
	// Money does not change its currency on the way: each currency adds up to
	// zero for itself.
	sums := make(map[Currency]Amount, 1)
	for i := range op.Legs {
		sums[heads[op.Legs[i].AccountID].Account.Currency] += op.Legs[i].signed()
	}
	for i := range op.Legs {
		if id := op.Legs[i].AccountID; sums[heads[id].Account.Currency] != 0 && heads[id].Account.Currency != heads[op.AccountID].Account.Currency {
			return CodeCurrencyMismatch, id
		}
	}
	return "", ""
}

// move makes the link of one movement that the account takes.
func move(head *Head, op *Operation, leg *Leg, fence Token, counterparty string, at time.Time) *Entry {
	e := next(head, op, at)
	e.AccountID, e.Kind, e.Amount, e.Counterparty = leg.AccountID, leg.Kind, leg.Amount, counterparty
	e.After = head.State
	e.After.Fence = fence
	e.After.Balance += leg.signed()
	details := op.details()
	e.Details = details.String()
	return e
}

// decline makes the link that records a refusal under the operation's key. It
// moves nothing.
func decline(head *Head, op *Operation, fence Token, reason Code, blamed AccountID, at time.Time) *Entry {
	e := next(head, op, at)
	e.Kind, e.Amount, e.Reason = KindDeclined, op.Amount, string(reason)
	if len(op.Legs) > 0 {
		e.Amount, e.Counterparty = op.Legs[0].Amount, op.counterparty(0)
	}
	e.After = head.State
	e.After.Fence = fence
	details := op.details()
	details.Attempted = op.Kind
	if blamed != op.AccountID {
		details.RefusedBy = blamed
	}
	e.Details = details.String()
	return e
}

func (op *Operation) details() Details {
	d := Details{Description: op.Description}
	if len(op.Metadata) > 0 {
		d.Metadata = op.Metadata
	}
	return d
}

// counterparty returns what the entry of leg i says about the other side: its
// account when there are two legs, else what the operation says.
func (op *Operation) counterparty(i int) string {
	if len(op.Legs) == 2 {
		return string(op.Legs[1-i].AccountID)
	}
	return op.Counterparty
}

// refuseMovement returns why the account does not take the movement, "" when it does.
func refuseMovement(head *Head, currency Currency, leg *Leg) Code {
	s := head.State
	switch {
	case currency != "" && currency != head.Account.Currency:
		return CodeCurrencyMismatch
	case s.Status == Closed:
		return CodeAccountClosed
	case leg.Kind == KindDebit && s.Status == Frozen:
		return CodeAccountFrozen
	case leg.Kind == KindDebit && s.Available() < leg.Amount:
		return CodeInsufficientFunds
	// Written as subtractions from the limit, so that nothing can wrap.
	case leg.Kind == KindCredit && (s.Balance > MaxAmount-leg.Amount || s.Available() > MaxAmount-leg.Amount):
		return CodeBalanceLimit
	case leg.Kind == KindDebit && s.Balance < -MaxAmount+leg.Amount:
		return CodeBalanceLimit
	}
	return ""
}

// next returns the link after head with everything that is the same for all
// kinds. Time never goes back along a chain, whatever the clocks do.
func next(head *Head, op *Operation, at time.Time) *Entry {
	posted := at.UTC().Truncate(time.Microsecond)
	if posted.Before(head.PostedAt) {
		posted = head.PostedAt
	}
	effective := posted
	if !op.EffectiveAt.IsZero() {
		effective = op.EffectiveAt.UTC().Truncate(time.Microsecond)
	}
	return &Entry{
		AccountID:    op.AccountID,
		Seq:          head.Seq + 1,
		Kind:         op.Kind,
		Counterparty: op.Counterparty,
		EffectiveAt:  effective,
		PostedAt:     posted,
	}
}

// seal completes a link that decide made: whose request it is, and its place in
// the chain.
func seal(e *Entry, t *task, prev [32]byte) {
	e.Key = t.op.Key
	sealFurther(e, t, prev)
}

// sealFurther seals a link behind the first of an operation, which alone has
// the key.
func sealFurther(e *Entry, t *task, prev [32]byte) {
	e.TransactionID, e.RequestHash = t.transactionID, t.requestHash
	e.HashVersion = HashVersion
	e.Hash = ChainHash(prev, e)
}

// headAfter returns the head that an account has once e is its last entry.
// account is what was known before; an opened or settings entry brings its own
// part of it.
func headAfter(account Account, e *Entry, op *Operation) Head {
	switch {
	case e.Kind == KindOpened:
		account = Account{ID: e.AccountID, Currency: op.Opening.Currency, Exponent: op.Opening.Exponent, Metadata: op.Metadata, OpenedAt: e.PostedAt}
	case e.Kind == KindSettings && op.Change.Metadata != nil:
		account.Metadata = op.Change.Metadata
	}
	return Head{Account: account, Seq: e.Seq, State: e.After, PostedAt: e.PostedAt, Hash: e.Hash}
}
