//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	superuser = "postgres"
	port      = 5432 // part of the socket's name only; no TCP port is opened

	startTimeout = 5 * time.Minute       // crash recovery replays at most max_wal_size
	stopTimeout  = 30 * time.Second      // for SIGINT, then SIGQUIT
	pollInterval = 10 * time.Millisecond // of files and sockets that give no signal
	logSizeMax   = 16 << 20              // bytes; a larger log is put aside at start
	logTailSize  = 2 << 10               // bytes of the log in an error message
)

// Config says which server to run.
type Config struct {
	// DataDir is the folder of the instance. It is created when missing.
	DataDir string

	// BinDir is the folder with initdb and postgres. Empty means: search, see
	// FindBinaries. `ledgerd` fills it from LEDGERD_PG_BIN.
	BinDir string

	// Database is created when missing. Empty means "ledgerd".
	Database string

	// Settings are extra server settings, such as "max_connections": "300".
	Settings map[string]string

	// Starting, when set, is called once the folder and the programs are found
	// right, before the cluster is made and PostgreSQL is started.
	Starting func()

	// Temporary makes a fast server for tests: no fsync, and DataDir is
	// removed by Stop and also when this process is killed. Start refuses a
	// temporary server in a folder that already has a cluster.
	Temporary bool
}

// Server is a running private PostgreSQL. Its methods may be called from
// several goroutines.
type Server struct {
	folder    folder
	major     int
	pid       int
	socketDir string
	port      int
	database  string

	// The rest is nil for a server that belongs to another process.
	process   *process
	lock      *os.File
	watcher   *watcher
	temporary bool
	death     syscall.Signal
	stopOnce  sync.Once
	stopErr   error // set by the first Stop
}

// Start runs PostgreSQL on the data folder and returns when it accepts
// connections; a missing cluster is made first. The server ends with Stop, and
// also when this process dies. ctx limits the start alone.
//
// Errors: ErrRunning when the folder is in use, ErrNotUsable, ErrNoBinaries, *MajorError
// when the cluster needs another version, *AccessError when the user who must
// run PostgreSQL cannot reach the folder.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	f, err := openFolder(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	if err := f.create(); err != nil {
		return nil, err
	}
	lock, err := f.lock()
	if err != nil {
		return nil, err
	}
	s, err := startLocked(ctx, cfg, f)
	if err != nil {
		return nil, errors.Join(err, unlock(lock))
	}
	s.lock = lock
	return s, nil
}

// startLocked is Start for the holder of the folder's lock.
func startLocked(ctx context.Context, cfg Config, f folder) (*Server, error) {
	as, err := chooseAccount(f.pgdata())
	if err != nil {
		return nil, err
	}
	if err := waitForOrphan(ctx, f); err != nil {
		return nil, err
	}
	cluster, err := clusterMajor(f.pgdata())
	if err != nil {
		return nil, err
	}
	if cluster != 0 && cfg.Temporary {
		return nil, fmt.Errorf("%s already has a cluster, which a temporary server would remove", f)
	}
	bin, err := FindBinaries(ctx, cfg.BinDir, cluster)
	if err != nil {
		if other := (*MajorError)(nil); errors.As(err, &other) {
			other.DataDir = string(f)
		}
		return nil, err
	}
	for _, dir := range []string{string(f), bin.Dir} {
		if err := as.canEnter(ctx, dir); err != nil {
			return nil, err
		}
	}
	if cfg.Starting != nil {
		cfg.Starting()
	}
	if cluster == 0 {
		if err := f.initdb(ctx, bin, as, !cfg.Temporary); err != nil {
			return nil, err
		}
	}
	return launch(ctx, cfg, f, bin, as)
}

