package ledger

import (
	"crypto/sha256"
	"fmt"
	"time"
)

// Operation is one request to add a link to an account's chain. Build it with
// the fields of its kind, give it to Writer.Apply, and do not change it after.
type Operation struct {
	// Kind is KindOpened, KindSettings, KindCredit or KindDebit.
	Kind      Kind
	AccountID AccountID

	// Key is the idempotency key, 1–255 visible ASCII characters. Operations
	// that move money need one; opening and settings have none.
	Key string
	// Amount is 1 … MaxAmount for a credit or debit.
	Amount Amount
	// Currency, when given, must be the account's.
	Currency     Currency
	Description  string
	Counterparty string
	// EffectiveAt is the business date; zero means "when it is posted".
	EffectiveAt time.Time
	Metadata    Metadata

	// IfMatch, when not 0, is the seq that the head must have.
	IfMatch Seq
	// Token, when not 0, is the fencing token that the writer presents.
	Token Token

	// Opening is set for KindOpened alone.
	Opening *Opening
	// Change is set for KindSettings alone.
	Change *Change
}

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
	// Entry is the link of the operation, or the head when nothing changed.
	Entry   Entry
	Account Account
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
// spelling. The key, If-Match and the token are not part of it, because a retry
// may carry others.
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
	switch op.Kind {
	case KindCredit, KindDebit:
		return op.validateMovement()
	case KindOpened:
		return op.Opening.validate()
	case KindSettings:
		return op.Change.validate()
	default:
		return fmt.Errorf("an operation of kind %q cannot be requested", op.Kind)
	}
}

func (op *Operation) validateMovement() error {
	if err := ValidateKey(op.Key); err != nil {
		return err
	}
	if op.Amount < 1 || op.Amount > MaxAmount {
		return fmt.Errorf("amount must be 1 to %d", MaxAmount)
	}
	if !op.EffectiveAt.IsZero() {
		if y := op.EffectiveAt.UTC().Year(); y < 1 || y > 9999 {
			return fmt.Errorf("effective_at must be in the years 1 to 9999")
		}
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
