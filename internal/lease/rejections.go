package lease

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

const (
	// RejectionsKept is how many rejections the table keeps at most.
	RejectionsKept = 10_000
	// rejectionsQueued is how many wait to be written; more are only counted.
	rejectionsQueued = 1000
	// rejectionsWritten is how many one statement writes; with rejectionsEvery
	// it bounds what a process writes in a second.
	rejectionsWritten = 200
	rejectionsEvery   = time.Second
	rejectionsTimeout = 2 * time.Second
)

// Rejection is one write that a fence refused.
type Rejection struct {
	ID        int64 // in the order in which they were written
	AccountID ledger.AccountID
	Code      ledger.Code
	Presented ledger.Token
	Current   ledger.Token
	// Method, Route (a pattern) and RequestID name the request, RemoteAddress
	// and UserAgent who sent it.
	Method, Route, RequestID string
	RemoteAddress, UserAgent string
	At                       time.Time
}

// RejectionLog keeps the latest rejections in a table, for people. It is best
// effort by design: Note never waits, and what the table cannot take in time is
// counted and forgotten, so it can neither slow nor fail a write.
type RejectionLog struct {
	db       Querier
	log      *slog.Logger
	queue    chan Rejection
	every    time.Duration
	kept     int64
	seen     *prometheus.CounterVec
	unlisted prometheus.Counter
}

// NewRejectionLog returns a log that writes to db while Run runs.
func NewRejectionLog(db Querier, reg prometheus.Registerer, log *slog.Logger) *RejectionLog {
	l := &RejectionLog{
		db: db, log: log, queue: make(chan Rejection, rejectionsQueued), every: rejectionsEvery, kept: RejectionsKept,
		seen: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ledgerd_fencing_rejections_total",
			Help: "Writes refused for their fencing token, by code.",
		}, []string{"code"}),
		unlisted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_fencing_rejections_unlisted_total",
			Help: "Refused writes that are counted but not in the list: too many, or the database was away.",
		}),
	}
	for _, code := range []ledger.Code{ledger.CodeStaleToken, ledger.CodeTokenFromTheFuture} {
		l.seen.WithLabelValues(string(code)) // so that an alert sees the first one rise from 0
	}
	reg.MustRegister(l.seen, l.unlisted)
	return l
}

// Note takes in a rejection and returns at once.
func (l *RejectionLog) Note(r Rejection) {
	l.seen.WithLabelValues(string(r.Code)).Inc()
	select {
	case l.queue <- r:
	default:
		l.unlisted.Inc()
	}
}

// Run writes what was noted, at most rejectionsWritten a second, until ctx ends;
// then it writes once more.
func (l *RejectionLog) Run(ctx context.Context) {
	ticker := time.NewTicker(l.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			l.flush(context.WithoutCancel(ctx))
			return
		case <-ticker.C:
			l.flush(ctx)
		}
	}
}

func (l *RejectionLog) flush(ctx context.Context) {
	n := min(len(l.queue), rejectionsWritten)
	if n == 0 {
		return
	}
	batch := make([]Rejection, n)
	for i := range batch {
		batch[i] = <-l.queue // this goroutine alone takes from it
	}
	ctx, cancel := context.WithTimeout(ctx, rejectionsTimeout)
	defer cancel()
	if err := l.write(ctx, batch); err != nil {
		l.unlisted.Add(float64(n))
		l.log.Warn("fencing rejections are not listed", "count", n, "error", err)
	}
}

const insertRejections = `
insert into fencing_rejections (account_id, code, presented_token, current_token, method, route, request_id,
                                remote_address, user_agent, rejected_at)
select * from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[],
                     $8::text[], $9::text[], $10::timestamptz[])`

// pruneRejections keeps the newest $1. Ids have gaps, so it keeps fewer rather
// than more.
const pruneRejections = `
delete from fencing_rejections
 where rejection_id <= (select max(rejection_id) from fencing_rejections) - $1::bigint`

func (l *RejectionLog) write(ctx context.Context, batch []Rejection) error {
	var accounts, codes, methods, routes, requests, addresses, agents []string
	var presented, current []int64
	var times []time.Time
	for i := range batch {
		r := &batch[i]
		accounts, codes = append(accounts, string(r.AccountID)), append(codes, string(r.Code))
		presented, current = append(presented, int64(r.Presented)), append(current, int64(r.Current))
		methods, routes, requests = append(methods, r.Method), append(routes, r.Route), append(requests, r.RequestID)
		addresses, agents = append(addresses, r.RemoteAddress), append(agents, r.UserAgent)
		times = append(times, r.At)
	}
	err := l.exec(ctx, insertRejections, accounts, codes, presented, current, methods, routes, requests, addresses, agents, times)
	if err != nil {
		return fmt.Errorf("list fencing rejections: %w", err)
	}
	if err := l.exec(ctx, pruneRejections, l.kept); err != nil {
		return fmt.Errorf("prune fencing rejections: %w", err)
	}
	return nil
}

func (l *RejectionLog) exec(ctx context.Context, statement string, args ...any) error {
	rows, err := l.db.Query(ctx, statement, args...)
	if err != nil {
		return err
	}
	rows.Close()
	return rows.Err()
}

const listRejections = `
select r.rejection_id, r.account_id, r.code, r.presented_token, r.current_token, r.method, r.route, r.request_id,
       r.remote_address, r.user_agent, r.rejected_at
  from fencing_rejections as r
 where r.rejection_id < $1::bigint
   and ($2::text = '' or r.account_id = $2::text)
 order by r.rejection_id desc
 limit $3::integer`

// List returns up to limit rejections that were written before the one with the
// id, newest first; with an account only those of it.
func (l *RejectionLog) List(ctx context.Context, before int64, account ledger.AccountID, limit int) ([]Rejection, error) {
	rows, err := l.db.Query(ctx, listRejections, before, string(account), limit)
	if err != nil {
		return nil, fmt.Errorf("read fencing rejections: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Rejection])
	if err != nil {
		return nil, fmt.Errorf("read fencing rejections: %w", err)
	}
	return list, nil
}
