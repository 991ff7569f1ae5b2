package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// notThere expects the refusal of a read.
func notThere(t *testing.T, err error, want Code) {
	t.Helper()
	var r *Refusal
	if !errors.As(err, &r) || r.Code != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestReadsOfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	open(t, f.writer(), "A")
	ctx := t.Context()
	for _, id := range []AccountID{"B", "", "A' or 'a'='a", "a", "A ", "%"} {
		_, err := f.r.Head(ctx, id)
		notThere(t, err, CodeAccountNotFound)
		_, err = f.r.Balance(ctx, id)
		notThere(t, err, CodeAccountNotFound)
		_, _, err = f.r.Projected(ctx, id)
		notThere(t, err, CodeAccountNotFound)
		_, err = f.r.BalanceAt(ctx, id, time.Now())
		notThere(t, err, CodeAccountNotFound)
		_, _, err = f.r.Entries(ctx, id, EntryQuery{Limit: 1})
		notThere(t, err, CodeAccountNotFound)
		_, _, err = f.r.Entry(ctx, id, 1)
		notThere(t, err, CodeAccountNotFound)
	}
	for _, seq := range []Seq{0, -1, 2, 1<<63 - 1} {
		_, _, err := f.r.Entry(ctx, "A", seq)
		notThere(t, err, CodeEntryNotFound)
	}
	for _, id := range []uuid.UUID{{}, uuid.New()} {
		_, err := f.r.Transaction(ctx, id)
		notThere(t, err, CodeTransactionNotFound)
	}
	_, err := f.r.BalanceAt(ctx, "A", noon.AddDate(-100, 0, 0))
	notThere(t, err, CodeEntryNotFound)
}

// storeChain appends a chain that was made without a writer, with the posting
// times that the test wants.
func storeChain(t *rapid.T, f *fixture, id AccountID) []Entry {
	conn, err := f.r.pool.Acquire(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	s, err := readSight(context.Background(), conn.Conn())
	if err != nil {
		t.Fatal(err)
	}
	w := &write{at: time.Now(), life: s.life}
	m := &chainMaker{at: noon}
	for i := range rapid.IntRange(1, 30).Draw(t, "operations") {
		op := drawOperation(t, m.head)
		op.AccountID, op.IfMatch = id, 0
		if op.Key != "" {
			op.Key = keyN("k", i)
		}
		e := m.add(op)
		// Several entries have one time now and then.
		m.at = m.at.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "time passes")) * time.Microsecond)
		if e == nil {
			continue
		}
		w.entries = append(w.entries, e)
		if e.Kind == KindOpened {
			w.opened = append(w.opened, *m.head)
		}
		if e.Kind == KindSettings && op.Change.Metadata != nil {
			w.change(*m.head)
		}
	}
	var a appender
	if written, err := a.send(context.Background(), conn.Conn(), w, false); !written || err != nil {
		t.Fatalf("written %v, %v", written, err)
	}
	chain := make([]Entry, len(w.entries))
	for i, e := range w.entries {
		chain[i] = *e
	}
	return chain
}

// TestBalanceAt holds the halving search against a walk over the whole chain,
// at every moment around every entry.
func TestBalanceAt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	accounts := 0
	rapid.Check(t, func(t *rapid.T) {
		accounts++
		if accounts > 30 {
			return // each has up to ninety moments; thirty random chains are enough
		}
		id := AccountID(fmt.Sprintf("A-%d", accounts))
		chain := storeChain(t, f, id)
		moments := map[time.Time]bool{noon.Add(time.Hour): true}
		for _, e := range chain {
			moments[e.PostedAt], moments[e.PostedAt.Add(-time.Microsecond)], moments[e.PostedAt.Add(time.Microsecond)] = true, true, true
			moments[e.PostedAt.Add(999)] = true // before the next microsecond
		}
		for at := range moments {
			var want *Entry
			for i := range chain {
				if !chain[i].PostedAt.After(at) {
					want = &chain[i]
				}
			}
			got, err := f.r.BalanceAt(context.Background(), id, at)
			var r *Refusal
			switch {
			case want == nil && (!errors.As(err, &r) || r.Code != CodeEntryNotFound):
				t.Fatalf("at %v: %v, want entry_not_found", at, err)
			case want != nil && (err != nil || got.Seq != want.Seq || got.State != want.After || got.Hash != want.Hash || got.PostedAt != want.PostedAt):
				t.Fatalf("at %v: seq %d with %+v, %v; want seq %d with %+v", at, got.Seq, got.State, err, want.Seq, want.After)
			}
		}
		for i := range chain {
			_, got, err := f.r.Entry(context.Background(), id, chain[i].Seq)
			if got.Position = 0; err != nil || got != chain[i] {
				t.Fatalf("entry %+v, %v; want %+v", got, err, chain[i])
			}
		}
	})
}

// TestPagesWhileAWriterAdds reads pages of 7 in both directions while entries
// are added: each entry that was there at the start comes once, in order.
func TestPagesWhileAWriterAdds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A")
	const there = 100
	for i := range there - 1 {
		must(t, w, credit("A", 1, keyN("k", i)))
	}
	for _, ascending := range []bool{true, false} {
		var after Seq
		var seen []Seq
		for page := 0; ; page++ {
			account, entries, err := f.r.Entries(t.Context(), "A", EntryQuery{After: after, Ascending: ascending, Limit: 7})
			if err != nil || account.Currency != "CZK" {
				t.Fatalf("account %+v, %v", account, err)
			}
			if len(entries) > 7 {
				t.Fatalf("a page of %d", len(entries))
			}
			if len(entries) == 0 || len(seen) > 3*there {
				break
			}
			for i := range entries {
				seen = append(seen, entries[i].Seq)
			}
			after = entries[len(entries)-1].Seq
			if page < 10 {
				must(t, w, credit("A", 1, fmt.Sprintf("new-%v-%d", ascending, page)))
			}
		}
		first, last, step := Seq(1), Seq(there+10), Seq(1)
		if !ascending { // those added meanwhile are above the first page
			first, last, step = Seq(there+10), 1, -1
		}
		if len(seen) < there || seen[0] != first || seen[len(seen)-1] != last {
			t.Fatalf("ascending %v: %d entries, %d … %d, want %d … %d", ascending, len(seen), seen[0], seen[len(seen)-1], first, last)
		}
		for i := 1; i < len(seen); i++ {
			if seen[i] != seen[i-1]+step {
				t.Fatalf("ascending %v: %d after %d", ascending, seen[i], seen[i-1])
			}
		}
	}
}

func TestTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A", "B")
	for _, op := range []*Operation{
		credit("A", 5, "c"), debit("A", 6, "declined"), debit("B", 1, "b"), settings("B", Change{Metadata: Metadata{"a": "b"}}),
	} {
		r := must(t, w, op)
		got, err := f.r.Transaction(t.Context(), r.Entry.TransactionID)
		if err != nil || len(got) != 1 {
			t.Fatalf("%d entries, %v", len(got), err)
		}
		e := got[0].Entry
		if e.Position <= 0 {
			t.Errorf("position %d", e.Position)
		}
		if e.Position = 0; e != r.Entry || describe(got[0].Account) != describe(r.Account) {
			t.Errorf("read %+v of %s\nreceipt %+v of %s", e, describe(got[0].Account), r.Entry, describe(r.Account))
		}
	}
}

func TestAccountsAreFilteredAndPaged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	type kind struct {
		currency Currency
		status   Status
	}
	accounts := map[AccountID]kind{}
	for i, id := range []AccountID{"a", "B", "b", "A", "0", "A-1", "A.1", "A_1", "A:1", "Z", "z", "aa"} {
		k := kind{[]Currency{"CZK", "EUR"}[i%2], []Status{Active, Frozen, Closed}[i%3]}
		must(t, w, &Operation{Kind: KindOpened, AccountID: id, Opening: &Opening{Currency: k.currency, Fencing: Fencing{Source: SourceLease}}})
		if k.status != Active {
			must(t, w, settings(id, Change{Status: &k.status}))
		}
		accounts[id] = k
	}
	ids := slices.Sorted(maps.Keys(accounts)) // by bytes, as COLLATE "C" does
	for _, currency := range []Currency{"", "CZK", "EUR", "USD", "CZK' or ''='"} {
		for _, status := range []Status{"", Active, Frozen, Closed, "asleep"} {
			var want, got []AccountID
			for _, id := range ids {
				k := accounts[id]
				if (currency == "" || currency == k.currency) && (status == "" || status == k.status) {
					want = append(want, id)
				}
			}
			q := AccountQuery{Currency: currency, Status: status, Limit: 2}
			for {
				page, err := f.r.Accounts(t.Context(), q)
				if err != nil || len(page) > 2 {
					t.Fatalf("%d accounts, %v", len(page), err)
				}
				if len(page) == 0 {
					break
				}
				for _, h := range page {
					got = append(got, h.Account.ID)
					if k := accounts[h.Account.ID]; h.Account.Currency != k.currency || h.State.Status != k.status {
						t.Errorf("%s is %s %s, want %+v", h.Account.ID, h.Account.Currency, h.State.Status, k)
					}
				}
				q.After = page[len(page)-1].Account.ID
			}
			if !slices.Equal(got, want) {
				t.Errorf("currency %q, status %q: %q, want %q", currency, status, got, want)
			}
		}
	}
}

// TestBalanceAndItsRow: the head is what counts, and the row beside it is what
// the projection has done, or nothing.
func TestBalanceAndItsRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A")
	must(t, w, credit("A", 7, "k"))
	b, err := f.r.Balance(t.Context(), "A")
	if err != nil || b.Head.State.Balance != 7 || b.Head.Seq != 2 || b.Row == nil || b.Row.AppliedSeq != 0 || b.Row.Balance != 0 {
		t.Fatalf("balance %+v, row %+v, %v", b, b.Row, err)
	}
	owner := f.db.OwnerPool(t)
	huge := strings.Repeat("9", 38)
	_, err = owner.Exec(t.Context(), `update balances set balance = -5, held = 3, credits_total = `+huge+`, debits_total = 4, applied_seq = 1, updated_at = '2026-03-01 13:00+01'`)
	if err != nil {
		t.Fatal(err)
	}
	want := Projected{Balance: -5, Held: 3, CreditsTotal: huge, DebitsTotal: "4", AppliedSeq: 1, UpdatedAt: noon}
	if b, err = f.r.Balance(t.Context(), "A"); err != nil || b.Row == nil || *b.Row != want || b.Head.State.Balance != 7 {
		t.Errorf("balance %+v, row %+v, %v", b, b.Row, err)
	}
	account, row, err := f.r.Projected(t.Context(), "A")
	if err != nil || row != want || account.ID != "A" || account.Currency != "CZK" {
		t.Errorf("account %+v, row %+v, %v", account, row, err)
	}
	must(t, w, debit("A", 7, "from-the-head")) // the row says -5
	if _, err := owner.Exec(t.Context(), "delete from balances"); err != nil {
		t.Fatal(err)
	}
	if b, err = f.r.Balance(t.Context(), "A"); err != nil || b.Row != nil || b.Head.State.Balance != 0 {
		t.Errorf("balance %+v, row %+v, %v", b, b.Row, err)
	}
	_, _, err = f.r.Projected(t.Context(), "A")
	notThere(t, err, CodeAccountNotFound)
}
