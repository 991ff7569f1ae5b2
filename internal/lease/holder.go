package lease

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Why the context of a lease ended; context.Cause returns one of these.
var (
	// ErrExpired: the holder's own clock says that the lease may have run out.
	ErrExpired = errors.New("the lease ran out before it was renewed")
	// ErrLost: the database says that the term does not stand any more.
	ErrLost = errors.New("the lease was taken by another holder")
	// ErrGivenUp: the holder hands the name on to another process.
	ErrGivenUp = errors.New("the lease is handed on")
	// ErrClosed: the holder shuts down.
	ErrClosed = errors.New("the holder of the lease shuts down")
)

// Leases is the coordinator that a Holder campaigns at. Every method is atomic
// for itself; an error means that the outcome is not known. Store is one.
type Leases interface {
	Acquire(ctx context.Context, holder string, ttl, lockDelay time.Duration, names []string) ([]Term, error)
	Renew(ctx context.Context, ttl time.Duration, terms []Term) ([]string, error)
	Release(ctx context.Context, terms []Term) ([]string, error)
	Look(ctx context.Context, names []string) ([]Lease, error)
}

// Config says what a Holder holds and what it does with it.
type Config struct {
	// Holder names this process. No other process, not even the same one after
	// a restart, may use the name.
	Holder string
	// Names are shared out among the live holders.
	Names []string
	// Members are the slots by which live holders know of each other; their
	// number is the most holders that share the names.
	Members []string
	// TTL is how long a lease lives without renewal, 100 ms to 10 minutes.
	TTL time.Duration
	// RenewEvery is the time between renewals, and between looks for free
	// names. A dead holder's names are taken within TTL + RenewEvery.
	RenewEvery time.Duration
	// Margin is how much sooner than the database a holder takes its lease to
	// be over.
	Margin time.Duration
	// Work is called on a goroutine of its own for each name that is acquired,
	// and works until its context ends, or until it returns because it learnt
	// that it lost the name. The lease is released when it has returned.
	Work func(ctx context.Context, term Term)
	// Metrics and Logger must not be nil.
	Metrics *Metrics
	Logger  *slog.Logger
}

// Holder campaigns for leases, renews them together in one statement, and gives
// them up. Its state belongs to the goroutine that runs Run.
type Holder struct {
	cfg    Config
	leases Leases
	all    []string
	held   map[string]*held
	ended  chan *held
}

// held is one lease of this process.
type held struct {
	term   Term
	ctx    context.Context
	cancel context.CancelCauseFunc
	// timer ends ctx when the lease is not renewed in time.
	timer   *time.Timer
	leaving bool
}

// NewHolder returns a holder that does nothing before Run.
func NewHolder(leases Leases, cfg Config) *Holder {
	all := append(append([]string(nil), cfg.Names...), cfg.Members...)
	return &Holder{
		cfg: cfg, leases: leases, all: all,
		held:  make(map[string]*held),
		ended: make(chan *held, len(all)),
	}
}

// Run holds leases until ctx ends. Then it ends the work, waits for it, and
// releases what it holds, so that another process can go on at once.
func (h *Holder) Run(ctx context.Context) {
	ticker := time.NewTicker(h.cfg.RenewEvery)
	defer ticker.Stop()
	h.tick(ctx)
	for {
		select {
		case <-ctx.Done():
			h.close(context.WithoutCancel(ctx))
			return
		case l := <-h.ended:
			h.forget(ctx, l)
		case <-ticker.C:
			h.forgetEnded(ctx)
			h.tick(ctx)
		}
	}
}

// forgetEnded takes what has ended out of the books before a tick, which lasts
// long while the database is away.
func (h *Holder) forgetEnded(ctx context.Context) {
	for {
		select {
		case l := <-h.ended:
			h.forget(ctx, l)
		default:
			return
		}
	}
}

// tick renews, looks, and follows the plan. When the database is away it does
// nothing: the timers of the leases end the work in time.
func (h *Holder) tick(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.TTL)
	defer cancel()
	if err := h.renew(ctx); err != nil {
		h.warn(ctx, "lease renewal failed", err)
		return
	}
	for {
		joined, err := h.campaign(ctx)
		if err != nil {
			h.warn(ctx, "lease campaign failed", err)
			return
		}
		if !joined {
			return
		}
	}
}

func (h *Holder) renew(ctx context.Context) error {
	var terms []Term
	for _, l := range h.held {
		if l.leaving || l.ctx.Err() == nil {
			terms = append(terms, l.term)
		}
	}
	if len(terms) == 0 {
		return nil
	}
	sent := time.Now() // before the request: the reply may come late
	renewed, err := h.leases.Renew(ctx, h.cfg.TTL, terms)
	if err != nil {
		return err
	}
	h.cfg.Metrics.renewals.Add(float64(len(renewed)))
	stands := make(map[string]bool, len(renewed))
	for _, name := range renewed {
		stands[name] = true
		h.held[name].trust(h.until(sent))
	}
	for _, t := range terms {
		if !stands[t.Name] {
			h.end(h.held[t.Name], ErrLost)
		}
	}
	return nil
}

