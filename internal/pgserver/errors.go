//go:build unix

package pgserver

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
)

var (
	// ErrNoBinaries says that no usable PostgreSQL was found on this machine.
	// Advice gives the commands that install one.
	ErrNoBinaries = errors.New("no PostgreSQL 15 or newer found")

	// ErrNoCluster is returned by Attach for a folder that holds no cluster.
	ErrNoCluster = errors.New("no ledger database in this folder")

	// ErrRunning says that another process owns the data folder, or that a
	// PostgreSQL server already runs on it.
	ErrRunning = errors.New("the data folder is in use")

	// ErrNotUsable says that the data folder cannot be one: it holds something
	// else, it is a file, or this user may not use it. Nothing was changed.
	ErrNotUsable = errors.New("cannot be the data folder")

	// ErrStopped is the cause of an operation on a server that has ended.
	ErrStopped = errors.New("the private PostgreSQL has ended")
)

// MajorError says that a cluster needs another major version of PostgreSQL
// than the ones that were found. The data folder was not touched.
type MajorError struct {
	DataDir   string // the folder of the instance
	Cluster   int    // major version that wrote the cluster
	Available []int  // major versions that were found, newest first
}

// Error names both versions and says how to go on without losing data.
func (e *MajorError) Error() string {
	found := make([]string, len(e.Available))
	for i, major := range e.Available {
		found[i] = fmt.Sprint(major)
	}
	return fmt.Sprintf("%s was written by PostgreSQL %d, but only PostgreSQL %s is installed; "+
		"install PostgreSQL %d (or name its bin folder in LEDGERD_PG_BIN), or dump the old cluster with it and restore "+
		"the dump into a new folder; nothing was changed",
		e.DataDir, e.Cluster, strings.Join(found, ", "), e.Cluster)
}

// AccessError says that the user who has to run PostgreSQL cannot enter a
// folder on the way to the data or to the binaries.
type AccessError struct {
	Path    string // what is needed
	Blocked string // the first folder on the way that cannot be entered
	User    string // who cannot
}

// Error names the folder that is in the way.
func (e *AccessError) Error() string {
	return fmt.Sprintf("user %s, which runs PostgreSQL because it refuses to run as root, cannot enter %s (on the way to %s); "+
		"choose another folder, for example %s, or open this one with chmod o+x", e.User, e.Blocked, e.Path, rootDataDir)
}

// Advice tells how to get a PostgreSQL on this operating system, for the
// message that goes with ErrNoBinaries.
func Advice() string {
	install := map[string]string{
		"linux": "apt-get install postgresql   (Debian, Ubuntu)\n" +
			"  dnf install postgresql-server  (Fedora, RHEL)\n" +
			"  apk add postgresql             (Alpine)",
		"darwin":  "brew install postgresql@17",
		"freebsd": "pkg install postgresql17-server",
	}[runtime.GOOS]
	if install == "" {
		install = "install PostgreSQL 15 or newer with the system's package manager"
	}
	return "To get one, use one of these:\n" +
		"  " + install + "\n" +
		"  make setup                     (in a checkout; works without root)\n" +
		"or name the folder with initdb and postgres in LEDGERD_PG_BIN,\n" +
		"or give ledgerd serve a running database in LEDGERD_DATABASE_URL,\n" +
		"or run everything in containers: docker compose up"
}
