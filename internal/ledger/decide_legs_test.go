package ledger

import (
	"testing"
	"time"
)

func TestDecideFence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state   func(*State)
		token   Token
		refused Code
	}{
		"the first":            {func(*State) {}, 1, ""},
		"the next":             {func(s *State) { s.Fence = 5 }, 6, ""},
		"a later one":          {func(s *State) { s.Fence = 5 }, MaxToken, ""},
		"the same":             {func(s *State) { s.Fence = 5 }, 5, CodeLeaseHeld},
		"an older one":         {func(s *State) { s.Fence = 5 }, 4, CodeLeaseHeld},
		"of a frozen account":  {func(s *State) { s.Status = Frozen }, 1, ""},
		"tokens are required":  {func(s *State) { s.Fencing.Required, s.Fence = true, 5 }, 6, ""},
		"of a closed account":  {func(s *State) { s.Status = Closed }, 1, CodeAccountClosed},
		"of an external fence": {func(s *State) { s.Fencing.Source = SourceExternal }, 1, CodeFencingExternal},
	} {
		head := headWith(c.state)
		e, r := decide(head, &Operation{Kind: KindFenced, AccountID: "A", Token: c.token}, noon)
		if c.refused != "" {
			if e != nil || r == nil || r.Code != c.refused {
				t.Errorf("%s: entry %+v, refusal %v, want %s", name, e, r, c.refused)
			}
			continue
		}
		want := head.State
		want.Fence = c.token
		if r != nil || e.Kind != KindFenced || e.After != want || e.Amount != 0 || e.Seq != head.Seq+1 {
			t.Errorf("%s: entry %+v, refusal %v, want the state %+v", name, e, r, want)
		}
	}
}

// headsOf is three accounts with 100 each, as changed.
func headsOf(change func(map[AccountID]*Head)) map[AccountID]*Head {
	heads := map[AccountID]*Head{}
	for _, id := range []AccountID{"A", "B", "C"} {
		h := headWith(func(s *State) { s.Balance = 100 })
		h.Account.ID = id
		heads[id] = h
	}
	if change != nil {
		change(heads)
	}
	return heads
}

