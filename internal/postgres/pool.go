// Package postgres opens connection pools the way ledgerd needs them and says
// what an error of PostgreSQL means for the outcome of a statement. It knows no
// table.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ServiceRole is the role that service sessions run in. The migrations create
// it; it may add entries and read them, and cannot change one.
const ServiceRole = "ledgerd_service"

// Config says how to reach a database and how its sessions behave.
type Config struct {
	// URL is a PostgreSQL connection URL or keyword/value string.
	URL string
	// Role, when not empty, is set with the start-up parameter "role". Behind a
	// pooler that drops start-up parameters leave it empty and log in as a user
	// for whom ALTER ROLE … SET role was done.
	Role string
	// ApplicationName is shown in pg_stat_activity.
	ApplicationName string
	// MaxConns bounds the pool, at least 1.
	MaxConns int32
	// ConnectTimeout bounds one attempt to connect; default 5 s.
	ConnectTimeout time.Duration
	// LockTimeout bounds the wait for one lock; 0 leaves the server's setting.
	LockTimeout time.Duration
	// IdleInTransactionTimeout ends a session whose client stopped inside a
	// transaction; 0 leaves the server's setting.
	IdleInTransactionTimeout time.Duration
	// StatementTimeout bounds one statement on the server; 0 leaves the
	// server's setting.
	StatementTimeout time.Duration
	// Settings are further run-time parameters of each session.
	Settings map[string]string
	// OnConnect, when not nil, is called with every new connection; an error
	// refuses the connection.
	OnConnect func(context.Context, *pgx.Conn) error
	// NoCancel keeps the driver from asking the server to cancel a statement
	// whose context ended; its connection is closed all the same. A cancelled
	// wait for a synchronous standby would show a row that is not replicated.
	NoCancel bool
	// Dial, when not nil, replaces the network dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Open returns a pool. It does not connect: the first use does, so that a
// service can start while its database is away. The error says what is wrong
// with the URL, without its password.
func Open(cfg Config) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("parse database URL: %w", err)
	}
	pc.MaxConns = max(cfg.MaxConns, 1)
	pc.MinConns = 0
	pc.MaxConnLifetime = time.Hour
	pc.MaxConnLifetimeJitter = 10 * time.Minute
	pc.HealthCheckPeriod = 10 * time.Second
	pc.ConnConfig.ConnectTimeout = 5 * time.Second
	if cfg.ConnectTimeout > 0 {
		pc.ConnConfig.ConnectTimeout = cfg.ConnectTimeout
	}
	if cfg.Dial != nil {
		pc.ConnConfig.DialFunc = cfg.Dial
	}
	if cfg.NoCancel {
		pc.BeforeConnect = dialOnce
	}

	params := pc.ConnConfig.RuntimeParams
	params["timezone"] = "UTC"
	if cfg.Role != "" {
		params["role"] = cfg.Role
	}
	if cfg.ApplicationName != "" {
		params["application_name"] = cfg.ApplicationName
	}
	setTimeout(params, "lock_timeout", cfg.LockTimeout)
	setTimeout(params, "idle_in_transaction_session_timeout", cfg.IdleInTransactionTimeout)
	setTimeout(params, "statement_timeout", cfg.StatementTimeout)
	for name, value := range cfg.Settings {
		params[name] = value
	}

	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		// An answer promises durability, on synchronous standbys too, whatever the
		// server's default is.
		_, err := conn.Exec(ctx, `select set_config('synchronous_commit', 'on', false)
			where current_setting('synchronous_commit') in ('off', 'local', 'remote_write')`)
		if err != nil {
			return fmt.Errorf("check synchronous_commit: %w", err)
		}
		if cfg.OnConnect != nil {
			if err := cfg.OnConnect(ctx, conn); err != nil {
				return err
			}
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), pc)
	if err != nil {
		return nil, fmt.Errorf("make pool: %w", err)
	}
	return pool, nil
}

// errNoCancel is what a request to cancel a statement ends with.
var errNoCancel = errors.New("statements of this connection are not cancelled")

// dialOnce lets a connection dial until it is established. The driver's only
// later reason to dial is a cancel request.
func dialOnce(_ context.Context, cfg *pgx.ConnConfig) error {
	var established atomic.Bool
	dial, after := cfg.DialFunc, cfg.AfterConnect
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if established.Load() {
			return nil, errNoCancel
		}
		return dial(ctx, network, address)
	}
	cfg.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		established.Store(true)
		if after == nil {
			return nil
		}
		return after(ctx, conn)
	}
	return nil
}

func setTimeout(params map[string]string, name string, d time.Duration) {
	if d > 0 {
		params[name] = strconv.FormatInt(max(d.Milliseconds(), 1), 10)
	}
}
