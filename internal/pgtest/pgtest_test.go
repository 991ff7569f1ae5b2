//go:build unix

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/migrations"
)

// childEnv makes the test binary start a server and a frozen instance, print
// where they are, and wait to be killed.
const childEnv = "LEDGERD_PGTEST_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Args = append(os.Args[:1], "-test.run=^TestChild$")
	}
	os.Exit(m.Run())
}

func TestChild(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		return // runs only for KilledTestBinaryLeavesNothing
	}
	c := sharedCluster(t)
	i := Server(t)
	i.Freeze(t)
	fmt.Println(c.server.DataDir())
	select {}
}

func count(t *testing.T, pool *pgxpool.Pool, sql string) (n int64) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func execute(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func TestDatabasesAreSeparateAndMigrated(t *testing.T) {
	t.Parallel()
	for range 3 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			db := Database(t)
			owner := db.OwnerPool(t)
			if err := migrations.Check(t.Context(), db.Pool(t)); err != nil {
				t.Error(err)
			}
			if n := count(t, owner, "SELECT count(*) FROM accounts"); n != 0 {
				t.Errorf("a new database has %d accounts", n)
			}
			execute(t, owner, "INSERT INTO accounts SELECT 'a', 'EUR', 2, 0, '{}', now()")
		})
	}
}

func TestPoolHasTheRightsOfTheService(t *testing.T) {
	t.Parallel()
	pool := Database(t).Pool(t)
	_, err := pool.Exec(t.Context(), "UPDATE entries SET amount = 1")
	refused := (*pgconn.PgError)(nil)
	if !errors.As(err, &refused) || refused.Code != "42501" {
		t.Errorf("update of entries: %v, want insufficient_privilege", err)
	}
}

func TestInstanceKeepsItsURLAndDataOverStopAndKill(t *testing.T) {
	t.Parallel()
	i := Server(t, "work_mem", "5MB")
	url := i.URL
	if got := i.query(t, "SHOW work_mem"); got != "5MB" {
		t.Errorf("work_mem is %s", got)
	}
	execute(t, i.OwnerPool(t), "CREATE TABLE kept (n int)")
	for n, again := range []func(){
		func() { i.Restart(t) },
		func() { i.Kill(t); i.Start(t) },
		func() { i.Stop(t); i.Stop(t); i.Start(t) },
	} {
		i.query(t, "INSERT INTO kept VALUES (1) RETURNING n::text")
		again()
		if got := count(t, i.OwnerPool(t), "SELECT count(*) FROM kept"); got != int64(n+1) {
			t.Errorf("step %d: %d rows", n, got)
		}
	}
	if i.URL != url {
		t.Errorf("the URL changed from %s to %s", url, i.URL)
	}
}

func TestFrozenInstanceAnswersLater(t *testing.T) {
	t.Parallel()
	i := Server(t)
	conn, err := pgx.Connect(t.Context(), i.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	i.Freeze(t)
	answer := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT 1")
		answer <- err
	}()
	fresh, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if c, err := pgx.Connect(fresh, i.URL); err == nil {
		_ = c.Close(t.Context())
		t.Error("a frozen server accepted a session")
	}
	select {
	case err := <-answer:
		t.Errorf("a frozen server answered: %v", err)
	default:
	}
	i.Resume(t)
	if err := <-answer; err != nil {
		t.Errorf("after Resume: %v", err)
	}
	i.Freeze(t)
	i.Stop(t) // resumes first
}

func TestRestoreGoesBackOnANewTimeline(t *testing.T) {
	t.Parallel()
	i := Server(t)
	const timeline = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
	execute(t, i.OwnerPool(t), "CREATE TABLE history AS SELECT 1 AS n")
	before := i.query(t, timeline)
	s := i.Snapshot(t)
	i.query(t, "INSERT INTO history VALUES (2) RETURNING n::text")
	for range 2 {
		i.Restore(t, s)
		if got := i.query(t, "SELECT max(n)::text FROM history"); got != "1" {
			t.Errorf("after Restore: %s", got)
		}
		if after := i.query(t, timeline); after <= before {
			t.Errorf("timeline %s after %s", after, before)
		}
		i.query(t, "INSERT INTO history VALUES (3) RETURNING n::text")
	}
}

func TestStandbyFollowsUntilItIsPromoted(t *testing.T) {
	t.Parallel()
	primary := Server(t)
	standby := primary.Standby(t)
	pool := standby.OwnerPool(t)
	execute(t, primary.OwnerPool(t), "CREATE TABLE made (n int)")
	deadline := time.Now().Add(30 * time.Second)
	for count(t, pool, "SELECT count(*) FROM pg_class WHERE relname = 'made'") == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the standby does not follow")
		}
	}
	primary.Stop(t)
	standby.Promote(t)
	standby.query(t, "INSERT INTO made VALUES (1) RETURNING n::text")
}

func TestKilledTestBinaryLeavesNothing(t *testing.T) {
	t.Parallel()
	if os.Getenv(childEnv) != "" {
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 4096)
	n, err := stdout.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(string(line[:n]))
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	deadline := time.Now().Add(60 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is still there", dir)
		}
		<-tick.C
	}
}
