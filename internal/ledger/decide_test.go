package ledger

import (
	"testing"
	"time"
)

// noon is when the heads of these tests were posted.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// headWith is an active account in CZK at seq 7 with the state as changed.
func headWith(change func(*State)) *Head {
	h := &Head{
		Account: Account{ID: "A", Currency: "CZK", Exponent: 2, Metadata: Metadata{}, OpenedAt: noon.Add(-time.Hour)},
		Seq:     7, PostedAt: noon,
		State: State{Status: Active, Fencing: Fencing{Source: SourceLease}},
	}
	if change != nil {
		change(&h.State)
	}
	return h
}

func TestDecideMovement(t *testing.T) {
	t.Parallel()
	balance := func(b Amount) func(*State) { return func(s *State) { s.Balance = b } }
	for name, c := range map[string]struct {
		state    func(*State)
		op       *Operation
		declined Code // "" when accepted
		after    Amount
	}{
		"credit":                                  {balance(5), credit("A", 3, "k"), "", 8},
		"debit":                                   {balance(5), debit("A", 3, "k"), "", 2},
		"debit of all":                            {balance(5), debit("A", 5, "k"), "", 0},
		"debit of one too many":                   {balance(5), debit("A", 6, "k"), CodeInsufficientFunds, 5},
		"debit of nothing there":                  {balance(0), debit("A", 1, "k"), CodeInsufficientFunds, 0},
		"debit down to the overdraft":             {func(s *State) { s.MinBalance = -10 }, debit("A", 10, "k"), "", -10},
		"debit beyond the overdraft":              {func(s *State) { s.MinBalance = -10 }, debit("A", 11, "k"), CodeInsufficientFunds, 0},
		"debit down to the deepest overdraft":     {func(s *State) { s.MinBalance = LowestMinBalance }, debit("A", -LowestMinBalance, "k"), "", LowestMinBalance},
		"debit beyond the deepest overdraft":      {func(s *State) { s.MinBalance = LowestMinBalance }, debit("A", -LowestMinBalance+1, "k"), CodeInsufficientFunds, 0},
		"debit of what is held":                   {func(s *State) { s.Balance, s.Held = 10, 4 }, debit("A", 7, "k"), CodeInsufficientFunds, 10},
		"debit of what is not held":               {func(s *State) { s.Balance, s.Held = 10, 4 }, debit("A", 6, "k"), "", 4},
		"the largest debit":                       {balance(MaxAmount), debit("A", MaxAmount, "k"), "", 0},
		"the largest credit":                      {balance(0), credit("A", MaxAmount, "k"), "", MaxAmount},
		"credit to the limit":                     {balance(MaxAmount - 1), credit("A", 1, "k"), "", MaxAmount},
		"credit beyond the limit":                 {balance(MaxAmount), credit("A", 1, "k"), CodeBalanceLimit, MaxAmount},
		"the largest credit beyond the limit":     {balance(1), credit("A", MaxAmount, "k"), CodeBalanceLimit, 1},
		"available to the limit":                  {func(s *State) { s.Balance, s.MinBalance = MaxAmount-11, -10 }, credit("A", 1, "k"), "", MaxAmount - 10},
		"available beyond the limit":              {func(s *State) { s.Balance, s.MinBalance = MaxAmount-10, -10 }, credit("A", 1, "k"), CodeBalanceLimit, MaxAmount - 10},
		"debit to the lower limit":                {func(s *State) { s.Balance, s.MinBalance = 1-MaxAmount, -MaxAmount }, debit("A", 1, "k"), "", -MaxAmount},
		"debit beyond the lower limit":            {func(s *State) { s.Balance, s.MinBalance = -MaxAmount, -MaxAmount-1 }, debit("A", 1, "k"), CodeBalanceLimit, -MaxAmount},
		"credit of a frozen account":              {func(s *State) { s.Status = Frozen }, credit("A", 1, "k"), "", 1},
		"debit of a frozen account":               {func(s *State) { s.Status, s.Balance = Frozen, 9 }, debit("A", 1, "k"), CodeAccountFrozen, 9},
		"frozen comes before no money":            {func(s *State) { s.Status = Frozen }, debit("A", 1, "k"), CodeAccountFrozen, 0},
		"credit of a closed account":              {func(s *State) { s.Status = Closed }, credit("A", 1, "k"), CodeAccountClosed, 0},
		"debit of a closed account":               {func(s *State) { s.Status = Closed }, debit("A", 1, "k"), CodeAccountClosed, 0},
		"the account's currency":                  {balance(0), &Operation{Kind: KindCredit, AccountID: "A", Amount: 1, Key: "k", Currency: "CZK"}, "", 1},
		"another currency":                        {balance(0), &Operation{Kind: KindCredit, AccountID: "A", Amount: 1, Key: "k", Currency: "EUR"}, CodeCurrencyMismatch, 0},
		"another currency comes before no money":  {balance(0), &Operation{Kind: KindDebit, AccountID: "A", Amount: 1, Key: "k", Currency: "EUR"}, CodeCurrencyMismatch, 0},
		"another currency comes before is closed": {func(s *State) { s.Status = Closed }, &Operation{Kind: KindDebit, AccountID: "A", Amount: 1, Key: "k", Currency: "EUR"}, CodeCurrencyMismatch, 0},
	} {
		t.Run(name, func(t *testing.T) {
			head := headWith(c.state)
			e, r := decide(head, c.op, noon.Add(time.Second))
			if r != nil || e == nil {
				t.Fatalf("entry %+v, refusal %v", e, r)
			}
			want := head.State
			want.Balance = c.after
			if e.After != want || e.Seq != 8 || e.Amount != c.op.Amount || Code(e.Reason) != c.declined {
				t.Errorf("got %+v, want reason %q and the state %+v", e, c.declined, want)
			}
			details, err := ParseDetails(e.Details)
			switch {
			case err != nil:
				t.Error(err)
			case c.declined == "" && (e.Kind != c.op.Kind || details.Attempted != ""):
				t.Errorf("kind %s, attempted %q, want %s", e.Kind, details.Attempted, c.op.Kind)
			case c.declined != "" && (e.Kind != KindDeclined || details.Attempted != c.op.Kind):
				t.Errorf("kind %s, attempted %q, want declined %s", e.Kind, details.Attempted, c.op.Kind)
			}
		})
	}
}

