package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/httpapi"
)

// command runs a command of an operator on the database of the books.
func (b *books) command(t testing.TB, args ...string) (code int, out string) {
	t.Helper()
	var text bytes.Buffer
	code = run(t.Context(), append(args, "--database-url="+b.url), &text, &text)
	return code, text.String()
}

// damage changes the database as its owner, behind everybody's back.
func (b *books) damage(t testing.TB, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	tag, err := conn.Exec(t.Context(), sql, args...)
	if err != nil || tag.RowsAffected() == 0 {
		t.Fatalf("%s: %s %v", sql, tag, err)
	}
}

// follow waits for a job and proves that its progress never falls. path is
// where it is asked for.
func follow[J any](t *testing.T, n *node, path string, state func(*J) (httpapi.JobState, int64)) J {
	t.Helper()
	begun := n.do("POST", path, "")
	if begun.status != http.StatusAccepted || begun.header.Get("Location") == "" {
		t.Fatalf("POST %s: %s", path, begun)
	}
	var job J
	var last int64
	eventually(t, path+" is over", func() error {
		a := n.do("GET", begun.header.Get("Location"), "")
		job = *new(J)
		if err := json.Unmarshal(a.body, &job); err != nil || a.status != http.StatusOK {
			t.Fatalf("GET %s: %s %v", begun.header.Get("Location"), a, err)
		}
		now, done := state(&job)
		if done < last {
			t.Fatalf("the progress fell from %d to %d", last, done)
		}
		last = done
		if now == httpapi.JobPending || now == httpapi.JobRunning {
			return fmt.Errorf("it is %s", now)
		}
		return nil
	})
	return job
}

func (n *node) rebuild(t *testing.T) httpapi.Rebuild {
	t.Helper()
	return follow(t, n, "/v1/projections/balances/rebuild", func(r *httpapi.Rebuild) (httpapi.JobState, int64) { return r.State, r.AccountsDone })
}

func (n *node) verify(t *testing.T) httpapi.Verification {
	t.Helper()
	return follow(t, n, "/v1/projections/balances/verify", func(v *httpapi.Verification) (httpapi.JobState, int64) { return v.State, v.AccountsDone })
}

// A balance row is changed and another one deleted. Money decisions never read
// them; a verification names both, a rebuild repairs both.
func TestDamagedBalanceRowsAreFoundAndRepaired(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serve(t, b)
	for _, a := range []string{"altered", "deleted", "right"} {
		n.open(a)
		n.credit(a, 100, "k")
		awaitProjected(t, n, a, 2)
	}
	b.damage(t, `update balances set balance = 1000000 where account_id = 'altered'`)
	b.damage(t, `delete from balances where account_id = 'deleted'`)

	if got := n.balance("altered"); got.Balance != 100 {
		t.Errorf("a strong read believes the row: %d", got.Balance)
	}
	if a, err := n.post("debits", "altered", 101, "d"); err != nil || a.read().Code != "insufficient_funds" {
		t.Errorf("a debit beyond the entries: %s %v", a, err)
	}
	found := map[string]bool{}
	v := n.verify(t)
	for _, f := range v.Findings {
		found[f.AccountID] = true
	}
	if v.State != httpapi.JobDone || !found["altered"] || found["right"] {
		t.Errorf("the verification: %+v", v)
	}
	if code, out := b.command(t, "verify"); code != exitDifferences || !strings.Contains(out, "altered") || strings.Contains(out, "right/") {
		t.Errorf("verify ended with %d:\n%s", code, out)
	}
	r := n.rebuild(t)
	if r.State != httpapi.JobDone || r.DriftedAccounts < 1 {
		t.Errorf("the rebuild: %+v", r)
	}
	if v := n.verify(t); v.Differences != 0 {
		t.Errorf("after the rebuild: %+v", v.Findings)
	}
	n.credit("deleted", 1, "k2")
	awaitProjected(t, n, "deleted", 3)
}

// An entry and a balance row are altered: verify names both and ends with 1,
// replay repairs the row and never the entry.
func TestAlteredEntryIsNamedAndNeverRepaired(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serve(t, b)
	for _, a := range []string{"entry", "row"} {
		n.open(a)
		n.credit(a, 100, "k")
		n.credit(a, 5, "k2")
		awaitProjected(t, n, a, 3)
	}
	n.shutdown()
	b.damage(t, `update entries set counterparty = 'somebody else' where account_id = 'entry' and seq = 2`)
	b.damage(t, `update balances set credits_total = 1 where account_id = 'row'`)
	code, out := b.command(t, "verify")
	if code != exitDifferences || !strings.Contains(out, "entry/2: hash") || !strings.Contains(out, "row/") {
		t.Errorf("verify ended with %d:\n%s", code, out)
	}
	if code, out := b.command(t, "replay"); code != exitOK {
		t.Errorf("replay ended with %d:\n%s", code, out)
	}
	code, out = b.command(t, "verify")
	if code != exitDifferences || !strings.Contains(out, "entry/2: hash") || strings.Contains(out, "row/") {
		t.Errorf("verify after the replay ended with %d:\n%s", code, out)
	}
	b.damage(t, `update entries set counterparty = null where account_id = 'entry' and seq = 2`)
}

