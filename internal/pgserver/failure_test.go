//go:build unix

package pgserver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestOtherMajorVersionIsRefusedAndKept(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	markOurs(t, dir)
	pgdata := filepath.Join(dir, "pgdata")
	fatal(t, os.Mkdir(pgdata, 0o700))
	for name, text := range map[string]string{"PG_VERSION": "14\n", "money": "all of it"} {
		fatal(t, os.WriteFile(filepath.Join(pgdata, name), []byte(text), 0o600))
	}
	for name, start := range map[string]func(context.Context, Config) (*Server, error){"Start": Start, "Attach": Attach} {
		_, err := start(t.Context(), config(dir))
		other := (*MajorError)(nil)
		if !errors.As(err, &other) || other.Cluster != 14 || other.DataDir != dir || len(other.Available) == 0 {
			t.Fatalf("%s: %v", name, err)
		}
		if !strings.Contains(err.Error(), "LEDGERD_PG_BIN") {
			t.Errorf("%s: no advice in %q", name, err)
		}
		if text, err := os.ReadFile(filepath.Join(pgdata, "money")); string(text) != "all of it" {
			t.Errorf("%s changed the cluster: %q, %v", name, text, err)
		}
	}
}

func TestHalfMadeClusterIsMadeAgain(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	markOurs(t, dir)
	fatal(t, os.MkdirAll(filepath.Join(dir, "pgdata.init", "base"), 0o700))
	fatal(t, os.WriteFile(filepath.Join(dir, "pgdata.init", "PG_VERSION"), []byte("15\n"), 0o600))
	query(t, start(t, config(dir)), "SELECT 'whole'")
	if _, err := os.Stat(filepath.Join(dir, "pgdata.init")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pgdata.init is still there: %v", err)
	}
}

