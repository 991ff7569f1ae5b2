//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
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
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
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
		if !errors.Is(err, ErrRunning) {
			return s, err
		}
		// Owned by a process that is just starting or stopping it.
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
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
	if ping(ctx, s.URLFor("postgres")) != nil {
		return nil
	}
	return s
}

// waitForOrphan waits until a server that an earlier, killed owner left behind
// has ended. The caller holds the folder's lock, so no living ledgerd owns it.
// The error is ErrRunning for a server that stays.
func waitForOrphan(ctx context.Context, f folder) error {
	begin := time.Now()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		file, err := readPIDFile(f.pgdata())
		if err != nil || !alive(file.pid) {
			return nil // none, or left over by a crash: PostgreSQL judges that
		}
		limit := orphanTimeout
		if answers(ctx, f, file) {
			limit = strangerTimeout
		}
		if time.Since(begin) > limit {
			return fmt.Errorf("%w: PostgreSQL process %d runs on %s; stop it first", ErrRunning, file.pid, f.pgdata())
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// answers reports whether a server accepts connections at the place that the
// file names. One that is starting or stopping refuses them.
func answers(ctx context.Context, f folder, file pidFile) bool {
	s := Server{folder: f, socketDir: file.socketDir, port: file.port}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := ping(ctx, s.URLFor("postgres"))
	refused := (*pgconn.PgError)(nil)
	if errors.As(err, &refused) {
		return refused.Code != "57P03" // cannot_connect_now
	}
	return err == nil
}
