package main

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/ledgerd/ledgerd/client"
)

// TestTrialBalanceAddsUp moves money in every way and asks for the trial balance
// all the while: it always adds up, and in the end nothing is in transit.
func TestTrialBalanceAddsUp(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.lossy()
	n := serve(t, b)
	for i := range 4 {
		n.open(fmt.Sprint("t-", i))
	}
	n.want(http.StatusCreated, "PUT", "/v1/accounts/other", `{"currency":"JPY"}`)
	n.credit("other", 77, "x")
	c := clientOf(t, n)
	report := func() client.TrialBalance {
		t.Helper()
		r, err := c.TrialBalance(t.Context(), "EUR")
		if err != nil {
			t.Fatal(err)
		}
		if r.Credits-r.Debits != r.Balance || r.InFromOutside-r.OutToOutside+r.InTransit != r.Balance || r.Accounts != 4 {
			t.Errorf("it does not add up: %+v", r)
		}
		return r
	}
	in, out, declines := int64(0), int64(0), int64(0)
	for i := range 40 {
		from, to := fmt.Sprint("t-", i%4), fmt.Sprint("t-", (i+1)%4)
		items := []client.Item{
			client.CreditItem(fmt.Sprint("c", i), from, client.Operation{Amount: 10}),
			client.DebitItem(fmt.Sprint("d", i), from, client.Operation{Amount: 3}),
			client.TransferItem(fmt.Sprint("t", i), client.Transfer{From: from, To: to, Amount: 5}),
			client.DebitItem(fmt.Sprint("x", i), from, client.Operation{Amount: 1_000_000}),
			client.TransactionItem(fmt.Sprint("m", i), client.NewTransaction{Legs: []client.Leg{
				{AccountID: to, Direction: client.KindDebit, Amount: 2}, {AccountID: from, Direction: client.KindCredit, Amount: 1},
				{AccountID: "t-0", Direction: client.KindCredit, Amount: 1}}}),
		}
		results, err := c.Batch(t.Context(), items)
		if err != nil {
			t.Fatal(err)
		}
		for k, r := range results {
			if (r.Err == nil) != (k != 3) {
				t.Fatalf("item %d: %+v", k, r)
			}
		}
		in, out, declines = in+10, out+3, declines+1
		report()
	}
	eventually(t, "the projection has everything", func() error {
		if r := report(); r.EntriesBehind > 0 {
			return fmt.Errorf("%d entries behind", r.EntriesBehind)
		}
		return nil
	})
	between := 0
	for e, err := range c.Entries(t.Context(), "t-1", client.EntryQuery{Counterparty: "t-2", Kind: client.KindDebit, PageSize: 3}) {
		if err != nil || e.Amount != 5 || e.Counterparty != "t-2" {
			t.Fatalf("entry %+v, %v", e, err)
		}
		between++
	}
	if between != 10 {
		t.Errorf("%d transfers from t-1 to t-2", between)
	}
	r := report()
	if r.InFromOutside != in || r.OutToOutside != out || r.InTransit != 0 || r.Declines != declines || r.Balance != in-out || r.Entries != 4+40*8 {
		t.Errorf("in %d, out %d, %d declines: %+v", in, out, declines, r)
	}
}
