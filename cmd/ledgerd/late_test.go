package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// pauseFile returns the variable that lets a process stop at a place, and a
// function that asks it to do so the next time it comes by.
func pauseFile(t *testing.T, variable string) (env string, ask func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pause")
	return variable + "=" + path, func() {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A process stops between its decision and the append. Another one spends the
// money. The late link is refused by the primary key and decided again.
func TestStoppedWriterIsRefusedAndDecidesAgain(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	env, pauseNow := pauseFile(t, pauseAppend)
	late, other := serveProcess(t, b, env), serve(t, b)
	late.open("a")
	late.credit("a", 10, "funds")

	pauseNow()
	answered := make(chan answer, 1)
	go func() {
		a, err := late.post("debits", "a", 10, "late")
		if err != nil {
			t.Error(err)
		}
		answered <- a
	}()
	late.awaitStopped()
	if a, err := other.post("debits", "a", 10, "other"); err != nil || a.status != http.StatusCreated {
		t.Fatalf("the other process: %s %v", a, err)
	}
	late.thaw()

	a := <-answered
	if r := a.read(); a.status != http.StatusUnprocessableEntity || r.Code != "insufficient_funds" || r.Seq != 4 {
		t.Errorf("the late debit: %s, want insufficient_funds as entry 4", a)
	}
	if late.metric("ledgerd_append_conflicts_total") == 0 {
		t.Error("the late link was not refused by the database")
	}
	if got := late.balance("a"); got.Balance != 0 || got.Seq != 4 {
		t.Errorf("the account is at seq %d with %d, want 4 with 0", got.Seq, got.Balance)
	}
}

// The owner of the shards stops between fold and write, for longer than its
// lease. Another process takes over and moves the row on. The late write is
// refused by the guards of its own statement, and counted.
func TestStoppedProjectionIsFenced(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	env, pauseNow := pauseFile(t, pauseProjection)
	late := serveProcess(t, b, env, "LEDGERD_LEASE_TTL=1s")
	late.open("a")
	awaitProjected(t, late, "a", 1)

	pauseNow()
	answered := make(chan error, 1)
	go func() { answered <- late.insist("credits", "a", 5, "k1") }()
	late.awaitStopped()
	other := serve(t, b, "--lease-ttl=1s")
	eventually(t, "the credit is committed", func() error {
		if got := other.balance("a"); got.Seq != 2 {
			return fmt.Errorf("the account is at seq %d", got.Seq)
		}
		return nil
	})
	awaitProjected(t, other, "a", 2)
	other.credit("a", 7, "k2")
	awaitProjected(t, other, "a", 3)
	late.thaw()
	if err := <-answered; err != nil {
		t.Error(err)
	}
	eventually(t, "the late write is counted as fenced", func() error {
		if late.metric("ledgerd_projection_fenced_writes_total") == 0 {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	// Both go on without a restart, each with its share.
	late.credit("a", 1, "k3")
	other.credit("a", 1, "k4")
	awaitProjected(t, other, "a", 5)
	for _, n := range []*node{late, other} {
		eventually(t, "each process has shards again", func() error {
			if n.metric("ledgerd_lease_held") == 0 {
				return fmt.Errorf("%s has none", n.url)
			}
			return nil
		})
	}
}

// The owner of the shards stands still for longer than its lease, wherever it
// happens to be. Another process takes over; later both work on.
func TestFrozenProcessComesBack(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	frozen := serveProcess(t, b, "LEDGERD_LEASE_TTL=1s")
	accounts := openMany(t, frozen, 20)
	frozen.credit(accounts[0], 1, "warm")
	frozen.freeze()
	heir := serve(t, b, "--lease-ttl=1s")
	for i, account := range accounts {
		heir.credit(account, 1, fmt.Sprint("k", i))
	}
	for i, account := range accounts {
		want := int64(2)
		if i == 0 {
			want = 3
		}
		awaitProjected(t, heir, account, want)
	}
	frozen.thaw()
	awaitShared(t, frozen, heir)
	// It remembers heads from before; the database refuses what they lead to.
	if r := frozen.credit(accounts[0], 1, "after"); r.Balance != 3 || r.Seq != 4 {
		t.Errorf("after its return the process answers %+v, want a balance of 3 at seq 4", r)
	}
	awaitProjected(t, heir, accounts[0], 4)
}

// openMany opens accounts that are spread over the shards.
func openMany(t *testing.T, n *node, count int) []string {
	t.Helper()
	accounts := make([]string, count)
	parallel(t, count, func(i int) error {
		accounts[i] = fmt.Sprint("many-", i)
		a, err := n.try("PUT", "/v1/accounts/"+accounts[i], `{"currency":"EUR"}`)
		if err == nil && a.status != http.StatusCreated {
			err = fmt.Errorf("open %s: %s", accounts[i], a)
		}
		return err
	})
	return accounts
}

// awaitShared waits until both processes have shards.
func awaitShared(t *testing.T, nodes ...*node) {
	t.Helper()
	eventually(t, "the shards are shared out", func() error {
		var sum float64
		for _, n := range nodes {
			held := n.metric("ledgerd_lease_held")
			if held == 0 {
				return fmt.Errorf("%s has none", n.url)
			}
			sum += held
		}
		if sum < 64 {
			return fmt.Errorf("%v of 64 are held", sum)
		}
		return nil
	})
}

func TestShardsOfAKilledProcessAreTaken(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	const ttl = time.Second
	victim := serveProcess(t, b, "LEDGERD_LEASE_TTL=1s")
	heir := serve(t, b, "--lease-ttl=1s")
	accounts := openMany(t, heir, 100)
	awaitShared(t, victim, heir)
	victim.kill()
	begun := time.Now()
	for i, account := range accounts {
		heir.credit(account, 1, fmt.Sprint("k", i))
	}
	for _, account := range accounts {
		awaitProjected(t, heir, account, 2)
	}
	// The time to live, a look every fifth of it, and much for a slow machine.
	if took := time.Since(begun); took > ttl+ttl/5+8*time.Second {
		t.Errorf("the takeover lasted %s", took)
	}
}

// The network swallows everything without a word. The holder learns from its
// own clock that its leases are over, and another process takes them.
func TestSilentNetworkEndsTheLeases(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	p := newProxy(t, b.url)
	cutOff := serve(t, b, "--database-url="+p.url, "--lease-ttl=1s")
	heir := serve(t, b, "--lease-ttl=1s")
	accounts := openMany(t, heir, 40)
	awaitShared(t, cutOff, heir)
	p.hole.Store(true)
	eventually(t, "the holder has given up its leases", func() error {
		if held := cutOff.metric("ledgerd_lease_held"); held != 0 {
			return fmt.Errorf("it holds %v", held)
		}
		return nil
	})
	for i, account := range accounts {
		heir.credit(account, 1, fmt.Sprint("k", i))
	}
	for _, account := range accounts {
		awaitProjected(t, heir, account, 2)
	}
	p.hole.Store(false)
	p.breakAll()
	awaitShared(t, cutOff, heir)
	cutOff.awaitReady()
	if err := cutOff.insist("credits", accounts[0], 1, "again"); err != nil {
		t.Error(err)
	}
}

// Somebody leaves a transaction open that has added an entry. Positions behind
// it are visible before its own, and nobody waits for it.
func TestIdleTransactionStallsNobodyElse(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serve(t, b)
	n.open("a")
	n.open("z")
	n.credit("z", 1, "k")
	conn, err := pgx.Connect(t.Context(), b.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const columns = `kind, amount, balance_after, held_after, fence_after, min_balance_after, status_after, fencing_after,
		transaction_id, request_hash, effective_at, posted_at, hash, hash_version`
	if _, err := tx.Exec(t.Context(), `insert into entries (account_id, seq, idempotency_key, `+columns+`)
		select account_id, seq + 1, 'idle', `+columns+` from entries where account_id = 'z' and seq = 2`); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		n.credit("a", 1, fmt.Sprint("k", i))
	}
	awaitProjected(t, n, "a", 21)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.credit("z", 1, "after")
	awaitProjected(t, n, "z", 3)
}
