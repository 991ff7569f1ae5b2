package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// Why the context of a lease ended; context.Cause returns one of these.
var (
	// ErrLeaseExpired: by this process's own clock the lease may have run out.
	ErrLeaseExpired = errors.New("the lease ran out before it was renewed")
	// ErrLeaseLost: the service said that somebody else owns the account, or
	// that the term does not stand.
	ErrLeaseLost = errors.New("the lease was lost")
	// errWorkDone: the work returned.
	errWorkDone = errors.New("the work under the lease is done")
)

// LeaseOption says how WithLease holds its lease.
type LeaseOption func(*leaseConfig)

type leaseConfig struct {
	ttl, margin, lockDelay time.Duration
	wait                   bool
	jeopardy               func(err error, left time.Duration)
}

// LeaseTTL sets how long the lease lives without renewal, 15 s by default. It
// is renewed every quarter of it. A short one hands the account over sooner
// when this process dies, a long one survives longer pauses; neither decides
// about money.
func LeaseTTL(d time.Duration) LeaseOption { return func(c *leaseConfig) { c.ttl = d } }

// LeaseMargin sets how much sooner than the service this process takes the
// lease to be over, a tenth of the TTL by default.
func LeaseMargin(d time.Duration) LeaseOption { return func(c *leaseConfig) { c.margin = d } }

// LeaseLockDelay sets for how long nobody may acquire the lease when this
// process vanishes, 0 by default. It is for resources beside the account that
// cannot check tokens.
func LeaseLockDelay(d time.Duration) LeaseOption { return func(c *leaseConfig) { c.lockDelay = d } }

// LeaseNoWait makes WithLease return the *Problem with CodeLeaseHeld at once
// when somebody else has the lease. By default it waits until ctx ends.
func LeaseNoWait() LeaseOption { return func(c *leaseConfig) { c.wait = false } }

// LeaseJeopardy sets a function that is called after each renewal that failed
// with why, and how long the lease is still trusted. It must return soon.
func LeaseJeopardy(f func(err error, left time.Duration)) LeaseOption {
	return func(c *leaseConfig) { c.jeopardy = f }
}

// HeldLease is a lease while its work runs.
type HeldLease struct {
	// Lease is the answer to the acquisition: its Balance is what to decide on.
	Lease
	client *Client
	ctx    context.Context
	cancel context.CancelCauseFunc
	ttl    time.Duration
	margin time.Duration
	timer  *time.Timer
	// until is when this process stops trusting the lease, since base on the
	// monotonic clock. The renewal writes it, everybody reads it.
	base  time.Time
	until atomic.Int64
}

// Left returns how long this process still trusts the lease, 0 when it does not.
func (l *HeldLease) Left() time.Duration {
	if l.ctx.Err() != nil {
		return 0
	}
	return max(0, time.Duration(l.until.Load())-time.Since(l.base))
}

// Credit adds money to the account under the token of the lease.
func (l *HeldLease) Credit(ctx context.Context, op Operation, options ...WriteOption) (Receipt, error) {
	return l.client.Credit(l.on(ctx), l.AccountID, op, options...)
}

// Debit takes money from the account under the token of the lease.
func (l *HeldLease) Debit(ctx context.Context, op Operation, options ...WriteOption) (Receipt, error) {
	return l.client.Debit(l.on(ctx), l.AccountID, op, options...)
}

// on returns ctx as a context whose writes carry the token.
func (l *HeldLease) on(ctx context.Context) context.Context {
	return context.WithValue(ctx, leaseKey{l.AccountID}, l)
}

type leaseKey struct{ accountID string }

// leaseOn returns the lease of the account under which ctx works, or nil.
func leaseOn(ctx context.Context, accountID string) *HeldLease {
	l, _ := ctx.Value(leaseKey{accountID}).(*HeldLease)
	return l
}

// tokenOn returns token or, when it is 0, that of the lease of the account under
// which ctx works.
func tokenOn(ctx context.Context, accountID string, token int64) int64 {
	if l := leaseOn(ctx, accountID); l != nil && token == 0 {
		return l.Token
	}
	return token
}

// refused ends the work when err says that somebody else owns the account.
func (l *HeldLease) refused(err error) {
	var p *Problem
	if errors.As(err, &p) && (p.Code == CodeStaleFencingToken || p.Code == CodeLeaseLost) {
		l.cancel(ErrLeaseLost)
	}
}

// trust moves the moment at which the work ends. A lease that ended already is
// not revived.
func (l *HeldLease) trust(sent time.Time) {
	until := sent.Add(l.ttl - l.margin)
	l.until.Store(int64(until.Sub(l.base)))
	if l.ctx.Err() == nil {
		l.timer.Reset(time.Until(until))
	}
}

