//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// rootDataDir is the default data folder for root: /root itself is closed to
// the user that PostgreSQL has to run as.
const rootDataDir = "/var/lib/ledgerd"

// DefaultDataDir is the data folder of `ledgerd dev` when none is given:
// /var/lib/ledgerd for root, else $XDG_DATA_HOME/ledgerd, which is
// ~/.local/share/ledgerd by default.
func DefaultDataDir() (string, error) {
	if os.Geteuid() == 0 {
		return rootDataDir, nil
	}
	if data := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, "ledgerd"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find a default data folder: %w", err)
	}
	return filepath.Join(home, ".local", "share", "ledgerd"), nil
}

// account is who runs PostgreSQL. The zero value means this process's user.
type account struct {
	name       string
	uid, gid   int
	credential *syscall.Credential // nil when no change of user is needed
}

// chooseAccount picks the user for the cluster in pgdata: this process's user,
// or for root the owner of an existing cluster, else the first of ledgerd,
// postgres and nobody that exists.
func chooseAccount(pgdata string) (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, checkOwner(pgdata)
	}
	names := []string{"ledgerd", "postgres", "nobody"}
	if uid, ok := ownerOf(pgdata); ok && uid != 0 {
		u, err := user.LookupId(strconv.Itoa(uid))
		if err != nil {
			return account{}, fmt.Errorf("look up the owner of %s: %w", pgdata, err)
		}
		names = []string{u.Username}
	}
	for _, name := range names {
		u, err := user.Lookup(name)
		if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
			continue
		}
		if err != nil {
			return account{}, fmt.Errorf("look up user %s: %w", name, err)
		}
		uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(errUID, errGID); err != nil {
			return account{}, fmt.Errorf("read the ids of user %s: %w", name, err)
		}
		return account{
			name: name, uid: int(uid), gid: int(gid),
			credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
		}, nil
	}
	return account{}, fmt.Errorf("PostgreSQL refuses to run as root, and none of the users %s exists; create one with: useradd --system ledgerd",
		strings.Join(names, ", "))
}

// checkOwner refuses a cluster that belongs to somebody else, which PostgreSQL
// would refuse less clearly.
func checkOwner(pgdata string) error {
	uid, ok := ownerOf(pgdata)
	if !ok || uid == os.Geteuid() {
		return nil
	}
	return folder(filepath.Dir(pgdata)).notUsable("%s belongs to user id %d, not to you (%d); run as that user or as root, or choose another folder",
		pgdata, uid, os.Geteuid())
}

func ownerOf(path string) (uid int, ok bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

// canEnter returns an *AccessError when the account cannot enter dir. It tries
// as that user instead of reading mode bits, so that access lists count too.
func (a account) canEnter(ctx context.Context, dir string) error {
	if a.credential == nil {
		return nil // PostgreSQL runs as this user and says so itself
	}
	if a.tryEnter(ctx, dir) {
		return nil
	}
	var way []string
	for at := dir; ; at = filepath.Dir(at) {
		way = append(way, at)
		if at == filepath.Dir(at) {
			break
		}
	}
	blocked := dir
	for _, at := range slices.Backward(way) {
		if !a.tryEnter(ctx, at) {
			blocked = at
			break
		}
	}
	return &AccessError{Path: dir, Blocked: blocked, User: a.name}
}

func (a account) tryEnter(ctx context.Context, dir string) bool {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `cd -- "$1"`, "sh", dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential}
	return cmd.Run() == nil
}

// makeDir creates dir with mode 0700 for the account, or checks that an
// existing one is a real folder of that account.
func (a account) makeDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		return os.Chown(dir, a.uid, a.gid)
	}
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	uid, _ := ownerOf(dir)
	if !info.IsDir() || uid != a.uid {
		return fmt.Errorf("%s is not a folder that belongs to user id %d", dir, a.uid)
	}
	return os.Chmod(dir, 0o700)
}
