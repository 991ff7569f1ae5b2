package ledger

import (
	"crypto/sha256"
	"fmt"
	"time"
)

// Operation is one request to add links: one to an account's chain, or several
// to the chains of several accounts, all or none. Build it with the fields of
// its kind, give it to Writer.Apply, and do not change it after.
type Operation struct {
	// Kind is KindOpened, KindSettings, KindFenced, KindCredit, KindDebit,
	// KindTransfer or KindTransaction.
	Kind Kind
	// AccountID is the account of the operation; with several legs that of the
	// first, whose chain keeps the key.
	AccountID AccountID
	// Legs are the movements of a KindTransfer (two, a debit and a credit of the
	// same amount) or of a KindTransaction (2 to LegsMax). They are applied in
	// their order, and their sum is zero.
	Legs []Leg

	// Key is the idempotency key, 1–255 visible ASCII characters. Operations
	// that move money need one; opening and settings have none.
	Key string
	// Amount is 1 … MaxAmount for a credit or debit.
	Amount Amount
	// Currency, when given, must be that of every account.
	Currency     Currency
	Description  string
	Counterparty string
	// EffectiveAt is the business date; zero means "when it is posted".
	EffectiveAt time.Time
	Metadata    Metadata

	// IfMatch, when not 0, is the seq that the head must have. Operations with
	// legs have none.
	IfMatch Seq
	// Token, when not 0, is the fencing token that the writer presents; for
	// KindFenced it is the new fence. Operations with legs have it in each leg.
	Token Token

	// Opening is set for KindOpened alone.
	Opening *Opening
	// Change is set for KindSettings alone.
	Change *Change
}

// Leg is one movement of an operation on several accounts.
type Leg struct {
	AccountID AccountID
	// Kind is KindCredit or KindDebit.
	Kind   Kind
	Amount Amount
	// Token, when not 0, is the fencing token for the leg's account.
	Token Token
}

// signed returns the amount as the leg changes its account's balance.
func (l *Leg) signed() Amount {
	if l.Kind == KindDebit {
		return -l.Amount
	}
	return l.Amount
}

// LegsMax is the largest number of legs of one transaction.
const LegsMax = 1000

// Opening is what an account is opened with.
type Opening struct {
	Currency   Currency
	Exponent   int
	MinBalance Amount
	Fencing    Fencing
}

// Change is a change of settings; nil members stay as they are.
type Change struct {
	Status        *Status
	MinBalance    *Amount
	FencingSource *FencingSource
	Required      *bool
	// ResetFence sets the fence to a lower token. It needs a Reason, and an
	// account whose token source is external before or after the change.
	ResetFence *Token
	Reason     string
	// Metadata replaces the metadata of the account when it is not nil.
	Metadata Metadata
}

// Receipt is the answer to an operation that is in the chain.
type Receipt struct {
	// Entry is the link of the operation, or the head when nothing changed. With
	// several legs it is the entry of the first, which has the key.
	Entry   Entry
	Account Account
	// Legs are all entries of an operation with several legs that was not
	// declined, in the order of the legs.
	Legs []TransactionEntry
	// Replayed is true when the entry was there before this request.
	Replayed bool
	// Unchanged is true when the settings or the opening were already so.
	Unchanged bool
}

// Declined reports whether the receipt records a refusal; Entry.Reason has the
// code.
func (r *Receipt) Declined() bool { return r.Entry.Kind == KindDeclined }

// requestVersion is the version of what requestHash covers.
const requestVersion = 1

