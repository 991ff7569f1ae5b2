package ledger

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// goldenEntry is an entry as testdata/README.md describes it.
type goldenEntry struct {
	HashVersion    int        `json:"hash_version"`
	AccountID      AccountID  `json:"account_id"`
	Seq            Seq        `json:"seq"`
	Kind           Kind       `json:"kind"`
	Amount         Amount     `json:"amount"`
	BalanceAfter   Amount     `json:"balance_after"`
	HeldAfter      Amount     `json:"held_after"`
	FenceAfter     Token      `json:"fence_after"`
	MinBalance     Amount     `json:"min_balance_after"`
	StatusAfter    Status     `json:"status_after"`
	FencingAfter   string     `json:"fencing_after"`
	TransactionID  uuid.UUID  `json:"transaction_id"`
	IdempotencyKey *string    `json:"idempotency_key"`
	RequestHash    string     `json:"request_hash"`
	Counterparty   *string    `json:"counterparty"`
	HoldSeq        *Seq       `json:"hold_seq"`
	Reverses       *uuid.UUID `json:"reverses"`
	Reason         *string    `json:"reason"`
	EffectiveAt    time.Time  `json:"effective_at"`
	Details        *string    `json:"details"`
	PostedAt       time.Time  `json:"posted_at"`
	Hash           string     `json:"hash"`
}

func (g *goldenEntry) entry(t *testing.T) *Entry {
	t.Helper()
	fencing, err := ParseFencing(g.FencingAfter)
	if err != nil {
		t.Fatal(err)
	}
	return &Entry{
		AccountID: g.AccountID, Seq: g.Seq, Kind: g.Kind, Amount: g.Amount,
		After: State{Balance: g.BalanceAfter, Held: g.HeldAfter, Fence: g.FenceAfter,
			MinBalance: g.MinBalance, Status: g.StatusAfter, Fencing: fencing},
		TransactionID: g.TransactionID, Key: deref(g.IdempotencyKey), RequestHash: hash32(t, g.RequestHash),
		Counterparty: deref(g.Counterparty), HoldSeq: deref(g.HoldSeq), Reverses: deref(g.Reverses), Reason: deref(g.Reason),
		EffectiveAt: g.EffectiveAt, Details: deref(g.Details), PostedAt: g.PostedAt, HashVersion: g.HashVersion,
	}
}

func hash32(t *testing.T, s string) (sum [32]byte) {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(sum) {
		t.Fatalf("%q is not a hash", s)
	}
	copy(sum[:], b)
	return sum
}