func TestAnyPathWorks(t *testing.T) {
	t.Parallel()
	for name, sub := range map[string]string{
		"long":  strings.Repeat("long-name-", 12),
		"comma": "a,b",
		"odd":   `sp ace "q" 'r' é %41 &x=+1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := clusterDir(t, sub)
			query(t, start(t, config(dir)), "SELECT 'works'")
			a, err := Attach(t.Context(), config(dir))
			fatal(t, err)
			query(t, a, "SELECT 'works'")
		})
	}
}

func TestFolderThatTheServerCannotEnterIsNamed(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		return // the server runs as this user, which made the folder
	}
	closed := filepath.Join(openDir(t), "closed")
	fatal(t, os.Mkdir(closed, 0o700))
	_, err := Start(t.Context(), config(filepath.Join(closed, "data")))
	access := (*AccessError)(nil)
	if !errors.As(err, &access) || access.Blocked != closed {
		t.Errorf("got %v, want an AccessError that names %s", err, closed)
	}
}

func TestClusterGivenAsDataFolderIsRefused(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	pgdata := filepath.Join(dir, "pgdata")
	if _, err := Start(t.Context(), config(pgdata)); !errors.Is(err, ErrNotUsable) || !strings.Contains(err.Error(), "folder above") {
		t.Errorf("Start on pgdata: %v", err)
	}
	if _, err := os.Stat(filepath.Join(pgdata, "ledgerd.lock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left a lock in the cluster: %v", err)
	}
}

func TestFailedStartShowsTheServersWords(t *testing.T) {
	t.Parallel()
	cfg := config(clusterDir(t))
	cfg.Settings = map[string]string{"shared_buffers": "plenty"}
	_, err := Start(t.Context(), cfg)
	if !errors.Is(err, ErrStopped) || !strings.Contains(err.Error(), "shared_buffers") {
		t.Errorf("got %v", err)
	}
	// The folder is free again.
	start(t, config(cfg.DataDir))
}

func TestCancelledStartLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, config(dir)); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if file, err := readPIDFile(filepath.Join(dir, "pgdata")); err == nil && alive(file.pid) {
		t.Errorf("process %d runs", file.pid)
	}
	start(t, config(dir))
}

func TestCommittedDataSurvivesACrashOfTheServer(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	s := start(t, config(dir))
	execute(t, s, "CREATE TABLE kept AS SELECT 'the row' AS v")
	fatal(t, syscall.Kill(s.PID(), syscall.SIGKILL))
	<-s.Done()
	if err := s.Stop(); err != nil {
		t.Errorf("Stop after a crash: %v", err)
	}
	if got := query(t, start(t, config(dir)), "SELECT v FROM kept"); got != "the row" {
		t.Errorf("after recovery: %q", got)
	}
}

func TestStopFreesTheFolderThoughAChildIsBeingForked(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	s := start(t, config(dir))
	copied, err := syscall.Dup(int(s.lock.Fd())) // what a child has before it executes its program
	fatal(t, err)
	defer syscall.Close(copied)
	stop(t, s)
	query(t, start(t, config(dir)), "SELECT 'works'")
}

func TestServerStartedByHandIsRefused(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	s := start(t, config(dir))
	fatal(t, unlock(s.lock)) // as if no ledgerd had started it
	_, err := Start(t.Context(), config(dir))
	if !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), strconv.Itoa(s.PID())) {
		t.Errorf("got %v", err)
	}
	s.lock, err = folder(dir).lock()
	fatal(t, err)
}

func TestProcessIDOfAnotherProgramIsNoServer(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		return // PostgreSQL refuses the id of a living process of its own user
	}
	dir := clusterDir(t)
	s := start(t, config(dir))
	text, err := os.ReadFile(filepath.Join(dir, "pgdata", "postmaster.pid"))
	fatal(t, err)
	stop(t, s)
	// After a reboot the old server's id is somebody else's, here this test's.
	stale := strings.Replace(string(text), strconv.Itoa(s.PID()), strconv.Itoa(os.Getpid()), 1)
	path := filepath.Join(dir, "pgdata", "postmaster.pid")
	fatal(t, os.WriteFile(path, []byte(stale), 0o600))
	uid, _ := ownerOf(filepath.Join(dir, "pgdata"))
	fatal(t, os.Chown(path, uid, -1))
	query(t, start(t, config(dir)), "SELECT 'works'")
}

func TestMissingBinariesAreReported(t *testing.T) {
	t.Parallel()
	cfg := Config{DataDir: openDir(t), BinDir: t.TempDir()}
	if _, err := Start(t.Context(), cfg); !errors.Is(err, ErrNoBinaries) {
		t.Errorf("got %v", err)
	}
	old := fakeBinaries(t, "14.2")
	if _, err := FindBinaries(t.Context(), old, 0); !errors.Is(err, ErrNoBinaries) {
		t.Errorf("PostgreSQL 14: %v", err)
	}
	if !strings.Contains(Advice(), "LEDGERD_PG_BIN") {
		t.Error("the advice does not name LEDGERD_PG_BIN")
	}
}

// fakeBinaries makes an installation that can only say its version.
func fakeBinaries(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"initdb", "postgres"} {
		script := "#!/bin/sh\necho '" + name + " (PostgreSQL) " + version + "'\n"
		fatal(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	return dir
}

func TestVersionsAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)": 15,
		"initdb (PostgreSQL) 18beta1":                          18,
		"postgres (PostgreSQL) 19devel":                        19,
		"postgres (Greenplum) 7":                               0,
	} {
		got, err := parseMajor(text)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
}

func TestUnfinishedPIDFileIsNotReady(t *testing.T) {
	t.Parallel()
	whole := "123\n/data\n1790000000\n5432\n/sock et\n\n 1 2\nready   \n"
	dir := t.TempDir()
	for cut := range len(whole) {
		fatal(t, os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte(whole[:cut]), 0o600))
		file, err := readPIDFile(dir)
		if err == nil && file.ready() && cut < len(whole)-4 {
			t.Errorf("ready after %d bytes: %+v", cut, file)
		}
	}
	fatal(t, os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte(whole), 0o600))
	file, err := readPIDFile(dir)
	if err != nil || file != (pidFile{pid: 123, port: 5432, socketDir: "/sock et", status: "ready"}) {
		t.Errorf("got %+v, %v", file, err)
	}
}