// requestHash identifies the parsed operation: two requests are the same
// operation exactly when their hashes are equal. It covers no path, header or
// spelling. The key, If-Match and the tokens that a write carries are not part
// of it, because a retry may carry others.
func (op *Operation) requestHash() [32]byte {
	var space [512]byte
	b := appendInt(space[:0], requestVersion)
	b = appendText(b, string(op.Kind))
	b = appendText(b, string(op.AccountID))
	b = appendInt(b, int64(op.Amount))
	b = appendOptional(b, string(op.Currency))
	b = appendOptional(b, op.Description)
	b = appendOptional(b, op.Counterparty)
	if op.EffectiveAt.IsZero() {
		b = appendAbsent(b)
	} else {
		b = appendInt(b, op.EffectiveAt.UnixMicro())
	}
	if len(op.Metadata) == 0 {
		b = appendAbsent(b)
	} else {
		b = appendText(b, op.Metadata.String())
	}
	for i := range op.Legs {
		b = appendText(b, string(op.Legs[i].AccountID))
		b = appendText(b, string(op.Legs[i].Kind))
		b = appendInt(b, int64(op.Legs[i].Amount))
	}
	if op.Kind == KindFenced {
		b = appendInt(b, int64(op.Token)) // here it is what is asked for
	}
	if o := op.Opening; o != nil {
		b = appendText(b, string(o.Currency))
		b = appendInt(b, int64(o.Exponent))
		b = appendInt(b, int64(o.MinBalance))
		b = appendText(b, o.Fencing.String())
	}
	if op.Change != nil {
		b = op.Change.appendTo(b)
	}
	return sha256.Sum256(b)
}

// appendTo appends the members in the order of the struct, those that stay as
// they are as absent.
func (c *Change) appendTo(b []byte) []byte {
	b = appendOptional(b, string(deref(c.Status)))
	b = appendPointer(b, c.MinBalance)
	b = appendOptional(b, string(deref(c.FencingSource)))
	var required *int64
	if c.Required != nil {
		required = new(int64)
		if *c.Required {
			*required = 1
		}
	}
	b = appendPointer(b, required)
	b = appendPointer(b, c.ResetFence)
	b = appendOptional(b, c.Reason)
	if c.Metadata == nil {
		return appendAbsent(b)
	}
	return appendText(b, c.Metadata.String())
}

func appendPointer[T ~int64](b []byte, p *T) []byte {
	if p == nil {
		return appendAbsent(b)
	}
	return appendInt(b, int64(*p))
}

// Validate returns an error that names the first rule that the operation
// breaks by itself, whatever the account's state is.
func (op *Operation) Validate() error {
	if _, err := ParseAccountID(string(op.AccountID)); err != nil {
		return err
	}
	if err := ValidateText(op.Description, DescriptionRunesMax); err != nil {
		return fmt.Errorf("description: %w", err)
	}
	if err := ValidateText(op.Counterparty, CounterpartyRunesMax); err != nil {
		return fmt.Errorf("counterparty: %w", err)
	}
	if err := op.Metadata.Validate(); err != nil {
		return err
	}
	if op.IfMatch < 0 {
		return fmt.Errorf("the expected seq must not be negative")
	}
	if op.Token < 0 || op.Token > MaxToken {
		return fmt.Errorf("a fencing token is 0 to %d", MaxToken)
	}
	if op.Key != "" && (op.Kind == KindOpened || op.Kind == KindSettings || op.Kind == KindFenced) {
		return fmt.Errorf("an operation of kind %q has no idempotency key", op.Kind)
	}
	if len(op.Legs) > 0 && op.Kind != KindTransfer && op.Kind != KindTransaction {
		return fmt.Errorf("an operation of kind %q has no legs", op.Kind)
	}
	switch op.Kind {
	case KindCredit, KindDebit:
		if op.Amount < 1 || op.Amount > MaxAmount {
			return fmt.Errorf("amount must be 1 to %d", MaxAmount)
		}
		return op.validateMovement()
	case KindTransfer, KindTransaction:
		if err := op.validateLegs(); err != nil {
			return err
		}
		return op.validateMovement()
	case KindOpened:
		return op.Opening.validate()
	case KindSettings:
		return op.Change.validate()
	case KindFenced:
		if op.Token < 1 || op.Token > MaxToken {
			return fmt.Errorf("a fence must be 1 to %d", MaxToken)
		}
		return nil
	default:
		return fmt.Errorf("an operation of kind %q cannot be requested", op.Kind)
	}
}

func (op *Operation) validateMovement() error {
	if err := ValidateKey(op.Key); err != nil {
		return err
	}
	if !op.EffectiveAt.IsZero() {
		if y := op.EffectiveAt.UTC().Year(); y < 1 || y > 9999 {
			return fmt.Errorf("effective_at must be in the years 1 to 9999")
		}
	}
	return nil
}

