package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Leases hands out temporary ownership: of accounts in one implementation, of
// other names in another. Errors are a *LeaseRefusal or a *ledger.Refusal;
// after any other error the outcome is not known. Every write may be repeated.
type Leases interface {
	// Acquire takes the name. Of an account it returns only when every older
	// token is refused, with the entry that does so.
	Acquire(ctx context.Context, name string, a LeaseAcquisition) (Lease, error)
	// Renew and Release compare the exact term: holder and token.
	Renew(ctx context.Context, name string, t LeaseTerm, ttl time.Duration) (Lease, error)
	Release(ctx context.Context, name string, t LeaseTerm) (Lease, error)
	// Lease returns the last term of the name.
	Lease(ctx context.Context, name string) (Lease, error)
}

// LeaseAdmin is what operators and third parties do with named leases.
type LeaseAdmin interface {
	// List returns up to limit names behind after, in their order.
	List(ctx context.Context, after string, limit int) ([]Lease, error)
	// ForceRelease ends the term of whoever holds the name and keeps who did so
	// and why.
	ForceRelease(ctx context.Context, name, by, reason string) (Lease, error)
	// CheckSequencer judges the term that a sequencer describes.
	CheckSequencer(ctx context.Context, sequencer string) (SequencerCheck, error)
}

// LeaseAcquisition is who wants a lease, and for how long.
type LeaseAcquisition struct {
	Holder         string
	TTL, LockDelay time.Duration
}

// LeaseTerm is what a holder presents.
type LeaseTerm struct {
	Holder string
	Token  ledger.Token
}

// Lease is the last term of a name, and how it stands.
type Lease struct {
	AccountID  string       `json:"account_id,omitzero"`
	Name       string       `json:"name,omitzero"`
	Mode       string       `json:"mode"`
	State      string       `json:"state"`
	Holder     string       `json:"holder"`
	Token      ledger.Token `json:"token"`
	TTL        int64        `json:"ttl_ms"`
	LockDelay  int64        `json:"lock_delay_ms"`
	AcquiredAt time.Time    `json:"acquired_at"`
	ExpiresAt  time.Time    `json:"expires_at"`
	// FreeIn is when the name can be acquired if its holder does nothing more.
	FreeIn int64 `json:"free_in_ms"`
	// Sequencer is for the holder alone: the answers to others do not have it.
	Sequencer string `json:"sequencer,omitzero"`
	// ForcedBy and ForcedReason say who ended the term by force, and why.
	ForcedBy     string `json:"forced_by,omitzero"`
	ForcedReason string `json:"forced_reason,omitzero"`
	// Fenced is the entry of an acquisition of an account, else nil.
	Fenced   *ledger.Entry   `json:"-"`
	Currency ledger.Currency `json:"-"`
}

// acquiredLease is the answer to the acquisition of an account's lease.
type acquiredLease struct {
	Lease
	Seq       ledger.Seq      `json:"seq"`
	Currency  ledger.Currency `json:"currency"`
	Balance   ledger.Amount   `json:"balance"`
	Held      ledger.Amount   `json:"held"`
	Available ledger.Amount   `json:"available"`
}

// SequencerCheck is what the service says to whom a sequencer was shown.
type SequencerCheck struct {
	// Status is valid, superseded, expired or unknown. The rest is "" or 0 when
	// it is unknown.
	Status string `json:"status"`
	Name   string `json:"name,omitzero"`
	// AccountID is set instead of Name for the lease of an account.
	AccountID string       `json:"account_id,omitzero"`
	Mode      string       `json:"mode,omitzero"`
	Token     ledger.Token `json:"token,omitzero"`
	// CurrentToken is that of the name's last term.
	CurrentToken ledger.Token `json:"current_token,omitzero"`
}

// LeaseRefusal is the error of a lease that was not given, or does not stand.
type LeaseRefusal struct {
	// Code is ledger.CodeLeaseHeld, CodeLeaseLost or CodeLeaseNotFound.
	Code ledger.Code
	// With lease_held: why ("held" or "lock_delay"), whose term it is, and when
	// the name becomes free if that holder does nothing more.
	Reason     string
	Holder     string
	RetryAfter time.Duration
}

// The refusals of leases beside ledger.CodeLeaseHeld.
const (
	CodeLeaseLost     = codeLeaseLost
	CodeLeaseNotFound = codeLeaseNotFound
)

