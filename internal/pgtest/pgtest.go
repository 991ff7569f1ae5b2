//go:build unix

// Package pgtest gives each test a PostgreSQL database of its own.
//
// The first test of a test binary that asks starts one private server without
// fsync and migrates a template; each database is a copy of that template, made
// in some 50 ms and dropped when its test ends. The server ends with the test
// binary and its folder is removed, also when the binary is killed. Tests that
// stop, kill or freeze a server take one of their own with Server.
//
// LEDGERD_TEST_PG_BIN names the folder with initdb and postgres to test with;
// without it the newest installed PostgreSQL is taken.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/pgserver"
	"github.com/ledgerd/ledgerd/internal/postgres"
	"github.com/ledgerd/ledgerd/migrations"
)

const (
	templateName = "ledgerd_template"

	// stepTimeout bounds each step of the set-up and the clean-up of a test.
	stepTimeout = 60 * time.Second

	poolConns = 8 // connections of a test's pool, at most
)

// shared is the one server of this test binary. It is the single piece of
// package state: a server for each test would cost a second each, and the
// testing package has no other place that lives as long as the binary.
var shared = sync.OnceValues(startShared)

// cluster is a running server with a migrated template.
type cluster struct {
	server *pgserver.Server
	admin  *pgxpool.Pool // superuser, connected to the database "postgres"
	count  atomic.Int64  // databases handed out
}

// DB is a database with the ledger's schema. It belongs to one test.
type DB struct {
	URL  string // connection string of the owner of the schema, a superuser
	Name string
}

// Database returns a new database with all migrations applied, which is dropped
// when the test ends. Tests that use it may run in parallel.
func Database(t testing.TB) *DB {
	t.Helper()
	return create(t, templateName)
}

// Empty returns a new database without any schema, for tests of the migrations.
func Empty(t testing.TB) *DB {
	t.Helper()
	return create(t, "template0")
}

func create(t testing.TB, template string) *DB {
	t.Helper()
	c := sharedCluster(t)
	name := fmt.Sprintf("test_%d", c.count.Add(1))
	c.exec(t, "CREATE DATABASE "+name+" TEMPLATE "+template)
	t.Cleanup(func() { c.exec(t, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	return &DB{URL: c.server.URLFor(name), Name: name}
}

// Pool returns connections in the role and with the timeouts of the service.
// It is closed when the test ends; a connection that was not given back by then
// fails the test.
func (db *DB) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return db.open(t, postgres.Config{
		URL: db.URL, Role: postgres.ServiceRole, MaxConns: poolConns, ApplicationName: "service",
		LockTimeout: 200 * time.Millisecond, IdleInTransactionTimeout: time.Second,
	})
}

// OwnerPool returns connections of the owner of the schema, a superuser, who
// can do what the service cannot: damage things. It is closed like Pool.
func (db *DB) OwnerPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return db.open(t, postgres.Config{URL: db.URL, MaxConns: poolConns, ApplicationName: "owner"})
}

func (db *DB) open(t testing.TB, cfg postgres.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Open(cfg)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			pool.Close() // waits for every connection that is in use
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(stepTimeout):
			t.Errorf("pgtest: %d connections in role %q were not released", pool.Stat().AcquiredConns(), cfg.Role)
		}
	})
	return pool
}

func sharedCluster(t testing.TB) *cluster {
	t.Helper()
	c, err := shared()
	if errors.Is(err, pgserver.ErrNoBinaries) {
		t.Fatalf("pgtest: %v\n%s", err, pgserver.Advice())
	}
	if err != nil {
		t.Fatalf("pgtest: start the shared server: %v", err)
	}
	return c
}

// startShared starts the server and migrates the template. Nobody stops it:
// it ends with the process, see pgserver.Config.Temporary.
func startShared() (*cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "ledgerd-pgtest-")
	if err != nil {
		return nil, err
	}
	c, err := startCluster(ctx, dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return c, nil
}

func startCluster(ctx context.Context, dir string) (*cluster, error) {
	if os.Geteuid() == 0 {
		if err := os.Chmod(dir, 0o711); err != nil { // the server runs as another user
			return nil, err
		}
	}
	server, err := pgserver.Start(ctx, pgserver.Config{
		DataDir: dir, BinDir: os.Getenv("LEDGERD_TEST_PG_BIN"), Database: templateName, Temporary: true,
		Settings: map[string]string{"max_connections": "400"},
	})
	if err != nil {
		return nil, err
	}
	if _, err := migrations.Up(ctx, server.URL()); err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	admin, err := postgres.Open(postgres.Config{URL: server.URLFor("postgres"), MaxConns: 4, ApplicationName: "pgtest"})
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return &cluster{server: server, admin: admin}, nil
}

func (c *cluster) exec(t testing.TB, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	if _, err := c.admin.Exec(ctx, sql); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
}
