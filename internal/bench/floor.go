package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// floorSchema holds the scratch copy of entries while a floor is measured.
const floorSchema = "ledgerd_bench_floor"

// floor is a bare loop of the writer's own INSERT into a copy of entries with
// the same indexes and checks.
type floor struct {
	databaseURL string
	workload    Workload
	accounts    int
	batch       int // entries in one INSERT
	duration    time.Duration
	seed        uint64
}

// run returns how many entries a second became durable.
func (f *floor) run(ctx context.Context) (rate float64, err error) {
	cfg, err := pgx.ParseConfig(f.databaseURL)
	if err != nil {
		return 0, fmt.Errorf("parse database URL: %w", err)
	}
	cfg.RuntimeParams["search_path"] = floorSchema + ",public"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return 0, fmt.Errorf("connect for the floor: %w", err)
	}
	defer func() {
		// The measured context may have ended; the copy goes away all the same.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if _, dropErr := conn.Exec(ctx, "drop schema if exists "+floorSchema+" cascade"); err == nil && dropErr != nil {
			err = fmt.Errorf("drop the scratch table: %w", dropErr)
		}
		_ = conn.Close(ctx)
	}()
	_, err = conn.Exec(ctx, `drop schema if exists `+floorSchema+` cascade;
create schema `+floorSchema+`;
create table `+floorSchema+`.entries (like public.entries including all)`)
	if err != nil {
		return 0, fmt.Errorf("make the scratch table: %w", err)
	}
	return f.loop(ctx, conn)
}

func (f *floor) loop(ctx context.Context, conn *pgx.Conn) (float64, error) {
	target, err := ledger.NewFloor(ctx, conn)
	if err != nil {
		return 0, err
	}
	chain := newFloorChain(f)
	begin, added := time.Now(), 0
	for time.Since(begin) < f.duration {
		if err := target.Append(ctx, chain.next()); err != nil {
			return 0, fmt.Errorf("floor: %w", err)
		}
		added += f.batch
	}
	return float64(added) / time.Since(begin).Seconds(), nil
}

// floorChain makes links with the size and the spread of the load's, as cheaply
// as it can: only what the indexes see changes from one to the next.
type floorChain struct {
	f       *floor
	source  *rand.PCG
	rng     *rand.Rand
	ids     []ledger.AccountID
	last    []ledger.Seq
	entries []ledger.Entry
	batch   []*ledger.Entry
}

func newFloorChain(f *floor) *floorChain {
	source := rand.NewPCG(f.seed, 1<<40)
	c := &floorChain{f: f, source: source, rng: rand.New(source),
		ids: make([]ledger.AccountID, f.accounts), last: make([]ledger.Seq, f.accounts),
		entries: make([]ledger.Entry, f.batch), batch: make([]*ledger.Entry, f.batch)}
	for i := range c.ids {
		c.ids[i] = ledger.AccountID(accountID(i))
		c.last[i] = 1 // entry 1 opens an account; the load begins behind it
	}
	for i := range c.entries {
		c.batch[i] = &c.entries[i]
	}
	return c
}

func (c *floorChain) next() []*ledger.Entry {
	now := time.Now().UTC()
	var key [keyLen]byte
	for i := range c.entries {
		account := c.f.workload.pick(c.rng, c.f.accounts)
		c.last[account]++
		putKey(key[:], c.source)
		c.entries[i] = ledger.Entry{
			AccountID: c.ids[account], Seq: c.last[account], Kind: ledger.KindCredit, Amount: 100,
			After: ledger.State{Balance: ledger.Amount(c.last[account]) * 100, Status: ledger.Active,
				Fencing: ledger.Fencing{Source: ledger.SourceLease}},
			TransactionID: uuid.Must(uuid.NewV7()), Key: string(key[:]), EffectiveAt: now, PostedAt: now,
			HashVersion: ledger.HashVersion,
		}
		copy(c.entries[i].Hash[:], key[:])
		copy(c.entries[i].RequestHash[:], key[:])
	}
	return c.batch
}
