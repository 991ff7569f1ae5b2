package projection

import (
	"errors"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

func TestEffectsOfKinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind ledger.Kind
		want effect
	}{
		{ledger.KindCredit, effect{balance: 7, credits: 7}},
		{ledger.KindDebit, effect{balance: -7, debits: 7}},
		{ledger.KindHold, effect{held: 7}},
		{ledger.KindCapture, effect{balance: -7, held: -7, debits: 7}},
		{ledger.KindRelease, effect{held: -7}},
		{ledger.KindDeclined, effect{}},
		{ledger.KindOpened, effect{}},
		{ledger.KindSettings, effect{}},
		{ledger.KindFenced, effect{}},
	} {
		got, err := effectOf(c.kind, 7)
		if err != nil || got != c.want {
			t.Errorf("%s of 7 is %+v (%v), want %+v", c.kind, got, err, c.want)
		}
	}
	for kind, amount := range map[ledger.Kind]ledger.Amount{"gift": 1, ledger.KindCredit: -1, ledger.KindDebit: ledger.MaxAmount + 1} {
		if got, err := effectOf(kind, amount); err == nil {
			t.Errorf("%s of %d is %+v", kind, amount, got)
		}
	}
}

// chain draws an honest chain.
func chain(t *rapid.T) []step {
	kinds := []ledger.Kind{ledger.KindCredit, ledger.KindDebit, ledger.KindHold, ledger.KindCapture, ledger.KindRelease, ledger.KindDeclined, ledger.KindSettings}
	steps := []step{{accountID: "a", seq: 1, kind: ledger.KindOpened, postedAt: time.Unix(1, 0)}}
	for range rapid.IntRange(0, 40).Draw(t, "length") {
		last := steps[len(steps)-1]
		s := step{
			accountID: "a", seq: last.seq + 1, kind: rapid.SampledFrom(kinds).Draw(t, "kind"),
			amount: ledger.Amount(rapid.Int64Range(1, 1000).Draw(t, "amount")), postedAt: last.postedAt.Add(time.Second),
		}
		e, err := effectOf(s.kind, s.amount)
		if err != nil {
			t.Fatal(err)
		}
		s.balance, s.held = last.balance+e.balance, last.held+e.held
		steps = append(steps, s)
	}
	return steps
}

// TestFoldsInPiecesAddUp cuts a chain anywhere: the folds of the parts say the
// same as the fold of the whole, and the same as the last entry.
func TestFoldsInPiecesAddUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		steps := chain(t)
		var whole fold
		for i := range steps {
			if err := whole.add(&steps[i]); err != nil {
				t.Fatal(err)
			}
		}
		var balance, held ledger.Amount
		var credits, debits total
		at := ledger.Seq(0)
		for rest := steps; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			var f fold
			for i := range rest[:n] {
				if err := f.add(&rest[i]); err != nil {
					t.Fatal(err)
				}
			}
			if f.from != at || f.to != at+ledger.Seq(n) || f.oldest != rest[0].postedAt {
				t.Fatalf("piece of %d after %d is %d to %d, oldest %v", n, at, f.from, f.to, f.oldest)
			}
			balance, held, at = balance+f.balance, held+f.held, f.to
			credits.add(ledger.Amount(f.credits.lo))
			debits.add(ledger.Amount(f.debits.lo))
			if balance != f.balanceAfter || held != f.heldAfter {
				t.Fatalf("after %d the pieces give %d and %d, the entry says %d and %d", at, balance, held, f.balanceAfter, f.heldAfter)
			}
			rest = rest[n:]
		}
		if balance != whole.balance || held != whole.held || credits != whole.credits || debits != whole.debits {
			t.Fatalf("pieces give %d %d %v %v, the whole %+v", balance, held, credits, debits, whole)
		}
	})
}

// TestFoldNoticesWhatDoesNotFit changes one thing in an honest chain.
func TestFoldNoticesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		steps := chain(t)
		i := rapid.IntRange(0, len(steps)-1).Draw(t, "entry")
		changes := 3
		if i == 0 {
			changes = 2 // a fold may begin at any seq
		}
		switch rapid.IntRange(0, changes).Draw(t, "change") {
		case 0:
			steps[i].balance++
		case 1:
			steps[i].held--
		case 2:
			steps[i].kind = "gift"
		default:
			steps[i].seq++
		}
		var f fold
		for n := range steps {
			before := f.to
			err := f.add(&steps[n])
			if err == nil {
				continue
			}
			if n < i || n > i+1 {
				t.Fatalf("entry %d was refused, %d was changed: %v", n+1, i+1, err)
			}
			if f.to != before {
				t.Fatalf("the fold moved to %d with an entry it refused", f.to)
			}
			var bad *damage
			if !errors.As(err, &bad) && !errors.Is(err, errGap) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		t.Fatalf("a change of entry %d was not noticed", i+1)
	})
}

func TestTotalsDoNotWrap(t *testing.T) {
	t.Parallel()
	var sum total
	want := new(big.Int)
	for range 10_000 {
		sum.add(ledger.MaxAmount)
		want.Add(want, big.NewInt(int64(ledger.MaxAmount)))
	}
	if sum.String() != want.String() || sum.hi == 0 {
		t.Errorf("the sum is %v, want %v", sum, want)
	}
}

func TestFoldStopsBeforeItsSumsAreTooLarge(t *testing.T) {
	t.Parallel()
	var f fold
	n := 0
	for balance := ledger.Amount(0); !f.full(); n++ {
		kind, amount := ledger.KindCredit, ledger.MaxAmount
		if n%2 == 1 {
			kind = ledger.KindDebit
			balance -= amount
		} else {
			balance += amount
		}
		if err := f.add(&step{accountID: "a", seq: ledger.Seq(n + 2), kind: kind, amount: amount, balance: balance}); err != nil {
			t.Fatal(err)
		}
	}
	if n < 1000 || int64(f.credits.lo) < 0 || int64(f.debits.lo) < 0 || f.credits.hi+f.debits.hi > 0 {
		t.Errorf("full after %d entries with credits %v and debits %v", n, f.credits, f.debits)
	}
}
