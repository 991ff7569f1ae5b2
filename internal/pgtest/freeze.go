//go:build unix

package pgtest

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// freezer lets stopped processes go on when its pipe is closed, which also
// happens when the test binary is killed: a stopped server would never see the
// signal that ends it.
type freezer struct {
	pids  []int // the main process first
	shell *exec.Cmd
	pipe  io.Closer
}

// Freeze stops all processes of the server with SIGSTOP: connections stay open
// and nothing answers. Resume lets them go on.
func (i *Instance) Freeze(t testing.TB) {
	t.Helper()
	i.mustRun(t)
	if i.frozen != nil {
		t.Fatal("pgtest: the instance is frozen already")
	}
	main := i.server.PID()
	pids := []int{main}
	// The main process first: then no new ones appear.
	err := syscall.Kill(main, syscall.SIGSTOP)
	if err == nil {
		err = awaitStopped(main)
	}
	if err == nil {
		var children []int
		children, err = childrenOf(main)
		pids = append(pids, children...)
	}
	for _, pid := range pids[1:] {
		if err == nil {
			err = ignoreGone(syscall.Kill(pid, syscall.SIGSTOP))
		}
		if err == nil {
			err = awaitStopped(pid)
		}
	}
	if err == nil {
		i.frozen, err = newFreezer(pids)
	}
	if err != nil {
		_ = syscall.Kill(main, syscall.SIGCONT) // the test fails anyway
		t.Fatalf("pgtest: freeze the instance: %v", err)
	}
}

// Resume lets a frozen server go on. It does nothing when it is not frozen.
func (i *Instance) Resume(t testing.TB) {
	t.Helper()
	if i.frozen == nil {
		return
	}
	f := i.frozen
	i.frozen = nil
	if err := f.pipe.Close(); err != nil {
		t.Fatalf("pgtest: resume the instance: %v", err)
	}
	_ = f.shell.Wait() // kill reports the processes that are gone
}

func newFreezer(pids []int) (*freezer, error) {
	args := []string{"-c", `read -r _; kill -s CONT "$@"`, "sh"}
	for _, pid := range pids {
		args = append(args, strconv.Itoa(pid))
	}
	shell := exec.Command("/bin/sh", args...)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // not ended by Ctrl-C
	pipe, err := shell.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := shell.Start(); err != nil {
		return nil, err
	}
	return &freezer{pids: pids, shell: shell, pipe: pipe}, nil
}

// childrenOf lists the child processes, from /proc or with ps.
func childrenOf(parent int) ([]int, error) {
	var table strings.Builder
	if stats, _ := filepath.Glob("/proc/[0-9]*/stat"); len(stats) > 0 {
		for _, path := range stats {
			if fields := statFields(path); len(fields) > 1 {
				fmt.Fprintln(&table, filepath.Base(filepath.Dir(path)), fields[1])
			}
		}
	} else {
		out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		table.Write(out)
	}
	var children []int
	for line := range strings.Lines(table.String()) {
		var pid, ppid int
		if _, err := fmt.Sscan(line, &pid, &ppid); err == nil && ppid == parent {
			children = append(children, pid)
		}
	}
	slices.Sort(children)
	return children, nil
}

// statFields returns the fields of /proc/PID/stat from the state on, or nil
// when the process is gone. The name before them may contain anything.
func statFields(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	_, rest, ok := strings.Cut(string(text[max(strings.LastIndexByte(string(text), ')'), 0):]), ")")
	if !ok {
		return nil
	}
	return strings.Fields(rest)
}

// awaitStopped waits until the process is stopped or has ended, where /proc
// tells it. One that ended while the main process is stopped stays a zombie.
func awaitStopped(pid int) error {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	state := ""
	deadline := time.Now().Add(stepTimeout)
	for time.Now().Before(deadline) {
		fields := statFields(path)
		if len(fields) == 0 || fields[0] == "T" || fields[0] == "Z" {
			return nil
		}
		state = fields[0]
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("process %d is in state %s", pid, state)
}

// awaitGone waits until the process has ended, where /proc tells it. One that
// nobody has waited for yet has ended too.
func awaitGone(pid int) error {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	deadline := time.Now().Add(stepTimeout)
	for time.Now().Before(deadline) {
		if fields := statFields(path); len(fields) == 0 || fields[0] == "Z" || fields[0] == "X" {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("process %d does not end", pid)
}

func ignoreGone(err error) error {
	if err == syscall.ESRCH { //nolint:errorlint // syscall.Kill returns the bare number
		return nil
	}
	return err
}

func (i *Instance) mustRun(t testing.TB) {
	t.Helper()
	if i.server == nil {
		t.Fatal("pgtest: the instance does not run")
	}
}

// signalFile makes a file in the cluster that belongs to the server's user.
func (i *Instance) signalFile(t testing.TB, name string) {
	t.Helper()
	path := filepath.Join(i.DataDir(), name)
	info, err := os.Stat(i.DataDir())
	if err == nil {
		err = os.WriteFile(path, nil, 0o600)
	}
	if err == nil {
		owner := info.Sys().(*syscall.Stat_t)
		err = os.Chown(path, int(owner.Uid), int(owner.Gid))
	}
	if err != nil {
		t.Fatalf("pgtest: make %s: %v", name, err)
	}
}

// query runs one statement as superuser and returns its first value.
func (i *Instance) query(t testing.TB, sql string) (value string) {
	t.Helper()
	i.mustRun(t)
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, i.URL)
	if err != nil {
		t.Fatalf("pgtest: connect to the instance: %v", err)
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, sql).Scan(&value); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
	return value
}

// awaitPrimary waits for the end of recovery.
func (i *Instance) awaitPrimary(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(stepTimeout)
	for i.query(t, "SELECT pg_is_in_recovery()::text") == "true" {
		if time.Now().After(deadline) {
			t.Fatal("pgtest: the instance stays in recovery")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// copyTree copies a folder with owners and modes.
func copyTree(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-Rp", from, to).CombinedOutput(); err != nil {
		t.Fatalf("pgtest: copy %s: %v\n%s", from, err, out)
	}
}
