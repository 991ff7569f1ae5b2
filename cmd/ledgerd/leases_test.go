package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// leaseAnswer is what the tests read of answers about leases.
type leaseAnswer struct {
	Token      int64     `json:"token"`
	Holder     string    `json:"holder"`
	State      string    `json:"state"`
	ExpiresAt  time.Time `json:"expires_at"`
	Seq        int64     `json:"seq"`
	Balance    int64     `json:"balance"`
	Sequencer  string    `json:"sequencer"`
	Code       string    `json:"code"`
	Reason     string    `json:"reason"`
	RetryAfter int64     `json:"retry_after_ms"`
	Presented  int64     `json:"presented_token"`
	Current    int64     `json:"current_token"`
	Applied    any       `json:"applied"`
	Status     any       `json:"status"`
	ForcedBy   string    `json:"forced_by"`
}

func (a answer) lease() leaseAnswer {
	var l leaseAnswer
	_ = json.Unmarshal(a.body, &l) // an answer of another form is judged by its status
	return l
}

const accountLease = "/v1/accounts/%s/lease"

func (n *node) acquire(path, holder string, ttl, lockDelay time.Duration) (answer, error) {
	return n.try("POST", path, fmt.Sprintf(`{"holder":%q,"ttl_ms":%d,"lock_delay_ms":%d}`, holder, ttl.Milliseconds(), lockDelay.Milliseconds()))
}

// mustAcquire acquires a lease that is free.
func (n *node) mustAcquire(path, holder string, ttl time.Duration) leaseAnswer {
	n.t.Helper()
	a, err := n.acquire(path, holder, ttl, 0)
	if err != nil || a.status != http.StatusCreated {
		n.t.Fatalf("acquire %s for %s: %s %v", path, holder, a, err)
	}
	return a.lease()
}

func (n *node) renew(path, holder string, token int64, ttl time.Duration) answer {
	n.t.Helper()
	return n.do("PUT", path, fmt.Sprintf(`{"holder":%q,"token":%d,"ttl_ms":%d}`, holder, token, ttl.Milliseconds()))
}

func (n *node) releaseLease(path, holder string, token int64) answer {
	n.t.Helper()
	return n.do("DELETE", path, fmt.Sprintf(`{"holder":%q,"token":%d}`, holder, token))
}

// fencedCredit posts a credit under a token.
func (n *node) fencedCredit(account string, token int64, key string) answer {
	n.t.Helper()
	return n.do("POST", "/v1/accounts/"+account+"/credits", `{"amount":1}`, "Idempotency-Key", key, "Fencing-Token", fmt.Sprint(token))
}

// awaitAcquired acquires as soon as the lease is free.
func (n *node) awaitAcquired(path, holder string, ttl time.Duration) (got leaseAnswer) {
	n.t.Helper()
	eventually(n.t, "the lease is free", func() error {
		a, err := n.acquire(path, holder, ttl, 0)
		if err != nil || a.status != http.StatusCreated {
			return fmt.Errorf("%s %w", a, err)
		}
		got = a.lease()
		return nil
	})
	return got
}

func (a answer) isStale(t *testing.T, presented, current int64) {
	t.Helper()
	l := a.lease()
	if a.status != http.StatusConflict || l.Code != "stale_fencing_token" || l.Presented != presented || l.Current != current || l.Applied != false {
		t.Errorf("the answer is %s, want stale_fencing_token with %d and %d", a, presented, current)
	}
}

