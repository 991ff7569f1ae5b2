package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// The limits of a lease. The schema checks them too.
const (
	// TTLMin and TTLMax bound how long a lease lives without renewal.
	TTLMin = 100 * time.Millisecond
	TTLMax = 10 * time.Minute
	// LockDelayMax bounds how long nobody may acquire after an abnormal end.
	LockDelayMax = time.Minute
)

// State says how a name stands, by the database's clock.
type State string

const (
	// StateHeld: the term can be renewed.
	StateHeld State = "held"
	// StateLockDelay: the term ended abnormally and its lock delay runs.
	StateLockDelay State = "lock_delay"
	// StateFree: the name can be acquired.
	StateFree State = "free"
)

// Grant is the last term of a name, and how it stood when it was read.
type Grant struct {
	Term
	// Holder named itself when it acquired the lease.
	Holder         string
	TTL, LockDelay time.Duration
	AcquiredAt     time.Time
	ExpiresAt      time.Time
	State          State
	// FreeIn is when the name becomes free if its holder does nothing more, 0
	// when it is free now.
	FreeIn time.Duration
	// Released is true when the holder itself ended the term.
	Released bool
}

// Held is the error of an acquisition that lost: somebody holds the name, or
// the lock delay of the last holder runs. It is always returned as *Held.
type Held struct{ Grant }

// Error implements error.
func (h *Held) Error() string {
	return fmt.Sprintf("lease %q is in state %s for %s", h.Name, h.State, h.FreeIn)
}

var (
	// ErrNotFound: the name was never acquired.
	ErrNotFound = errors.New("the name was never acquired")
	// ErrTermOver: the presented term does not stand any more, or never did.
	ErrTermOver = errors.New("the term does not stand")
)

// Grants hands out leases one by one to workers outside the service. Its rows
// are those of a Store, under names of their own; its terms are presented by
// token and holder. Every write of it also compares the server with the
// incarnation, in the same statement: a database that may have lost rows hands
// out nothing, or the tokens of the lost rows would be handed out again.
type Grants struct {
	db  Querier
	sql grantStatements
}

// grantStatements are the writes of Grants; tests break their guards.
type grantStatements struct{ acquire, renew, release, force string }

// NewGrants returns the leases behind db, whose sessions must commit durably.
func NewGrants(db Querier) *Grants {
	return &Grants{db: db, sql: grantStatements{acquireGrant, renewGrant, releaseGrant, forceGrant}}
}

// Acquire takes the name for ttl. The error is a *Held when it is not free, a
// *ledger.Refusal when the database may have lost rows, and any other error
// means that the outcome is not known: the name may be held until ttl is over.
//
// Each acquisition has a nonce of its own, so one whose answer was lost is
// recognised and not repeated.
func (s *Grants) Acquire(ctx context.Context, name, holder string, ttl, lockDelay time.Duration) (Grant, error) {
	nonce := uuid.New()
	const attempts = 3 // the name became free between the two statements, or a connection broke
	var lost error
	for range attempts {
		g, err := s.one(ctx, s.sql.acquire, name, holder, nonce, ttl.Milliseconds(), lockDelay.Milliseconds())
		if err == nil {
			return g, g.validate()
		}
		if !errors.Is(err, ErrTermOver) {
			lost = err
		}
		seen, err := s.Look(ctx, name)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil && lost != nil:
			return Grant{}, fmt.Errorf("acquire lease %q: %w", name, lost)
		case err != nil:
			return Grant{}, err
		case lost != nil && seen.Nonce == nonce:
			return seen, nil
		case seen.State != StateFree:
			return Grant{}, &Held{seen}
		}
	}
	if lost != nil {
		return Grant{}, fmt.Errorf("acquire lease %q: %w", name, lost)
	}
	return Grant{}, &Held{Grant{Term: Term{Name: name}, State: StateHeld, FreeIn: time.Millisecond}} // it changes hands all the time
}

// Renew lets the term run for ttl from now on. It returns ErrTermOver when the
// term does not stand, whatever the reason; a repetition does no harm.
func (s *Grants) Renew(ctx context.Context, name, holder string, token Token, ttl time.Duration) (Grant, error) {
	incarnation, generation := token.parts()
	g, err := s.one(ctx, s.sql.renew, name, incarnation, generation, holder, ttl.Milliseconds())
	if errors.Is(err, ErrTermOver) {
		return Grant{}, s.explain(ctx, name)
	}
	if err != nil {
		return Grant{}, fmt.Errorf("renew lease %q: %w", name, err)
	}
	return g, nil
}

