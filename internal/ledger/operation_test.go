package ledger

import (
	"strings"
	"testing"
	"time"
)

// TestValidate changes one thing of a good operation. What Validate lets through
// must be decidable and storable: what it misses fails as an internal error.
func TestValidate(t *testing.T) {
	t.Parallel()
	movement := func(change func(*Operation)) *Operation {
		op := credit("A", 1, "k")
		change(op)
		return op
	}
	opened := func(change func(*Operation)) *Operation {
		op := &Operation{Kind: KindOpened, AccountID: "A", Opening: &Opening{Currency: "CZK", Exponent: 2, Fencing: Fencing{Source: SourceLease}}}
		change(op)
		return op
	}
	legs := func(change func(*Operation), legs ...Leg) *Operation {
		op := transaction("k", legs...)
		change(op)
		return op
	}
	many := func(n int) []Leg {
		var legs []Leg
		for range n / 2 {
			legs = append(legs, in("A", MaxAmount), out("B", MaxAmount))
		}
		return legs
	}
	changed := func(c Change) *Operation { return settings("A", c) }
	for name, c := range map[string]struct {
		op    *Operation
		valid bool
	}{
		"a credit":                     {movement(func(*Operation) {}), true},
		"a debit":                      {debit("A", 1, "k"), true},
		"the largest amount":           {movement(func(op *Operation) { op.Amount = MaxAmount }), true},
		"a larger one":                 {movement(func(op *Operation) { op.Amount = MaxAmount + 1 }), false},
		"no amount":                    {movement(func(op *Operation) { op.Amount = 0 }), false},
		"a negative amount":            {movement(func(op *Operation) { op.Amount = -1 }), false},
		"no key":                       {movement(func(op *Operation) { op.Key = "" }), false},
		"a key with a space":           {movement(func(op *Operation) { op.Key = "a b" }), false},
		"the longest key":              {movement(func(op *Operation) { op.Key = strings.Repeat("~", 255) }), true},
		"a longer one, of a key":       {movement(func(op *Operation) { op.Key = strings.Repeat("~", 256) }), false},
		"a bad account":                {movement(func(op *Operation) { op.AccountID = "a/b" }), false},
		"the longest description":      {movement(func(op *Operation) { op.Description = strings.Repeat("é", 500) }), true},
		"a longer description":         {movement(func(op *Operation) { op.Description = strings.Repeat("é", 501) }), false},
		"U+0000 in the description":    {movement(func(op *Operation) { op.Description = "\x00" }), false},
		"a longer counterparty":        {movement(func(op *Operation) { op.Counterparty = strings.Repeat("é", 256) }), false},
		"metadata that is too large":   {movement(func(op *Operation) { op.Metadata = Metadata{"k": strings.Repeat("x", MetadataBytesMax)} }), false},
		"the first moment":             {movement(func(op *Operation) { op.EffectiveAt = time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC) }), true},
		"the last moment":              {movement(func(op *Operation) { op.EffectiveAt = time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC) }), true},
		"year 0 in UTC":                {movement(func(op *Operation) { op.EffectiveAt = time.Date(1, 1, 1, 0, 0, 0, 0, time.FixedZone("", 3600)) }), false},
		"year 10000 in UTC":            {movement(func(op *Operation) { op.EffectiveAt = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -3600)) }), false},
		"the largest token":            {movement(func(op *Operation) { op.Token = MaxToken }), true},
		"a larger token":               {movement(func(op *Operation) { op.Token = MaxToken + 1 }), false},
		"a negative token":             {movement(func(op *Operation) { op.Token = -1 }), false},
		"a negative condition":         {movement(func(op *Operation) { op.IfMatch = -1 }), false},
		"a kind that is not asked for": {movement(func(op *Operation) { op.Kind = KindDeclined }), false},
		"no kind":                      {movement(func(op *Operation) { op.Kind = "" }), false},

		"an opening":                  {opened(func(*Operation) {}), true},
		"an opening of nothing":       {opened(func(op *Operation) { op.Opening = nil }), false},
		"an opening with a key":       {opened(func(op *Operation) { op.Key = "k" }), false},
		"a bad currency":              {opened(func(op *Operation) { op.Opening.Currency = "czk" }), false},
		"the largest exponent":        {opened(func(op *Operation) { op.Opening.Exponent = MaxExponent }), true},
		"a larger exponent":           {opened(func(op *Operation) { op.Opening.Exponent = MaxExponent + 1 }), false},
		"a negative exponent":         {opened(func(op *Operation) { op.Opening.Exponent = -1 }), false},
		"the deepest overdraft":       {opened(func(op *Operation) { op.Opening.MinBalance = LowestMinBalance }), true},
		"a deeper overdraft":          {opened(func(op *Operation) { op.Opening.MinBalance = LowestMinBalance - 1 }), false},
		"a minimum above 0":           {opened(func(op *Operation) { op.Opening.MinBalance = 1 }), false},
		"a source that nobody knows":  {opened(func(op *Operation) { op.Opening.Fencing.Source = "redis" }), false},
		"no source":                   {opened(func(op *Operation) { op.Opening.Fencing.Source = "" }), false},
		"settings":                    {changed(Change{Status: ptr(Frozen)}), true},
		"no settings":                 {&Operation{Kind: KindSettings, AccountID: "A"}, false},
		"settings with a key":         {&Operation{Kind: KindSettings, AccountID: "A", Key: "k", Change: &Change{Status: ptr(Frozen)}}, false},
		"a status that nobody knows":  {changed(Change{Status: ptr(Status("asleep"))}), false},
		"settings above 0":            {changed(Change{MinBalance: ptr(Amount(1))}), false},
		"settings with a bad source":  {changed(Change{FencingSource: ptr(FencingSource("redis"))}), false},
		"a reset":                     {changed(Change{ResetFence: ptr(MaxToken), Reason: "why"}), true},
		"a reset without a reason":    {changed(Change{ResetFence: ptr(Token(0))}), false},
		"a reset too high":            {changed(Change{ResetFence: ptr(MaxToken + 1), Reason: "why"}), false},
		"a reset below 0":             {changed(Change{ResetFence: ptr(Token(-1)), Reason: "why"}), false},
		"a longer reason":             {changed(Change{Reason: strings.Repeat("é", 256)}), false},
		"bad metadata of the account": {changed(Change{Metadata: Metadata{"": ""}}), false},

		"a fence":                       {&Operation{Kind: KindFenced, AccountID: "A", Token: MaxToken}, true},
		"a fence of nothing":            {&Operation{Kind: KindFenced, AccountID: "A"}, false},
		"a fence too high":              {&Operation{Kind: KindFenced, AccountID: "A", Token: MaxToken + 1}, false},
		"a fence with a key":            {&Operation{Kind: KindFenced, AccountID: "A", Token: 1, Key: "k"}, false},
		"a transfer":                    {transfer("A", "B", 1, "k"), true},
		"a transfer to the same":        {transfer("A", "A", 1, "k"), true}, // it is declined
		"a transfer of nothing":         {transfer("A", "B", 0, "k"), false},
		"a transfer backwards":          {legs(func(op *Operation) { op.Kind = KindTransfer }, in("A", 1), out("B", 1)), false},
		"a transfer of three":           {legs(func(op *Operation) { op.Kind = KindTransfer }, out("A", 2), in("B", 1), in("B", 1)), false},
		"a transaction":                 {transaction("k", in("A", 3), out("B", 1), out("C", 2)), true},
		"a transaction without a key":   {transaction("", in("A", 1), out("B", 1)), false},
		"one leg":                       {transaction("k", in("A", 1)), false},
		"the most legs":                 {transaction("k", many(LegsMax)...), true},
		"more legs":                     {transaction("k", many(LegsMax+2)...), false},
		"the largest legs":              {transaction("k", in("A", MaxAmount), out("B", MaxAmount), in("A", MaxAmount), out("B", MaxAmount)), true},
		"legs that do not add up":       {transaction("k", in("A", 1), out("B", 2)), false},
		"legs of the same direction":    {transaction("k", in("A", 1), in("B", 1)), false},
		"a leg of a bad account":        {transaction("k", in("A", 1), out("a/b", 1)), false},
		"a leg of another kind":         {transaction("k", in("A", 1), Leg{AccountID: "B", Kind: KindHold, Amount: 1}), false},
		"a leg that is too large":       {transaction("k", in("A", MaxAmount+1), out("B", MaxAmount+1)), false},
		"a negative leg":                {transaction("k", in("A", -1), out("B", -1)), false},
		"a leg with a bad token":        {transaction("k", in("A", 1), Leg{AccountID: "B", Kind: KindDebit, Amount: 1, Token: -1}), false},
		"a leg with too high a token":   {transaction("k", in("A", 1), Leg{AccountID: "B", Kind: KindDebit, Amount: 1, Token: MaxToken + 1}), false},
		"an account that has no leg":    {legs(func(op *Operation) { op.AccountID = "B" }, in("A", 1), out("B", 1)), false},
		"legs and a condition":          {legs(func(op *Operation) { op.IfMatch = 1 }, in("A", 1), out("B", 1)), false},
		"legs and a token":              {legs(func(op *Operation) { op.Token = 1 }, in("A", 1), out("B", 1)), false},
		"legs and an amount":            {legs(func(op *Operation) { op.Amount = 1 }, in("A", 1), out("B", 1)), false},
		"a credit with legs":            {legs(func(op *Operation) { op.Kind, op.Amount = KindCredit, 1 }, in("A", 1), out("B", 1)), false},
		"a credit without its one side": {legs(func(op *Operation) { op.Kind = KindCredit }, in("A", 1), out("B", 1)), false},
	} {
		if err := c.op.Validate(); (err == nil) != c.valid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDefaultExponent(t *testing.T) {
	t.Parallel()
	for currency, want := range map[Currency]int{"CZK": 2, "EUR": 2, "JPY": 0, "KWD": 3, "CLF": 4, "POINTS": 2} {
		if got := currency.DefaultExponent(); got != want {
			t.Errorf("%s: %d, want %d", currency, got, want)
		}
	}
}
