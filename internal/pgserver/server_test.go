//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// childEnv makes the test binary run a server on the named folder until it is
// killed, instead of tests. childTemporaryEnv makes that server temporary.
const (
	childEnv          = "LEDGERD_PGSERVER_TEST_CHILD"
	childTemporaryEnv = "LEDGERD_PGSERVER_TEST_TEMPORARY"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		os.Exit(child(dir))
	}
	code := m.Run()
	if prepared.dir != "" {
		_ = os.RemoveAll(prepared.dir) // left over in the folder for temporary files at worst
	}
	os.Exit(code)
}

// prepared is a cluster that was made once, because initdb takes longer than
// all else in most tests.
var prepared struct {
	sync.Once
	dir string
}

// clusterDir is a new data folder with a copy of the prepared cluster.
func clusterDir(t *testing.T, sub ...string) string {
	t.Helper()
	prepared.Do(func() {
		dir, err := os.MkdirTemp("/tmp", "ledgerd-pgserver-test-")
		fatal(t, err)
		fatal(t, os.Chmod(dir, 0o711))
		prepared.dir = dir
		s, err := Start(t.Context(), config(dir))
		fatal(t, err)
		fatal(t, s.Stop())
	})
	dir := filepath.Join(append([]string{openDir(t)}, sub...)...)
	fatal(t, os.MkdirAll(dir, 0o711))
	if out, err := exec.Command("cp", "-Rp", filepath.Join(prepared.dir, "pgdata"), dir).CombinedOutput(); err != nil {
		t.Fatalf("copy the prepared cluster: %v\n%s", err, out)
	}
	markOurs(t, dir)
	return dir
}

// markOurs leaves in a folder what every start makes first.
func markOurs(t *testing.T, dir string) {
	t.Helper()
	fatal(t, os.WriteFile(filepath.Join(dir, "ledgerd.lock"), nil, 0o600))
}

// child starts a server, prints its process id, and stops it when its standard
// input ends, which a killed child does not live to see.
func child(dir string) int {
	s, err := Start(context.Background(), Config{
		DataDir: dir, BinDir: os.Getenv("LEDGERD_TEST_PG_BIN"), Temporary: os.Getenv(childTemporaryEnv) != "",
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(s.PID())
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// startChild runs child in a process of its own and returns the server's pid.
func startChild(t *testing.T, dir string, as *syscall.Credential, env ...string) (cmd *exec.Cmd, stdin io.Closer, pid int) {
	t.Helper()
	cmd = exec.Command("/proc/self/exe")
	if _, err := os.Stat(cmd.Path); err != nil {
		cmd = exec.Command(os.Args[0])
	}
	if as != nil {
		cmd = exec.Command(readableCopy(t))
	}
	cmd.Env = append(append(os.Environ(), childEnv+"="+dir), env...)
	cmd.Stderr = os.Stderr
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	stdin, err := cmd.StdinPipe()
	fatal(t, err)
	stdout, err := cmd.StdoutPipe()
	fatal(t, err)
	fatal(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // ended already in most tests
		_ = cmd.Wait()
	})
	if _, err := fmt.Fscan(stdout, &pid); err != nil {
		t.Fatalf("the child did not start its server: %v", err)
	}
	return cmd, stdin, pid
}

// readableCopy puts the test binary where every user can run it.
func readableCopy(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	fatal(t, err)
	binary, err := os.ReadFile(self)
	fatal(t, err)
	path := filepath.Join(openDir(t), "pgserver.test")
	// A child that is forked meanwhile would keep the file open for writing, and
	// nobody can run it then.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fatal(t, os.WriteFile(path, binary, 0o755))
	return path
}

// openDir is a new folder that other users can enter; t.TempDir is closed.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ledgerd-pgserver-test-")
	fatal(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	fatal(t, os.Chmod(dir, 0o711))
	return dir
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func config(dir string) Config {
	return Config{DataDir: dir, BinDir: os.Getenv("LEDGERD_TEST_PG_BIN")}
}

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	fatal(t, err)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	fatal(t, s.Stop())
	if alive(s.PID()) {
		t.Fatalf("process %d is there after Stop", s.PID())
	}
}

func query(t *testing.T, s *Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	fatal(t, err)
	defer conn.Close(t.Context())
	var value string
	fatal(t, conn.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

func execute(t *testing.T, s *Server, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	fatal(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), sql)
	fatal(t, err)
}

// eventually polls a condition that gives no signal.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		<-tick.C
	}
}

func TestDataIsKeptBetweenRuns(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(openDir(t), "new", "data")
	if os.Geteuid() == 0 {
		fatal(t, os.Mkdir(filepath.Dir(dir), 0o711))
	}
	s := start(t, config(dir))
	execute(t, s, "CREATE TABLE kept AS SELECT 'the row' AS v")
	idle, err := pgx.Connect(t.Context(), s.URL())
	fatal(t, err)
	stop(t, s) // an open session does not hold it up
	if err := idle.Ping(t.Context()); err == nil {
		t.Error("a session survived the stop")
	}
	s = start(t, config(dir))
	if got := query(t, s, "SELECT v FROM kept"); got != "the row" {
		t.Errorf("after a restart: %q", got)
	}
}

func TestServerIsPrivateAndDurable(t *testing.T) {
	t.Parallel()
	cfg := config(clusterDir(t))
	cfg.Database = `odd "name" é`
	cfg.Settings = map[string]string{"listen_addresses": "127.0.0.1", "max_connections": "33"}
	s := start(t, cfg)
	for sql, want := range map[string]string{
		"SHOW listen_addresses":   "",
		"SHOW max_connections":    "33",
		"SHOW fsync":              "on",
		"SHOW synchronous_commit": "on",
		"SHOW data_checksums":     "on",
		"SHOW timezone":           "UTC",
		"SHOW server_encoding":    "UTF8",
		"SELECT datcollate FROM pg_database WHERE datname = current_database()": "C",
		"SELECT current_database()":                                         `odd "name" é`,
		"SELECT (current_setting('server_version_num')::int / 10000)::text": strconv.Itoa(s.Major()),
	} {
		if got := query(t, s, sql); got != want {
			t.Errorf("%s: got %q, want %q", sql, got, want)
		}
	}
	for _, dir := range []string{s.folder.pgdata(), s.socketDir} {
		info, err := os.Stat(dir)
		fatal(t, err)
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v", dir, info.Mode().Perm())
		}
	}
}

