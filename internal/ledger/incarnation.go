package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/postgres"
)

// Incarnation is one life of the ledger's data. It grows when the database may
// have lost committed rows: after a restore, or the promotion of a standby that
// lagged.
type Incarnation struct {
	// Number is 1 … 255.
	Number int
	// SystemIdentifier, Timeline and EntriesOID are what the server looked like
	// when the incarnation started: the cluster (pg_control_system), its live
	// WAL timeline, and the object id of the table entries, which changes when
	// a dump is restored into the same cluster.
	SystemIdentifier int64
	Timeline         int64
	EntriesOID       int64
	Reason           string
	StartedAt        time.Time
}

// Promotion says what a change of the WAL timeline alone means.
type Promotion string

const (
	// PromotionAny: any standby may be promoted, also one that lagged. Writes
	// are refused until an operator bumps the incarnation.
	PromotionAny Promotion = ""
	// PromotionSynchronous: only synchronous standbys are promoted, which lose
	// nothing. The service bumps the incarnation itself.
	PromotionSynchronous Promotion = "synchronous"
)

// ErrIncarnationLimit is returned when the last incarnation, 255, is in use.
var ErrIncarnationLimit = errors.New("the incarnation cannot grow beyond 255")

// sight is what a connection sees of the server and of the newest incarnation.
type sight struct {
	life        life
	clock       clockReading
	inRecovery  bool
	standbys    bool // commits wait for synchronous standbys
	mayChange   bool // the session could UPDATE, DELETE or TRUNCATE entries
	system      int64
	timeline    int64
	flushed     int64 // WAL position in bytes; 0 in recovery
	incarnation Incarnation
}

// guard keeps what is known of the database's life and incarnation. Its state
// is replaced whole, never changed: a batch works with the one it read.
type guard struct {
	promotion Promotion
	state     atomic.Pointer[guardState]

	// turn has capacity 1 and is held during a check: sights are judged in the
	// order in which they were read, or an older one would look like lost rows.
	turn chan struct{}
	// The rest belongs to the holder of the turn.

	highest   walMark // how far the log was seen to reach
	lostUntil int     // refuse until the incarnation is above this
}

// walMark is a position in the database's log.
type walMark struct {
	incarnation int
	timeline    int64
	flushed     int64 // bytes
}

// behind reports whether m is of an older incarnation than seen, or ends before
// it in the same log: then the database is older than it was.
func (m walMark) behind(seen walMark) bool {
	return m.incarnation < seen.incarnation ||
		m.incarnation == seen.incarnation && m.timeline == seen.timeline && m.flushed < seen.flushed
}

func newGuard(p Promotion) *guard { return &guard{promotion: p, turn: make(chan struct{}, 1)} }

// guardState is one judged sight. refusal is nil when writes are allowed.
type guardState struct {
	life        life
	clock       clockReading
	incarnation int
	// standby is true when the server is in recovery, standbys when commits
	// wait for synchronous ones.
	standby, standbys bool
	refusal           *Refusal
}

// current returns the last judged state, nil before the first.
func (g *guard) current() *guardState { return g.state.Load() }

// checkTimeout bounds one check, and with it the wait of the others.
const checkTimeout = 2 * time.Second

// check looks at the server over conn and judges it.
func (g *guard) check(ctx context.Context, conn *pgx.Conn) (*guardState, error) {
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	s, err := readSight(ctx, conn)
	if err != nil {
		return nil, err
	}
	if g.promotedSafely(s) {
		err := bump(ctx, conn, "promotion of a synchronous standby", s.incarnation.Number)
		if err != nil && postgres.Classify(err) != postgres.ClassUnique {
			return nil, err
		}
		if s, err = readSight(ctx, conn); err != nil { // ours, or that of a rival who was faster
			return nil, err
		}
	}
	return g.judge(s), nil
}

// promotedSafely reports whether only the timeline changed and the operator
// said that promotions lose nothing.
func (g *guard) promotedSafely(s *sight) bool {
	i := s.incarnation
	return g.promotion == PromotionSynchronous && !s.inRecovery && !s.mayChange &&
		i.SystemIdentifier == s.system && i.EntriesOID == int64(s.life.entriesOID) && i.Timeline < s.timeline
}

