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
	fence, r := decideToken(head, op)
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
	return decideMovement(head, op, fence, at), nil
}

// decideToken applies the account's fencing rule and returns the fence after
// the operation. Settings are the operator's and never need a token, so that a
// wrong rule can be taken back.
func decideToken(head *Head, op *Operation) (Token, *Refusal) {
	fence, rule := head.State.Fence, head.State.Fencing
	var r *Refusal
	switch {
	case op.Token == 0 && rule.Required && op.Kind != KindSettings:
		return 0, refuse(CodeTokenRequired, "Writes to %s must carry a Fencing-Token.", op.AccountID)
	case op.Token == 0 || op.Token == fence:
		return fence, nil
	case op.Token < fence:
		r = refuse(CodeStaleToken, "Token %d is older than %d: somebody else owns %s now. Stop.", op.Token, fence, op.AccountID)
	case rule.Source == SourceExternal:
		return op.Token, nil
	default:
		r = refuse(CodeTokenFromTheFuture, "Token %d was never handed out for %s: its newest is %d.", op.Token, op.AccountID, fence)
	}
	r.Presented, r.Current = int64(op.Token), int64(fence)
	return 0, r
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
	if before.Status == Closed {
		return nil, refuse(CodeAccountClosed, "The account %s is closed.", op.AccountID)
	}
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
		if !external || *c.ResetFence > fence {
			return nil, refuse(CodeFencingResetRefused,
				"A reset lowers the fence (now %d) of an account whose token source is external before or after it.", fence)
		}
		after.Fence = *c.ResetFence
	}
	if after.Status == Closed && (after.Balance != 0 || after.Held != 0) {
		return nil, refuse(CodeAccountNotEmpty, "Only an account with balance and held at 0 can be closed; these are %d and %d.", after.Balance, after.Held)
	}
	if after.Available() > MaxAmount {
		return nil, refuse(CodeBalanceLimit, "The available amount would exceed %d.", MaxAmount)
	}
	details := Details{Metadata: op.Change.Metadata, Reset: c.ResetFence != nil}
	sameMetadata := c.Metadata == nil || c.Metadata.String() == head.Account.Metadata.String()
	if after == before && sameMetadata {
		return nil, nil
	}
	e := next(head, op, at)
	e.After, e.Reason, e.Details = after, c.Reason, details.String()
	return e, nil
}

func decideMovement(head *Head, op *Operation, fence Token, at time.Time) *Entry {
	e := next(head, op, at)
	e.Amount = op.Amount
	e.After = head.State
	e.After.Fence = fence
	details := Details{Description: op.Description}
	if len(op.Metadata) > 0 {
		details.Metadata = op.Metadata
	}
	if reason := refuseMovement(head, op); reason != "" {
		e.Kind, e.Reason = KindDeclined, string(reason)
		details.Attempted = op.Kind
	} else if op.Kind == KindCredit {
		e.After.Balance += op.Amount
	} else {
		e.After.Balance -= op.Amount
	}
	e.Details = details.String()
	return e
}

// refuseMovement returns why the account does not take the movement, "" when it does.
func refuseMovement(head *Head, op *Operation) Code {
	s := head.State
	switch {
	case op.Currency != "" && op.Currency != head.Account.Currency:
		return CodeCurrencyMismatch
	case s.Status == Closed:
		return CodeAccountClosed
	case op.Kind == KindDebit && s.Status == Frozen:
		return CodeAccountFrozen
	case op.Kind == KindDebit && s.Available() < op.Amount:
		return CodeInsufficientFunds
	// Written as subtractions from the limit, so that nothing can wrap.
	case op.Kind == KindCredit && (s.Balance > MaxAmount-op.Amount || s.Available() > MaxAmount-op.Amount):
		return CodeBalanceLimit
	case op.Kind == KindDebit && s.Balance < -MaxAmount+op.Amount:
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
	e.TransactionID, e.Key, e.RequestHash = t.transactionID, t.op.Key, t.requestHash
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
