package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/httpapi"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/postgres"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// projectionConns is how many connections the projection needs at most.
const projectionConns = 6

// projectionPool opens the connections of a projector, the way projection.New
// wants them, whoever runs it.
func projectionPool(cfg postgres.Config, leaseTTL time.Duration) (*pgxpool.Pool, error) {
	cfg.MaxConns = projectionConns
	cfg.IdleInTransactionTimeout = leaseTTL
	cfg.LockTimeout = 200 * time.Millisecond // a row that somebody locked must not hold up all others
	return postgres.Open(cfg)
}

// projectionStatus is the httpapi.ProjectionStatus of a projector.
type projectionStatus struct{ projector *projection.Projector }

// Projection implements httpapi.ProjectionStatus.
func (p projectionStatus) Projection(ctx context.Context) (httpapi.Projection, error) {
	shards, err := repeat(ctx, func() ([]projection.ShardStatus, error) { return p.projector.Status(ctx) })
	if err != nil {
		return httpapi.Projection{}, err
	}
	var view httpapi.Projection
	for i := range shards {
		s := &shards[i]
		shard := httpapi.Shard{Shard: s.Shard, State: "free", Holder: s.Owner, Generation: s.Generation, ExpiresAt: s.ExpiresAt}
		if s.Owner != "" {
			shard.State = "held"
		}
		if !s.ReportedAt.IsZero() {
			shard.LagEntries, shard.LagSeconds, shard.ParkedAccounts = &s.LagEntries, &s.LagSeconds, &s.Parked
		}
		view.LagEntries += s.LagEntries
		view.LagSeconds = max(view.LagSeconds, s.LagSeconds)
		view.ParkedAccounts += s.Parked
		view.Shards = append(view.Shards, shard)
	}
	return view, nil
}

// rebuilds is the httpapi.Rebuilds of a projector.
type rebuilds struct{ projector *projection.Projector }

// StartRebuild implements httpapi.Rebuilds.
func (r rebuilds) StartRebuild(ctx context.Context) (httpapi.Rebuild, error) {
	rebuild, _, err := r.projector.RequestRebuild(ctx, "asked for over HTTP")
	if err != nil {
		return httpapi.Rebuild{}, err
	}
	return rebuildView(&rebuild), nil
}

// Rebuild implements httpapi.Rebuilds.
func (r rebuilds) Rebuild(ctx context.Context, id string) (httpapi.Rebuild, error) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return httpapi.Rebuild{}, httpapi.ErrNotFound
	}
	rebuild, err := repeat(ctx, func() (projection.Rebuild, error) { return r.projector.Rebuild(ctx, parsed) })
	if errors.Is(err, projection.ErrRebuildNotFound) {
		return httpapi.Rebuild{}, httpapi.ErrNotFound
	}
	if err != nil {
		return httpapi.Rebuild{}, err
	}
	return rebuildView(&rebuild), nil
}

func rebuildView(r *projection.Rebuild) httpapi.Rebuild {
	view := httpapi.Rebuild{
		ID: r.ID.String(), State: httpapi.JobRunning,
		ShardsTotal: ledger.Shards, ShardsDone: r.ShardsDone,
		AccountsTotal: r.AccountsTotal, AccountsDone: r.AccountsDone, EntriesDone: r.EntriesDone,
		DriftedAccounts: r.Repaired,
		RequestedAt:     r.RequestedAt, FinishedAt: r.FinishedAt,
	}
	switch {
	case r.Finished() && r.Damaged > 0:
		view.State = httpapi.JobFailed
		view.Error = fmt.Sprintf("%d accounts have entries that contradict each other; their rows were left alone. A verification names them.", r.Damaged)
	case r.Finished():
		view.State = httpapi.JobDone
	case r.AccountsDone == 0 && r.ShardsDone == 0:
		view.State = httpapi.JobPending
	}
	return view
}