func TestDecideOpening(t *testing.T) {
	t.Parallel()
	op := &Operation{Kind: KindOpened, AccountID: "A", Metadata: Metadata{"a": "b"}, Opening: &Opening{
		Currency: "JPY", MinBalance: -5, Fencing: Fencing{Source: SourceExternal, Required: true}}}
	e, r := decide(nil, op, noon.Add(1999*time.Nanosecond))
	if r != nil {
		t.Fatal(r)
	}
	want := Entry{
		AccountID: "A", Seq: 1, Kind: KindOpened,
		After:       State{MinBalance: -5, Status: Active, Fencing: Fencing{Source: SourceExternal, Required: true}},
		EffectiveAt: noon.Add(time.Microsecond), PostedAt: noon.Add(time.Microsecond),
		Details: `{"currency":"JPY","exponent":0,"metadata":{"a":"b"}}`,
	}
	if *e != want {
		t.Errorf("got  %+v\nwant %+v", *e, want)
	}
	if e, r := decide(headWith(nil), op, noon); e != nil || r == nil || r.Code != CodeAccountExists {
		t.Errorf("an account that exists: entry %+v, refusal %v", e, r)
	}
	for _, op := range []*Operation{credit("A", 1, "k"), debit("A", 1, "k"), settings("A", Change{Status: ptr(Frozen)})} {
		op.Token, op.IfMatch = 9, 9 // nothing comes before "there is no account"
		if e, r := decide(nil, op, noon); e != nil || r == nil || r.Code != CodeAccountNotFound {
			t.Errorf("%s without an account: entry %+v, refusal %v", op.Kind, e, r)
		}
	}
}

