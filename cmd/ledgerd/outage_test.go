package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// checkAway proves that every kind of request is answered within its deadline,
// and says that the database is away.
func checkAway(t *testing.T, n *node, deadline time.Duration) {
	t.Helper()
	// Readiness is looked at, not asked for: it follows within seconds.
	eventually(t, "/readyz says so", func() error {
		if a := n.do("GET", "/readyz", ""); a.status != http.StatusServiceUnavailable {
			return fmt.Errorf("it says %s", a)
		}
		return nil
	})
	requests := []struct{ method, path, body string }{
		{"POST", "/v1/accounts/a/credits", `{"amount":1}`},
		{"PUT", "/v1/accounts/b", `{"currency":"EUR"}`},
		{"PATCH", "/v1/accounts/a", `{"status":"frozen"}`},
		{"GET", "/v1/accounts/a/balance", ""},
		{"GET", "/v1/accounts", ""},
		{"GET", "/v1/projections/balances", ""},
		{"GET", "/readyz", ""},
	}
	parallel(t, len(requests), func(i int) error {
		r := requests[i]
		begun := time.Now()
		var headers []string
		if r.method == "POST" {
			headers = []string{"Idempotency-Key", "away"}
		}
		a, err := n.try(r.method, r.path, r.body, headers...)
		took := time.Since(begun)
		text := string(a.body)
		switch {
		case err != nil:
			return err
		case a.status != http.StatusServiceUnavailable || a.read().Code != "unavailable" || a.header.Get("Retry-After") == "":
			return fmt.Errorf("%s %s without a database: %s, Retry-After %q", r.method, r.path, a, a.header.Get("Retry-After"))
		case took > deadline:
			return fmt.Errorf("%s %s without a database took %s", r.method, r.path, took)
		case strings.Contains(text, "SQLSTATE") || strings.Contains(text, "postgres"):
			return fmt.Errorf("%s %s tells a client about the database: %s", r.method, r.path, text)
		}
		return nil
	})
	if a := n.do("GET", "/healthz", ""); a.status != http.StatusOK {
		t.Errorf("/healthz without a database: %s", a)
	}
}

func (n *node) awaitReady() {
	n.t.Helper()
	eventually(n.t, "the service is ready", func() error {
		if a := n.do("GET", "/readyz", ""); a.status != http.StatusOK {
			return fmt.Errorf("/readyz: %s", a)
		}
		return nil
	})
}

func TestServiceOutlivesItsDatabase(t *testing.T) {
	t.Parallel()
	pg := pgtest.Server(t)
	b := booksOf(t, pg.URL)
	const deadline = 3 * time.Second
	n := serve(t, b, "--request-timeout=2s", "--write-deadline=1s")
	n.open("a")
	n.credit("a", 10, "before")
	for _, outage := range []struct {
		name        string
		begin, stop func(testing.TB)
	}{
		{"stopped", pg.Stop, pg.Start},
		{"crashed", pg.Kill, pg.Start},
		{"frozen", pg.Freeze, pg.Resume},
	} {
		t.Run(outage.name, func(t *testing.T) {
			outage.begin(t)
			checkAway(t, n, deadline)
			outage.stop(t)
			n.awaitReady()
			if err := n.insist("credits", "a", 1, "away"); err != nil {
				t.Error(err)
			}
			if err := n.insist("credits", "a", 1, "after-"+outage.name); err != nil {
				t.Error(err)
			}
		})
	}
	b.settled("a")
	if got := n.balance("a"); got.Balance != 14 {
		t.Errorf("the balance is %d, want 14", got.Balance)
	}
}

func TestServiceStartsWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	pg := pgtest.Server(t)
	b := booksOf(t, pg.URL)
	pg.Stop(t)
	n := serve(t, b, "--request-timeout=2s", "--write-deadline=1s")
	checkAway(t, n, 3*time.Second)
	pg.Start(t)
	n.awaitReady()
	n.open("a")
	n.credit("a", 5, "k")
	awaitProjected(t, n, "a", 2)
}

// awaitProjected waits until the balance row of the account has applied seq.
func awaitProjected(t *testing.T, n *node, account string, seq int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s/%d is projected", account, seq), func() error {
		if got := n.balance(account); got.ProjectedSeq < seq {
			return fmt.Errorf("it is at %d", got.ProjectedSeq)
		}
		return nil
	})
}

// PostgreSQL restarts and crashes under load: nothing is applied twice, nobody
// gets stuck.
func TestRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	pg := pgtest.Server(t)
	b := booksOf(t, pg.URL)
	n := serve(t, b, "--write-deadline=2s")
	accounts := []string{"a", "b", "c"}
	for _, a := range accounts {
		n.open(a)
	}
	finished := make(chan error, len(accounts))
	stop := make(chan struct{})
	counts := make([]int64, len(accounts))
	for i, account := range accounts {
		go func() {
			for {
				select {
				case <-stop:
					finished <- nil
					return
				default:
				}
				if err := n.insist("credits", account, 1, fmt.Sprint("k", counts[i])); err != nil {
					finished <- err
					return
				}
				counts[i]++
			}
		}()
	}
	for range 2 {
		pg.Restart(t)
		n.awaitReady()
		pg.Kill(t)
		pg.Start(t)
		n.awaitReady()
	}
	close(stop)
	for range accounts {
		if err := <-finished; err != nil {
			t.Error(err)
		}
	}
	for i, account := range accounts {
		b.settled(account)
		if got := n.balance(account); got.Balance != counts[i] {
			t.Errorf("%s has %d after %d receipts", account, got.Balance, counts[i])
		}
		awaitProjected(t, n, account, counts[i]+1)
	}
}