func (g *guard) judge(s *sight) *guardState {
	i := s.incarnation
	here := walMark{i.Number, s.timeline, s.flushed}
	next := &guardState{life: s.life, clock: s.clock, incarnation: i.Number, standby: s.inRecovery, standbys: s.standbys}
	switch {
	case s.inRecovery:
		next.refusal = refuse(CodeUnavailable, "The database is a standby: it accepts no writes.")
	case s.mayChange:
		next.refusal = refuse(CodeUnavailable, "The session may change entries. Run the service in the role %s.", postgres.ServiceRole)
	case i.SystemIdentifier != s.system:
		next.refusal = mismatch("The database is a copy in another cluster")
	case i.EntriesOID != int64(s.life.entriesOID):
		next.refusal = mismatch("The table of entries was made anew, as by the restore of a dump")
	case i.Timeline != s.timeline:
		next.refusal = mismatch("A standby was promoted, or the database was restored to a point in time")
	case i.Number <= g.lostUntil || here.behind(g.highest):
		// Tokens of every incarnation that was seen have been handed out, so the
		// next one has to be above all of them.
		g.lostUntil = max(g.lostUntil, i.Number, g.highest.incarnation)
		next.refusal = mismatch("The database is older than it was: its log ends before a position seen earlier")
	default:
		g.highest = here
	}
	g.state.Store(next)
	return next
}

func mismatch(what string) *Refusal {
	return refuse(CodeIncarnationMismatch,
		"%s, so committed rows may be missing. Reads go on; writes are refused until an operator runs: ledgerd incarnation bump --reason …", what)
}

const sightStatement = `
select ` + lifeColumns + `,
       pg_is_in_recovery(),
       current_setting('synchronous_standby_names') <> '',
       has_table_privilege(current_user, 'entries', 'update, delete, truncate'),
       (select system_identifier from pg_control_system()),
       case when pg_is_in_recovery() then 0
            else ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint end,
       case when pg_is_in_recovery() then 0
            else (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint end,
       i.incarnation, i.system_identifier, i.timeline, i.entries_oid, i.reason, i.started_at
  from incarnations as i
 order by i.incarnation desc
 limit 1`

func readSight(ctx context.Context, conn *pgx.Conn) (*sight, error) {
	var s sight
	i := &s.incarnation
	err := conn.QueryRow(ctx, sightStatement).Scan(
		&s.life.startedAt, &s.life.entriesOID, &s.life.incarnation, &s.clock.database,
		&s.inRecovery, &s.standbys, &s.mayChange, &s.system, &s.timeline, &s.flushed,
		&i.Number, &i.SystemIdentifier, &i.Timeline, &i.EntriesOID, &i.Reason, &i.StartedAt)
	if err != nil {
		return nil, fmt.Errorf("read incarnation: %w", err)
	}
	s.clock.local = time.Now()
	return &s, nil
}

// IncarnationStatus is what an operator is shown: the newest incarnation, what
// the server looks like now, and whether they fit.
type IncarnationStatus struct {
	Current Incarnation
	// Server has the three identifiers of the server as it is now.
	Server Incarnation
	// Matches is false when writes are refused until a bump.
	Matches bool
}

// ReadIncarnation compares the newest incarnation with the server.
func ReadIncarnation(ctx context.Context, conn *pgx.Conn) (IncarnationStatus, error) {
	s, err := readSight(ctx, conn)
	if err != nil {
		return IncarnationStatus{}, err
	}
	now := Incarnation{SystemIdentifier: s.system, Timeline: s.timeline, EntriesOID: int64(s.life.entriesOID)}
	i := s.incarnation
	return IncarnationStatus{
		Current: i, Server: now,
		Matches: i.SystemIdentifier == now.SystemIdentifier && i.Timeline == now.Timeline && i.EntriesOID == now.EntriesOID,
	}, nil
}

// BumpIncarnation starts the next incarnation: it says that committed rows may
// have been lost before this moment and that somebody accepted it. All leases
// expire, every new token is above every old one, and all services drop what
// they remember and accept writes again. It returns ErrIncarnationLimit after 255.
func BumpIncarnation(ctx context.Context, conn *pgx.Conn, reason string) (Incarnation, error) {
	s, err := readSight(ctx, conn)
	if err != nil {
		return Incarnation{}, err
	}
	if s.incarnation.Number >= 255 {
		return Incarnation{}, ErrIncarnationLimit
	}
	if err := bump(ctx, conn, reason, s.incarnation.Number); err != nil {
		return Incarnation{}, err
	}
	if s, err = readSight(ctx, conn); err != nil {
		return Incarnation{}, err
	}
	return s.incarnation, nil
}

// bump is a compare-and-swap: the primary key refuses it when the incarnation
// is no longer the one that was read.
func bump(ctx context.Context, conn *pgx.Conn, reason string, from int) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("bump incarnation: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, bumpStatement, from+1, reason); err != nil {
		return fmt.Errorf("bump incarnation: %w", err)
	}
	if _, err := tx.Exec(ctx, expireLeasesStatement); err != nil {
		return fmt.Errorf("expire leases: %w", err)
	}
	return tx.Commit(ctx)
}

const bumpStatement = `
insert into incarnations (incarnation, system_identifier, timeline, entries_oid, reason)
select $1::integer,
       (select system_identifier from pg_control_system()),
       ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint,
       'entries'::regclass::oid::bigint,
       $2`

const expireLeasesStatement = `
update leases
   set expires_at = clock_timestamp()
 where expires_at > clock_timestamp()`
