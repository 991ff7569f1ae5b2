package ledger

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/ledgerd/ledgerd/internal/postgres"
)

func transfer(from, to AccountID, amount Amount, key string) *Operation {
	return &Operation{Kind: KindTransfer, AccountID: from, Key: key, Legs: []Leg{
		{AccountID: from, Kind: KindDebit, Amount: amount}, {AccountID: to, Kind: KindCredit, Amount: amount},
	}}
}

func transaction(key string, legs ...Leg) *Operation {
	return &Operation{Kind: KindTransaction, AccountID: legs[0].AccountID, Key: key, Legs: legs}
}

func in(id AccountID, amount Amount) Leg  { return Leg{AccountID: id, Kind: KindCredit, Amount: amount} }
func out(id AccountID, amount Amount) Leg { return Leg{AccountID: id, Kind: KindDebit, Amount: amount} }

func lanes(n int) func(*postgres.Config, *WriterConfig) {
	return func(_ *postgres.Config, c *WriterConfig) { c.Lanes = n }
}

func TestTransfer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A", "B")
	must(t, w, credit("A", 100, "in"))

	first := must(t, w, transfer("A", "B", 30, "k"))
	if len(first.Legs) != 2 || first.Legs[0].Entry.Key != "k" || first.Legs[1].Entry.Key != "" ||
		first.Legs[0].Entry.TransactionID != first.Legs[1].Entry.TransactionID ||
		first.Legs[0].Entry.Counterparty != "B" || first.Legs[1].Entry.Counterparty != "A" {
		t.Fatalf("receipt %+v", first)
	}
	again := must(t, w, transfer("A", "B", 30, "k"))
	if !again.Replayed || len(again.Legs) != 2 || again.Legs[1].Entry.Hash != first.Legs[1].Entry.Hash {
		t.Fatalf("replay %+v", again)
	}
	refused(t, w, transfer("A", "B", 31, "k"), CodeKeyReused)
	refused(t, w, debit("A", 30, "k"), CodeKeyReused)
	if r := must(t, w, credit("B", 1, "k")); r.Replayed {
		t.Fatal("the key belongs to the first account alone")
	}
	refused(t, w, transfer("A", "nobody", 1, "k2"), CodeAccountNotFound)

	for _, c := range []struct {
		op      *Operation
		reason  Code
		refused AccountID
	}{
		{transfer("A", "B", 1000, "d1"), CodeInsufficientFunds, ""},
		{transfer("A", "A", 1, "d2"), CodeSameAccount, ""},
	} {
		r := must(t, w, c.op)
		d, err := ParseDetails(r.Entry.Details)
		if err != nil || r.Entry.Reason != string(c.reason) || d.Attempted != KindTransfer || d.RefusedBy != c.refused || r.Legs != nil {
			t.Errorf("%s: receipt %+v", c.reason, r)
		}
	}
	if f.balanceOf("A") != 70 || f.balanceOf("B") != 31 {
		t.Fatalf("balances %d and %d", f.balanceOf("A"), f.balanceOf("B"))
	}
}

// TestDeclineForAnotherAccountIsFresh lets a remembered head of the other
// account be the reason for a decline: it must be read again first.
func TestDeclineForAnotherAccountIsFresh(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w, other := f.writer(), f.writer()
	open(t, w, "A", "B")
	must(t, w, credit("A", 100, "in"))
	must(t, w, credit("B", 1, "warm"))
	must(t, w, debit("B", 1, "empty"))
	must(t, other, credit("B", 50, "theirs")) // w does not know
	if r := must(t, w, transaction("k", in("A", 40), out("B", 40))); r.Declined() {
		t.Fatalf("declined with %s from a stale head", r.Entry.Reason)
	}
	closed := Closed
	must(t, other, debit("B", 10, "rest"))
	must(t, other, settings("B", Change{Status: &closed}))
	r := must(t, w, transfer("A", "B", 1, "to-closed"))
	d, _ := ParseDetails(r.Entry.Details)
	if r.Entry.Reason != string(CodeAccountClosed) || d.RefusedBy != "B" || r.Entry.AccountID != "A" {
		t.Fatalf("receipt %+v", r)
	}
}

func TestTransactionIsAllOrNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A", "B", "C")
	euro := &Operation{Kind: KindOpened, AccountID: "E", Opening: &Opening{Currency: "EUR", Exponent: 2, Fencing: Fencing{Source: SourceLease}}}
	must(t, w, euro)
	must(t, w, credit("A", 100, "in"))

	// Several legs on one account see each other.
	must(t, w, transaction("t1", out("A", 100), in("B", 60), in("C", 40), out("B", 10), in("A", 10)))
	if r := must(t, w, transaction("t2", in("C", 20), out("A", 5), out("A", 15))); r.Entry.Reason != string(CodeInsufficientFunds) {
		t.Fatalf("the last leg is refused: %+v", r.Entry)
	}
	if r := must(t, w, transaction("t3", out("A", 5), in("E", 5))); r.Entry.Reason != string(CodeCurrencyMismatch) {
		t.Fatalf("two currencies: %+v", r.Entry)
	}
	if a, b, c := f.balanceOf("A"), f.balanceOf("B"), f.balanceOf("C"); a != 10 || b != 50 || c != 40 {
		t.Fatalf("balances %d %d %d", a, b, c)
	}
	for _, op := range []*Operation{
		transaction("bad", out("A", 5), in("B", 4)),
		transaction("bad", out("A", 5)),
		transfer("A", "B", 0, "bad"),
	} {
		refused(t, w, op, CodeInvalid)
	}
}

// TestOppositeTransfers moves money to and fro through two writers; nobody is
// told of a deadlock, and the sum stays in every strong read.
func TestOppositeTransfers(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("lanes=%d", n), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			writers := []*Writer{f.writer(lanes(n)), f.writer(lanes(n))}
			ids := []AccountID{"A", "B", "C", "D"}
			open(t, writers[0], ids...)
			for _, id := range ids {
				must(t, writers[0], credit(id, 10_000, "in"))
			}
			together(64, func(c int) {
				for i := range 8 {
					from, to := ids[(c+i)%4], ids[(c+i+1+c%3)%4]
					if r := must(t, writers[c%2], transfer(from, to, 1, fmt.Sprintf("k-%d-%d", c, i))); r.Declined() {
						t.Errorf("declined: %s", r.Entry.Reason)
					}
				}
			})
			var sum Amount
			for _, id := range ids {
				sum += f.balanceOf(id)
			}
			if sum != 40_000 {
				t.Fatalf("the sum is %d", sum)
			}
		})
	}
}

// TestOrderOfAnAccount submits operations that only fit in their order, while
// another writer makes the account contended again and again.
func TestOrderOfAnAccount(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w, other := f.writer(), f.writer()
	open(t, w, "A")
	stop := make(chan struct{})
	var rival sync.WaitGroup
	rival.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				must(t, other, settings("A", Change{Metadata: Metadata{"n": keyN("v", i)}}))
			}
		}
	})
	for round := range 20 {
		var wg sync.WaitGroup
		for i := range 20 {
			op := credit("A", 1, fmt.Sprintf("in-%d-%d", round, i))
			if i%2 == 1 {
				op = debit("A", 1, fmt.Sprintf("out-%d-%d", round, i))
			}
			pending := w.Start(context.Background(), op)
			wg.Go(func() {
				if r, err := pending.Wait(context.Background()); err != nil || r.Declined() {
					t.Errorf("operation %d of round %d: %+v %v", i, round, r, err)
				}
			})
		}
		wg.Wait()
	}
	close(stop)
	rival.Wait()
}
