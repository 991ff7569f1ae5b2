//go:build unix

package pgserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// folder is a data folder, see the package comment for its contents.
type folder string

func (f folder) pgdata() string { return filepath.Join(string(f), "pgdata") }
func (f folder) init() string   { return filepath.Join(string(f), "pgdata.init") }
func (f folder) log() string    { return filepath.Join(string(f), "postgres.log") }

// openFolder makes the path absolute and refuses a folder that is not one of
// ours, also one that is itself a cluster: the data folder is the one above it.
func openFolder(path string) (folder, error) {
	if path == "" {
		return "", errors.New("no data folder given")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find the data folder: %w", err)
	}
	if _, err := os.Stat(filepath.Join(abs, "PG_VERSION")); err == nil {
		return "", folder(abs).notUsable("it is a PostgreSQL cluster; give the folder above it, or another one")
	}
	return folder(abs), folder(abs).check()
}

// create makes the folder. For root it is opened for passing through, because
// another user runs the server; the cluster and the socket inside are closed.
func (f folder) create() error {
	if _, err := os.Stat(string(f)); err == nil {
		return nil
	}
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return f.notUsable("it cannot be created (%w); choose a place where you may write", err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chmod(string(f), 0o711); err != nil { // #nosec G302: pass through only
			return fmt.Errorf("open the data folder for the server's user: %w", err)
		}
	}
	return nil
}

// lock takes the folder for this process until the file is closed, also by the
// end of the process. The error is ErrRunning when another one has it.
func (f folder) lock() (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(string(f), lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, f.notUsable("its lock cannot be opened (%w); run as the user that made the folder or as root, or choose another folder", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		owner := make([]byte, 20)
		n, _ := file.ReadAt(owner, 0) // only for the message
		_ = file.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the data folder: %w", err)
		}
		return nil, fmt.Errorf("%w: process %s runs on %s; stop it first or choose another folder",
			ErrRunning, strings.TrimSpace(string(owner[:n])), string(f))
	}
	err = file.Truncate(0)
	if err == nil {
		_, err = file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("write the lock of the data folder: %w", err)
	}
	return file, nil
}

// unlock gives the folder back. The lock is taken off by name: closing the file
// is not enough while another goroutine is starting a child, which has a copy
// of the open file until it executes its program.
func unlock(lock *os.File) error {
	err := syscall.Flock(int(lock.Fd()), syscall.LOCK_UN)
	return errors.Join(err, lock.Close())
}

// initdb makes the cluster beside its final place and renames it there, so
// that a crash at any point leaves either no cluster or a whole one. What an
// earlier crash left in pgdata.init was never served and is removed. The
// caller holds the lock.
func (f folder) initdb(ctx context.Context, bin Binaries, as account, sync bool) error {
	if err := os.RemoveAll(f.init()); err != nil {
		return fmt.Errorf("remove a half-made cluster: %w", err)
	}
	if err := as.makeDir(f.init()); err != nil {
		return fmt.Errorf("make the folder of the cluster: %w", err)
	}
	args := []string{
		"--pgdata=" + f.init(), "--username=" + superuser, "--auth=trust",
		"--encoding=UTF8", "--locale=C", "--data-checksums", "--no-instructions",
	}
	if !sync {
		args = append(args, "--no-sync")
	}
	var output strings.Builder
	cmd := exec.CommandContext(ctx, filepath.Join(bin.Dir, "initdb"), args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = string(f), environment(), &output, &output
	p, err := startProcess(cmd, as, syscall.SIGKILL)
	if err != nil {
		return err
	}
	if <-p.done; p.err != nil {
		return fmt.Errorf("make the cluster with %s: %w\n%s", cmd.Path, p.err, output.String())
	}
	if err := os.Rename(f.init(), f.pgdata()); err != nil {
		return fmt.Errorf("put the cluster in its place: %w", err)
	}
	return syncDir(string(f))
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	err = d.Sync()
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// environment is this process's environment without what would change where
// PostgreSQL connects or in which language it speaks.
func environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "LC_") && !strings.HasPrefix(kv, "LANG") {
			env = append(env, kv)
		}
	}
	return append(env, "LC_ALL=C", "TZ=UTC")
}

// maxSocketDir is the longest socket folder in bytes: the address of a Unix
// socket holds 104 bytes with its final NUL on macOS and the BSDs, 108 on Linux.
const maxSocketDir = 104 - 1 - len("/.s.PGSQL.5432")

// socketDir makes the folder for the socket: in the data folder, or if that
// path is too long for a socket address (or has a comma, which separates hosts
// in a connection string), in a folder of the same user for temporary files.
func (f folder) socketDir(ctx context.Context, as account) (string, error) {
	dir := filepath.Join(string(f), "socket")
	if len(dir) > maxSocketDir || strings.Contains(dir, ",") {
		name := fmt.Sprintf("ledgerd-%d-%x", as.uid, sha256.Sum256([]byte(f)))[:30]
		dir = filepath.Join(os.TempDir(), name)
		if len(dir) > maxSocketDir || as.canEnter(ctx, os.TempDir()) != nil {
			dir = filepath.Join("/tmp", name)
		}
	}
	if err := as.makeDir(dir); err != nil {
		return "", fmt.Errorf("make the folder of the socket: %w", err)
	}
	return dir, nil
}
