package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"
)

const (
	lagPause    = 50 * time.Millisecond
	lagAccounts = 25
)

// lagStatement is the age of the oldest entry that the balance row of each
// account has not applied, in microseconds, 0 when there is none.
const lagStatement = `
select coalesce((extract(epoch from clock_timestamp() - e.posted_at) * 1000000)::bigint, 0)
  from balances as b
  left join entries as e
    on e.account_id = b.account_id
   and e.seq = b.applied_seq + 1
 where b.account_id = any($1::text[])`

// behindStatement counts the accounts whose balance row is not at the head.
const behindStatement = `
select count(*)
  from balances as b
  join entries as e
    on e.account_id = b.account_id
   and e.seq = b.applied_seq + 1`

// lag watches how far balance rows are behind, in samples of a few accounts at
// random: it must not cost what it measures.
type lag struct {
	conn     *pgx.Conn
	workload Workload
	accounts int
	rng      *rand.Rand
	seen     *hdrhistogram.Histogram // microseconds
}

func newLag(ctx context.Context, databaseURL string, w Workload, accounts int, seed uint64) (*lag, error) {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return nil, fmt.Errorf("connect to watch the projection: %w", err)
	}
	return &lag{conn: conn, workload: w, accounts: accounts, rng: rand.New(rand.NewPCG(seed, 1<<41)), seen: newHistogram()}, nil
}

// watch samples until ctx ends.
func (l *lag) watch(ctx context.Context) error {
	tick := time.NewTicker(lagPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := l.sample(); err != nil {
			return err
		}
	}
}

// sample runs under a context of its own: the end of the load must not cut the
// connection in the middle of an answer.
func (l *lag) sample() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n := lagAccounts
	if l.workload == Hot {
		n = 1
	}
	ids := make([]string, n)
	for i := range ids {
		ids[i] = accountID(l.workload.pick(l.rng, l.accounts))
	}
	rows, err := l.conn.Query(ctx, lagStatement, ids)
	if err != nil {
		return fmt.Errorf("watch the projection: %w", err)
	}
	var age int64
	_, err = pgx.ForEachRow(rows, []any{&age}, func() error {
		return l.seen.RecordValue(min(max(age, 0), latencyMax))
	})
	if err != nil {
		return fmt.Errorf("watch the projection: %w", err)
	}
	return nil
}

// Behind returns how many balance rows of the database are not at their heads.
func Behind(ctx context.Context, databaseURL string) (int64, error) {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return 0, fmt.Errorf("connect to watch the projection: %w", err)
	}
	defer conn.Close(ctx)
	return behind(ctx, conn)
}

func behind(ctx context.Context, conn *pgx.Conn) (n int64, err error) {
	if err := conn.QueryRow(ctx, behindStatement).Scan(&n); err != nil {
		return 0, fmt.Errorf("watch the projection: %w", err)
	}
	return n, nil
}

// caughtUp waits until every balance row is at its head and returns how long
// that took, or an error after the limit.
func (l *lag) caughtUp(ctx context.Context, limit time.Duration) (time.Duration, error) {
	begin := time.Now()
	for {
		n, err := behind(ctx, l.conn)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			return time.Since(begin), nil
		}
		if time.Since(begin) > limit {
			return 0, fmt.Errorf("%d balance rows are still behind %s after the load", n, limit)
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (l *lag) close() { _ = l.conn.Close(context.Background()) }
