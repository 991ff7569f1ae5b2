package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// healthyChain is a chain with entries of every kind that the writer makes.
//
//	1 opened, 2 credit 100, 3 debit 30, 4 declined, 5 settings external,
//	6 credit 1 with token 7, 7 settings reset to 3, 8 settings frozen,
//	9 declined, 10 credit 1
func healthyChain(t *testing.T) []Entry {
	t.Helper()
	m := &chainMaker{}
	var chain []Entry
	for i, op := range []*Operation{
		{Kind: KindOpened, AccountID: "A", Opening: &Opening{Currency: "CZK", Exponent: 2, Fencing: Fencing{Source: SourceLease}}},
		credit("A", 100, "k2"),
		debit("A", 30, "k3"),
		debit("A", 71, "k4"),
		settings("A", Change{FencingSource: ptr(SourceExternal), Metadata: Metadata{"a": "b"}}),
		{Kind: KindCredit, AccountID: "A", Amount: 1, Key: "k6", Token: 7},
		settings("A", Change{ResetFence: ptr(Token(3)), Reason: "why"}),
		settings("A", Change{Status: ptr(Frozen)}),
		debit("A", 1, "k9"),
		credit("A", 1, "k10"),
	} {
		m.at = noon.Add(time.Duration(i) * time.Second)
		e := m.add(op)
		if e == nil {
			t.Fatalf("operation %d made no link", i+1)
		}
		chain = append(chain, *e)
	}
	return chain
}

// rehash gives the chain from seq on the hashes that fit its content: the damage
// of somebody who can compute them, or of a writer with a defect.
func rehash(chain []Entry, from int) {
	prev := genesis
	if from > 0 {
		prev = chain[from-1].Hash
	}
	for i := from; i < len(chain); i++ {
		chain[i].Hash = ChainHash(prev, &chain[i])
		prev = chain[i].Hash
	}
}

// findings audits the chain and returns "seq rule" for each finding.
func findings(chain []Entry) []string {
	var found []string
	a := NewAuditor("A")
	for i := range chain {
		for _, f := range a.Add(&chain[i]) {
			found = append(found, fmt.Sprintf("%d %s", f.Seq, f.Rule))
		}
	}
	return found
}

func TestAuditorAcceptsAHealthyChain(t *testing.T) {
	t.Parallel()
	if found := findings(healthyChain(t)); found != nil {
		t.Fatalf("found %v", found)
	}
}