// Error implements error.
func (l *LeaseRefusal) Error() string { return string(l.Code) + " " + l.Reason }

// asProblem returns the document for the refusal.
func (l *LeaseRefusal) asProblem() *problem {
	p := &problem{code: l.Code, reason: l.Reason, holder: l.Holder, retryAfter: l.RetryAfter}
	ms := l.RetryAfter.Milliseconds()
	switch {
	case l.Code == codeLeaseNotFound:
		p.detail = "Nobody has acquired this lease yet."
	case l.Code == codeLeaseLost:
		p.detail = "This term does not stand: it ran out, was released, or was never given to this holder. Stop, and acquire again."
	case l.Reason == "lock_delay":
		p.detail = fmt.Sprintf("The last holder vanished; its lock delay ends in %d ms.", ms)
	default:
		p.detail = fmt.Sprintf("Somebody else holds the lease; if it is not renewed it becomes free in %d ms.", ms)
	}
	return p
}

// leaseRoutes registers the four calls of one kind of lease.
func (s *server) leaseRoutes(pattern string, of func(*http.Request) (string, error), leases Leases) {
	h := leaseHandlers{s, of, leases}
	s.write("POST", pattern, h.acquire)
	s.write("PUT", pattern, h.renew)
	s.write("DELETE", pattern, h.release)
	s.read("GET", pattern, h.get)
}

type leaseHandlers struct {
	s      *server
	of     func(*http.Request) (string, error) // the name that the path has
	leases Leases
}

func (h leaseHandlers) acquire(x *exchange, r *http.Request) error {
	name, body, err := h.read(r, leaseFields{holder: true, ttl: true, lockDelay: true})
	if err != nil {
		return err
	}
	l, err := h.leases.Acquire(r.Context(), name, LeaseAcquisition{Holder: body.Holder, TTL: body.ttl, LockDelay: body.lockDelay})
	if err != nil {
		return err
	}
	if l.Fenced == nil {
		return h.s.sendValue(x, http.StatusCreated, l)
	}
	after := &l.Fenced.After
	x.set("Etag", etag(l.Fenced.Seq))
	return h.s.sendValue(x, http.StatusCreated, acquiredLease{
		Lease: l, Seq: l.Fenced.Seq, Currency: l.Currency,
		Balance: after.Balance, Held: after.Held, Available: after.Available(),
	})
}

func (h leaseHandlers) renew(x *exchange, r *http.Request) error {
	name, body, err := h.read(r, leaseFields{holder: true, token: true, ttl: true})
	if err != nil {
		return err
	}
	l, err := h.leases.Renew(r.Context(), name, body.LeaseTerm, body.ttl)
	if err != nil {
		return err
	}
	return h.s.sendValue(x, http.StatusOK, l)
}

func (h leaseHandlers) release(x *exchange, r *http.Request) error {
	name, body, err := h.read(r, leaseFields{holder: true, token: true})
	if err != nil {
		return err
	}
	l, err := h.leases.Release(r.Context(), name, body.LeaseTerm)
	if err != nil {
		return err
	}
	return h.s.sendValue(x, http.StatusOK, l)
}

func (h leaseHandlers) get(x *exchange, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	name, err := h.of(r)
	if err != nil {
		return err
	}
	l, err := h.leases.Lease(r.Context(), name)
	if err != nil {
		return err
	}
	return h.s.sendValue(x, http.StatusOK, l)
}

// read checks the whole request before anything is done about it.
func (h leaseHandlers) read(r *http.Request, fields leaseFields) (string, leaseBody, error) {
	var body leaseBody
	if err := noQuery(r); err != nil {
		return "", body, err
	}
	name, err := h.of(r)
	if err != nil {
		return "", body, err
	}
	d := h.s.decoder()
	defer h.s.release(d)
	if err := d.fill(r); err != nil {
		return "", body, err
	}
	return name, body, d.lease(&body, fields)
}

// leaseFields says which members a body has; all but lock_delay_ms are required.
type leaseFields struct{ holder, token, ttl, lockDelay, by, reason bool }

type leaseBody struct {
	LeaseTerm
	ttl, lockDelay time.Duration
	by, reason     string
}

const (
	ttlMax       = 600_000 // milliseconds, like all three
	ttlMin       = 100
	lockDelayMax = 60_000
	// leaseTextMax is the longest holder or reason in characters.
	leaseTextMax = 255
)