func readGolden(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// TestChainHashIsFrozen holds the encoding against committed vectors: an entry
// that was hashed once can be checked for ever, by any program.
func TestChainHashIsFrozen(t *testing.T) {
	t.Parallel()
	var chain []goldenEntry
	readGolden(t, "chain.json", &chain)
	if len(chain) < 9 {
		t.Fatalf("%d vectors", len(chain))
	}
	prev := genesis
	for _, g := range chain {
		got := ChainHash(prev, g.entry(t))
		if prev = hash32(t, g.Hash); got != prev {
			t.Errorf("entry %d: hash %x, want %s", g.Seq, got, g.Hash)
		}
	}
}

// goldenRequest is an operation as testdata/README.md describes it.
type goldenRequest struct {
	Kind         Kind       `json:"kind"`
	AccountID    AccountID  `json:"account_id"`
	Amount       Amount     `json:"amount"`
	Currency     Currency   `json:"currency"`
	Description  string     `json:"description"`
	Counterparty string     `json:"counterparty"`
	EffectiveAt  *time.Time `json:"effective_at"`
	Metadata     Metadata   `json:"metadata"`
	Token        Token      `json:"token"`
	Legs         []struct {
		AccountID AccountID `json:"account_id"`
		Kind      Kind      `json:"kind"`
		Amount    Amount    `json:"amount"`
	} `json:"legs"`
	Opening *struct {
		Currency   Currency `json:"currency"`
		Exponent   int      `json:"exponent"`
		MinBalance Amount   `json:"min_balance"`
		Fencing    string   `json:"fencing"`
	} `json:"opening"`
	Change *struct {
		Status     *Status        `json:"status"`
		MinBalance *Amount        `json:"min_balance"`
		Source     *FencingSource `json:"source"`
		Required   *bool          `json:"required"`
		Reset      *Token         `json:"reset"`
		Reason     string         `json:"reason"`
		Metadata   Metadata       `json:"metadata"`
	} `json:"change"`
	RequestHash string `json:"request_hash"`
}

// TestRequestHashIsFrozen is the same for the hash that decides what a retry is.
func TestRequestHashIsFrozen(t *testing.T) {
	t.Parallel()
	var requests []goldenRequest
	readGolden(t, "requests.json", &requests)
	if len(requests) < 8 {
		t.Fatalf("%d vectors", len(requests))
	}
	for i, g := range requests {
		op := &Operation{Kind: g.Kind, AccountID: g.AccountID, Amount: g.Amount, Currency: g.Currency, Description: g.Description,
			Counterparty: g.Counterparty, EffectiveAt: deref(g.EffectiveAt), Metadata: g.Metadata, Token: g.Token}
		for _, l := range g.Legs {
			op.Legs = append(op.Legs, Leg{AccountID: l.AccountID, Kind: l.Kind, Amount: l.Amount})
		}
		if o := g.Opening; o != nil {
			fencing, err := ParseFencing(o.Fencing)
			if err != nil {
				t.Fatal(err)
			}
			op.Opening = &Opening{o.Currency, o.Exponent, o.MinBalance, fencing}
		}
		if c := g.Change; c != nil {
			op.Change = &Change{c.Status, c.MinBalance, c.Source, c.Required, c.Reset, c.Reason, c.Metadata}
		}
		if got := op.requestHash(); got != hash32(t, g.RequestHash) {
			t.Errorf("request %d: hash %x, want %s", i, got, g.RequestHash)
		}
	}
}

// drawRequest draws an operation from few values, so that two that are drawn
// after one another differ in one place as often as in all.
func drawRequest(t *rapid.T) *Operation {
	op := &Operation{
		Kind:         rapid.SampledFrom([]Kind{KindCredit, KindDebit, KindOpened, KindSettings}).Draw(t, "kind"),
		AccountID:    rapid.SampledFrom([]AccountID{"A", "AB"}).Draw(t, "account"),
		Description:  rapid.SampledFrom([]string{"", "B", "é", "e\u0301"}).Draw(t, "description"),
		Counterparty: rapid.SampledFrom([]string{"", "B"}).Draw(t, "counterparty"),
		Metadata:     rapid.SampledFrom([]Metadata{nil, {}, {"a": ""}, {"": "a"}, {"a": "b", "c": "d"}, {"a": `b","c":"d`}}).Draw(t, "metadata"),
	}
	switch op.Kind {
	case KindOpened:
		op.Opening = &Opening{
			Currency:   rapid.SampledFrom([]Currency{"CZK", "EUR"}).Draw(t, "currency"),
			Exponent:   rapid.IntRange(0, 1).Draw(t, "exponent"),
			MinBalance: -Amount(rapid.IntRange(0, 1).Draw(t, "minimum")),
			Fencing:    drawFencing(t),
		}
	case KindSettings:
		op.Change = &Change{
			Status:        rapid.SampledFrom([]*Status{nil, ptr(Active), ptr(Frozen)}).Draw(t, "status"),
			MinBalance:    rapid.SampledFrom([]*Amount{nil, ptr(Amount(0)), ptr(Amount(-1))}).Draw(t, "minimum"),
			FencingSource: rapid.SampledFrom([]*FencingSource{nil, ptr(SourceLease), ptr(SourceExternal)}).Draw(t, "source"),
			Required:      rapid.SampledFrom([]*bool{nil, ptr(false), ptr(true)}).Draw(t, "required"),
			ResetFence:    rapid.SampledFrom([]*Token{nil, ptr(Token(0)), ptr(Token(1))}).Draw(t, "reset"),
			Reason:        rapid.SampledFrom([]string{"", "B"}).Draw(t, "reason"),
			Metadata:      rapid.SampledFrom([]Metadata{nil, {}, {"a": ""}}).Draw(t, "change of metadata"),
		}
	default:
		op.Amount = Amount(rapid.IntRange(1, 2).Draw(t, "amount"))
		op.Currency = rapid.SampledFrom([]Currency{"", "CZK"}).Draw(t, "currency")
		op.EffectiveAt = rapid.SampledFrom([]time.Time{{}, noon, noon.Add(time.Microsecond), time.Unix(0, 0)}).Draw(t, "effective_at")
	}
	return op
}

// meaning is the operation in words of its own: equal texts are equal operations.
func meaning(op *Operation) string {
	s := fmt.Sprintf("%s %s %d %q %q %q %v", op.Kind, op.AccountID, op.Amount, op.Currency, op.Description, op.Counterparty, op.EffectiveAt.UTC())
	s += fmt.Sprintf(" %q", map[string]string(op.Metadata)) // in the order of the keys
	for _, l := range op.Legs {
		s += fmt.Sprintf(" %s %s %d", l.Kind, l.AccountID, l.Amount)
	}
	if op.Kind == KindFenced {
		s += fmt.Sprint(" ", op.Token)
	}
	if o := op.Opening; o != nil {
		s += fmt.Sprintf(" %+v", *o)
	}
	if c := op.Change; c != nil {
		encoded, err := json.Marshal(c)
		s += fmt.Sprintf(" %s %v", encoded, err)
	}
	return s
}

func TestRequestHashTellsOperationsApart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawRequest(t), drawRequest(t)
		if rapid.Bool().Draw(t, "alike but for one field") {
			b = ptr(*a)
			switch other := drawRequest(t); rapid.IntRange(0, 4).Draw(t, "field") {
			case 0:
				b.Description = other.Description
			case 1:
				b.Counterparty = other.Counterparty
			case 2:
				b.Metadata = other.Metadata
			case 3:
				b.AccountID = other.AccountID
			default:
				b.EffectiveAt, b.Amount, b.Opening, b.Change = other.EffectiveAt, other.Amount, other.Opening, other.Change
			}
		}
		if same, equal := meaning(a) == meaning(b), a.requestHash() == b.requestHash(); same != equal {
			t.Fatalf("the hashes are equal: %v, the operations are: %v\n%s\n%s", equal, same, meaning(a), meaning(b))
		}
	})
}

