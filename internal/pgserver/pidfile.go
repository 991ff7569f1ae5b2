//go:build unix

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// pidFile is what postmaster.pid says about a running server. The lines are
// fixed by PostgreSQL (src/include/utils/pidfile.h): 1 process id, 4 port,
// 5 first socket folder, 8 status.
type pidFile struct {
	pid       int
	port      int
	socketDir string
	status    string // "", "starting", "stopping", "ready" or "standby"
}

// readPIDFile reads the file of the cluster in pgdata. The error is
// os.ErrNotExist when no server runs or was left behind. A file that is still
// being written has fewer lines; the missing ones are zero.
func readPIDFile(pgdata string) (pidFile, error) {
	text, err := os.ReadFile(filepath.Join(pgdata, "postmaster.pid"))
	if err != nil {
		return pidFile{}, fmt.Errorf("read postmaster.pid: %w", err)
	}
	lines := strings.Split(string(text), "\n")
	line := func(n int) string {
		if n > len(lines) {
			return ""
		}
		return strings.TrimSpace(lines[n-1])
	}
	var f pidFile
	if f.pid, err = strconv.Atoi(line(1)); err != nil {
		return pidFile{}, fmt.Errorf("read postmaster.pid: %w", err)
	}
	if f.pid < 0 {
		f.pid = -f.pid // a standalone backend marks itself with a minus sign
	}
	if port := line(4); port != "" {
		if f.port, err = strconv.Atoi(port); err != nil {
			return pidFile{}, fmt.Errorf("read the port in postmaster.pid: %w", err)
		}
	}
	f.socketDir = line(5)
	f.status = line(8)
	return f, nil
}

// ready reports whether the server accepts connections, by its own word.
func (f pidFile) ready() bool { return f.status == "ready" || f.status == "standby" }

// alive reports whether a process with this id exists.
func alive(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// runsOn reports whether the process works on the cluster in pgdata. Where
// /proc tells it, that is whether it works in that folder, as a server does;
// elsewhere every living process may be the one.
func runsOn(pid int, pgdata string) bool {
	if !alive(pid) {
		return false
	}
	if _, err := os.Stat("/proc/self/cwd"); err != nil {
		return true
	}
	return sameFile(fmt.Sprintf("/proc/%d/cwd", pid), pgdata)
}

func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// clusterMajor returns the major version that wrote the cluster in pgdata, or
// 0 when there is no cluster.
func clusterMajor(pgdata string) (int, error) {
	text, err := os.ReadFile(filepath.Join(pgdata, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the cluster's version: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read the cluster's version in %s: %w", pgdata, err)
	}
	return major, nil
}
