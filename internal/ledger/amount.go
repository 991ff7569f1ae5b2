package ledger

// Amount is money in minor units (cents, haléř, points). An operation's amount
// is 1 … MaxAmount; a balance is -MaxAmount … MaxAmount. The bound is 2^53-1,
// the largest integer that every JSON parser reads exactly (RFC 8259, section 6).
type Amount int64

const (
	// MaxAmount bounds every amount and, on both sides of zero, every balance.
	MaxAmount Amount = 1<<53 - 1
	// LowestMinBalance is the deepest overdraft an account can be given.
	LowestMinBalance Amount = -(1 << 52)
)

// Seq numbers the entries of one account: 1, 2, 3 … without gaps.
type Seq int64

// Token is a fencing token: a strictly increasing number that says which term
// of a lease a write belongs to. 0 means "none"; the largest is MaxToken.
type Token int64

// MaxToken is the largest fencing token, 2^53-1.
const MaxToken Token = 1<<53 - 1
