package main

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

// clientOf returns the public client on the node; every exchange is checked
// against api.yaml and booked.
func clientOf(t *testing.T, n *node) *client.Client {
	t.Helper()
	c, err := client.New(n.url, client.WithHTTPClient(n.http))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refusal(t *testing.T, err error, code client.Code) *client.Problem {
	t.Helper()
	var p *client.Problem
	if !errors.As(err, &p) || p.Code != code {
		t.Fatalf("error %v, want %s", err, code)
	}
	return p
}

// TestClientMovesMoney makes every kind of write with the public client.
func TestClientMovesMoney(t *testing.T) {
	t.Parallel()
	c, ctx := clientOf(t, serve(t, newBooks(t))), t.Context()
	opening := client.Opening{Currency: "KWD", MinBalance: -50, Metadata: map[string]string{"owner": "é \"x\""}}
	account, opened, err := c.OpenAccount(ctx, "w", opening)
	if err != nil || !opened || account.Exponent != 3 || account.Available != 50 || account.Metadata["owner"] != "é \"x\"" {
		t.Fatalf("account %+v, opened %t, %v", account, opened, err)
	}
	if _, opened, err := c.OpenAccount(ctx, "w", opening); err != nil || opened {
		t.Fatalf("again: opened %t, %v", opened, err)
	}
	_, _, err = c.OpenAccount(ctx, "w", client.Opening{Currency: "EUR"})
	refusal(t, err, client.CodeAccountExists)

	day := time.Date(1993, 1, 31, 8, 0, 0, 1999, time.FixedZone("", 3600))
	credit := client.Operation{Amount: 100, Currency: "KWD", Description: "d", Counterparty: "c", EffectiveAt: day, Metadata: map[string]string{"k": "v"}}
	first, err := c.Credit(ctx, "w", credit, client.Key(`a"b\c`), client.IfMatch(1))
	if err != nil || first.Replayed || first.Balance != 100 || first.IdempotencyKey != `a"b\c` || !first.EffectiveAt.Equal(day.Truncate(time.Microsecond)) {
		t.Fatalf("receipt %+v, %v", first, err)
	}
	again, err := c.Credit(ctx, "w", credit, client.Key(`a"b\c`))
	if err != nil || !again.Replayed || again.TransactionID != first.TransactionID {
		t.Fatalf("receipt %+v, %v", again, err)
	}
	_, err = c.Debit(ctx, "w", credit, client.Key(`a"b\c`))
	if p := refusal(t, err, client.CodeKeyReused); p.Recorded() {
		t.Error("a reused key was recorded")
	}
	if p := refusal(t, second(c.Debit(ctx, "w", client.Operation{Amount: 151}, client.Key("x"))), client.CodeInsufficientFunds); p.Seq != 3 || p.Replayed {
		t.Errorf("decline %+v", p)
	}
	if p := refusal(t, second(c.Debit(ctx, "w", client.Operation{Amount: 151}, client.Key("x"))), client.CodeInsufficientFunds); p.Seq != 3 || !p.Replayed {
		t.Errorf("decline again %+v", p)
	}
	if p := refusal(t, second(c.Debit(ctx, "w", client.Operation{Amount: 1}, client.IfMatch(1))), client.CodeSeqMismatch); p.CurrentSeq != 3 {
		t.Errorf("mismatch %+v", p)
	}
	refusal(t, second(c.Credit(ctx, "none", client.Operation{Amount: 1})), client.CodeAccountNotFound)
	if p := refusal(t, second(c.Credit(ctx, "w", client.Operation{})), client.CodeInvalidRequest); len(p.Errors) != 1 || p.Errors[0].Pointer != "/amount" {
		t.Errorf("problem %+v", p)
	}
	if r, err := c.Debit(ctx, "w", client.Operation{Amount: 150}); err != nil || r.Balance != -50 || r.Available != 0 || len(r.IdempotencyKey) != 36 {
		t.Errorf("receipt %+v, %v", r, err)
	}
}

func second(_ client.Receipt, err error) error { return err }

// TestClientFences works under tokens of an outside coordinator.
func TestClientFences(t *testing.T) {
	t.Parallel()
	c, ctx := clientOf(t, serve(t, newBooks(t))), t.Context()
	rule := &client.Fencing{Source: client.SourceExternal, Required: true}
	if _, _, err := c.OpenAccount(ctx, "w", client.Opening{Currency: "EUR", Fencing: rule}); err != nil {
		t.Fatal(err)
	}
	one := client.Operation{Amount: 1}
	refusal(t, second(c.Credit(ctx, "w", one)), client.CodeFencingTokenRequired)
	if r, err := c.Credit(ctx, "w", one, client.FencingToken(102)); err != nil || r.Fence != 102 {
		t.Fatalf("receipt %+v, %v", r, err)
	}
	p := refusal(t, second(c.Credit(ctx, "w", one, client.FencingToken(101))), client.CodeStaleFencingToken)
	if p.PresentedToken != 101 || p.CurrentToken != 102 || p.Applied != client.AppliedFalse {
		t.Errorf("problem %+v", p)
	}
	reset := int64(7)
	account, err := c.UpdateAccount(ctx, "w", client.Change{Fencing: &client.FencingChange{Reset: &reset, Reason: "the coordinator lost its state"}})
	if err != nil || account.Fence != 7 {
		t.Fatalf("account %+v, %v", account, err)
	}
	frozen := client.Frozen
	if account, err = c.UpdateAccount(ctx, "w", client.Change{Status: &frozen}, client.IfMatch(account.Seq)); err != nil || account.Status != client.Frozen {
		t.Fatalf("account %+v, %v", account, err)
	}
	refusal(t, second(c.Debit(ctx, "w", one, client.FencingToken(7))), client.CodeAccountFrozen)
}

// TestClientReads reads back what was written, in every way there is.
func TestClientReads(t *testing.T) {
	t.Parallel()
	c, ctx := clientOf(t, serve(t, newBooks(t))), t.Context()
	for _, id := range []string{"a", "b", "c"} {
		if _, _, err := c.OpenAccount(ctx, id, client.Opening{Currency: "EUR"}); err != nil {
			t.Fatal(err)
		}
	}
	var last client.Receipt
	for i := range 10 {
		var err error
		if last, err = c.Credit(ctx, "a", client.Operation{Amount: 10}, client.Key(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	next := int64(11)
	for e, err := range c.Entries(ctx, "a", client.EntryQuery{PageSize: 4}) {
		if err != nil || e.Seq != next {
			t.Fatalf("entry %d, want %d, %v", e.Seq, next, err)
		}
		next--
	}
	for e, err := range c.Entries(ctx, "a", client.EntryQuery{PageSize: 4, Ascending: true}) {
		if next++; err != nil || e.Seq != next {
			t.Fatalf("entry %d, want %d, %v", e.Seq, next, err)
		}
	}
	var ids string
	for a, err := range c.Accounts(ctx, client.AccountQuery{Currency: "EUR", Status: client.Active, PageSize: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		ids += a.ID
	}
	if ids != "abc" || next != 11 {
		t.Errorf("accounts %q, %d entries", ids, next)
	}
	if e, err := c.Entry(ctx, "a", 11); err != nil || e.Hash != last.Hash {
		t.Errorf("entry %+v, %v", e, err)
	}
	refusal(t, func() error { _, err := c.Entry(ctx, "a", 12); return err }(), client.CodeEntryNotFound)
	if x, err := c.Transaction(ctx, last.TransactionID); err != nil || len(x.Entries) != 1 || x.Entries[0].Seq != 11 {
		t.Errorf("transaction %+v, %v", x, err)
	}
	strong, err := c.Balance(ctx, "a")
	if err != nil || strong.Balance != 100 || strong.Seq != 11 || strong.Consistency != "strong" {
		t.Errorf("balance %+v, %v", strong, err)
	}
	projected, err := c.Balance(ctx, "a", client.Projected(), client.MinSeq(11, 5*time.Second))
	if err != nil || projected.Balance != 100 || projected.ProjectedSeq != 11 {
		t.Errorf("balance %+v, %v", projected, err)
	}
	fifth, err := c.Entry(ctx, "a", 5)
	if err != nil {
		t.Fatal(err)
	}
	if past, err := c.Balance(ctx, "a", client.At(fifth.PostedAt)); err != nil || past.Balance < 40 || past.Seq < 5 {
		t.Errorf("balance %+v, %v", past, err)
	}
}

// TestClientWatchesProjections starts both jobs and waits for their ends.
func TestClientWatchesProjections(t *testing.T) {
	t.Parallel()
	c, ctx := clientOf(t, serve(t, newBooks(t))), t.Context()
	if _, _, err := c.OpenAccount(ctx, "a", client.Opening{Currency: "EUR"}); err != nil {
		t.Fatal(err)
	}
	if p, err := c.Projection(ctx); err != nil || p.Name != "balances" || len(p.Shards) != 64 {
		t.Errorf("projection %+v, %v", p, err)
	}
	rebuild, err := c.StartRebuild(ctx)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rebuild ends", func() error {
		if rebuild, err = c.Rebuild(ctx, rebuild.ID); err != nil || !rebuild.Ended() {
			return fmt.Errorf("rebuild %+v, %v", rebuild, err)
		}
		return nil
	})
	if rebuild.State != client.Done || rebuild.ShardsDone != rebuild.ShardsTotal {
		t.Errorf("rebuild %+v", rebuild)
	}
	verification, err := c.StartVerification(ctx)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the verification ends", func() error {
		if verification, err = c.Verification(ctx, verification.ID); err != nil || !verification.Ended() {
			return fmt.Errorf("verification %+v, %v", verification, err)
		}
		return nil
	})
	if verification.State != client.Done || verification.Differences != 0 || verification.EntriesDone < 1 {
		t.Errorf("verification %+v", verification)
	}
}
