package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/httpapi"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/postgres"
	"github.com/ledgerd/ledgerd/migrations"
)

const (
	// gateInterval is how often the database is looked at.
	gateInterval = time.Second
	// gateTimeout bounds one look, also the one before the service listens.
	gateTimeout = 3 * time.Second
)

// gate stands between the service and a database that it does not know. Until
// the database was looked at and found right, nothing is written and no shard
// is worked on; a database that is away is waited for.
//
// It is the httpapi.Writer, because before it opens there is no ledger.Writer
// to ask, and it answers for readiness.
type gate struct {
	pool *pgxpool.Pool // of one connection, so that reads under load cannot starve it
	log  *slog.Logger
	// open starts what works on the database. It is called once.
	open func() (*ledger.Writer, error)

	writer  atomic.Pointer[ledger.Writer] // nil until the gate is open
	last    atomic.Pointer[gateLook]      // nil until the first look
	closing atomic.Bool                   // the service shuts down
}

// gateLook is the outcome of one look at the database.
type gateLook struct{ err error }

// unsafeRoleError says that sessions of the service could change entries.
type unsafeRoleError struct{ role string }

func (e *unsafeRoleError) Error() string {
	return fmt.Sprintf("sessions of the service work in the role %q, which may change or delete entries; "+
		"set LEDGERD_DATABASE_ROLE=%s, or behind a pooler ALTER ROLE … SET role", e.role, postgres.ServiceRole)
}

// look checks schema and role once, and opens the gate when both are right. Its
// error ends the service. A database that is away gives none.
//
// Once the gate is open only an unsafe role ends the service. Tables are
// missing for a while when a dump is restored; and a schema that became newer
// belongs to a roll-out which replaces this process soon.
func (g *gate) look(ctx context.Context) error {
	lookCtx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	err := g.inspect(lookCtx)
	if ctx.Err() != nil {
		return nil // the service ends; nothing was learnt
	}
	isOpen := g.writer.Load() != nil
	if isOpen && errors.Is(err, migrations.ErrUnknown) {
		err = nil
	}
	g.note(err)
	unsafe := (*unsafeRoleError)(nil)
	switch {
	case errors.As(err, &unsafe):
		return exit(exitRefused, err)
	case isOpen:
		return nil
	case err == nil:
		return g.start()
	}
	final := (*exitError)(nil)
	if errors.As(databaseError(err), &final) && final.code == exitRefused {
		return final
	}
	return nil
}

func (g *gate) start() error {
	w, err := g.open()
	if err != nil {
		return err
	}
	g.writer.Store(w)
	return nil
}

// inspect returns what is wrong with the database.
func (g *gate) inspect(ctx context.Context) error {
	if err := migrations.Check(ctx, g.pool); err != nil {
		return err
	}
	var role string
	var may bool
	err := g.pool.QueryRow(ctx,
		`select current_user, has_table_privilege(current_user, 'entries', 'update, delete, truncate')`).Scan(&role, &may)
	if err != nil {
		return fmt.Errorf("read the privileges of the role: %w", err)
	}
	if may {
		return &unsafeRoleError{role}
	}
	return nil
}

// note keeps the outcome for readiness and logs changes.
func (g *gate) note(err error) {
	before := g.last.Swap(&gateLook{err})
	switch {
	case err != nil && (before == nil || before.err == nil):
		g.log.Warn("the database is not usable", "error", err)
	case err == nil && before != nil && before.err != nil:
		g.log.Info("the database is usable again")
	}
}

// watch looks again and again until ctx ends, or until a look ends the service.
func (g *gate) watch(ctx context.Context) error {
	tick := time.NewTicker(gateInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := g.look(ctx); err != nil {
				return err
			}
		}
	}
}

// Apply implements httpapi.Writer.
func (g *gate) Apply(ctx context.Context, op *ledger.Operation) (*ledger.Receipt, error) {
	if w := g.writer.Load(); w != nil {
		return w.Apply(ctx, op)
	}
	return nil, notOpen()
}

// Start implements httpapi.Writer.
func (g *gate) Start(ctx context.Context, op *ledger.Operation) ledger.Pending {
	if w := g.writer.Load(); w != nil {
		return w.Start(ctx, op)
	}
	return ledger.NotStarted(notOpen())
}

func notOpen() *ledger.Refusal {
	return &ledger.Refusal{
		Code: ledger.CodeUnavailable, Applied: ledger.NotApplied,
		Detail: "The database has not answered since the service was started. Repeat the request as it is.",
	}
}

// writerPool returns the state of the writer's connections, nil before there is
// a writer.
func (g *gate) writerPool() *pgxpool.Stat {
	if w := g.writer.Load(); w != nil {
		return w.Stat()
	}
	return nil
}

// Ready implements httpapi.Health.
func (g *gate) Ready(ctx context.Context) []httpapi.Check {
	if g.closing.Load() {
		return []httpapi.Check{{Name: "running", Detail: "The service shuts down."}}
	}
	return []httpapi.Check{g.checkDatabase(), g.checkWrites(ctx)}
}

func (g *gate) checkDatabase() httpapi.Check {
	c := httpapi.Check{Name: "database"}
	switch last := g.last.Load(); {
	case last == nil:
		c.Detail = "The database was not asked yet."
	case errors.Is(last.err, migrations.ErrMissing):
		c.Detail = "The schema is missing or too old."
	case last.err != nil:
		c.Detail = "The database does not answer."
	default:
		c.OK = true
	}
	return c
}

func (g *gate) checkWrites(ctx context.Context) httpapi.Check {
	c := httpapi.Check{Name: "writes"}
	w := g.writer.Load()
	if w == nil {
		c.Detail = "The database was not usable yet."
		return c
	}
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	err := w.Ready(ctx)
	if refusal := (*ledger.Refusal)(nil); errors.As(err, &refusal) {
		c.Detail = refusal.Detail
	}
	c.OK = err == nil
	return c
}