// A replay without a service does not wait for a row that somebody has locked
// before it repairs the others.
func TestReplayGoesOnBesideALockedRow(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serve(t, b)
	for _, a := range []string{"locked", "other"} {
		n.open(a)
		awaitProjected(t, n, a, 1)
	}
	n.shutdown()
	b.damage(t, `update balances set balance = 9`)
	conn, err := pgx.Connect(t.Context(), b.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	lock, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	if _, err := lock.Exec(t.Context(), `select from balances where account_id = 'locked' for update`); err != nil {
		t.Fatal(err)
	}
	log := &logTap{}
	ended := make(chan int, 1)
	go func() { ended <- run(t.Context(), []string{"replay", "--database-url=" + b.url}, log, log) }()
	eventually(t, "the other row is repaired", func() error {
		var balance int64
		if err := lock.QueryRow(t.Context(), `select balance from balances where account_id = 'other'`).Scan(&balance); err != nil {
			return err
		}
		if balance != 0 {
			return fmt.Errorf("its balance is %d", balance)
		}
		return nil
	})
	eventually(t, "the locked one is named", func() error {
		if !strings.Contains(log.text(), "account=locked") {
			return errors.New(log.tail(5))
		}
		return nil
	})
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := <-ended; code != exitOK {
		t.Errorf("replay ended with %d:\n%s", code, log.tail(10))
	}
}

func TestRowThatFellBackIsNotAppliedTwice(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serve(t, b)
	n.open("a")
	for i := range 5 {
		n.credit("a", 10, fmt.Sprint("k", i))
	}
	awaitProjected(t, n, "a", 6)
	b.damage(t, `update balances set applied_seq = applied_seq - 3 where account_id = 'a'`)
	n.credit("a", 10, "after")
	if v := n.verify(t); v.Differences == 0 {
		t.Error("a row with a seq that is not its own was not found")
	}
	if r := n.rebuild(t); r.State != httpapi.JobDone {
		t.Errorf("the rebuild: %+v", r)
	}
	awaitProjected(t, n, "a", 7)
	got := n.want(http.StatusOK, "GET", "/v1/accounts/a/balance?consistency=projected&min_seq=7", "")
	if got.Balance != 60 || got.Seq != 7 {
		t.Errorf("the row has %d at seq %d, want 60 at 7", got.Balance, got.Seq)
	}
}

// Two rebuilds are asked for at once, under load: they are one, no request
// fails, and the rows are right at the end.
func TestRebuildUnderLoad(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	nodes := []*node{serve(t, b, "--lease-ttl=1s"), serve(t, b, "--lease-ttl=1s")}
	accounts := openMany(t, nodes[0], 30)
	awaitShared(t, nodes...)
	stop := make(chan struct{})
	var load sync.WaitGroup
	posted := make([]int64, len(accounts))
	for w := range 4 {
		load.Go(func() {
			for i := w; ; i += 4 {
				select {
				case <-stop:
					return
				default:
				}
				at := i % len(accounts)
				a, err := nodes[i%2].post("credits", accounts[at], 1, fmt.Sprint("k", i))
				if err != nil || a.status != http.StatusCreated {
					t.Errorf("a request during the rebuild: %s %v", a, err)
					return
				}
				if w == at%4 {
					posted[at] = max(posted[at], a.read().Seq)
				}
			}
		})
	}
	for range 3 {
		results := make([]httpapi.Rebuild, 2)
		var both sync.WaitGroup
		for i := range results {
			both.Go(func() { results[i] = nodes[i].rebuild(t) })
		}
		both.Wait()
		for _, r := range results {
			if r.State != httpapi.JobDone || r.DriftedAccounts != 0 || r.ShardsDone != 64 {
				t.Errorf("a rebuild under load: %+v", r)
			}
		}
	}
	close(stop)
	load.Wait()
	for i, account := range accounts {
		awaitProjected(t, nodes[0], account, posted[i])
	}
	if v := nodes[0].verify(t); v.Differences != 0 {
		t.Errorf("after the rebuilds: %+v", v.Findings)
	}
}

// An entry that contradicts the one before it parks its account. All others go
// on, and the status says so.
func TestEntryThatCannotBeAppliedParksItsAccount(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serve(t, b)
	n.open("good")
	n.open("bad")
	n.credit("bad", 10, "k")
	awaitProjected(t, n, "bad", 2)
	const columns = `held_after, fence_after, min_balance_after, status_after, fencing_after,
		transaction_id, request_hash, effective_at, posted_at, hash, hash_version`
	b.damage(t, `insert into entries (account_id, seq, idempotency_key, kind, amount, balance_after, `+columns+`)
		select account_id, 3, 'forged', 'credit', 5, 999, `+columns+` from entries where account_id = 'bad' and seq = 2`)
	eventually(t, "the account is parked", func() error {
		if got := n.metric("ledgerd_projection_parked_accounts"); got != 1 {
			return fmt.Errorf("%v accounts are parked", got)
		}
		return nil
	})
	for i := range 10 {
		n.credit("good", 1, fmt.Sprint("k", i))
	}
	awaitProjected(t, n, "good", 11)
	eventually(t, "the status says so", func() error {
		var p httpapi.Projection
		a := n.do("GET", "/v1/projections/balances", "")
		if err := json.Unmarshal(a.body, &p); err != nil || p.ParkedAccounts != 1 {
			return fmt.Errorf("%d parked, %v", p.ParkedAccounts, err)
		}
		return nil
	})
	if len(n.log.at("ERROR")) == 0 {
		t.Error("nothing was logged as an error")
	}
	if code, out := b.command(t, "verify"); code != exitDifferences || !strings.Contains(out, "bad/3") {
		t.Errorf("verify ended with %d:\n%s", code, out)
	}
	b.damage(t, `delete from entries where account_id = 'bad' and seq = 3`)
}