// Case 23, and the answers of the acquisition: A has the lease and vanishes; B
// takes it; before B wrote anything A's write is refused, while B writes as
// often as it likes.
func TestOlderTokenIsRefusedFromTheAcquisitionOn(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	n.credit("a", 10, "funds")
	path := fmt.Sprintf(accountLease, "a")
	a := n.mustAcquire(path, "A", 150*time.Millisecond)
	if a.Token != 1 || a.Seq != 3 || a.Balance != 10 {
		t.Errorf("A got token %d, seq %d, balance %d, want 1, 3, 10", a.Token, a.Seq, a.Balance)
	}
	if w := n.fencedCredit("a", a.Token, "a1"); w.status != http.StatusCreated {
		t.Errorf("A's write: %s", w)
	}
	b := n.awaitAcquired(path, "B", time.Minute)
	if b.Token != 2 || b.Balance != 11 {
		t.Errorf("B got token %d, balance %d, want 2, 11", b.Token, b.Balance)
	}
	n.fencedCredit("a", a.Token, "a2").isStale(t, 1, 2)
	for i := range 20 {
		if w := n.fencedCredit("a", b.Token, fmt.Sprint("b", i)); w.status != http.StatusCreated {
			t.Fatalf("B's write: %s", w)
		}
	}
	if w := n.fencedCredit("a", 3, "future"); w.status != http.StatusConflict || w.lease().Code != "token_from_the_future" {
		t.Errorf("a token that nobody has: %s", w)
	}
	eventually(t, "the refusals are listed", func() error {
		var page struct {
			Data []struct {
				Code      string `json:"code"`
				Presented int64  `json:"presented_token"`
				Current   int64  `json:"current_token"`
				Route     string `json:"route"`
				Account   string `json:"account_id"`
			} `json:"data"`
		}
		got := n.do("GET", "/v1/fencing/rejections?account_id=a", "")
		if err := json.Unmarshal(got.body, &page); err != nil {
			return err
		}
		if len(page.Data) != 2 {
			return fmt.Errorf("%s", got)
		}
		if d := page.Data[1]; d.Code != "stale_fencing_token" || d.Presented != 1 || d.Current != 2 ||
			d.Route != "/v1/accounts/{account_id}/credits" || d.Account != "a" {
			t.Errorf("the rejection is listed as %+v", d)
		}
		return nil
	})
	if got := n.metric("ledgerd_fencing_rejections_total", `code="token_from_the_future"`); got != 1 {
		t.Errorf("%v tokens from the future were counted, want 1", got)
	}
}

// Case 24.
func TestTokensGrowOverRoundsAndRestarts(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serve(t, b)
	n.open("a")
	path := fmt.Sprintf(accountLease, "a")
	for i := range 100 {
		if i == 50 {
			n.shutdown()
			n = serve(t, b)
		}
		l := n.mustAcquire(path, "same", time.Minute)
		if want := int64(i + 1); l.Token != want {
			t.Fatalf("round %d has token %d", i, l.Token)
		}
		if r := n.renew(path, "same", l.Token, time.Minute); r.status != http.StatusOK || r.lease().Token != l.Token {
			t.Fatalf("renew: %s", r)
		}
		for _, wrong := range []answer{
			n.renew(path, "other", l.Token, time.Minute), n.renew(path, "same", l.Token+1, time.Minute),
			n.releaseLease(path, "other", l.Token),
		} {
			if wrong.status != http.StatusConflict || wrong.lease().Code != "lease_lost" {
				t.Fatalf("another term was accepted: %s", wrong)
			}
		}
		if got := n.do("GET", path, "").lease(); got.State != "held" || got.Token != l.Token || got.Sequencer != "" {
			t.Fatalf("the lease reads %+v", got)
		}
		for range 2 { // a repetition of the release succeeds
			if r := n.releaseLease(path, "same", l.Token); r.status != http.StatusOK || r.lease().State != "free" {
				t.Fatalf("release: %s", r)
			}
		}
		if r := n.renew(path, "same", l.Token, time.Minute); r.status != http.StatusConflict {
			t.Fatalf("a released term was renewed: %s", r)
		}
	}
}