func TestDecideLegs(t *testing.T) {
	t.Parallel()
	with := func(l Leg, token Token) Leg { l.Token = token; return l }
	external := func(h map[AccountID]*Head) {
		h["B"].State.Fencing.Source, h["B"].State.Fence = SourceExternal, 5
	}
	for name, c := range map[string]struct {
		change  func(map[AccountID]*Head)
		op      *Operation
		refused Code
		reason  Code      // of the decline
		blamed  AccountID // of both
		after   []Amount  // balance after each leg
	}{
		"a transfer":                       {nil, transfer("A", "B", 30, "k"), "", "", "", []Amount{70, 130}},
		"legs see each other":              {nil, transaction("k", out("A", 100), in("B", 60), in("A", 40), out("A", 1), in("C", 1)), "", "", "", []Amount{0, 160, 40, 39, 101}},
		"money that comes in a leg before": {nil, transaction("k", in("A", 50), out("A", 150), out("B", 50), in("C", 150)), "", "", "", []Amount{150, 0, 50, 250}},
		"money that comes too late":        {nil, transaction("k", out("A", 150), in("A", 50), out("B", 50), in("C", 150)), "", CodeInsufficientFunds, "A", nil},
		"the last leg has no money":        {nil, transaction("k", in("A", 101), out("B", 101)), "", CodeInsufficientFunds, "B", nil},
		"the same account":                 {nil, transfer("A", "A", 1, "k"), "", CodeSameAccount, "A", nil},
		"no such account":                  {func(h map[AccountID]*Head) { delete(h, "B") }, transfer("A", "B", 1, "k"), CodeAccountNotFound, "", "B", nil},
		"no such account comes before no money": {
			func(h map[AccountID]*Head) { delete(h, "C") }, transaction("k", out("A", 1000), in("B", 500), in("C", 500)), CodeAccountNotFound, "", "C", nil},
		"the other is closed":                   {func(h map[AccountID]*Head) { h["B"].State.Status = Closed }, transfer("A", "B", 1, "k"), "", CodeAccountClosed, "B", nil},
		"the first is frozen":                   {func(h map[AccountID]*Head) { h["A"].State.Status = Frozen }, transfer("A", "B", 1, "k"), "", CodeAccountFrozen, "A", nil},
		"a frozen one gets money":               {func(h map[AccountID]*Head) { h["B"].State.Status = Frozen }, transfer("A", "B", 1, "k"), "", "", "", []Amount{99, 101}},
		"the other is at the limit":             {func(h map[AccountID]*Head) { h["B"].State.Balance = MaxAmount }, transfer("A", "B", 1, "k"), "", CodeBalanceLimit, "B", nil},
		"another currency":                      {func(h map[AccountID]*Head) { h["B"].Account.Currency = "EUR" }, transfer("A", "B", 1, "k"), "", CodeCurrencyMismatch, "B", nil},
		"two currencies, each adds up":          {func(h map[AccountID]*Head) { h["B"].Account.Currency = "EUR" }, transaction("k", in("A", 1), out("C", 1), in("B", 2), out("B", 2)), "", "", "", []Amount{101, 99, 102, 100}},
		"a stale token in the last leg":         {external, transaction("k", out("A", 1000), with(in("B", 1000), 4)), CodeStaleToken, "", "B", nil},
		"a token that becomes the fence":        {external, transaction("k", out("A", 1), with(in("B", 1), 6)), "", "", "", []Amount{99, 101}},
		"an older token behind a newer one":     {external, transaction("k", with(in("B", 1), 7), with(out("B", 1), 6)), CodeStaleToken, "", "B", nil},
		"no token where one is required":        {func(h map[AccountID]*Head) { h["B"].State.Fencing.Required = true }, transfer("A", "B", 1, "k"), CodeTokenRequired, "", "B", nil},
		"a token from the future for the other": {nil, transaction("k", out("A", 1), with(in("B", 1), 6)), CodeTokenFromTheFuture, "", "B", nil},
	} {
		t.Run(name, func(t *testing.T) {
			heads := headsOf(c.change)
			before := map[AccountID]Head{}
			for id, h := range heads {
				before[id] = *h
			}
			links, blamed, r := decideLegs(func(id AccountID) *Head { return heads[id] }, c.op, noon.Add(time.Second))
			for id, h := range heads {
				if h.Seq != before[id].Seq || h.State != before[id].State {
					t.Errorf("the head of %s was changed", id)
				}
			}
			if blamed != c.blamed {
				t.Errorf("%q is the reason, want %q", blamed, c.blamed)
			}
			switch {
			case c.refused != "":
				if links != nil || r == nil || r.Code != c.refused || r.Applied != NotApplied {
					t.Errorf("links %+v, refusal %v, want %s", links, r, c.refused)
				}
			case r != nil:
				t.Errorf("refused: %v", r)
			case c.reason != "":
				checkDecline(t, links, c.op, c.reason, c.blamed, before[c.op.AccountID])
			default:
				checkLinks(t, links, c.op, c.after, before)
			}
		})
	}
}

// checkDecline: one link in the chain of the first account, which moves nothing.
func checkDecline(t *testing.T, links []*Entry, op *Operation, reason Code, blamed AccountID, before Head) {
	t.Helper()
	if len(links) != 1 {
		t.Fatalf("%d links", len(links))
	}
	e := links[0]
	details, err := ParseDetails(e.Details)
	if blamed == op.AccountID {
		blamed = ""
	}
	if err != nil || details.Attempted != op.Kind || details.RefusedBy != blamed {
		t.Errorf("details %s, %v", e.Details, err)
	}
	if e.Kind != KindDeclined || e.Reason != string(reason) || e.AccountID != op.AccountID || e.Seq != before.Seq+1 ||
		e.After != before.State || e.Amount != op.Legs[0].Amount {
		t.Errorf("entry %+v, want the decline %s", e, reason)
	}
}

// checkLinks: a link for each leg, in their order, each behind the one before it
// in its own chain.
func checkLinks(t *testing.T, links []*Entry, op *Operation, after []Amount, before map[AccountID]Head) {
	t.Helper()
	if len(links) != len(op.Legs) {
		t.Fatalf("%d links of %d legs", len(links), len(op.Legs))
	}
	seqs := map[AccountID]Seq{}
	for i, e := range links {
		leg := op.Legs[i]
		seqs[leg.AccountID]++
		if e.AccountID != leg.AccountID || e.Kind != leg.Kind || e.Amount != leg.Amount || e.After.Balance != after[i] ||
			e.Seq != before[leg.AccountID].Seq+seqs[leg.AccountID] || e.After.Fence != max(before[leg.AccountID].State.Fence, leg.Token) {
			t.Errorf("leg %d made %+v, want the balance %d", i+1, e, after[i])
		}
		if other := op.Legs[len(op.Legs)-1-i].AccountID; len(op.Legs) == 2 && e.Counterparty != string(other) {
			t.Errorf("leg %d has the counterparty %q", i+1, e.Counterparty)
		}
	}
}