// TestAuditorFindsEachDamage damages one thing with hashes that fit, so that
// only the rule for it can find it, and expects that and nothing else.
func TestAuditorFindsEachDamage(t *testing.T) {
	t.Parallel()
	at := func(seq int, change func(*Entry)) func([]Entry) []Entry {
		return func(c []Entry) []Entry { change(&c[seq-1]); rehash(c, seq-1); return c }
	}
	// shift moves the balance of all entries from seq on, as a writer that had
	// decided so would.
	shift := func(seq int, by Amount, change func(*Entry)) func([]Entry) []Entry {
		return func(c []Entry) []Entry {
			for i := seq - 1; i < len(c); i++ {
				c[i].After.Balance += by
			}
			change(&c[seq-1])
			rehash(c, seq-1)
			return c
		}
	}
	state := func(s State) func([]Entry) []Entry { // the state between entries 2 and 3, and at no other place
		return at(2, func(e *Entry) { e.After = s })
	}
	active := State{Balance: 100, Status: Active, Fencing: Fencing{Source: SourceLease}}
	changed := func(change func(*State)) State { s := active; change(&s); return s }
	for name, c := range map[string]struct {
		damage func([]Entry) []Entry
		want   []string
	}{
		"an entry is missing": {func(c []Entry) []Entry {
			// Entry 4 is a decline: no state is missing with it.
			c = slices.Delete(c, 3, 4)
			rehash(c, 3)
			return c
		}, []string{"5 seq"}},
		"an entry is there twice":             {func(c []Entry) []Entry { c = slices.Insert(c, 4, c[3]); rehash(c, 4); return c }, []string{"4 seq"}},
		"the first is missing":                {func(c []Entry) []Entry { c = c[4:5]; rehash(c, 0); return c }, []string{"5 seq", "5 content", "5 state"}},
		"two are exchanged":                   {func(c []Entry) []Entry { c[3].Seq, c[8].Seq = 9, 4; rehash(c, 3); return c }, []string{"9 seq", "5 seq", "4 seq", "10 seq"}},
		"a hash of another predecessor":       {func(c []Entry) []Entry { c[4].Hash = ChainHash(c[2].Hash, &c[4]); rehash(c, 5); return c }, []string{"5 hash"}},
		"a hash version of the future":        {at(4, func(e *Entry) { e.HashVersion = 2 }), []string{"4 hash"}},
		"an entry of another account":         {at(4, func(e *Entry) { e.AccountID = "B" }), []string{"4 content"}},
		"a second opening":                    {at(4, func(e *Entry) { e.Kind = KindOpened }), []string{"4 content", "4 state", "4 content", "4 content", "4 content"}},
		"posted before the one before":        {at(4, func(e *Entry) { e.PostedAt = noon }), []string{"4 time"}},
		"a balance that does not add up":      {state(changed(func(s *State) { s.Balance = 101 })), []string{"2 state", "3 state"}},
		"money held by nobody":                {state(changed(func(s *State) { s.Held = 1 })), []string{"2 state", "3 state"}},
		"a minimum that nobody set":           {state(changed(func(s *State) { s.MinBalance = -1 })), []string{"2 state", "3 state"}},
		"a status that nobody set":            {state(changed(func(s *State) { s.Status = Frozen })), []string{"2 state", "3 state", "3 state"}},
		"a fencing rule that nobody set":      {state(changed(func(s *State) { s.Fencing.Required = true })), []string{"2 state", "3 state"}},
		"a fence that rose by itself":         {state(changed(func(s *State) { s.Fence = 1 })), []string{"2 fence", "3 fence"}},
		"an amount that does not fit":         {at(2, func(e *Entry) { e.Amount = 99 }), []string{"2 state"}},
		"an overdraft that is not allowed":    {shift(3, -71, func(e *Entry) { e.Amount = 101 }), []string{"3 state"}},
		"a balance beyond the limit":          {shift(2, MaxAmount-99, func(e *Entry) { e.Amount = MaxAmount + 1 }), []string{"2 state"}},
		"a debit of a frozen account":         {shift(9, -1, func(e *Entry) { e.Kind, e.Reason, e.Details = KindDebit, "", "" }), []string{"9 state"}},
		"a decline that moved money":          {at(4, func(e *Entry) { e.After.Balance-- }), []string{"4 state", "5 state"}},
		"an opening with money":               {at(1, func(e *Entry) { e.After.Balance = 1 }), []string{"1 state", "2 state"}},
		"an opening that is frozen":           {at(1, func(e *Entry) { e.After.Status = Frozen }), []string{"1 state", "2 state"}},
		"a fence that fell":                   {at(8, func(e *Entry) { e.After.Fence = 2 }), []string{"8 fence"}},
		"a reset that does not say so":        {at(7, func(e *Entry) { e.Details = "" }), []string{"7 fence"}},
		"a reset without a reason":            {at(7, func(e *Entry) { e.Reason = "" }), []string{"7 fence"}},
		"a new owner with an old token":       {at(5, func(e *Entry) { e.Kind, e.Details, e.After.Fencing.Source = KindFenced, "", SourceLease }), []string{"5 fence", "6 state", "6 fence"}},
		"details that are not JSON":           {at(3, func(e *Entry) { e.Details = "{" }), []string{"3 content"}},
		"details that are not canonical":      {at(3, func(e *Entry) { e.Details = `{"description": "d"}` }), []string{"3 content"}},
		"details with unknown members":        {at(3, func(e *Entry) { e.Details = `{"x":1}` }), []string{"3 content"}},
		"a decline without a key":             {at(4, func(e *Entry) { e.Key = "" }), []string{"4 content"}},
		"settings with a key":                 {at(8, func(e *Entry) { e.Key = "k" }), []string{"8 content"}},
		"settings with an amount":             {at(8, func(e *Entry) { e.Amount = 1 }), []string{"8 content"}},
		"a decline without a reason":          {at(4, func(e *Entry) { e.Reason = "" }), []string{"4 content"}},
		"a decline of nothing":                {at(4, func(e *Entry) { e.Details = "" }), []string{"4 content"}},
		"a success that says what it refused": {at(3, func(e *Entry) { e.Details = `{"attempted":"debit"}` }), []string{"3 content"}},
		"an opening without a currency":       {at(1, func(e *Entry) { e.Details = `{"exponent":2}` }), []string{"1 content"}},
		"an opening without an exponent":      {at(1, func(e *Entry) { e.Details = `{"currency":"CZK"}` }), []string{"1 content"}},
		"a kind that nobody knows":            {at(4, func(e *Entry) { e.Kind = "gift" }), []string{"4 content", "4 content", "4 content"}},
	} {
		if found := findings(c.damage(healthyChain(t))); !slices.Equal(found, c.want) {
			t.Errorf("%s: found %q, want %q", name, found, c.want)
		}
	}
}