// campaign follows the plan once. It returns true when this process became a
// member, so that it has a share now.
func (h *Holder) campaign(ctx context.Context) (joined bool, err error) {
	leases, err := h.leases.Look(ctx, h.all)
	if err != nil {
		return false, err
	}
	p := share(h.cfg.Holder, h.cfg.Names, h.cfg.Members, leases, h.standing)
	if len(p.orphans) > 0 {
		if _, err := h.leases.Release(ctx, p.orphans); err != nil {
			return false, err
		}
	}
	for _, name := range p.giveUp {
		h.end(h.held[name], ErrGivenUp)
	}
	names := append(p.join, p.acquire...)
	if len(names) == 0 {
		return false, nil
	}
	sent := time.Now()
	terms, err := h.leases.Acquire(ctx, h.cfg.Holder, h.cfg.TTL, 0, names)
	if err != nil {
		return false, err
	}
	for _, t := range terms {
		h.begin(t, h.until(sent))
	}
	return len(p.join) > 0 && len(terms) > 0, nil
}

// begin starts the work of a new term. A member slot has no work.
func (h *Holder) begin(t Term, until time.Time) {
	ctx, cancel := context.WithCancelCause(context.Background())
	l := &held{term: t, ctx: ctx, cancel: cancel}
	l.timer = time.AfterFunc(time.Until(until), func() { cancel(ErrExpired) })
	h.held[t.Name] = l
	work := h.cfg.Work
	if h.isMember(t.Name) {
		work = func(ctx context.Context, _ Term) { <-ctx.Done() }
	} else {
		h.cfg.Metrics.acquired.Inc()
		h.cfg.Metrics.held.Inc()
	}
	go func() {
		work(ctx, t)
		h.ended <- l // never blocks: a name is in held until this is read
	}()
}

// trust moves the moment at which the work ends. A lease that ended already is
// not revived.
func (l *held) trust(until time.Time) {
	if l.ctx.Err() == nil {
		l.timer.Reset(time.Until(until))
	}
}

func (h *Holder) until(sent time.Time) time.Time {
	return sent.Add(h.cfg.TTL - h.cfg.Margin)
}

func (h *Holder) end(l *held, cause error) {
	l.leaving = errors.Is(cause, ErrGivenUp) || errors.Is(cause, ErrClosed)
	l.cancel(cause)
}

// forget releases a lease whose work is over. The release does nothing when the
// term does not stand any more, and when it fails the lease runs out by itself.
func (h *Holder) forget(ctx context.Context, l *held) {
	cause := h.drop(l)
	if errors.Is(cause, ErrLost) || errors.Is(cause, ErrExpired) {
		return // nothing to release, or about to run out in a database that is away
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.TTL)
	defer cancel()
	if _, err := h.leases.Release(ctx, []Term{l.term}); err != nil {
		h.warn(ctx, "lease release failed", err)
	}
}

// drop takes the lease out of the books and returns why it ended, nil when the
// work returned by itself.
func (h *Holder) drop(l *held) error {
	cause := context.Cause(l.ctx)
	l.timer.Stop()
	l.cancel(ErrLost)
	delete(h.held, l.term.Name)
	if h.isMember(l.term.Name) {
		return cause
	}
	h.cfg.Metrics.held.Dec()
	if cause == nil || errors.Is(cause, ErrLost) || errors.Is(cause, ErrExpired) {
		h.cfg.Metrics.lost.Inc()
		h.cfg.Logger.Warn("lease lost", "name", l.term.Name, "generation", l.term.Generation, "cause", cause)
	}
	return cause
}

// close ends all work, waits for it and releases everything in one statement.
func (h *Holder) close(ctx context.Context) {
	for _, l := range h.held {
		h.end(l, ErrClosed)
	}
	var terms []Term
	for len(h.held) > 0 {
		l := <-h.ended
		_ = h.drop(l) // why it ended does not matter any more
		terms = append(terms, l.term)
	}
	if len(terms) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.TTL)
	defer cancel()
	if _, err := h.leases.Release(ctx, terms); err != nil {
		h.warn(ctx, "lease release failed", err)
	}
}

func (h *Holder) standing(name string) standing {
	l := h.held[name]
	switch {
	case l == nil:
		return standingNone
	case l.leaving || l.ctx.Err() != nil:
		return standingLeaving
	}
	return standingHeld
}

func (h *Holder) isMember(name string) bool {
	for _, m := range h.cfg.Members {
		if m == name {
			return true
		}
	}
	return false
}

func (h *Holder) warn(ctx context.Context, message string, err error) {
	if !errors.Is(ctx.Err(), context.Canceled) {
		h.cfg.Logger.Warn(message, "error", err)
	}
}
