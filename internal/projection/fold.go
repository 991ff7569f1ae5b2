package projection

import (
	"fmt"
	"math/big"
	"math/bits"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// step is what the projection reads of an entry.
type step struct {
	accountID ledger.AccountID
	seq       ledger.Seq
	kind      ledger.Kind
	amount    ledger.Amount
	// balance and held are the state that the ledger wrote into the entry. The
	// fold never uses them to compute anything, only to compare.
	balance  ledger.Amount
	held     ledger.Amount
	postedAt time.Time
	position int64
}

// effect is what an entry does to a balance row.
type effect struct {
	balance, held   ledger.Amount
	credits, debits ledger.Amount
}

// effectOf computes the effect of a step from its kind and amount alone.
func effectOf(kind ledger.Kind, amount ledger.Amount) (effect, error) {
	if amount < 0 || amount > ledger.MaxAmount {
		return effect{}, fmt.Errorf("amount %d is out of range", amount)
	}
	switch kind {
	case ledger.KindCredit:
		return effect{balance: amount, credits: amount}, nil
	case ledger.KindDebit:
		return effect{balance: -amount, debits: amount}, nil
	case ledger.KindHold:
		return effect{held: amount}, nil
	case ledger.KindCapture:
		return effect{balance: -amount, held: -amount, debits: amount}, nil
	case ledger.KindRelease:
		return effect{held: -amount}, nil
	case ledger.KindOpened, ledger.KindSettings, ledger.KindFenced, ledger.KindDeclined:
		return effect{}, nil
	}
	return effect{}, fmt.Errorf("kind %q is unknown", kind)
}

// total is a sum of amounts. It has 128 bits, so that no number of entries that
// a database can hold makes it wrap.
type total struct{ hi, lo uint64 }

func (t *total) add(a ledger.Amount) {
	var carry uint64
	t.lo, carry = bits.Add64(t.lo, uint64(a), 0)
	t.hi += carry
}

// String returns the sum in decimal.
func (t total) String() string {
	if t.hi == 0 {
		return fmt.Sprint(t.lo)
	}
	n := new(big.Int).SetUint64(t.hi)
	return n.Or(n.Lsh(n, 64), new(big.Int).SetUint64(t.lo)).String()
}

// fold adds up consecutive entries of one account: what they do together, and
// the state that the ledger wrote into the last of them. The two are compared
// at every entry after the first here, and with the balance row by the
// statement that writes it.
type fold struct {
	accountID ledger.AccountID
	// from is the seq before the first folded entry, to the last one's.
	from, to ledger.Seq
	// balance and held are changes since from.
	balance, held   ledger.Amount
	credits, debits total
	// balanceAfter and heldAfter are what the entry to says.
	balanceAfter, heldAfter ledger.Amount
	// oldest is when the first folded entry was posted.
	oldest time.Time
}

// damage is the error of an entry that cannot be applied, because it is not
// readable or contradicts the entries before it.
type damage struct {
	seq    ledger.Seq
	detail string
}

func (d *damage) Error() string { return fmt.Sprintf("entry %d: %s", d.seq, d.detail) }

// errGap is returned for an entry that does not follow the one before it: one
// between them was not seen.
var errGap = fmt.Errorf("an entry is missing in between")

// add folds the next entry. It returns errGap or *damage, and is unchanged then.
func (f *fold) add(s *step) error {
	first := f.accountID == ""
	if first {
		f.accountID, f.from, f.to, f.oldest = s.accountID, s.seq-1, s.seq-1, s.postedAt
	}
	if s.seq != f.to+1 {
		return errGap
	}
	e, err := effectOf(s.kind, s.amount)
	if err != nil {
		return &damage{s.seq, err.Error()}
	}
	known := !first && f.to > f.from || f.from == 0 // before entry 1 everything is 0
	if known && (f.balanceAfter+e.balance != s.balance || f.heldAfter+e.held != s.held) {
		return &damage{s.seq, fmt.Sprintf("%s of %d after balance %d and held %d gives %d and %d, the entry says %d and %d",
			s.kind, s.amount, f.balanceAfter, f.heldAfter, f.balanceAfter+e.balance, f.heldAfter+e.held, s.balance, s.held)}
	}
	f.to = s.seq
	f.balance += e.balance
	f.held += e.held
	f.credits.add(e.credits)
	f.debits.add(e.debits)
	f.balanceAfter, f.heldAfter = s.balance, s.held
	return nil
}

// len returns the number of folded entries.
func (f *fold) len() int64 { return int64(f.to - f.from) }

// full reports that the fold is as large as one write may be, so that no sum of
// it leaves 64 bits.
func (f *fold) full() bool { return f.credits.lo > 1<<62 || f.debits.lo > 1<<62 }