func TestSpellingDoesNotChangeTheRequestHash(t *testing.T) {
	t.Parallel()
	base := func() *Operation {
		return &Operation{Kind: KindCredit, AccountID: "A", Amount: 1, Key: "k", EffectiveAt: noon}
	}
	want := base().requestHash()
	for name, change := range map[string]func(*Operation){
		"another time zone": func(op *Operation) { op.EffectiveAt = noon.In(time.FixedZone("", 4*3600)) },
		"nanoseconds":       func(op *Operation) { op.EffectiveAt = noon.Add(999) },
		"empty metadata":    func(op *Operation) { op.Metadata = Metadata{} },
		"another key":       func(op *Operation) { op.Key = "k2" },
		"a token":           func(op *Operation) { op.Token = 7 },
		"a condition":       func(op *Operation) { op.IfMatch = 7 },
	} {
		op := base()
		change(op)
		if op.requestHash() != want {
			t.Errorf("%s changes the hash", name)
		}
	}
	with := transfer("A", "B", 1, "k")
	with.Legs[0].Token, with.Legs[1].Token = 7, 8
	if with.requestHash() != transfer("A", "B", 1, "k").requestHash() {
		t.Error("a token of a leg changes the hash")
	}
}

// TestEveryFieldIsInTheRequestHash changes one field at a time.
func TestEveryFieldIsInTheRequestHash(t *testing.T) {
	t.Parallel()
	movement := Operation{Kind: KindCredit, AccountID: "A", Amount: 1}
	opening := Operation{Kind: KindOpened, AccountID: "A"}
	change := Operation{Kind: KindSettings, AccountID: "A"}
	seen := map[[32]byte]string{}
	for name, f := range map[string]func() Operation{
		"movement":     func() Operation { return movement },
		"kind":         func() Operation { op := movement; op.Kind = KindDebit; return op },
		"account":      func() Operation { op := movement; op.AccountID = "B"; return op },
		"amount":       func() Operation { op := movement; op.Amount = 2; return op },
		"currency":     func() Operation { op := movement; op.Currency = "X"; return op },
		"description":  func() Operation { op := movement; op.Description = "X"; return op },
		"counterparty": func() Operation { op := movement; op.Counterparty = "X"; return op },
		"effective_at": func() Operation { op := movement; op.EffectiveAt = noon; return op },
		"epoch":        func() Operation { op := movement; op.EffectiveAt = time.Unix(0, 0); return op },
		"metadata":     func() Operation { op := movement; op.Metadata = Metadata{"X": ""}; return op },
		"transfer":     func() Operation { return *transfer("A", "B", 1, "") },
		"to another":   func() Operation { return *transfer("A", "C", 1, "") },
		"more":         func() Operation { return *transfer("A", "B", 2, "") },
		"transaction":  func() Operation { return *transaction("", out("A", 1), in("B", 1)) },
		"other way":    func() Operation { return *transaction("", in("A", 1), out("B", 1)) },
		"more legs":    func() Operation { return *transaction("", in("A", 1), out("B", 1), in("A", 1), out("B", 1)) },
		"other order":  func() Operation { return *transaction("", in("A", 1), in("A", 1), out("B", 1), out("B", 1)) },
		"fence":        func() Operation { return Operation{Kind: KindFenced, AccountID: "A", Token: 1} },
		"next fence":   func() Operation { return Operation{Kind: KindFenced, AccountID: "A", Token: 2} },
		"opening":      func() Operation { op := opening; op.Opening = &Opening{Currency: "XX"}; return op },
		"its currency": func() Operation { op := opening; op.Opening = &Opening{Currency: "YY"}; return op },
		"exponent":     func() Operation { op := opening; op.Opening = &Opening{Currency: "XX", Exponent: 1}; return op },
		"minimum":      func() Operation { op := opening; op.Opening = &Opening{Currency: "XX", MinBalance: -1}; return op },
		"fencing": func() Operation {
			op := opening
			op.Opening = &Opening{Currency: "XX", Fencing: Fencing{Required: true}}
			return op
		},
		"change":       func() Operation { op := change; op.Change = &Change{}; return op },
		"status":       func() Operation { op := change; op.Change = &Change{Status: ptr(Active)}; return op },
		"minimum 0":    func() Operation { op := change; op.Change = &Change{MinBalance: ptr(Amount(0))}; return op },
		"minimum -1":   func() Operation { op := change; op.Change = &Change{MinBalance: ptr(Amount(-1))}; return op },
		"source":       func() Operation { op := change; op.Change = &Change{FencingSource: ptr(SourceLease)}; return op },
		"not required": func() Operation { op := change; op.Change = &Change{Required: ptr(false)}; return op },
		"required":     func() Operation { op := change; op.Change = &Change{Required: ptr(true)}; return op },
		"reset":        func() Operation { op := change; op.Change = &Change{ResetFence: ptr(Token(0))}; return op },
		"reset to 1":   func() Operation { op := change; op.Change = &Change{ResetFence: ptr(Token(1))}; return op },
		"reason":       func() Operation { op := change; op.Change = &Change{Reason: "X"}; return op },
		"no metadata":  func() Operation { op := change; op.Change = &Change{Metadata: Metadata{}}; return op },
		"its metadata": func() Operation { op := change; op.Change = &Change{Metadata: Metadata{"X": ""}}; return op },
	} {
		op := f()
		hash := op.requestHash()
		if other, ok := seen[hash]; ok {
			t.Errorf("%s and %s have one hash", name, other)
		}
		seen[hash] = name
	}
}
