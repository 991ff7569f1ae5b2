package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/httpapi"
	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// leaseConns is how many connections the leases of workers use at most.
const leaseConns = 8

// leaseLockTimeout bounds the wait for one name, so that a crowd at one name
// leaves connections to the others.
const leaseLockTimeout = time.Second

// ledgerForLeases is the lease.Ledger of this process.
type ledgerForLeases struct {
	reads
	*gate
}

// accountLeases are the httpapi.Leases of accounts.
type accountLeases struct{ leases *lease.Accounts }

// Acquire implements httpapi.Leases.
func (a accountLeases) Acquire(ctx context.Context, id string, q httpapi.LeaseAcquisition) (httpapi.Lease, error) {
	got, err := a.leases.Acquire(ctx, ledger.AccountID(id), q.Holder, q.TTL, q.LockDelay)
	if err != nil {
		return httpapi.Lease{}, leaseError(err)
	}
	l := leaseOf(&got.Grant)
	l.Sequencer = got.Sequencer().String()
	l.Fenced, l.Currency = &got.Fenced, got.Account.Currency
	return l, nil
}

// Renew implements httpapi.Leases.
func (a accountLeases) Renew(ctx context.Context, id string, t httpapi.LeaseTerm, ttl time.Duration) (httpapi.Lease, error) {
	return held(a.leases.Renew(ctx, ledger.AccountID(id), t.Holder, lease.Token(t.Token), ttl))
}

// Release implements httpapi.Leases.
func (a accountLeases) Release(ctx context.Context, id string, t httpapi.LeaseTerm) (httpapi.Lease, error) {
	return shown(a.leases.Release(ctx, ledger.AccountID(id), t.Holder, lease.Token(t.Token)))
}

// Lease implements httpapi.Leases.
func (a accountLeases) Lease(ctx context.Context, id string) (httpapi.Lease, error) {
	return shown(a.leases.Look(ctx, ledger.AccountID(id)))
}

// namedLeases are the httpapi.Leases of other names, and their LeaseAdmin.
type namedLeases struct {
	grants *lease.Grants
	gate   *gate
}

// Acquire implements httpapi.Leases.
func (n namedLeases) Acquire(ctx context.Context, name string, q httpapi.LeaseAcquisition) (httpapi.Lease, error) {
	if err := n.gate.allowed(); err != nil {
		return httpapi.Lease{}, err
	}
	return held(n.grants.Acquire(ctx, lease.Named(name), q.Holder, q.TTL, q.LockDelay))
}

// Renew implements httpapi.Leases.
func (n namedLeases) Renew(ctx context.Context, name string, t httpapi.LeaseTerm, ttl time.Duration) (httpapi.Lease, error) {
	return held(n.grants.Renew(ctx, lease.Named(name), t.Holder, lease.Token(t.Token), ttl))
}

// Release implements httpapi.Leases.
func (n namedLeases) Release(ctx context.Context, name string, t httpapi.LeaseTerm) (httpapi.Lease, error) {
	return shown(n.grants.Release(ctx, lease.Named(name), t.Holder, lease.Token(t.Token)))
}

// Lease implements httpapi.Leases.
func (n namedLeases) Lease(ctx context.Context, name string) (httpapi.Lease, error) {
	g, err := n.grants.Look(ctx, lease.Named(name))
	l, err := shown(g, err)
	if err != nil {
		return l, err
	}
	forced, err := n.grants.Forced(ctx, g.Term)
	if err != nil {
		return l, leaseError(err)
	}
	l.ForcedBy, l.ForcedReason = forced.By, forced.Reason
	return l, nil
}

// List implements httpapi.LeaseAdmin.
func (n namedLeases) List(ctx context.Context, after string, limit int) ([]httpapi.Lease, error) {
	grants, err := n.grants.List(ctx, lease.NamedPrefix, after, limit)
	if err != nil {
		return nil, err
	}
	list := make([]httpapi.Lease, len(grants))
	for i := range grants {
		list[i] = leaseOf(&grants[i])
	}
	return list, nil
}

// ForceRelease implements httpapi.LeaseAdmin.
func (n namedLeases) ForceRelease(ctx context.Context, name, by, reason string) (httpapi.Lease, error) {
	g, err := n.grants.ForceRelease(ctx, lease.Named(name), by, reason)
	l, err := shown(g, err)
	if err == nil {
		n.gate.log.Warn("lease ended by force", "name", name, "holder", g.Holder, "token", g.Token(), "by", by, "reason", reason)
		l.ForcedBy, l.ForcedReason = by, reason
	}
	return l, err
}

