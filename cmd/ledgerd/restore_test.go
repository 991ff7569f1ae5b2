package main

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pgserver"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// checkRefusedUntilBump proves that services with warm caches notice a database
// that lost rows: the account a has kept entries up to seq, then nothing is
// written until the incarnation grows, and afterwards the chain goes on from
// what is there. url is the database of the bump.
func checkRefusedUntilBump(t *testing.T, url string, seq int64, nodes ...*node) {
	t.Helper()
	for i, n := range nodes {
		eventually(t, "writes are refused", func() error {
			a, err := n.post("credits", "a", 1, fmt.Sprint("refused-", i))
			switch code := a.read().Code; {
			case err == nil && a.status == http.StatusCreated:
				t.Fatalf("a write on a database that lost rows was accepted: %s", a)
			case err != nil || code != "incarnation_mismatch":
				return fmt.Errorf("the answer is %s %w", a, err)
			}
			return nil
		})
		if got := n.balance("a"); got.Seq != seq || got.Balance != seq-1 {
			t.Errorf("a read says seq %d with %d, want %d with %d", got.Seq, got.Balance, seq, seq-1)
		}
		if a := n.do("GET", "/readyz", ""); a.status != http.StatusServiceUnavailable {
			t.Errorf("/readyz: %s", a)
		}
	}
	if code, out, errs := program(t.Context(), "incarnation", "show", "--database-url="+url); code != exitDifferences {
		t.Errorf("incarnation show ended with %d:\n%s%s", code, out, errs)
	}
	code, out, errs := program(t.Context(), "incarnation", "bump", "--reason=test of a restore", "--database-url="+url)
	if code != exitOK || !strings.Contains(out, "incarnation 2") {
		t.Fatalf("incarnation bump ended with %d:\n%s%s", code, out, errs)
	}
	for i, n := range nodes {
		n.awaitReady()
		// The key of the refused write is free: the refusal wrote nothing.
		if err := n.insist("credits", "a", 1, fmt.Sprint("refused-", i)); err != nil {
			t.Error(err)
		}
	}
	if got := nodes[0].balance("a"); got.Seq != seq+int64(len(nodes)) {
		t.Errorf("the chain went on to seq %d, want %d", got.Seq, seq+int64(len(nodes)))
	}
}

// alternate posts credits of 1 through the nodes in turn, so that each of them
// remembers the account.
func alternate(count int, name string, nodes ...*node) {
	for i := range count {
		nodes[i%len(nodes)].credit("a", 1, fmt.Sprint(name, i))
	}
}

// postgresTool returns a command of PostgreSQL. Packages of the bare server do
// not have all of them.
func postgresTool(t *testing.T, name string) string {
	t.Helper()
	bin, err := pgserver.FindBinaries(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(bin.Dir, name), name} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	t.Skipf("this PostgreSQL has no %s", name)
	return ""
}

func TestRestoredDumpRefusesWritesUntilTheBump(t *testing.T) {
	t.Parallel()
	dump, restore := postgresTool(t, "pg_dump"), postgresTool(t, "pg_restore")
	pg := pgtest.Server(t)
	b := booksOf(t, pg.URL)
	b.lossy()
	one, two := serve(t, b, "--lease-ttl=1s"), serve(t, b, "--lease-ttl=1s")
	one.open("a")
	alternate(10, "kept", one, two)
	file := filepath.Join(t.TempDir(), "dump")
	execute(t, dump, "--format=custom", "--file="+file, "--dbname="+pg.URL)
	alternate(5, "lost", one, two)
	execute(t, restore, "--clean", "--if-exists", "--single-transaction", "--dbname="+pg.URL, file)
	checkRefusedUntilBump(t, pg.URL, 11, one, two)
	// Of the operations that were lost the ledger knows nothing: they are new.
	one.credit("a", 1, "lost0")
	// Those that were kept are replays, as ever.
	if a, err := two.post("credits", "a", 1, "kept9"); err != nil || !a.replayed() {
		t.Errorf("an operation that was kept: %s %v", a, err)
	}
}

func execute(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

func TestRestoredCopyRefusesWritesUntilTheBump(t *testing.T) {
	t.Parallel()
	pg := pgtest.Server(t)
	b := booksOf(t, pg.URL)
	b.lossy()
	one, two := serve(t, b, "--lease-ttl=1s"), serve(t, b, "--lease-ttl=1s")
	one.open("a")
	alternate(10, "kept", one, two)
	snapshot := pg.Snapshot(t)
	one.awaitReady()
	two.awaitReady()
	alternate(5, "lost", one, two)
	pg.Restore(t, snapshot)
	checkRefusedUntilBump(t, pg.URL, 11, one, two)
}

// standbyBehind returns services that reach a primary through a proxy, and a
// standby that has the account a up to seq 11.
func standbyBehind(t *testing.T, args ...string) (primary, standby *pgtest.Instance, p *proxy, nodes []*node) {
	t.Helper()
	primary = pgtest.Server(t)
	standby = primary.Standby(t)
	b := booksOf(t, standby.URL) // at the end the standby is the ledger
	b.lossy()
	p = newProxy(t, primary.URL)
	for range 2 {
		nodes = append(nodes, serve(t, b, append([]string{"--database-url=" + p.url, "--lease-ttl=1s"}, args...)...))
	}
	nodes[0].open("a")
	alternate(10, "kept", nodes...)
	eventually(t, "the standby has it", func() error {
		conn, err := pgx.Connect(t.Context(), standby.URL)
		if err != nil {
			return err
		}
		defer conn.Close(t.Context())
		var seq int64
		if err := conn.QueryRow(t.Context(), `select max(seq) from entries where account_id = 'a'`).Scan(&seq); err != nil {
			return err
		}
		if seq != 11 {
			return fmt.Errorf("it is at seq %d", seq)
		}
		return nil
	})
	return primary, standby, p, nodes
}

// failOver kills the primary and makes the standby the database.
func failOver(t *testing.T, primary, standby *pgtest.Instance, p *proxy) {
	t.Helper()
	primary.Kill(t)
	standby.Promote(t)
	p.point(t, standby.URL)
	p.breakAll()
}

func TestPromotionOfALaggingStandbyRefusesWritesUntilTheBump(t *testing.T) {
	t.Parallel()
	primary, standby, p, nodes := standbyBehind(t)
	// From here on the standby hears nothing.
	standby.Stop(t)
	standby.Set(t, "primary_conninfo", "host=/nonexistent")
	standby.Start(t)
	alternate(5, "lost", nodes...)
	failOver(t, primary, standby, p)
	checkRefusedUntilBump(t, standby.URL, 11, nodes...)
}

func TestPromotionOfASynchronousStandbyGoesOn(t *testing.T) {
	t.Parallel()
	primary, standby, p, nodes := standbyBehind(t, "--promotion=synchronous")
	failOver(t, primary, standby, p)
	for i, n := range nodes {
		n.awaitReady()
		if err := n.insist("credits", "a", 1, fmt.Sprint("after-", i)); err != nil {
			t.Error(err)
		}
	}
	if got := nodes[0].balance("a"); got.Seq != 13 || got.Balance != 12 {
		t.Errorf("the account is at seq %d with %d, want 13 with 12", got.Seq, got.Balance)
	}
	code, out, errs := program(t.Context(), "incarnation", "show", "--database-url="+standby.URL)
	if code != exitOK || !strings.Contains(out, "incarnation 2") {
		t.Errorf("incarnation show ended with %d:\n%s%s", code, out, errs)
	}
}