// Losing says why and for how long; after an abnormal end the lock delay runs,
// after a release it does not. Case 25: an expired lease is taken at once.
func TestRefusalSaysWhyAndForHowLong(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	const path = "/v1/leases/job"
	if a := n.do("GET", path, ""); a.status != http.StatusNotFound || a.lease().Code != "lease_not_found" {
		t.Errorf("a lease that nobody had: %s", a)
	}
	a, err := n.acquire(path, "A", 300*time.Millisecond, 400*time.Millisecond)
	if err != nil || a.status != http.StatusCreated {
		t.Fatalf("acquire: %s %v", a, err)
	}
	begun := time.Now()
	refused, err := n.acquire(path, "B", time.Second, 0)
	if l := refused.lease(); err != nil || l.Code != "lease_held" || l.Reason != "held" || l.Holder != "A" || l.RetryAfter < 1 || l.RetryAfter > 700 {
		t.Errorf("while it is held: %s %v", refused, err)
	}
	sawDelay := false
	eventually(t, "the lock delay is over", func() error {
		b, err := n.acquire(path, "B", time.Minute, time.Minute)
		if l := b.lease(); l.Code == "lease_held" && l.Reason == "lock_delay" {
			sawDelay = true
		}
		if err != nil || b.status != http.StatusCreated {
			return fmt.Errorf("%s %w", b, err)
		}
		return nil
	})
	if took := time.Since(begun); took < 650*time.Millisecond || !sawDelay {
		t.Errorf("B got it after %s (lock delay seen: %v), before ttl and lock delay were over", took, sawDelay)
	}
	if r := n.releaseLease(path, "B", 2); r.status != http.StatusOK {
		t.Fatalf("release: %s", r)
	}
	c := n.mustAcquire(path, "C", time.Minute) // no lock delay after a release

	forced := n.do("POST", path+"/force-release", `{"by":"ana","reason":"host gone"}`)
	if l := forced.lease(); forced.status != http.StatusOK || l.State != "free" || l.ForcedBy != "ana" || l.Holder != "C" {
		t.Errorf("force release: %s", forced)
	}
	if got := n.do("GET", path, "").lease(); got.ForcedBy != "ana" {
		t.Errorf("the forced release is not shown: %+v", got)
	}
	if again := n.do("POST", path+"/force-release", `{"by":"ana","reason":"again"}`); again.status != http.StatusConflict {
		t.Errorf("a second force release: %s", again)
	}
	if r := n.renew(path, "C", c.Token, time.Minute); r.lease().Code != "lease_lost" {
		t.Errorf("a term that was ended by force was renewed: %s", r)
	}
}

func TestSequencersAreJudged(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	check := func(sequencer, want string) {
		t.Helper()
		a := n.do("POST", "/v1/sequencers/check", fmt.Sprintf(`{"sequencer":%q}`, sequencer))
		if got := a.lease().Status; a.status != http.StatusOK || got != want {
			t.Errorf("the sequencer is %s, want %s", a, want)
		}
	}
	for _, path := range []string{"/v1/leases/s", "/v1/accounts/a/lease"} {
		first := n.mustAcquire(path, "A", time.Minute)
		check(first.Sequencer, "valid")
		n.renew(path, "A", first.Token, time.Minute)
		check(first.Sequencer, "valid")
		n.releaseLease(path, "A", first.Token)
		check(first.Sequencer, "expired")
		second := n.mustAcquire(path, "A", time.Minute)
		check(first.Sequencer, "superseded")
		check(second.Sequencer, "valid")
	}
	check("AQ", "unknown")
	check("not base64!", "unknown")
}

func TestOneOfManyAcquiresWins(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	nodes := []*node{serve(t, b), serve(t, b)}
	nodes[0].open("a")
	path := fmt.Sprintf(accountLease, "a")
	const rounds, rivals = 5, 100
	for round := range rounds {
		var winner atomic.Int64
		parallel(t, rivals, func(i int) error {
			a, err := nodes[i%2].acquire(path, fmt.Sprint("rival-", i), time.Minute, 0)
			switch l := a.lease(); {
			case err != nil:
				return err
			case a.status == http.StatusCreated:
				if !winner.CompareAndSwap(0, l.Token) {
					return fmt.Errorf("round %d has two winners", round)
				}
				nodes[0].t.Logf("round %d: %s won", round, l.Holder)
				a, err := nodes[i%2].try("DELETE", path, "") // refused: no body
				if err != nil || a.status != http.StatusUnsupportedMediaType {
					return fmt.Errorf("%s %w", a, err)
				}
			case l.Code != "lease_held" || l.RetryAfter < 1:
				return fmt.Errorf("a loser is told %s", a)
			}
			return nil
		})
		if got := winner.Load(); got != int64(round+1) {
			t.Fatalf("the winner of round %d has token %d", round, got)
		}
		held := nodes[1].do("GET", path, "").lease()
		nodes[0].releaseLease(path, held.Holder, held.Token)
	}
}

