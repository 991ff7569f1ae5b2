package ledger

import (
	"crypto/sha256"
	"fmt"
	"time"
)

// AccountID names an account. The owner chooses it: 1–128 characters of
// [A-Za-z0-9._:-], the first one a letter or a digit.
type AccountID string

// accountIDMax is the longest account id in bytes.
const accountIDMax = 128

// ParseAccountID returns s as an AccountID, or an error that says which rule
// it breaks.
func ParseAccountID(s string) (AccountID, error) {
	if s == "" {
		return "", fmt.Errorf("an account id has 1 to %d characters", accountIDMax)
	}
	if len(s) > accountIDMax {
		return "", fmt.Errorf("an account id has 1 to %d characters, this one has %d", accountIDMax, len(s))
	}
	for i := range len(s) {
		c := s[i]
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if alnum || i > 0 && (c == '.' || c == '_' || c == ':' || c == '-') {
			continue
		}
		return "", fmt.Errorf("an account id is made of [A-Za-z0-9._:-] and starts with a letter or a digit; character %d is %q", i+1, c)
	}
	return AccountID(s), nil
}

// Shards is the number of parts that the accounts are split into for the
// projection. It is a constant of the schema.
const Shards = 64

// Shard returns the shard of the account, 0 … Shards-1: the first byte of
// SHA-256(id) modulo Shards. It is stored in accounts.shard and never changes.
func (id AccountID) Shard() int {
	sum := sha256.Sum256([]byte(id))
	return int(sum[0]) % Shards
}

// Currency is the unit of an account: 2–16 characters of [A-Z0-9_], the first
// one a letter. ISO 4217 codes fit, and so do own units such as POINTS.
type Currency string

// ParseCurrency returns s as a Currency, or an error that says which rule it
// breaks.
func ParseCurrency(s string) (Currency, error) {
	if len(s) < 2 || len(s) > 16 {
		return "", fmt.Errorf("a currency has 2 to 16 characters, this one has %d", len(s))
	}
	for i := range len(s) {
		c := s[i]
		if 'A' <= c && c <= 'Z' || i > 0 && ('0' <= c && c <= '9' || c == '_') {
			continue
		}
		return "", fmt.Errorf("a currency is made of [A-Z0-9_] and starts with a letter; character %d is %q", i+1, c)
	}
	return Currency(s), nil
}

// MaxExponent is the largest number of decimal places of a currency.
const MaxExponent = 18

// DefaultExponent returns the decimal places that ISO 4217 gives the currency,
// and 2 for a currency that it does not know.
func (c Currency) DefaultExponent() int {
	switch c {
	case "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV", "XAF", "XOF", "XPF":
		return 0
	case "BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND":
		return 3
	case "CLF", "UYW":
		return 4
	default:
		return 2
	}
}

// Status says what an account accepts.
type Status string

const (
	// Active accounts accept everything.
	Active Status = "active"
	// Frozen accounts let no money out and take no new holds; credits are accepted.
	Frozen Status = "frozen"
	// Closed accounts accept nothing, for ever. Only an account with balance
	// and held at 0 can be closed.
	Closed Status = "closed"
)

// FencingSource says who hands out the tokens of an account.
type FencingSource string

const (
	// SourceLease accounts take the tokens of ledgerd's own account leases.
	SourceLease FencingSource = "lease"
	// SourceExternal accounts take the tokens of another coordinator.
	SourceExternal FencingSource = "external"
)

// Fencing is the fencing rule of an account.
type Fencing struct {
	Source FencingSource
	// Required refuses writes that carry no token.
	Required bool
}

// String returns the rule as the column fencing_after stores it.
func (f Fencing) String() string {
	if f.Required {
		return string(f.Source) + "_required"
	}
	return string(f.Source)
}

// ParseFencing is the inverse of Fencing.String.
func ParseFencing(s string) (Fencing, error) {
	switch s {
	case "lease":
		return Fencing{Source: SourceLease}, nil
	case "lease_required":
		return Fencing{Source: SourceLease, Required: true}, nil
	case "external":
		return Fencing{Source: SourceExternal}, nil
	case "external_required":
		return Fencing{Source: SourceExternal, Required: true}, nil
	}
	return Fencing{}, fmt.Errorf("unknown fencing rule %q", s)
}

// State is everything about an account that can change. Each entry carries the
// whole state after it, so the last entry alone is enough for a decision.
type State struct {
	Balance    Amount
	Held       Amount
	Fence      Token
	MinBalance Amount
	Status     Status
	Fencing    Fencing
}

// Available returns what can be spent: balance - held - min_balance.
func (s State) Available() Amount { return s.Balance - s.Held - s.MinBalance }

// Account is what never changes about an account, and its metadata.
type Account struct {
	ID       AccountID
	Currency Currency
	Exponent int
	Metadata Metadata
	OpenedAt time.Time
}

// Head is the last entry of an account together with the account it belongs
// to: what a decision is made from.
type Head struct {
	Account  Account
	Seq      Seq
	State    State
	PostedAt time.Time
	Hash     [32]byte
}
