package ledger

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/postgres"
)

func TestKeyIsUsedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A", "B")

	t.Run("fifty at once give one entry and equal receipts", func(t *testing.T) {
		receipts := make([]*Receipt, 50)
		together(len(receipts), func(i int) { receipts[i] = must(t, w, credit("A", 1, "k")) })
		var fresh int
		for _, r := range receipts {
			if r.Entry.Hash != receipts[0].Entry.Hash {
				t.Fatalf("receipts differ: seq %d and %d", r.Entry.Seq, receipts[0].Entry.Seq)
			}
			if !r.Replayed {
				fresh++
			}
		}
		if fresh != 1 || f.balanceOf("A") != 1 {
			t.Fatalf("%d fresh receipts and balance %d, want 1 and 1", fresh, f.balanceOf("A"))
		}
	})
	t.Run("another account has its own keys", func(t *testing.T) {
		if r := must(t, w, credit("B", 1, "k")); r.Replayed {
			t.Fatal("the key of A was used on B")
		}
	})
	t.Run("another operation is refused and writes nothing", func(t *testing.T) {
		refused(t, w, credit("A", 2, "k"), CodeKeyReused)
		refused(t, w, debit("A", 1, "k"), CodeKeyReused)
		if got := f.balanceOf("A"); got != 1 {
			t.Fatalf("balance %d, want 1", got)
		}
	})
	t.Run("a decline stays a decline after a top-up", func(t *testing.T) {
		first := must(t, w, debit("A", 100, "d"))
		must(t, w, credit("A", 1000, "top-up"))
		again := must(t, w, debit("A", 100, "d"))
		if !first.Declined() || !again.Replayed || again.Entry.Hash != first.Entry.Hash {
			t.Fatalf("first %v, again %v replayed %v", first.Entry.Kind, again.Entry.Kind, again.Replayed)
		}
		if r := must(t, w, debit("A", 100, "d2")); r.Declined() {
			t.Fatal("a new key did not succeed")
		}
	})
	t.Run("a writer that starts afresh knows the keys", func(t *testing.T) {
		other := f.writer()
		if r := must(t, other, credit("A", 1, "k")); !r.Replayed {
			t.Fatal("not a replay")
		}
	})
	t.Run("two bodies with one key: one wins, all say so", func(t *testing.T) {
		var ones, twos, reused atomic.Int64
		together(50, func(i int) {
			r, err := w.Apply(context.Background(), credit("B", Amount(1+i%2), "both"))
			switch {
			case err != nil:
				reused.Add(1)
			case r.Entry.Amount == 1:
				ones.Add(1)
			default:
				twos.Add(1)
			}
		})
		if reused.Load() != 25 || ones.Load()*twos.Load() != 0 {
			t.Fatalf("1: %d, 2: %d, reused: %d", ones.Load(), twos.Load(), reused.Load())
		}
	})
}

func TestOpening(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	opening := func(currency Currency) *Operation {
		return &Operation{Kind: KindOpened, AccountID: "A", Opening: &Opening{Currency: currency, Exponent: 2, Fencing: Fencing{Source: SourceLease}}}
	}
	refused(t, w, credit("A", 1, "k"), CodeAccountNotFound)
	var created atomic.Int64
	together(16, func(int) {
		if r := must(t, w, opening("CZK")); !r.Unchanged {
			created.Add(1)
		}
	})
	if created.Load() != 1 {
		t.Fatalf("%d openings created the account", created.Load())
	}
	refused(t, w, opening("EUR"), CodeAccountExists)
	must(t, w, credit("A", 1, "k"))
	if r := must(t, w, opening("CZK")); !r.Unchanged {
		t.Fatal("the same opening again is not unchanged")
	}
}

func TestDebitsNeverOverdraw(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer(func(_ *postgres.Config, c *WriterConfig) { c.Declines = DeclineLimit{PerSecond: 1000, Burst: 1000} })
	open(t, w, "A", "B", "C")
	must(t, w, credit("A", 100, "in"))
	must(t, w, credit("B", 50, "in"))
	must(t, w, credit("C", 100, "in"))
	for id, want := range map[AccountID]struct {
		amount   Amount
		n        int
		accepted int64
	}{"A": {1, 100, 100}, "B": {1, 100, 50}, "C": {3, 50, 33}} {
		var accepted atomic.Int64
		together(want.n, func(i int) {
			if r := must(t, w, debit(id, want.amount, keyN("d", i))); !r.Declined() {
				accepted.Add(1)
			}
		})
		if accepted.Load() != want.accepted {
			t.Errorf("%s: %d accepted, want %d", id, accepted.Load(), want.accepted)
		}
	}
}

func TestTwoWritersShareOneAccount(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	writers := []*Writer{f.writer(), f.writer()}
	open(t, writers[0], "hot")
	const each = 500
	var done [2]atomic.Int64
	together(32, func(i int) {
		w := i % 2
		for n := range each / 16 {
			must(t, writers[w], credit("hot", 1, keyN(keyN("k", i), n)))
			done[w].Add(1)
		}
	})
	if want := Amount(done[0].Load() + done[1].Load()); f.balanceOf("hot") != want {
		t.Fatalf("balance %d, want %d", f.balanceOf("hot"), want)
	}
}

func TestStaleHeadIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	decided, goOn := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	stopped := f.writer(func(_ *postgres.Config, c *WriterConfig) {
		c.Pause = func() {
			if once.CompareAndSwap(true, false) {
				close(decided)
				<-goOn
			}
		}
	})
	other := f.writer()
	open(t, other, "A")
	must(t, other, credit("A", 100, "in"))
	must(t, stopped, credit("A", 1, "warm")) // the head is remembered now

	once.Store(true)
	late := make(chan *Receipt)
	go func() { late <- must(t, stopped, debit("A", 100, "late")) }()
	<-decided // a debit of 100 was decided from a balance of 101
	must(t, other, debit("A", 60, "first"))
	close(goOn)
	if r := <-late; !r.Declined() || r.Entry.Reason != string(CodeInsufficientFunds) {
		t.Fatalf("the late debit was %s with balance %d", r.Entry.Kind, r.Entry.After.Balance)
	}
	if got := f.balanceOf("A"); got != 41 {
		t.Fatalf("balance %d, want 41", got)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A")
	frozen, closed, active := Frozen, Closed, Active
	must(t, w, credit("A", 100, "in"))

	must(t, w, settings("A", Change{Status: &frozen}))
	if r := must(t, w, settings("A", Change{Status: &frozen})); !r.Unchanged || r.Entry.Seq != 3 {
		t.Fatalf("no effect: unchanged %v at seq %d", r.Unchanged, r.Entry.Seq)
	}
	if r := must(t, w, debit("A", 1, "d1")); r.Entry.Reason != string(CodeAccountFrozen) {
		t.Fatalf("debit of a frozen account: %s %s", r.Entry.Kind, r.Entry.Reason)
	}
	must(t, w, credit("A", 1, "c1"))
	refused(t, w, settings("A", Change{Status: &closed}), CodeAccountNotEmpty)

	overdraft := Amount(-50)
	must(t, w, settings("A", Change{Status: &active, MinBalance: &overdraft, Metadata: Metadata{"plan": "gold"}}))
	must(t, w, debit("A", 151, "d2"))
	if h, err := f.r.Head(context.Background(), "A"); err != nil || h.Account.Metadata["plan"] != "gold" || h.State.Balance != -50 {
		t.Fatalf("head %+v, %v", h, err)
	}
	must(t, w, credit("A", 50, "c2"))
	must(t, w, settings("A", Change{Status: &closed}))
	if r := must(t, w, credit("A", 1, "c3")); r.Entry.Reason != string(CodeAccountClosed) {
		t.Fatalf("credit of a closed account: %s %s", r.Entry.Kind, r.Entry.Reason)
	}
	refused(t, w, settings("A", Change{Status: &active}), CodeAccountClosed)
}

func TestTokens(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A")
	external, required := SourceExternal, true
	with := func(op *Operation, token Token) *Operation { op.Token = token; return op }

	refused(t, w, with(credit("A", 1, "k0"), 7), CodeTokenFromTheFuture)
	must(t, w, settings("A", Change{FencingSource: &external, Required: &required}))
	refused(t, w, credit("A", 1, "k1"), CodeTokenRequired)
	must(t, w, with(credit("A", 1, "k1"), 7))
	must(t, w, with(credit("A", 1, "k2"), 7))
	must(t, w, with(credit("A", 1, "k3"), 9))
	r := refused(t, w, with(credit("A", 1, "k4"), 8), CodeStaleToken)
	if r.Presented != 8 || r.Current != 9 || r.Applied != NotApplied {
		t.Fatalf("refusal %+v", r)
	}
	if r := must(t, w, with(credit("A", 1, "k2"), 1)); !r.Replayed {
		t.Fatal("the key comes before the token")
	}
	reset := Token(3)
	must(t, w, settings("A", Change{ResetFence: &reset, Reason: "restored the coordinator"}))
	must(t, w, with(credit("A", 1, "k4"), 4))
	op := credit("A", 1, "k5")
	op.IfMatch, op.Token = 2, 4
	refused(t, w, op, CodeSeqMismatch)
}

func TestDeclinesAreLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer(func(_ *postgres.Config, c *WriterConfig) { c.Declines = DeclineLimit{PerSecond: 0.001, Burst: 3} })
	open(t, w, "A")
	for i := range 3 {
		must(t, w, debit("A", 1, keyN("d", i)))
	}
	refused(t, w, debit("A", 1, "d-3"), CodeTooManyDeclines)
	if r := must(t, w, debit("A", 1, "d-0")); !r.Replayed {
		t.Fatal("a recorded decline is replayed above the limit")
	}
	must(t, w, credit("A", 1, "c"))
	must(t, w, debit("A", 1, "d-3"))
}

func TestCallerThatLeavesHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A")
	for i := range 100 {
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		_, _ = w.Apply(ctx, credit("A", 1, keyN("left", i))) // applied or not, both are right
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := w.Apply(ctx, credit("A", 1, "stays")); err != nil {
		t.Fatal(err)
	}
}
