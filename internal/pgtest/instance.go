//go:build unix

package pgtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pgserver"
	"github.com/ledgerd/ledgerd/migrations"
)

// Instance is a PostgreSQL server of one test's own, with one migrated
// database. Its URL stays the same over restarts. The methods are for the
// goroutine of the test; all end the test when they fail.
type Instance struct {
	*DB

	cfg    pgserver.Config
	server *pgserver.Server // nil while stopped
	frozen *freezer         // not nil while frozen
}

// Server starts an instance, which ends with the test. Settings are server
// settings such as "max_connections", "10"; see Instance.Set for later changes.
func Server(t testing.TB, settings ...string) *Instance {
	t.Helper()
	i := newInstance(t)
	i.Set(t, settings...)
	i.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	if _, err := migrations.Up(ctx, i.URL); err != nil {
		t.Fatalf("pgtest: migrate the instance: %v", err)
	}
	return i
}

// newInstance prepares a folder inside the shared server's one, so that it is
// removed with it even when the test binary is killed.
func newInstance(t testing.TB) *Instance {
	t.Helper()
	dir, err := os.MkdirTemp(sharedCluster(t).server.DataDir(), "instance-")
	if err == nil && os.Geteuid() == 0 {
		err = os.Chmod(dir, 0o711) // the server runs as another user
	}
	if err != nil {
		t.Fatalf("pgtest: make the instance's folder: %v", err)
	}
	i := &Instance{
		DB: &DB{Name: "ledgerd"},
		cfg: pgserver.Config{
			DataDir: dir, BinDir: os.Getenv("LEDGERD_TEST_PG_BIN"), Database: "ledgerd",
			// The machine does not crash in these tests, only processes do.
			Settings: map[string]string{"fsync": "off", "max_connections": "200"},
		},
	}
	t.Cleanup(func() {
		i.Stop(t)
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("pgtest: remove the instance: %v", err)
		}
	})
	return i
}

// Set changes server settings, given as names and values in turn, from the
// next Start on.
func (i *Instance) Set(t testing.TB, settings ...string) {
	t.Helper()
	if len(settings)%2 != 0 {
		t.Fatalf("pgtest: a setting without a value in %q", settings)
	}
	for n := 0; n < len(settings); n += 2 {
		i.cfg.Settings[settings[n]] = settings[n+1]
	}
}

// Start starts a stopped or killed instance and returns when it accepts
// connections.
func (i *Instance) Start(t testing.TB) {
	t.Helper()
	if i.server != nil {
		t.Fatal("pgtest: the instance runs already")
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	server, err := pgserver.Start(ctx, i.cfg)
	if err != nil {
		t.Fatalf("pgtest: start the instance: %v", err)
	}
	i.server, i.URL = server, server.URL()
}

// Stop shuts the instance down: sessions are cut, committed data is written.
// It does nothing when the instance is stopped.
func (i *Instance) Stop(t testing.TB) {
	t.Helper()
	if i.server == nil {
		return
	}
	i.Resume(t)
	err := i.server.Stop()
	i.server = nil
	if err != nil {
		t.Fatalf("pgtest: stop the instance: %v", err)
	}
}

// Restart is Stop and Start.
func (i *Instance) Restart(t testing.TB) {
	t.Helper()
	i.Stop(t)
	i.Start(t)
}

// Kill ends all processes of the server with SIGKILL at one moment, as a crash
// does. What was committed is there after the next Start.
func (i *Instance) Kill(t testing.TB) {
	t.Helper()
	i.mustRun(t)
	i.Freeze(t) // so that no process gets ahead of the others
	pids := i.frozen.pids
	for _, pid := range pids {
		if err := ignoreGone(syscall.Kill(pid, syscall.SIGKILL)); err != nil {
			t.Fatalf("pgtest: kill process %d: %v", pid, err)
		}
	}
	i.Stop(t)
	for _, pid := range pids { // the next start needs the shared memory that they have
		if err := awaitGone(pid); err != nil {
			t.Fatalf("pgtest: kill the instance: %v", err)
		}
	}
}

// PID is the process id of the server's main process.
func (i *Instance) PID(t testing.TB) int {
	t.Helper()
	i.mustRun(t)
	return i.server.PID()
}

// DataDir is the cluster's own folder, for tests that read or damage files.
func (i *Instance) DataDir() string { return filepath.Join(i.cfg.DataDir, "pgdata") }

// Snapshot is a copy of an instance's cluster at one moment, see Restore.
type Snapshot struct{ dir string }

// Snapshot stops the instance, copies its cluster and starts it again.
func (i *Instance) Snapshot(t testing.TB) *Snapshot {
	t.Helper()
	i.Stop(t)
	dir, err := os.MkdirTemp(i.cfg.DataDir, "snapshot-")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	s := &Snapshot{dir: filepath.Join(dir, "pgdata")}
	copyTree(t, i.DataDir(), s.dir)
	i.Start(t)
	return s
}

// Restore puts the snapshot in the place of the instance's cluster, as an
// operator does who restores a backup, and starts it at the same URL. All that
// was committed after the snapshot is lost. Like every recovery from a backup
// it begins a new timeline.
func (i *Instance) Restore(t testing.TB, s *Snapshot) {
	t.Helper()
	i.replace(t, s)
	i.signalFile(t, "recovery.signal")
	i.Set(t, "restore_command", "false") // there is no archive beyond the backup
	i.Start(t)
	i.awaitPrimary(t)
}

// RestoreFiles is Restore as a volume snapshot does it: PostgreSQL finds older
// files and starts from them on the old timeline, as if nothing had happened.
func (i *Instance) RestoreFiles(t testing.TB, s *Snapshot) {
	t.Helper()
	i.replace(t, s)
	i.Start(t)
}

// replace stops the instance and puts the snapshot in the place of its cluster.
func (i *Instance) replace(t testing.TB, s *Snapshot) {
	t.Helper()
	i.Stop(t)
	if err := os.RemoveAll(i.DataDir()); err != nil {
		t.Fatalf("pgtest: remove the cluster: %v", err)
	}
	copyTree(t, s.dir, i.DataDir())
}

// Standby returns a streaming, asynchronous standby of the instance, which is
// restarted for the copy. The standby ends with the test.
func (i *Instance) Standby(t testing.TB, settings ...string) *Instance {
	t.Helper()
	standby := newInstance(t)
	i.Stop(t)
	copyTree(t, i.DataDir(), standby.DataDir())
	// Without the lock beside it pgserver takes the copy for a stranger's cluster.
	if err := os.WriteFile(filepath.Join(standby.cfg.DataDir, "ledgerd.lock"), nil, 0o600); err != nil {
		t.Fatalf("pgtest: mark the standby's folder: %v", err)
	}
	i.Start(t)
	config, err := pgx.ParseConfig(i.URL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	standby.signalFile(t, "standby.signal")
	standby.Set(t, "primary_conninfo", fmt.Sprintf("host='%s' port=%d user=%s application_name=standby",
		config.Host, config.Port, config.User))
	standby.Set(t, settings...)
	standby.Start(t)
	return standby
}

// Promote makes a standby a primary and returns when it accepts writes.
func (i *Instance) Promote(t testing.TB) {
	t.Helper()
	i.query(t, "SELECT pg_promote(true, 30)::text")
	i.awaitPrimary(t)
}
