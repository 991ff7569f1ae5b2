package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/pgserver"
	"github.com/ledgerd/ledgerd/internal/postgres"
	"github.com/ledgerd/ledgerd/migrations"
)

// databaseFlags name the database of a command that works without a service.
type databaseFlags struct {
	Data        string    `type:"path" placeholder:"DIR" help:"Data folder of ledgerd dev, running or stopped; goes before the URL, and that before LEDGERD_DATA."`
	DatabaseURL secretURL `name:"database-url" env:"LEDGERD_DATABASE_URL" placeholder:"URL" help:"PostgreSQL connection URL."`
	PGBin       string    `name:"pg-bin" env:"LEDGERD_PG_BIN" placeholder:"DIR" help:"Folder of the PostgreSQL programs, with --data."`
}

// attach returns the URL of the database and what to call when it is not used
// any more: a private server that had to be started is stopped then.
func (d *databaseFlags) attach(ctx context.Context) (url string, release func() error, err error) {
	data := d.Data
	if data == "" && d.DatabaseURL == "" {
		// Not a tag of Data: the variable shall not go before a URL that was given.
		if data = os.Getenv("LEDGERD_DATA"); data == "" {
			return "", nil, exit(exitUsage, errors.New("name the database: set LEDGERD_DATABASE_URL, or give --data DIR (or LEDGERD_DATA) with the data folder of ledgerd dev"))
		}
		data = kong.ExpandPath(data)
	}
	if data == "" {
		if !d.DatabaseURL.valid() {
			return "", nil, exit(exitUsage, errors.New("LEDGERD_DATABASE_URL is not a PostgreSQL connection URL"))
		}
		return d.DatabaseURL.reveal(), func() error { return nil }, nil
	}
	server, err := pgserver.Attach(ctx, pgserver.Config{DataDir: data, BinDir: d.PGBin})
	if err != nil {
		return "", nil, privateServerError(err)
	}
	return server.URL(), server.Stop, nil
}

// privateServerError gives an error of pgserver its exit code and, where it
// helps, advice.
func privateServerError(err error) error {
	other, access := (*pgserver.MajorError)(nil), (*pgserver.AccessError)(nil)
	switch {
	case errors.Is(err, pgserver.ErrNoBinaries):
		return exit(exitRefused, fmt.Errorf("%w\n%s", err, pgserver.Advice()))
	case errors.Is(err, pgserver.ErrRunning), errors.Is(err, pgserver.ErrNoCluster), errors.Is(err, pgserver.ErrNotUsable),
		errors.As(err, &other), errors.As(err, &access):
		return exit(exitRefused, err)
	case errors.Is(err, context.Canceled):
		return exit(exitInterrupted, err)
	}
	return exit(exitUnreachable, err)
}

// roleFlag is the role of commands that need no more than the service may do.
type roleFlag struct {
	DatabaseRole string `name:"database-role" env:"LEDGERD_DATABASE_ROLE" default:"ledgerd_service" help:"Role of the sessions; empty behind a pooler."`
}

// openChecked returns a pool for a command, after it made sure that the
// database answers and that its schema is the one of this program.
func openChecked(ctx context.Context, url, role, name string, conns int) (*pgxpool.Pool, error) {
	pool, err := postgres.Open(postgres.Config{URL: url, Role: role, ApplicationName: "ledgerd " + name, MaxConns: int32(conns)})
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	if err := migrations.Check(ctx, pool); err != nil {
		pool.Close()
		return nil, databaseError(err)
	}
	return pool, nil
}

// withConn runs work on one checked connection of the database.
func (d *databaseFlags) withConn(ctx context.Context, role, name string, work func(*pgx.Conn) error) (err error) {
	url, release, err := d.attach(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	pool, err := openChecked(ctx, url, role, name, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return databaseError(err)
	}
	defer conn.Release()
	return work(conn.Conn())
}

// SQLSTATEs that connecting answers with.
const (
	stateInvalidParameter = "22023" // the role of the start-up parameter does not exist
	stateNoPrivilege      = "42501"
	stateUndefinedObject  = "42704"
)

// databaseError gives an error of the database its exit code and says in words
// what an operator can do about it.
func databaseError(err error) error {
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	switch {
	case err == nil, errors.As(err, new(*exitError)):
		return err
	case errors.Is(err, context.Canceled):
		return exit(exitInterrupted, err)
	case errors.Is(err, migrations.ErrMissing), errors.Is(err, migrations.ErrUnknown):
		return exit(exitRefused, err)
	case errors.As(err, &connect) && errors.As(err, &pg) && (pg.Code == stateInvalidParameter || pg.Code == stateUndefinedObject):
		return exit(exitRefused, fmt.Errorf("the sessions cannot have their role: %s; LEDGERD_DATABASE_ROLE names it, and ledgerd migrate up makes %s: %w", pg.Message, postgres.ServiceRole, err))
	case errors.As(err, &connect) && errors.As(err, &pg) && pg.Code == stateNoPrivilege:
		return exit(exitRefused, fmt.Errorf("the login may not work in the role of the service; run as the role's administrator: GRANT %s TO the login: %w", postgres.ServiceRole, err))
	case postgres.Classify(err) == postgres.ClassSchema:
		return exit(exitRefused, err)
	case postgres.Classify(err) == postgres.ClassData:
		return exit(exitFault, err)
	}
	return exit(exitUnreachable, fmt.Errorf("the database does not answer: %w", err))
}