// TestAuditorAfterClosing has a chain in which things happen after the end.
func TestAuditorAfterClosing(t *testing.T) {
	t.Parallel()
	m := &chainMaker{}
	opening := *m.add(&Operation{Kind: KindOpened, AccountID: "A", Opening: &Opening{Currency: "CZK", Fencing: Fencing{Source: SourceLease}}})
	closing := *m.add(settings("A", Change{Status: ptr(Closed)}))
	declined := *m.add(credit("A", 1, "k"))
	chain := []Entry{opening, closing, declined}
	if found := findings(chain); found != nil {
		t.Errorf("a decline after closing: %q", found)
	}
	chain[2].Kind, chain[2].Reason, chain[2].Details, chain[2].After.Balance = KindCredit, "", "", 1
	rehash(chain, 2)
	if found := findings(chain); !slices.Equal(found, []string{"3 state"}) {
		t.Errorf("a credit after closing: %q", found)
	}
	thaw := declined
	thaw.Kind, thaw.Reason, thaw.Details, thaw.Key, thaw.Amount, thaw.After.Status = KindSettings, "", "", "", 0, Active
	chain[2] = thaw
	rehash(chain, 2)
	if found := findings(chain); !slices.Equal(found, []string{"3 state"}) {
		t.Errorf("settings after closing: %q", found)
	}
}

// TestAuditorFindsEveryChangedField changes one field of one entry of a chain,
// as somebody with access to the table does, without touching the hashes.
func TestAuditorFindsEveryChangedField(t *testing.T) {
	t.Parallel()
	fields := []struct {
		name   string
		change func(*Entry)
	}{
		{"account", func(e *Entry) { e.AccountID += "x" }},
		{"seq", func(e *Entry) { e.Seq++ }},
		{"kind", func(e *Entry) {
			if e.Kind == KindCredit {
				e.Kind = KindDebit
			} else {
				e.Kind = KindCredit
			}
		}},
		{"amount", func(e *Entry) { e.Amount++ }},
		{"balance", func(e *Entry) { e.After.Balance++ }},
		{"held", func(e *Entry) { e.After.Held++ }},
		{"fence", func(e *Entry) { e.After.Fence++ }},
		{"minimum", func(e *Entry) { e.After.MinBalance-- }},
		{"status", func(e *Entry) {
			if e.After.Status == Active {
				e.After.Status = Frozen
			} else {
				e.After.Status = Active
			}
		}},
		{"source", func(e *Entry) {
			if e.After.Fencing.Source == SourceLease {
				e.After.Fencing.Source = SourceExternal
			} else {
				e.After.Fencing.Source = SourceLease
			}
		}},
		{"required", func(e *Entry) { e.After.Fencing.Required = !e.After.Fencing.Required }},
		{"transaction", func(e *Entry) { e.TransactionID[15]++ }},
		{"key", func(e *Entry) { e.Key += "x" }},
		{"request hash", func(e *Entry) { e.RequestHash[31]++ }},
		{"counterparty", func(e *Entry) { e.Counterparty += "x" }},
		{"hold", func(e *Entry) { e.HoldSeq++ }},
		{"reverses", func(e *Entry) { e.Reverses = uuid.UUID{15: e.Reverses[15] + 1} }},
		{"reason", func(e *Entry) { e.Reason += "x" }},
		{"effective_at", func(e *Entry) { e.EffectiveAt = e.EffectiveAt.Add(time.Microsecond) }},
		{"details", func(e *Entry) { e.Details += " " }},
		{"posted_at", func(e *Entry) { e.PostedAt = e.PostedAt.Add(time.Microsecond) }},
		{"hash", func(e *Entry) { e.Hash[0]++ }},
		{"hash version", func(e *Entry) { e.HashVersion++ }},
	}
	rapid.Check(t, func(t *rapid.T) {
		m := &chainMaker{}
		var chain []Entry
		for range rapid.IntRange(1, 12).Draw(t, "operations") {
			if e := m.add(drawOperation(t, m.head)); e != nil {
				chain = append(chain, *e)
			}
		}
		victim := rapid.IntRange(0, len(chain)-1).Draw(t, "victim")
		for _, field := range fields {
			damaged := slices.Clone(chain)
			field.change(&damaged[victim])
			// Any entry may be the one at which it shows, but none before it.
			found := findings(damaged)
			if found == nil {
				t.Fatalf("%s of entry %d was changed and nothing found", field.name, victim+1)
			}
			if clean := findings(damaged[:victim]); clean != nil {
				t.Fatalf("%s of entry %d was changed, and found before it: %q", field.name, victim+1, clean)
			}
		}
	})
}

// What is wrong with a state is said in words, field by field.
func TestFindingOfAStateNamesTheFields(t *testing.T) {
	t.Parallel()
	chain := healthyChain(t)
	chain[2].After.Balance, chain[2].After.Held, chain[2].After.Fencing.Required = 75, 5, true
	a := NewAuditor("A")
	var found []string
	for i := range chain[:3] {
		for _, f := range a.Add(&chain[i]) {
			if f.Rule == RuleState {
				found = append(found, f.Detail)
			}
		}
	}
	want := "after debit with amount 30: balance 100 before it, 75 after it, expected 70; held 0 before it, 5 after it, expected 0; " +
		"fencing lease before it, lease_required after it, expected lease"
	if len(found) != 1 || found[0] != want {
		t.Errorf("found %q, want %q", found, want)
	}
}