// WithLease acquires the lease of the account, calls work, and releases the
// lease when work has returned. It returns what work returned, together with
// ErrLeaseExpired or ErrLeaseLost when that came in between.
//
// The context of work ends with the lease: counted from the moment before the
// request went out, on the monotonic clock, minus a margin, moved on by
// renewals every quarter of the TTL. Every write of this client with that
// context to the account carries the lease's token, and so do those of the
// HeldLease whatever their context: a write that is too late is refused by the
// account itself, with CodeStaleFencingToken, however long this process was
// stopped. So work may do whatever it likes about time; what it did before the
// refusal stands, and what comes after does not happen.
func (c *Client) WithLease(ctx context.Context, accountID string, work func(ctx context.Context, lease *HeldLease) error, options ...LeaseOption) error {
	cfg := leaseConfig{ttl: 15 * time.Second, wait: true}
	for _, o := range options {
		o(&cfg)
	}
	if cfg.margin == 0 {
		cfg.margin = cfg.ttl / 10
	}
	if cfg.margin < 0 || cfg.margin >= cfg.ttl*3/4 {
		return fmt.Errorf("a margin of %s leaves no time for renewals of a lease of %s", cfg.margin, cfg.ttl)
	}
	l, err := c.hold(ctx, accountID, &cfg)
	if err != nil {
		return err
	}
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		l.renew(&cfg)
	}()
	err = work(l.on(l.ctx), l)
	cause := context.Cause(l.ctx)
	l.cancel(errWorkDone)
	l.timer.Stop()
	<-renewed
	l.release(context.WithoutCancel(ctx), cause)
	if err != nil && (errors.Is(cause, ErrLeaseExpired) || errors.Is(cause, ErrLeaseLost)) && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	return err
}

// hold acquires, waiting for the present holder when it has to.
func (c *Client) hold(ctx context.Context, accountID string, cfg *leaseConfig) (*HeldLease, error) {
	host, _ := os.Hostname() // "" is a name too
	holder := fmt.Sprintf("%s:%d:%s", host, os.Getpid(), rand.Text()[:12])
	for {
		sent := time.Now() // before the request: its answer may come late
		got, err := c.AcquireLease(ctx, accountID, holder, cfg.ttl, cfg.lockDelay)
		var p *Problem
		switch {
		case err == nil:
			l := &HeldLease{Lease: got, client: c, ttl: cfg.ttl, margin: cfg.margin, base: sent}
			l.ctx, l.cancel = context.WithCancelCause(ctx)
			l.timer = time.AfterFunc(cfg.ttl, func() { l.cancel(ErrLeaseExpired) })
			l.trust(sent)
			if l.Left() > 0 {
				return l, nil
			}
			l.timer.Stop() // the answer came when the lease was over already
			l.cancel(ErrLeaseExpired)
			l.release(ctx, ErrLeaseExpired)
			return nil, fmt.Errorf("acquire the lease of account %s: %w", accountID, ErrLeaseExpired)
		case !errors.As(err, &p) || p.Code != CodeLeaseHeld:
			return nil, err
		case p.Holder == holder:
			// The answer to an attempt of ours was lost. Its term is nobody else's:
			// end it, and take a new one with a token that is known.
			if err := c.giveBack(ctx, accountID, holder); err != nil {
				return nil, err
			}
			continue
		case !cfg.wait:
			return nil, err
		}
		if pauseErr := awaitFree(ctx, p, cfg.ttl); pauseErr != nil {
			return nil, fmt.Errorf("%w (%w)", err, pauseErr)
		}
	}
}

func (c *Client) giveBack(ctx context.Context, accountID, holder string) error {
	got, err := c.GetLease(ctx, accountID)
	if err != nil || got.Holder != holder {
		return err
	}
	_, err = c.ReleaseLease(ctx, accountID, holder, got.Token)
	var p *Problem
	if errors.As(err, &p) && p.Code == CodeLeaseLost {
		return nil // it ran out
	}
	return err
}

// awaitFree waits until the lease may be free: not longer than the service
// said, and not longer than a second, because its holder may release it.
func awaitFree(ctx context.Context, p *Problem, ttl time.Duration) error {
	wait := min(time.Duration(p.RetryAfterMs)*time.Millisecond, ttl/4, time.Second)
	return pause(ctx, 1, max(wait, 5*time.Millisecond), time.Now().Add(time.Hour))
}

// renew asks for more time every quarter of the TTL. Each attempt has that long
// for its answer, so that one lost packet leaves time for two more.
func (l *HeldLease) renew(cfg *leaseConfig) {
	once := *l.client
	once.retryFor, once.attemptTimeout = 0, cfg.ttl/4
	ticker := time.NewTicker(cfg.ttl / 4)
	defer ticker.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-ticker.C:
		}
		sent := time.Now()
		_, err := once.RenewLease(l.ctx, l.AccountID, l.Holder, l.Token, cfg.ttl)
		if err == nil {
			l.trust(sent)
			continue
		}
		if l.ctx.Err() != nil {
			return
		}
		l.refused(err)
		if cfg.jeopardy != nil {
			cfg.jeopardy(err, l.Left())
		}
	}
}

// release gives the account to the next holder at once. When it fails the lease
// runs out by itself.
func (l *HeldLease) release(ctx context.Context, cause error) {
	if errors.Is(cause, ErrLeaseLost) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.ttl)
	defer cancel()
	_, _ = l.client.ReleaseLease(ctx, l.AccountID, l.Holder, l.Token)
}