// launch starts the postgres process on a whole cluster.
func launch(ctx context.Context, cfg Config, f folder, bin Binaries, as account) (*Server, error) {
	socketDir, err := f.socketDir(ctx, as)
	if err != nil {
		return nil, err
	}
	log, logStart, err := openLog(f.log())
	if err != nil {
		return nil, err
	}
	defer log.Close() // the server has its own copy
	s := &Server{
		folder: f, major: bin.Major, socketDir: socketDir, port: port,
		database: cfg.Database, temporary: cfg.Temporary, death: syscall.SIGINT,
	}
	if s.database == "" {
		s.database = "ledgerd"
	}
	if s.temporary {
		s.death = syscall.SIGQUIT // nothing to save
	}
	cmd := exec.Command(filepath.Join(bin.Dir, "postgres"), serverArgs(cfg, f, socketDir)...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = string(f), environment(), log, log
	if s.process, err = startProcess(cmd, as, s.death); err != nil {
		return nil, err
	}
	s.pid = cmd.Process.Pid
	if needsWatcher || s.temporary {
		removeDir := ""
		if s.temporary {
			removeDir = string(f)
		}
		s.watcher, err = watch(s.pid, s.death, removeDir)
	}
	if err == nil {
		err = s.awaitReady(ctx)
	}
	if err == nil {
		err = s.createDatabase(ctx)
	}
	if err != nil {
		err = fmt.Errorf("start PostgreSQL %d on %s: %w%s", s.major, f, err, tail(f.log(), logStart))
		return nil, errors.Join(err, s.end())
	}
	return s, nil
}

// serverArgs puts the fixed settings last: Settings cannot open a TCP port.
func serverArgs(cfg Config, f folder, socketDir string) []string {
	args := []string{"-D", f.pgdata()}
	set := func(name, value string) { args = append(args, "-c", name+"="+value) }
	set("timezone", "UTC")
	set("log_timezone", "UTC")
	if cfg.Temporary {
		set("fsync", "off")
		set("full_page_writes", "off")
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Settings)) {
		set(name, cfg.Settings[name])
	}
	set("listen_addresses", "")
	set("port", strconv.Itoa(port))
	set("unix_socket_permissions", "0700")
	set("unix_socket_directories", `"`+strings.ReplaceAll(socketDir, `"`, `""`)+`"`)
	set("logging_collector", "off")
	set("log_destination", "stderr")
	return args
}

// awaitReady returns when the server says that it is ready and answers.
func (s *Server) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.process.done:
			return fmt.Errorf("%w: %w", ErrStopped, s.process.err)
		case <-tick.C:
		}
		file, err := readPIDFile(s.folder.pgdata())
		if err != nil || file.pid != s.pid || !file.ready() {
			continue // not written yet, or still the one of a crashed server
		}
		return ping(ctx, s.URLFor("postgres"))
	}
}

// ping opens a connection and closes it.
func ping(ctx context.Context, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return conn.Close(ctx)
}

// createDatabase makes the database when it is missing. A standby cannot.
func (s *Server) createDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URLFor("postgres"))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	var missing bool
	err = conn.QueryRow(ctx, `
		SELECT NOT pg_is_in_recovery()
		   AND NOT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, s.database).Scan(&missing)
	if err != nil {
		return fmt.Errorf("look for database %s: %w", s.database, err)
	}
	if !missing {
		return nil
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{s.database}.Sanitize()); err != nil {
		return fmt.Errorf("create database %s: %w", s.database, err)
	}
	return nil
}

// URL is the connection string of the instance's database, as superuser.
func (s *Server) URL() string { return s.URLFor(s.database) }

// URLFor is the connection string of another database on the same server.
func (s *Server) URLFor(database string) string {
	host := strings.NewReplacer("+", "%20", "%2F", "/").Replace(url.QueryEscape(s.socketDir))
	return fmt.Sprintf("postgres://%s@/%s?host=%s&port=%d", superuser, url.PathEscape(database), host, s.port)
}

// DataDir is the folder of the instance as an absolute path.
func (s *Server) DataDir() string { return string(s.folder) }

// LogFile is where the server writes its log.
func (s *Server) LogFile() string { return s.folder.log() }

// Major is the server's major version, 15 or higher.
func (s *Server) Major() int { return s.major }

// PID is the process id of the server's main process.
func (s *Server) PID() int { return s.pid }

// Owned reports whether this process started the server, so that Stop ends it.
func (s *Server) Owned() bool { return s.process != nil }

// Done is closed when the server has ended, for whatever reason. For a server
// that belongs to another process it is nil, so it is never ready.
func (s *Server) Done() <-chan struct{} {
	if s.process == nil {
		return nil
	}
	return s.process.done
}