// The fencing setting and all its answers.
func TestExternalTokensAndTheReset(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.want(http.StatusCreated, "PUT", "/v1/accounts/x", `{"currency":"EUR","fencing":{"source":"external","required":true}}`)
	path := fmt.Sprintf(accountLease, "x")
	if a, err := n.acquire(path, "A", time.Minute, 0); err != nil || a.status != http.StatusConflict || a.lease().Code != "fencing_external" {
		t.Errorf("a lease of an account with foreign tokens: %s %v", a, err)
	}
	if a, err := n.post("credits", "x", 1, "none"); err != nil || a.status != http.StatusPreconditionRequired {
		t.Errorf("a write without a token: %s %v", a, err)
	}
	for _, token := range []int64{1000, 1000, 2000} {
		if a := n.fencedCredit("x", token, fmt.Sprint("k", token)); a.status != http.StatusCreated {
			t.Errorf("token %d: %s", token, a)
		}
	}
	n.fencedCredit("x", 1999, "late").isStale(t, 1999, 2000)
	// Back to leases: their tokens are below the fence, which says so instead of
	// making the worker wait for ever.
	n.want(http.StatusOK, "PATCH", "/v1/accounts/x", `{"fencing":{"source":"lease","required":false}}`)
	if a, err := n.acquire(path, "A", time.Minute, 0); err != nil || a.lease().Code != "fencing_external" {
		t.Errorf("a lease below the fence: %s %v", a, err)
	}
	n.want(http.StatusOK, "PATCH", "/v1/accounts/x", `{"fencing":{"source":"external"}}`)
	n.want(http.StatusOK, "PATCH", "/v1/accounts/x", `{"fencing":{"source":"lease","reset":0,"reason":"back to leases"}}`)
	got := n.mustAcquire(path, "A", time.Minute)
	if a := n.fencedCredit("x", got.Token, "fenced"); a.status != http.StatusCreated {
		t.Errorf("a write after the reset: %s", a)
	}
	if a, err := n.acquire(fmt.Sprintf(accountLease, "nobody"), "A", time.Minute, 0); err != nil || a.lease().Code != "account_not_found" {
		t.Errorf("a lease of no account: %s %v", a, err)
	}
	n.open("c")
	n.want(http.StatusOK, "PATCH", "/v1/accounts/c", `{"status":"closed"}`)
	if a, err := n.acquire(fmt.Sprintf(accountLease, "c"), "A", time.Minute, 0); err != nil || a.lease().Code != "account_closed" {
		t.Errorf("a lease of a closed account: %s %v", a, err)
	}
}

