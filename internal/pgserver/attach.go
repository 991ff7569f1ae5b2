//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// orphanTimeout limits the wait for a server whose owner was killed: it
	// got its signal at once and is writing its last checkpoint.
	orphanTimeout = 30 * time.Second
	// strangerTimeout limits the wait for a server that does not stop: somebody
	// started it by hand.
	strangerTimeout = 2 * time.Second
	// turnTimeout limits how long Attach follows an instance that another
	// process is starting or stopping at this moment.
	turnTimeout = time.Minute
)

// Attach returns the server of an existing instance: the running one, which
// belongs to another process and is left running by Stop, or one that it
// starts because none runs, which Stop ends. It never makes a cluster: the
// error is then ErrNoCluster. The other errors are those of Start.
func Attach(ctx context.Context, cfg Config) (*Server, error) {
	f, err := openFolder(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	tick := time.NewTicker(5 * pollInterval)
	defer tick.Stop()
	for {
		major, err := clusterMajor(f.pgdata())
		if err != nil {
			return nil, err
		}
		if major == 0 {
			return nil, fmt.Errorf("%w: %s", ErrNoCluster, f)
		}
		if s := running(ctx, cfg, f, major); s != nil {
			return s, nil
		}
		s, err := Start(ctx, cfg)
		if !errors.Is(err, ErrRunning) || time.Since(begin) > turnTimeout {
			return s, err
		}
		// Owned by a process that is just starting or stopping it.
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// running returns the server that accepts connections on the folder, or nil.
func running(ctx context.Context, cfg Config, f folder, major int) *Server {
	file, err := readPIDFile(f.pgdata())
	if err != nil || !alive(file.pid) || !file.ready() || file.socketDir == "" {
		return nil
	}
	s := &Server{
		folder: f, major: major, pid: file.pid,
		socketDir: file.socketDir, port: file.port, database: cfg.Database,
	}
	if s.database == "" {
		s.database = "ledgerd"
	}
	if !s.serves(ctx, f) {
		return nil
	}
	return s
}

// serves reports whether the server behind the socket is the one on the
// folder: an old postmaster.pid may name a socket that is another server's now.
func (s *Server) serves(ctx context.Context, f folder) bool {
	conn, err := pgx.Connect(ctx, s.URLFor("postgres"))
	if err != nil {
		return false
	}
	defer conn.Close(ctx)
	var dir string
	if err := conn.QueryRow(ctx, "SHOW data_directory").Scan(&dir); err != nil {
		return false
	}
	return sameFile(dir, f.pgdata())
}

// waitForOrphan waits until a server that an earlier, killed owner left behind
// has ended. The caller holds the folder's lock, so no living ledgerd owns it.
// The error is ErrRunning for a server that stays. What cannot be told here,
// such as a process id that another program has since a reboot, PostgreSQL
// judges by its own lock.
func waitForOrphan(ctx context.Context, f folder) error {
	begin := time.Now()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		file, err := readPIDFile(f.pgdata())
		if err != nil || !runsOn(file.pid, f.pgdata()) {
			return nil
		}
		s := Server{folder: f, socketDir: file.socketDir, port: file.port}
		waited := time.Since(begin)
		if waited > strangerTimeout && s.serves(ctx, f) {
			return fmt.Errorf("%w: PostgreSQL process %d runs on %s; stop it first", ErrRunning, file.pid, f.pgdata())
		}
		if waited > orphanTimeout {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
