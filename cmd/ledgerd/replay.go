package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/console"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/postgres"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/migrations"
)

type replayCmd struct {
	databaseFlags
	roleFlag
	Reason   string        `default:"ledgerd replay" help:"Why, for those who read the table later: 1 to 255 characters."`
	LeaseTTL time.Duration `name:"lease-ttl" env:"LEDGERD_LEASE_TTL" default:"5s" help:"Lease of the shards when this command has to do the work itself."`
}

// Help is the long help text.
func (*replayCmd) Help() string {
	return `Folds the entries of every account again, from the first one, and writes each balance row as it must be. Entries are
never changed. Traffic goes on meanwhile.

The work belongs to the processes that own the shards of the projection: a running service does it, and this command asks
for it and shows how far it is; when one is at work already it follows that one. Without a service it does the work itself.
Interrupting the command does not stop a service that has begun.`
}

// Run returns when the rebuild is over.
func (c *replayCmd) Run(ctx context.Context, s *streams) (err error) {
	reason := strings.TrimSpace(c.Reason)
	if err := ledger.ValidateText(reason, ledger.ReasonRunesMax); err != nil || reason == "" {
		return exit(exitUsage, fmt.Errorf("--reason needs 1 to %d characters", ledger.ReasonRunesMax))
	}
	cfg := projection.Config{
		Process: processName(), LeaseTTL: c.LeaseTTL,
		Logger: slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if err := cfg.Validate(); err != nil {
		return exit(exitUsage, err)
	}
	url, release, err := c.attach(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	pool, err := projectionPool(postgres.Config{URL: url, Role: c.DatabaseRole, ApplicationName: "ledgerd replay"}, c.LeaseTTL)
	if err != nil {
		return exit(exitUsage, err)
	}
	defer pool.Close()
	if err := migrations.Check(ctx, pool); err != nil {
		return databaseError(err)
	}
	bar := console.NewProgress(s.err, "replay", "accounts", 0)
	r, err := projection.Replay(ctx, pool, cfg, reason, func(r projection.Rebuild) { bar.Set(r.AccountsDone, r.AccountsTotal) })
	bar.Stop()
	if err != nil {
		return databaseError(err)
	}
	fmt.Fprintf(s.out, "%d accounts, %d entries, %d balance rows repaired, %d accounts damaged\n",
		r.AccountsDone, r.EntriesDone, r.Repaired, r.Damaged)
	if r.Damaged > 0 {
		return exit(exitDifferences, errors.New("the entries of damaged accounts contradict each other, and a replay never decides which is right; ledgerd verify names them"))
	}
	return nil
}