func TestDecideSettings(t *testing.T) {
	t.Parallel()
	external := func(s *State) { s.Fencing.Source, s.Fence = SourceExternal, 9 }
	for name, c := range map[string]struct {
		state     func(*State)
		change    Change
		refused   Code
		unchanged bool
		after     func(*State) // applied to the state before
		details   string
	}{
		"freeze":                     {change: Change{Status: ptr(Frozen)}, after: func(s *State) { s.Status = Frozen }},
		"thaw":                       {state: func(s *State) { s.Status = Frozen }, change: Change{Status: ptr(Active)}, after: func(s *State) { s.Status = Active }},
		"freeze again":               {state: func(s *State) { s.Status = Frozen }, change: Change{Status: ptr(Frozen)}, unchanged: true},
		"close":                      {change: Change{Status: ptr(Closed)}, after: func(s *State) { s.Status = Closed }},
		"close a frozen one":         {state: func(s *State) { s.Status = Frozen }, change: Change{Status: ptr(Closed)}, after: func(s *State) { s.Status = Closed }},
		"close with money":           {state: func(s *State) { s.Balance = 1 }, change: Change{Status: ptr(Closed)}, refused: CodeAccountNotEmpty},
		"close in debt":              {state: func(s *State) { s.Balance, s.MinBalance = -1, -1 }, change: Change{Status: ptr(Closed)}, refused: CodeAccountNotEmpty},
		"close with a hold":          {state: func(s *State) { s.Held = 1 }, change: Change{Status: ptr(Closed)}, refused: CodeAccountNotEmpty},
		"anything after closing":     {state: func(s *State) { s.Status = Closed }, change: Change{MinBalance: ptr(Amount(-1))}, refused: CodeAccountClosed},
		"open again":                 {state: func(s *State) { s.Status = Closed }, change: Change{Status: ptr(Active)}, refused: CodeAccountClosed},
		"minimum":                    {change: Change{MinBalance: ptr(Amount(-7))}, after: func(s *State) { s.MinBalance = -7 }},
		"minimum above the balance":  {state: func(s *State) { s.Balance, s.MinBalance = -7, -7 }, change: Change{MinBalance: ptr(Amount(0))}, after: func(s *State) { s.MinBalance = 0 }},
		"minimum to the limit":       {state: func(s *State) { s.Balance = MaxAmount - 7 }, change: Change{MinBalance: ptr(Amount(-7))}, after: func(s *State) { s.MinBalance = -7 }},
		"minimum beyond the limit":   {state: func(s *State) { s.Balance = MaxAmount - 7 }, change: Change{MinBalance: ptr(Amount(-8))}, refused: CodeBalanceLimit},
		"source":                     {change: Change{FencingSource: ptr(SourceExternal)}, after: func(s *State) { s.Fencing.Source = SourceExternal }},
		"required":                   {change: Change{Required: ptr(true)}, after: func(s *State) { s.Fencing.Required = true }},
		"reset":                      {state: external, change: Change{ResetFence: ptr(Token(3)), Reason: "why"}, after: func(s *State) { s.Fence = 3 }, details: `{"reset":true}`},
		"reset to nothing":           {state: external, change: Change{ResetFence: ptr(Token(0)), Reason: "why"}, after: func(s *State) { s.Fence = 0 }, details: `{"reset":true}`},
		"reset to what it is":        {state: external, change: Change{ResetFence: ptr(Token(9)), Reason: "why"}, unchanged: true},
		"reset upwards":              {state: external, change: Change{ResetFence: ptr(Token(10)), Reason: "why"}, refused: CodeFencingResetRefused},
		"reset of a lease account":   {state: func(s *State) { s.Fence = 9 }, change: Change{ResetFence: ptr(Token(3)), Reason: "why"}, refused: CodeFencingResetRefused},
		"reset when it becomes ours": {state: external, change: Change{ResetFence: ptr(Token(0)), Reason: "why", FencingSource: ptr(SourceLease)}, after: func(s *State) { s.Fence, s.Fencing.Source = 0, SourceLease }, details: `{"reset":true}`},
		"metadata":                   {change: Change{Metadata: Metadata{"a": "b"}}, details: `{"metadata":{"a":"b"}}`},
		"metadata as it is":          {change: Change{Metadata: Metadata{}}, unchanged: true},
		"status, with metadata gone": {change: Change{Metadata: Metadata{}, Status: ptr(Frozen)}, after: func(s *State) { s.Status = Frozen }, details: `{"metadata":{}}`},
	} {
		t.Run(name, func(t *testing.T) {
			head := headWith(c.state)
			e, r := decide(head, settings("A", c.change), noon)
			if c.refused != "" {
				if e != nil || r == nil || r.Code != c.refused || r.Applied != NotApplied {
					t.Fatalf("entry %+v, refusal %v, want %s", e, r, c.refused)
				}
				return
			}
			if r != nil || (e == nil) != c.unchanged {
				t.Fatalf("entry %+v, refusal %v, want unchanged %v", e, r, c.unchanged)
			}
			if e == nil {
				return
			}
			want := head.State
			if c.after != nil {
				c.after(&want)
			}
			if e.After != want || e.Details != c.details || e.Reason != c.change.Reason || e.Kind != KindSettings || e.Amount != 0 || e.Key != "" {
				t.Errorf("got %+v, want the state %+v and details %s", e, want, c.details)
			}
		})
	}
}

