package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// drawAmount draws small amounts, and now and then one at the limits.
func drawAmount(t *rapid.T) Amount {
	return Amount(rapid.OneOf(
		rapid.Int64Range(1, 100),
		rapid.SampledFrom([]int64{1, int64(MaxAmount) - 1, int64(MaxAmount)}),
		rapid.Int64Range(1, int64(MaxAmount)),
	).Draw(t, "amount"))
}

func drawMinBalance(t *rapid.T) Amount {
	return Amount(rapid.SampledFrom([]int64{0, 0, 0, -1, -50, int64(LowestMinBalance)}).Draw(t, "min_balance"))
}

// drawMetadata draws nil, empty and awkward metadata.
func drawMetadata(t *rapid.T) Metadata {
	if rapid.Bool().Draw(t, "no metadata") {
		return nil
	}
	text := rapid.StringOfN(rapid.RuneFrom([]rune("aé\u0301\"\\\n\t\u2028😀\x7f\x01<")), 0, 8, -1)
	m := Metadata{}
	for range rapid.IntRange(0, 3).Draw(t, "members") {
		m["k"+text.Draw(t, "name")] = text.Draw(t, "value")
	}
	return m
}

func drawFencing(t *rapid.T) Fencing {
	return Fencing{
		Source:   rapid.SampledFrom([]FencingSource{SourceLease, SourceExternal}).Draw(t, "source"),
		Required: rapid.IntRange(0, 3).Draw(t, "required") == 0,
	}
}

// drawOperation draws a valid operation on the account A: an opening when head
// is nil, and otherwise one that the account may take or refuse.
func drawOperation(t *rapid.T, head *Head) *Operation {
	if head == nil {
		return &Operation{Kind: KindOpened, AccountID: "A", Metadata: drawMetadata(t), Opening: &Opening{
			Currency: "CZK", Exponent: rapid.IntRange(0, MaxExponent).Draw(t, "exponent"), MinBalance: drawMinBalance(t), Fencing: drawFencing(t)}}
	}
	op := &Operation{AccountID: "A"}
	if rapid.IntRange(0, 11).Draw(t, "new owner") == 0 {
		op.Kind, op.Token = KindFenced, max(1, head.State.Fence+Token(rapid.IntRange(-1, 2).Draw(t, "fence")))
		return op
	}
	if rapid.IntRange(0, 4).Draw(t, "settings") == 0 {
		op.Kind, op.Change = KindSettings, drawChange(t, head)
	} else {
		op.Kind = rapid.SampledFrom([]Kind{KindCredit, KindCredit, KindDebit}).Draw(t, "kind")
		op.Key = "key"
		op.Amount = drawAmount(t)
		op.Metadata = drawMetadata(t)
		op.Description = rapid.SampledFrom([]string{"", "é", "e\u0301", "a \"b\" \\ c"}).Draw(t, "description")
		op.Currency = rapid.SampledFrom([]Currency{"", "", "CZK", "CZK", "EUR"}).Draw(t, "currency")
	}
	if rapid.Bool().Draw(t, "with token") {
		op.Token = max(0, head.State.Fence+Token(rapid.IntRange(-1, 2).Draw(t, "token")))
	}
	if rapid.IntRange(0, 5).Draw(t, "conditional") == 0 {
		op.IfMatch = head.Seq - Seq(rapid.IntRange(0, 1).Draw(t, "behind"))
	}
	return op
}

func drawChange(t *rapid.T, head *Head) *Change {
	c := &Change{Metadata: drawMetadata(t)}
	switch rapid.IntRange(0, 5).Draw(t, "change") {
	case 0:
		c.Status = ptr(rapid.SampledFrom([]Status{Active, Active, Frozen, Closed}).Draw(t, "status"))
	case 1:
		c.MinBalance = ptr(drawMinBalance(t))
	case 2:
		c.FencingSource = ptr(drawFencing(t).Source)
	case 3:
		c.Required = ptr(drawFencing(t).Required)
	case 4:
		c.ResetFence = ptr(max(0, head.State.Fence+Token(rapid.IntRange(-2, 1).Draw(t, "reset"))))
		c.Reason = "drawn"
	}
	return c
}

// chainMaker decides operations one after another, as a writer does, without a
// database.
type chainMaker struct {
	head *Head
	hash [32]byte
	at   time.Time
	n    byte
}

// add decides op and returns its link, nil when it makes none.
func (m *chainMaker) add(op *Operation) *Entry {
	if m.at.IsZero() {
		m.at = noon
	}
	e, refusal := decide(m.head, op, m.at)
	if refusal != nil || e == nil {
		return nil
	}
	m.n++
	seal(e, &task{op: op, requestHash: op.requestHash(), transactionID: uuid.UUID{m.n}}, m.hash)
	account := Account{}
	if m.head != nil {
		account = m.head.Account
	}
	after := headAfter(account, e, op)
	m.head, m.hash = &after, e.Hash
	return e
}

// TestDecideAgreesWithTheAuditor decides random operations one after another.
// The chain they make passes the auditor, declines and refusals move nothing,
// and the balance is what came in less what went out.
func TestDecideAgreesWithTheAuditor(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &chainMaker{at: noon}
		var in, out Amount
		auditor := NewAuditor("A")
		for range rapid.IntRange(1, 40).Draw(t, "operations") {
			op := drawOperation(t, m.head)
			if err := op.Validate(); err != nil {
				t.Fatalf("%+v: %v", op, err)
			}
			m.at = m.at.Add(time.Duration(rapid.Int64Range(-2_000_000_000, 5_000_000_000).Draw(t, "time passes")))
			first, firstRefusal := decide(m.head, op, m.at)
			second, secondRefusal := decide(m.head, op, m.at)
			if fmt.Sprint(first, firstRefusal) != fmt.Sprint(second, secondRefusal) {
				t.Fatalf("decided twice: %+v %v, then %+v %v", first, firstRefusal, second, secondRefusal)
			}
			before := m.head
			e := m.add(op)
			if e == nil {
				continue
			}
			for _, finding := range auditor.Add(e) {
				t.Fatalf("%v\nentry %+v", finding, e)
			}
			switch e.Kind {
			case KindCredit:
				in += e.Amount
			case KindDebit:
				out += e.Amount
			case KindDeclined:
				want := before.State
				want.Fence = e.After.Fence
				if e.After != want {
					t.Fatalf("the decline %s moved %+v to %+v", e.Reason, before.State, e.After)
				}
			}
			if e.After.Balance != in-out {
				t.Fatalf("balance %d, but %d came in and %d went out", e.After.Balance, in, out)
			}
			if got, want := describe(auditor.Account()), describe(m.head.Account); got != want || auditor.State() != m.head.State || auditor.Seq() != m.head.Seq {
				t.Fatalf("the chain says %s %+v, the head is %s %+v", got, auditor.State(), want, m.head.State)
			}
		}
	})
}

// describe prints an account so that two can be compared; metadata that is
// absent and metadata that is empty are the same.
func describe(a Account) string {
	return fmt.Sprintf("%s %s %d %s %s", a.ID, a.Currency, a.Exponent, a.Metadata, a.OpenedAt)
}
