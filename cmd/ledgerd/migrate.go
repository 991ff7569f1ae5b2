package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/ledgerd/ledgerd/migrations"
)

// migrateCmd works as the owner of the schema, not in the role of the service.
type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Apply what is pending, as the owner of the schema. Safe to repeat, and from several places at once."`
	Status migrateStatusCmd `cmd:"" help:"List the migrations; ends with 1 when some are pending."`
}

type migrateUpCmd struct {
	databaseFlags
}

// Run prints each version that it applied.
func (c *migrateUpCmd) Run(ctx context.Context, s *streams) (err error) {
	url, release, err := c.attach(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	applied, err := migrations.Up(ctx, url)
	for _, v := range applied {
		fmt.Fprintf(s.out, "applied %d\n", v)
	}
	if err != nil {
		return databaseError(err)
	}
	_, err = fmt.Fprintf(s.out, "the schema is at version %d\n", migrations.Latest())
	return err
}

type migrateStatusCmd struct {
	databaseFlags
}

// Run prints one line a migration.
func (c *migrateStatusCmd) Run(ctx context.Context, s *streams) (err error) {
	url, release, err := c.attach(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	list, err := migrations.List(ctx, url)
	if err != nil {
		return databaseError(err)
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	pending, unknown := 0, 0
	for _, m := range list {
		state := "pending"
		if m.Applied {
			state = "applied " + m.AppliedAt.Format(time.RFC3339)
		} else {
			pending++
		}
		name := m.Name
		if name == "" {
			name = "(not known to this program)"
			unknown++
		}
		fmt.Fprintf(w, "%d\t%s\t%s\n", m.Version, name, state)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	switch {
	case unknown > 0:
		return exit(exitRefused, migrations.ErrUnknown)
	case pending > 0:
		return exit(exitDifferences, fmt.Errorf("%d migrations are pending; run: ledgerd migrate up", pending))
	}
	return nil
}