// CheckSequencer implements httpapi.LeaseAdmin.
func (n namedLeases) CheckSequencer(ctx context.Context, text string) (httpapi.SequencerCheck, error) {
	unknown := httpapi.SequencerCheck{Status: string(lease.Unknown)}
	q, ok := lease.ParseSequencer(text)
	if !ok {
		return unknown, nil
	}
	verdict, g, err := n.grants.Check(ctx, q)
	if err != nil {
		return httpapi.SequencerCheck{}, leaseError(err)
	}
	if verdict == lease.Unknown {
		return unknown, nil
	}
	l := leaseOf(&g)
	return httpapi.SequencerCheck{
		Status: string(verdict), Name: l.Name, AccountID: l.AccountID, Mode: q.Mode,
		Token: ledger.Token(q.Token), CurrentToken: l.Token,
	}, nil
}

// held is what a holder is told, shown what everybody is.
func held(g lease.Grant, err error) (httpapi.Lease, error) {
	l, err := shown(g, err)
	if err == nil {
		l.Sequencer = g.Sequencer().String()
	}
	return l, err
}

func shown(g lease.Grant, err error) (httpapi.Lease, error) {
	if err != nil {
		return httpapi.Lease{}, leaseError(err)
	}
	return leaseOf(&g), nil
}

func leaseOf(g *lease.Grant) httpapi.Lease {
	l := httpapi.Lease{
		Mode: lease.ModeExclusive, State: string(g.State), Holder: g.Holder, Token: ledger.Token(g.Token()),
		TTL: g.TTL.Milliseconds(), LockDelay: g.LockDelay.Milliseconds(),
		AcquiredAt: g.AcquiredAt, ExpiresAt: g.ExpiresAt, FreeIn: g.FreeIn.Milliseconds(),
	}
	if name, named := strings.CutPrefix(g.Name, lease.NamedPrefix); named {
		l.Name = name
	} else {
		l.AccountID = strings.TrimPrefix(g.Name, lease.AccountName(""))
	}
	return l
}

// leaseError turns the errors of package lease into those of package httpapi.
func leaseError(err error) error {
	var busy *lease.Held
	switch {
	case errors.As(err, &busy):
		return &httpapi.LeaseRefusal{
			Code: ledger.CodeLeaseHeld, Reason: string(busy.State), Holder: busy.Holder, RetryAfter: busy.FreeIn,
		}
	case errors.Is(err, lease.ErrTermOver):
		return &httpapi.LeaseRefusal{Code: httpapi.CodeLeaseLost}
	case errors.Is(err, lease.ErrNotFound):
		return &httpapi.LeaseRefusal{Code: httpapi.CodeLeaseNotFound}
	}
	return err
}

// fencingLog is the httpapi.FencingLog.
type fencingLog struct{ log *lease.RejectionLog }

// Note implements httpapi.FencingLog.
func (f fencingLog) Note(r httpapi.FencingRejection) { f.log.Note(lease.Rejection(r)) }

// Rejections implements httpapi.FencingLog.
func (f fencingLog) Rejections(ctx context.Context, before int64, account ledger.AccountID, limit int) ([]httpapi.FencingRejection, error) {
	list, err := f.log.List(ctx, before, account, limit)
	if err != nil {
		return nil, err
	}
	out := make([]httpapi.FencingRejection, len(list))
	for i, r := range list {
		out[i] = httpapi.FencingRejection(r)
	}
	return out, nil
}

// checkLife lets the writer judge the database when a connection is new: one
// that lost rows must hand out no tokens, and a service with nothing to write
// would not notice.
func (g *gate) checkLife(ctx context.Context, _ *pgx.Conn) error {
	w := g.writer.Load()
	if w == nil {
		return nil
	}
	if err := w.Ready(ctx); err != nil {
		if refusal := (*ledger.Refusal)(nil); errors.As(err, &refusal) {
			return nil // reads go on, and allowed says it
		}
		return fmt.Errorf("look at the database: %w", err)
	}
	return nil
}

// allowed returns why nothing may be handed out now, as far as is known.
func (g *gate) allowed() error {
	if w := g.writer.Load(); w != nil {
		return w.Allowed()
	}
	return notOpen()
}