func TestDecideToken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule         Fencing
		fence, token Token
		refused      Code
		after        Token
	}{
		"none on either side":         {Fencing{SourceLease, false}, 0, 0, "", 0},
		"none is not asked for":       {Fencing{SourceLease, false}, 5, 0, "", 5},
		"lease, none though required": {Fencing{SourceLease, true}, 5, 0, CodeTokenRequired, 0},
		"lease, lower":                {Fencing{SourceLease, false}, 5, 4, CodeStaleToken, 0},
		"lease, equal":                {Fencing{SourceLease, true}, 5, 5, "", 5},
		"lease, higher":               {Fencing{SourceLease, false}, 5, 6, CodeTokenFromTheFuture, 0},
		"lease, the first":            {Fencing{SourceLease, false}, 0, 1, CodeTokenFromTheFuture, 0},
		"external, none but required": {Fencing{SourceExternal, true}, 5, 0, CodeTokenRequired, 0},
		"external, lower":             {Fencing{SourceExternal, false}, 5, 4, CodeStaleToken, 0},
		"external, the lowest":        {Fencing{SourceExternal, false}, MaxToken, 1, CodeStaleToken, 0},
		"external, equal":             {Fencing{SourceExternal, false}, 5, 5, "", 5},
		"external, higher":            {Fencing{SourceExternal, true}, 5, 6, "", 6},
		"external, the highest":       {Fencing{SourceExternal, false}, 0, MaxToken, "", MaxToken},
	} {
		t.Run(name, func(t *testing.T) {
			head := headWith(func(s *State) { s.Fencing, s.Fence = c.rule, c.fence })
			for _, op := range []*Operation{credit("A", 1, "k"), debit("A", 1, "k")} { // the debit is a decline
				op.Token = c.token
				e, r := decide(head, op, noon)
				switch {
				case c.refused == "" && (r != nil || e.After.Fence != c.after):
					t.Errorf("%s: entry %+v, refusal %v, want the fence %d", op.Kind, e, r, c.after)
				case c.refused != "" && (e != nil || r == nil || r.Code != c.refused):
					t.Errorf("%s: entry %+v, refusal %v, want %s", op.Kind, e, r, c.refused)
				case c.refused != "" && c.token != 0 && (r.Presented != int64(c.token) || r.Current != int64(c.fence)):
					t.Errorf("%s: refusal %+v, want the tokens %d and %d", op.Kind, r, c.token, c.fence)
				}
			}
		})
	}
	t.Run("settings never need one", func(t *testing.T) {
		head := headWith(func(s *State) { s.Fencing = Fencing{SourceLease, true}; s.Fence = 5 })
		if e, r := decide(head, settings("A", Change{Required: ptr(false)}), noon); r != nil || e.After.Fence != 5 {
			t.Errorf("entry %+v, refusal %v", e, r)
		}
		op := settings("A", Change{Required: ptr(false)})
		op.Token = 4
		if _, r := decide(head, op, noon); r == nil || r.Code != CodeStaleToken {
			t.Errorf("a stale one on settings: %v", r)
		}
	})
}