// Release ends the term at once, without a lock delay. A repetition succeeds; a
// term that is over for another reason gives ErrTermOver.
func (s *Grants) Release(ctx context.Context, name, holder string, token Token) (Grant, error) {
	incarnation, generation := token.parts()
	g, err := s.one(ctx, s.sql.release, name, incarnation, generation, holder)
	if err == nil {
		return g, nil
	}
	if !errors.Is(err, ErrTermOver) {
		return Grant{}, fmt.Errorf("release lease %q: %w", name, err)
	}
	seen, err := s.Look(ctx, name)
	if err == nil && seen.Token() == token && seen.Holder == holder && seen.Released {
		return seen, nil
	}
	if err == nil {
		err = ErrTermOver
	}
	return Grant{}, err
}

// ForceRelease ends the term of whoever holds the name, and notes who did so
// and why. The lock delay follows: the holder may still be at work. Without a
// holder it returns ErrTermOver.
func (s *Grants) ForceRelease(ctx context.Context, name, by, reason string) (Grant, error) {
	g, err := s.one(ctx, s.sql.force, name, by, reason)
	if errors.Is(err, ErrTermOver) {
		return Grant{}, s.explain(ctx, name)
	}
	if err != nil {
		return Grant{}, fmt.Errorf("end lease %q by force: %w", name, err)
	}
	return g, nil
}

// explain says why a write matched no term.
func (s *Grants) explain(ctx context.Context, name string) error {
	if _, err := s.Look(ctx, name); err != nil {
		return err
	}
	return ErrTermOver
}

// Look reads the last term of the name. The error is ErrNotFound, or a
// *ledger.Refusal when the database may have lost rows.
func (s *Grants) Look(ctx context.Context, name string) (Grant, error) {
	rows, err := s.db.Query(ctx, lookGrant, name)
	if err != nil {
		return Grant{}, fmt.Errorf("look at lease %q: %w", name, err)
	}
	var mine bool
	g, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (*Grant, error) {
		return scanSeen(row, &mine)
	})
	switch {
	case err != nil:
		return Grant{}, fmt.Errorf("look at lease %q: %w", name, err)
	case !mine:
		return Grant{}, &ledger.Refusal{
			Code: ledger.CodeIncarnationMismatch, Applied: ledger.NotApplied,
			Detail: "The database may have lost rows: no lease is handed out until an operator runs: ledgerd incarnation bump --reason …",
		}
	case g == nil:
		return Grant{}, ErrNotFound
	}
	return *g, nil
}

// List returns up to limit leases whose names begin with prefix and follow
// after, by name.
func (s *Grants) List(ctx context.Context, prefix, after string, limit int) ([]Grant, error) {
	rows, err := s.db.Query(ctx, listGrants, prefix, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	grants, err := pgx.CollectRows(rows, scanGrant)
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	return grants, nil
}

// Forced says who ended a term by force, and why.
type Forced struct{ By, Reason string }

// Forced returns who ended the term by force; both fields are "" when nobody did.
func (s *Grants) Forced(ctx context.Context, t Term) (Forced, error) {
	rows, err := s.db.Query(ctx, forcedStatement, t.Name, t.Incarnation, t.Generation)
	if err != nil {
		return Forced{}, fmt.Errorf("read who ended lease %q: %w", t.Name, err)
	}
	f, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Forced])
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Forced{}, fmt.Errorf("read who ended lease %q: %w", t.Name, err)
	}
	return f, nil
}

// one runs a write that returns one row, or none when nothing matched.
func (s *Grants) one(ctx context.Context, statement string, args ...any) (Grant, error) {
	rows, err := s.db.Query(ctx, statement, args...)
	if err != nil {
		return Grant{}, err
	}
	g, err := pgx.CollectExactlyOneRow(rows, scanGrant)
	if errors.Is(err, pgx.ErrNoRows) {
		return Grant{}, ErrTermOver
	}
	return g, err
}

// parts is the inverse of Term.Token.
func (t Token) parts() (incarnation int, generation int64) {
	return int(t>>generationBits) + 1, int64(t) & (1<<generationBits - 1)
}