// Case 27: the database's clock jumps. That is simulated where it shows, in
// the times of the rows. Leases may move, money may not.
func TestClockJumpsMoveLeasesAndNoMoney(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serve(t, b)
	n.open("a")
	path := fmt.Sprintf(accountLease, "a")
	conn, err := pgx.Connect(t.Context(), b.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var last int64
	for i, jump := range []string{"-1 hour", "1 hour", "-1 hour"} {
		old := n.mustAcquire(path, "old", time.Minute)
		if old.Token <= last {
			t.Fatalf("token %d after %d", old.Token, last)
		}
		if _, err := conn.Exec(t.Context(), `update leases set acquired_at = acquired_at + $1::text::interval,
			expires_at = expires_at + $1::text::interval where name = 'account/a'`, jump); err != nil {
			t.Fatal(err)
		}
		heir := n.mustAcquire(path, "heir", time.Minute)
		n.fencedCredit("a", old.Token, fmt.Sprint("old", i)).isStale(t, old.Token, heir.Token)
		if a := n.fencedCredit("a", heir.Token, fmt.Sprint("heir", i)); a.status != http.StatusCreated {
			t.Errorf("the heir's write: %s", a)
		}
		n.releaseLease(path, "heir", heir.Token)
		last = heir.Token
	}
	if got := n.balance("a"); got.Balance != 3 {
		t.Errorf("the balance is %d, want 3", got.Balance)
	}
}

// Case 28 for tokens: a restored database hands out nothing until the bump, and
// refuses the tokens of the future that was lost.
func TestTokensAfterARestoredDump(t *testing.T) {
	t.Parallel()
	dump, restore := postgresTool(t, "pg_dump"), postgresTool(t, "pg_restore")
	pg := pgtest.Server(t)
	b := booksOf(t, pg.URL)
	b.lossy()
	n := serve(t, b, "--lease-ttl=1s")
	n.open("a")
	path := fmt.Sprintf(accountLease, "a")
	kept := n.mustAcquire(path, "kept", time.Minute)
	named := n.mustAcquire("/v1/leases/n", "kept", time.Minute)
	file := t.TempDir() + "/dump"
	execute(t, dump, "--format=custom", "--file="+file, "--dbname="+pg.URL)
	n.releaseLease(path, "kept", kept.Token)
	lost := n.mustAcquire(path, "lost", time.Minute)
	execute(t, restore, "--clean", "--if-exists", "--single-transaction", "--dbname="+pg.URL, file)
	checkTokensUntilBump(t, n, pg.URL, lost.Token, named)
}

// checkTokensUntilBump proves what a service does about leases while its
// database may have lost rows, and after the bump. lost is a token that was
// handed out after the state that is left; named is a term of the lease n.
func checkTokensUntilBump(t *testing.T, n *node, url string, lost int64, named leaseAnswer) {
	t.Helper()
	path := fmt.Sprintf(accountLease, "a")
	eventually(t, "nothing is handed out", func() error {
		for _, p := range []string{path, "/v1/leases/n", "/v1/leases/new"} {
			a, err := n.acquire(p, "early", time.Minute, 0)
			if err == nil && a.status == http.StatusCreated {
				t.Fatalf("a token was handed out before the bump: %s", a)
			}
			if err != nil || a.lease().Code != "incarnation_mismatch" {
				return fmt.Errorf("%s: %s %w", p, a, err)
			}
		}
		return nil
	})
	if a := n.renew("/v1/leases/n", "kept", named.Token, time.Minute); a.lease().Code != "incarnation_mismatch" {
		t.Errorf("a renewal before the bump: %s", a)
	}
	n.balance("a") // reads go on
	if code, out, errs := program(t.Context(), "incarnation", "bump", "--reason=test of tokens", "--database-url="+url); code != exitOK {
		t.Fatalf("incarnation bump ended with %d:\n%s%s", code, out, errs)
	}
	n.awaitReady()
	if a := n.fencedCredit("a", lost, "future"); a.status != http.StatusConflict || a.lease().Code != "token_from_the_future" {
		t.Errorf("a token of the lost future: %s", a)
	}
	if got := n.metric("ledgerd_fencing_rejections_total", `code="token_from_the_future"`); got == 0 {
		t.Error("the token of the lost future raised no alarm")
	}
	if a := n.renew("/v1/leases/n", "kept", named.Token, time.Minute); a.lease().Code != "lease_lost" {
		t.Errorf("a term from before the bump was renewed: %s", a)
	}
	for _, p := range []string{path, "/v1/leases/n"} {
		l := n.mustAcquire(p, "new", time.Minute) // the bump ended all leases
		if l.Token <= lost || l.Token < 1<<40 {
			t.Errorf("%s has token %d after the bump, not above %d", p, l.Token, lost)
		}
	}
	n.fencedCredit("a", lost, "late").isStale(t, lost, n.do("GET", path, "").lease().Token)
}

func TestTokensAfterThePromotionOfALaggingStandby(t *testing.T) {
	t.Parallel()
	primary, standby, p, nodes := standbyBehind(t)
	n := nodes[0]
	path := fmt.Sprintf(accountLease, "a")
	n.mustAcquire(path, "kept", time.Minute)
	named := n.mustAcquire("/v1/leases/n", "kept", time.Minute)
	eventually(t, "the standby has the leases", func() error {
		conn, err := pgx.Connect(t.Context(), standby.URL)
		if err != nil {
			return err
		}
		defer conn.Close(t.Context())
		var count int
		err = conn.QueryRow(t.Context(), `select count(*) from leases where name in ('account/a', 'named/n')`).Scan(&count)
		if err == nil && count != 2 {
			err = fmt.Errorf("it has %d", count)
		}
		return err
	})
	standby.Stop(t)
	standby.Set(t, "primary_conninfo", "host=/nonexistent")
	standby.Start(t)
	n.releaseLease(path, "kept", 1)
	lost := n.mustAcquire(path, "lost", time.Minute)
	failOver(t, primary, standby, p)
	checkTokensUntilBump(t, n, standby.URL, lost.Token, named)
}

// A crowd of wrong tokens costs the writes nothing, and the list stays bounded.
func TestManyRejectionsAreCountedAndNotAwaited(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	path := fmt.Sprintf(accountLease, "a")
	n.releaseLease(path, "A", n.mustAcquire(path, "A", time.Minute).Token)
	n.mustAcquire(path, "B", time.Minute)
	const count = 300
	parallel(t, count, func(i int) error {
		a, err := n.try("POST", "/v1/accounts/a/credits", `{"amount":1}`, "Idempotency-Key", fmt.Sprint("k", i), "Fencing-Token", "1")
		if err == nil && a.lease().Code != "stale_fencing_token" {
			err = fmt.Errorf("%s", a)
		}
		return err
	})
	if got := n.metric("ledgerd_fencing_rejections_total"); got != count {
		t.Errorf("%v are counted, want %d", got, count)
	}
}