// TestDecidePrecedence has an operation with everything wrong, and puts it
// right from the front.
func TestDecidePrecedence(t *testing.T) {
	t.Parallel()
	head := headWith(func(s *State) { s.Fence = 5; s.Status = Frozen })
	op := debit("A", 1, "k")
	op.Token, op.IfMatch, op.Currency = 4, 6, "EUR"
	expect := func(want Code) {
		t.Helper()
		e, r := decide(head, op, noon)
		if r != nil && r.Code != want || r == nil && Code(e.Reason) != want {
			t.Errorf("entry %+v, refusal %v, want %q", e, r, want)
		}
	}
	expect(CodeStaleToken)
	op.Token = 5
	expect(CodeSeqMismatch)
	op.IfMatch = 8
	expect(CodeSeqMismatch)
	op.IfMatch = 7
	expect(CodeCurrencyMismatch)
	op.Currency = ""
	expect(CodeAccountFrozen)
	head.State.Status = Active
	expect(CodeInsufficientFunds)
	head.State.Balance = 1
	expect("")
	op.IfMatch = 6
	if _, r := decide(head, op, noon); r.Presented != 6 || r.Current != 7 {
		t.Errorf("refusal %+v, want the seqs 6 and 7", r)
	}
}

func TestTimeNeverGoesBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ at, posted time.Time }{
		"later":            {noon.Add(time.Second), noon.Add(time.Second)},
		"the same":         {noon, noon},
		"an hour earlier":  {noon.Add(-time.Hour), noon},
		"in microseconds":  {noon.Add(2999 * time.Nanosecond), noon.Add(2 * time.Microsecond)},
		"a nanosecond off": {noon.Add(-time.Nanosecond), noon},
	} {
		e, _ := decide(headWith(nil), credit("A", 1, "k"), c.at)
		if !e.PostedAt.Equal(c.posted) || !e.EffectiveAt.Equal(c.posted) {
			t.Errorf("%s: posted %v, effective %v, want %v", name, e.PostedAt, e.EffectiveAt, c.posted)
		}
	}
	elsewhere := noon.In(time.FixedZone("", 4*3600))
	if e, _ := decide(headWith(nil), credit("A", 1, "k"), elsewhere); e.PostedAt != noon || e.EffectiveAt != noon {
		t.Errorf("posted %v, effective %v, want both in UTC", e.PostedAt, e.EffectiveAt)
	}
	if e, _ := decide(nil, &Operation{Kind: KindOpened, AccountID: "A", Opening: &Opening{}}, elsewhere); e.PostedAt != noon || e.EffectiveAt != noon {
		t.Errorf("opened %v, effective %v, want both in UTC", e.PostedAt, e.EffectiveAt)
	}
	op := credit("A", 1, "k")
	op.EffectiveAt = time.Date(1969, 7, 20, 20, 17, 40, 1999, time.FixedZone("", 4*3600))
	e, _ := decide(headWith(nil), op, noon)
	if want := time.Date(1969, 7, 20, 16, 17, 40, 1000, time.UTC); e.EffectiveAt != want || e.PostedAt != noon {
		t.Errorf("effective %v, want %v; posted %v", e.EffectiveAt, want, e.PostedAt)
	}
}