// validateLegs checks what can be said without the accounts: the sum per
// currency is checked when they are known.
func (op *Operation) validateLegs() error {
	if n := len(op.Legs); n < 2 || n > LegsMax {
		return fmt.Errorf("a transaction has 2 to %d legs, this has %d", LegsMax, n)
	}
	if op.AccountID != op.Legs[0].AccountID {
		return fmt.Errorf("the account of the operation is that of its first leg")
	}
	if op.IfMatch != 0 || op.Token != 0 || op.Amount != 0 {
		return fmt.Errorf("an operation with legs has its amounts and tokens in them, and no If-Match")
	}
	if op.Kind == KindTransfer && (len(op.Legs) != 2 ||
		op.Legs[0].Kind != KindDebit || op.Legs[1].Kind != KindCredit) {
		return fmt.Errorf("a transfer is a debit of one account and a credit of another")
	}
	var sum Amount // 1,000 legs of 2^53 stay below 2^63
	for i := range op.Legs {
		leg := &op.Legs[i]
		if _, err := ParseAccountID(string(leg.AccountID)); err != nil {
			return fmt.Errorf("leg %d: %w", i+1, err)
		}
		if leg.Kind != KindCredit && leg.Kind != KindDebit {
			return fmt.Errorf("leg %d: direction must be credit or debit", i+1)
		}
		if leg.Amount < 1 || leg.Amount > MaxAmount {
			return fmt.Errorf("leg %d: amount must be 1 to %d", i+1, MaxAmount)
		}
		if leg.Token < 0 || leg.Token > MaxToken {
			return fmt.Errorf("leg %d: a fencing token is 0 to %d", i+1, MaxToken)
		}
		sum += leg.signed()
	}
	if sum != 0 {
		return fmt.Errorf("the credits and debits of a transaction must be equal, these differ by %d", sum)
	}
	return nil
}

// ValidateKey returns an error when key is not 1–255 visible ASCII characters.
func ValidateKey(key string) error {
	if len(key) < 1 || len(key) > 255 {
		return fmt.Errorf("an idempotency key has 1 to 255 characters, this one has %d", len(key))
	}
	for i := range len(key) {
		if c := key[i]; c < 0x21 || c > 0x7e {
			return fmt.Errorf("an idempotency key is made of visible ASCII characters; character %d is %q", i+1, c)
		}
	}
	return nil
}

func (o *Opening) validate() error {
	if o == nil {
		return fmt.Errorf("an opening needs a currency")
	}
	if _, err := ParseCurrency(string(o.Currency)); err != nil {
		return err
	}
	if o.Exponent < 0 || o.Exponent > MaxExponent {
		return fmt.Errorf("exponent must be 0 to %d", MaxExponent)
	}
	if err := validMinBalance(o.MinBalance); err != nil {
		return err
	}
	return o.Fencing.Source.validate()
}

func (c *Change) validate() error {
	if c == nil {
		return fmt.Errorf("a change of settings needs at least one setting")
	}
	if c.Status != nil && *c.Status != Active && *c.Status != Frozen && *c.Status != Closed {
		return fmt.Errorf("status must be active, frozen or closed")
	}
	if c.MinBalance != nil {
		if err := validMinBalance(*c.MinBalance); err != nil {
			return err
		}
	}
	if c.FencingSource != nil {
		if err := c.FencingSource.validate(); err != nil {
			return err
		}
	}
	if c.ResetFence != nil {
		if *c.ResetFence < 0 || *c.ResetFence > MaxToken {
			return fmt.Errorf("reset must be 0 to %d", MaxToken)
		}
		if c.Reason == "" {
			return fmt.Errorf("a reset of the fence needs a reason")
		}
	}
	if err := ValidateText(c.Reason, ReasonRunesMax); err != nil {
		return fmt.Errorf("reason: %w", err)
	}
	return c.Metadata.Validate()
}

func (s FencingSource) validate() error {
	if s != SourceLease && s != SourceExternal {
		return fmt.Errorf("fencing source must be lease or external")
	}
	return nil
}

func validMinBalance(a Amount) error {
	if a > 0 || a < LowestMinBalance {
		return fmt.Errorf("min_balance must be %d to 0", LowestMinBalance)
	}
	return nil
}