func (d *decoder) lease(b *leaseBody, fields leaseFields) error {
	missing := fields
	d.document(func(name []byte) {
		switch n := string(name); {
		case n == "holder" && fields.holder:
			missing.holder = false
			b.Holder, _ = d.text("/holder", 1, leaseTextMax)
		case n == "token" && fields.token:
			missing.token = false
			b.Token = ledger.Token(d.integer("/token", 1, int64(ledger.MaxToken)))
		case n == "ttl_ms" && fields.ttl:
			missing.ttl = false
			b.ttl = time.Duration(d.integer("/ttl_ms", ttlMin, ttlMax)) * time.Millisecond
		case n == "lock_delay_ms" && fields.lockDelay:
			b.lockDelay = time.Duration(d.integer("/lock_delay_ms", 0, lockDelayMax)) * time.Millisecond
		case n == "by" && fields.by:
			missing.by = false
			b.by, _ = d.text("/by", 1, leaseTextMax)
		case n == "reason" && fields.reason:
			missing.reason = false
			b.reason, _ = d.text("/reason", 1, leaseTextMax)
		default:
			d.unknown("", name)
		}
	})
	if len(d.errs) == 0 && d.syntax == nil {
		for _, m := range [...]struct {
			name   string
			absent bool
		}{
			{"holder", missing.holder}, {"token", missing.token}, {"ttl_ms", missing.ttl},
			{"by", missing.by}, {"reason", missing.reason},
		} {
			if m.absent {
				d.fail("/"+m.name, "required")
			}
		}
	}
	return d.err()
}

// accountOf returns the account that the path names, as the name of a lease.
func accountOf(r *http.Request) (string, error) {
	id, err := accountID(r)
	return string(id), err
}

// leaseName returns the named lease of the path. Names follow the rules of
// account ids.
func leaseName(r *http.Request) (string, error) {
	name := pathValue(r, "name")
	if _, err := ledger.ParseAccountID(name); err != nil {
		return "", invalid(fieldError{parameter: "name", detail: "1 to 128 characters of [A-Za-z0-9._:-], the first one a letter or a digit"})
	}
	return name, nil
}

func (s *server) listLeases(x *exchange, r *http.Request) error {
	q := parseQuery(r, "limit", "cursor")
	limit := q.limit()
	var after string
	if q.has("cursor") {
		var err error
		if after, err = parseLeasesCursor(q.values.Get("cursor")); err != nil {
			q.fail("cursor", err.Error())
		}
	}
	if err := q.err(); err != nil {
		return err
	}
	list, err := s.leaseAdmin.List(r.Context(), after, limit+1)
	if err != nil {
		return err
	}
	page := listPage[Lease]{Data: list}
	if len(list) > limit {
		page.Data = list[:limit]
		next := leasesCursor(list[limit-1].Name)
		page.Next = &next
	}
	return s.sendValue(x, http.StatusOK, page)
}

// listPage is a page of a list that is not on the hot path.
type listPage[T any] struct {
	Data []T     `json:"data"`
	Next *string `json:"next_cursor"`
}

func (s *server) forceRelease(x *exchange, r *http.Request) error {
	h := leaseHandlers{s: s, of: leaseName}
	name, body, err := h.read(r, leaseFields{by: true, reason: true})
	if err != nil {
		return err
	}
	l, err := s.leaseAdmin.ForceRelease(r.Context(), name, body.by, body.reason)
	if err != nil {
		return err
	}
	return s.sendValue(x, http.StatusOK, l)
}

func (s *server) checkSequencer(x *exchange, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	d := s.decoder()
	defer s.release(d)
	if err := d.fill(r); err != nil {
		return err
	}
	sequencer, seen := "", false
	d.document(func(name []byte) {
		if string(name) != "sequencer" {
			d.unknown("", name)
			return
		}
		seen = true
		sequencer, _ = d.text("/sequencer", 1, 512)
	})
	if !seen && len(d.errs) == 0 && d.syntax == nil {
		d.fail("/sequencer", "required")
	}
	if err := d.err(); err != nil {
		return err
	}
	check, err := s.leaseAdmin.CheckSequencer(r.Context(), sequencer)
	if err != nil {
		return err
	}
	return s.sendValue(x, http.StatusOK, check)
}
