//go:build unix

package pgserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// lockName is the file that the owner of a data folder has locked. It is made
// before anything else in the folder, so it also tells our folders from others.
const lockName = "ledgerd.lock"

// check refuses a folder that holds something else than a ledger, before
// anything in it is made or changed: the error is ErrNotUsable. A folder that is
// missing or empty is fine.
//
// It may run beside a first start in another process: the lock is looked for
// after the names were read, so whoever made one of them made the lock before.
func (f folder) check() error {
	entries, err := os.ReadDir(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return f.notUsable("it cannot be read (%w); name a folder that you may read and write", reason(err))
	}
	var names []string
	for _, e := range entries {
		if e.Name() != "lost+found" { // every file system of its own has it
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		return nil
	}
	_, err = os.Lstat(filepath.Join(string(f), lockName))
	ours := err == nil
	if slices.Contains(names, "pgdata") {
		return f.checkCluster(ours)
	}
	for _, name := range names {
		if !ours || !isOwn(name) {
			return f.notUsable("it has other files, such as %s, and no ledger; choose an empty or a new folder", name)
		}
	}
	return nil
}

// isOwn reports whether the folder of an interrupted first start can have the name.
func isOwn(name string) bool {
	return slices.Contains([]string{lockName, "pgdata.init", "socket", "postgres.log", "postgres.log.1"}, name)
}

// checkCluster refuses what stands in the cluster's place and is not one of ours.
func (f folder) checkCluster(ours bool) error {
	major, err := clusterMajor(f.pgdata())
	switch {
	case err != nil:
		return f.notUsable("%s cannot be read (%w); run as the user that made it or as root, or choose another folder", f.pgdata(), reason(err))
	case major == 0:
		return f.notUsable("%s is not a PostgreSQL cluster; move it away or choose another folder", f.pgdata())
	case !ours:
		return f.notUsable("ledgerd did not make the cluster %s; choose another folder (if it is a copy of one that ledgerd made, create an empty file %s beside it)",
			f.pgdata(), lockName)
	}
	return nil
}

func (f folder) notUsable(format string, args ...any) error {
	return fmt.Errorf("%s %w: %w; nothing was changed", f, ErrNotUsable, fmt.Errorf(format, args...))
}

// reason is what the system said, without the path that the message has already.
func reason(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}
