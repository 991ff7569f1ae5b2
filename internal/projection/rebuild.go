package projection

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/lease"
)

// Rebuild is the progress of one rebuild of all balance rows.
type Rebuild struct {
	ID          uuid.UUID
	Reason      string
	RequestedAt time.Time
	// FinishedAt is zero while it runs.
	FinishedAt time.Time
	// AccountsTotal counts the accounts at the time of the request; more may be
	// done.
	AccountsTotal int64
	AccountsDone  int64
	EntriesDone   int64
	// Repaired counts rows that differed from the fold of their entries, or were
	// missing.
	Repaired int64
	// Damaged counts accounts whose entries contradict each other. Their rows
	// were left as they are: a rebuild never decides which entry is right.
	Damaged int64
	// ShardsDone is 0 … ledger.Shards.
	ShardsDone int
}

// Finished reports whether the rebuild is over.
func (r Rebuild) Finished() bool { return !r.FinishedAt.IsZero() }

// RequestRebuild asks for all balance rows to be folded again from the first
// entries on, by the owners of their shards. When a rebuild is open, it joins
// that one and returns joined as true. The reason has 1–255 characters.
func (p *Projector) RequestRebuild(ctx context.Context, reason string) (r Rebuild, joined bool, err error) {
	r, joined, err = requestRebuild(ctx, p.pool, reason)
	kick(p.worker.rebuildWake)
	return r, joined, err
}

// Rebuild returns the progress of a rebuild. The error is ErrRebuildNotFound
// when no rebuild has the id.
func (p *Projector) Rebuild(ctx context.Context, id uuid.UUID) (Rebuild, error) {
	return readRebuild(ctx, p.pool, id)
}

func requestRebuild(ctx context.Context, pool *pgxpool.Pool, reason string) (Rebuild, bool, error) {
	id, joined, err := openRebuild(ctx, pool, reason)
	if err != nil {
		return Rebuild{}, false, err
	}
	r, err := readRebuild(ctx, pool, id)
	return r, joined, err
}

// Replay rebuilds all balance rows and returns when that is done: it asks for a
// rebuild, or joins the open one, and lets the live processes do it. When there
// are none it takes part in the projection itself until the end. Progress, when
// not nil, is called a few times a second.
func Replay(ctx context.Context, pool *pgxpool.Pool, cfg Config, reason string, progress func(Rebuild)) (Rebuild, error) {
	p, err := New(pool, cfg)
	if err != nil {
		return Rebuild{}, err
	}
	r, _, err := p.RequestRebuild(ctx, reason)
	if err != nil {
		return Rebuild{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	running := false
	defer func() {
		cancel()
		if running {
			<-done
		}
	}()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		if progress != nil {
			progress(r)
		}
		if r.Finished() {
			return r, nil
		}
		if !running {
			live, err := liveMembers(ctx, p.leases)
			if err != nil {
				return r, err
			}
			if live == 0 {
				running = true
				go func() { p.Run(ctx); close(done) }()
			}
		}
		select {
		case <-ctx.Done():
			return r, fmt.Errorf("wait for rebuild %s: %w", r.ID, context.Cause(ctx))
		case <-ticker.C:
		}
		if r, err = p.Rebuild(ctx, r.ID); err != nil {
			return r, err
		}
	}
}

// liveMembers counts the processes that take part in the projection.
func liveMembers(ctx context.Context, leases *lease.Store) (int, error) {
	slots, err := leases.Look(ctx, memberNames())
	if err != nil {
		return 0, err
	}
	live := 0
	for _, l := range slots {
		if l.Live {
			live++
		}
	}
	return live, nil
}