func TestSecondInstanceIsRefused(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	s := start(t, config(dir))
	_, err := Start(t.Context(), config(dir))
	if !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("second start: %v", err)
	}
	query(t, s, "SELECT 'the first is unharmed'")
}

func TestAttachUsesTheRunningServerOrStartsIt(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	s := start(t, config(dir))
	a, err := Attach(t.Context(), config(dir))
	fatal(t, err)
	if a.Owned() || a.PID() != s.PID() || a.URL() != s.URL() || a.Major() != s.Major() || a.Done() != nil {
		t.Errorf("attached to %+v, running is %+v", a, s)
	}
	fatal(t, a.Stop())
	query(t, s, "SELECT 'still there'")
	stop(t, s)
	a, err = Attach(t.Context(), config(dir))
	fatal(t, err)
	if !a.Owned() {
		t.Error("a server that Attach started is not owned")
	}
	query(t, a, "SELECT 'started'")
	stop(t, a)
}

func TestAttachFollowsAnInstanceThatIsJustStarting(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	type result struct {
		s   *Server
		err error
	}
	results := make(chan result)
	for range 4 {
		go func() {
			s, err := Attach(context.Background(), config(dir))
			results <- result{s, err}
		}()
	}
	var owner *Server
	for range 4 {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
			continue
		}
		if r.s.Owned() {
			if owner != nil {
				t.Error("two owners")
			}
			owner = r.s
		}
	}
	if owner == nil {
		t.Fatal("no owner")
	}
	stop(t, owner)
}

func TestAttachMakesNoCluster(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{openDir(t), filepath.Join(openDir(t), "absent")} {
		_, err := Attach(t.Context(), config(dir))
		if !errors.Is(err, ErrNoCluster) {
			t.Errorf("%s: %v", dir, err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 0 {
			t.Errorf("%s: left %v", dir, entries)
		}
	}
}

func TestKilledOwnerLeavesNoOrphan(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	owner, _, pid := startChild(t, dir, nil)
	fatal(t, owner.Process.Kill())
	if err := owner.Wait(); err == nil {
		t.Fatal("the owner ended by itself")
	}
	// A start at once after the kill waits for the old server's checkpoint.
	s := start(t, config(dir))
	query(t, s, "SELECT 'works'")
	eventually(t, "the orphan ends", func() bool { return !alive(pid) })
}

func TestTemporaryServerOfAKilledOwnerIsRemoved(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(openDir(t), "temporary")
	owner, _, pid := startChild(t, dir, nil, childTemporaryEnv+"=1")
	fatal(t, owner.Process.Kill())
	eventually(t, "the server ends", func() bool { return !alive(pid) })
	eventually(t, "the folder is removed", func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestTemporaryServerRemovesItsFolderAlone(t *testing.T) {
	t.Parallel()
	kept := clusterDir(t)
	cfg := config(kept)
	cfg.Temporary = true
	if _, err := Start(t.Context(), cfg); err == nil {
		t.Error("a temporary server took over a kept cluster")
	}
	query(t, start(t, config(kept)), "SELECT 'still there'")

	cfg.DataDir = filepath.Join(openDir(t), "temporary")
	stop(t, start(t, cfg))
	if _, err := os.Stat(cfg.DataDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary folder is there after Stop: %v", err)
	}
}

func TestOrdinaryUserNeedsNoRights(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		return // every other test of this run shows it
	}
	u, err := user.Lookup("nobody")
	fatal(t, err)
	uid, err := strconv.Atoi(u.Uid)
	fatal(t, err)
	gid, err := strconv.Atoi(u.Gid)
	fatal(t, err)
	dir := openDir(t)
	fatal(t, os.Chown(dir, uid, gid))
	cmd, stdin, pid := startChild(t, dir, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)})
	if got, ok := ownerOf(filepath.Join(dir, "pgdata")); !ok || got != uid {
		t.Errorf("the cluster belongs to %d, want %d", got, uid)
	}
	fatal(t, stdin.Close())
	fatal(t, cmd.Wait())
	if alive(pid) {
		t.Errorf("process %d is there after Stop", pid)
	}
	// Root goes on with the same data, as the same user.
	s := start(t, config(dir))
	query(t, s, "SELECT 'works'")
	if got, _ := ownerOf(filepath.Join(dir, "pgdata", "postmaster.pid")); got != uid {
		t.Errorf("root runs the server as %d, want the owner %d", got, uid)
	}
}
