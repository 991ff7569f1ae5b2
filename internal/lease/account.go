package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Names of leases for workers begin with one of these; those of the projection
// with none of them.
const (
	accountPrefix = "account/"
	namedPrefix   = "named/"
)

// AccountName returns the name of the lease of an account.
func AccountName(id ledger.AccountID) string { return accountPrefix + string(id) }

// Named returns the name under which a lease of the workers' own is kept.
func Named(name string) string { return namedPrefix + name }

// NamedPrefix begins all names that Named returns.
const NamedPrefix = namedPrefix

// Ledger is what account leases need of the ledger.
type Ledger interface {
	// Head returns the account and its last entry, or a *ledger.Refusal.
	Head(ctx context.Context, id ledger.AccountID) (ledger.Head, error)
	// Apply commits an operation durably, or returns a *ledger.Refusal that says
	// what is known.
	Apply(ctx context.Context, op *ledger.Operation) (*ledger.Receipt, error)
}

// Accounts hands out the leases of accounts. An acquisition is answered only
// when the account's chain refuses every older token.
type Accounts struct {
	grants *Grants
	ledger Ledger
}

// NewAccounts returns the account leases that are kept in grants.
func NewAccounts(grants *Grants, l Ledger) *Accounts { return &Accounts{grants: grants, ledger: l} }

// Acquired is an account lease together with the entry that fences the account.
type Acquired struct {
	Grant
	// Fenced is the link that raised the fence: the account as its new owner
	// finds it. No write with an older token is or will be behind it.
	Fenced  ledger.Entry
	Account ledger.Account
}

// Acquire takes the lease of the account and raises its fence to the new token.
//
// There are two commits. After the first the name is held and nobody knows; a
// crash here costs the others the ttl, and no token is known that the fence
// would have to be below. After the second every older token is refused, and
// only then is there an answer. When the second fails the lease is given back.
//
// The error is a *Held, or a *ledger.Refusal: account_not_found,
// fencing_external, account_closed, or what the writer says.
func (a *Accounts) Acquire(ctx context.Context, id ledger.AccountID, holder string, ttl, lockDelay time.Duration) (Acquired, error) {
	if err := a.mayLease(ctx, id); err != nil {
		return Acquired{}, err
	}
	name := AccountName(id)
	g, err := a.grants.Acquire(ctx, name, holder, ttl, lockDelay)
	if err != nil {
		return Acquired{}, err
	}
	receipt, err := a.ledger.Apply(ctx, &ledger.Operation{
		Kind: ledger.KindFenced, AccountID: id, Token: ledger.Token(g.Token()),
	})
	if err == nil {
		return Acquired{Grant: g, Fenced: receipt.Entry, Account: receipt.Account}, nil
	}
	return Acquired{}, a.giveBack(ctx, &g, err)
}

// giveBack releases a lease whose account could not be fenced and returns what
// to tell the caller. When the release fails too, the lease runs out by itself.
func (a *Accounts) giveBack(ctx context.Context, g *Grant, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, releaseErr := a.grants.Release(ctx, g.Name, g.Holder, g.Token())
	refusal := (*ledger.Refusal)(nil)
	if errors.As(cause, &refusal) && refusal.Code == ledger.CodeLeaseHeld {
		return a.outrun(ctx, g, refusal)
	}
	if releaseErr != nil && !errors.Is(releaseErr, ErrTermOver) {
		return fmt.Errorf("%w (and the lease runs until %s: %w)", cause, g.ExpiresAt.UTC().Format(time.RFC3339), releaseErr)
	}
	return cause
}

// outrun says why the fence is at or above a token that was handed out just now.
func (a *Accounts) outrun(ctx context.Context, g *Grant, refusal *ledger.Refusal) error {
	seen, err := a.grants.Look(ctx, g.Name)
	switch {
	case err != nil:
		return err
	case seen.Generation == g.Generation && seen.Incarnation == g.Incarnation:
		// Nobody came after us: the fence is not from a lease.
		return &ledger.Refusal{
			Code: ledger.CodeFencingExternal, Applied: ledger.NotApplied,
			Detail: fmt.Sprintf("The fence is at %d, above the token %d of this lease: it was set while the tokens came from another coordinator. "+
				"Set the source to external, and then to lease again with a reset.", refusal.Current, g.Token()),
		}
	case seen.State == StateFree:
		seen.State, seen.FreeIn = StateHeld, time.Millisecond // it was, a moment ago
	}
	// The term ran out while the entry was on its way, and a newer owner fenced
	// the account.
	return &Held{seen}
}

// mayLease refuses what the fence would refuse, before a row is made for it:
// rows of leases are never deleted.
func (a *Accounts) mayLease(ctx context.Context, id ledger.AccountID) error {
	head, err := a.ledger.Head(ctx, id)
	if err != nil {
		return err
	}
	refuse := func(code ledger.Code, format string) error {
		return &ledger.Refusal{Code: code, Applied: ledger.NotApplied, Detail: fmt.Sprintf(format, id)}
	}
	switch {
	case head.State.Fencing.Source != ledger.SourceLease:
		return refuse(ledger.CodeFencingExternal, "The tokens of %s come from another coordinator.")
	case head.State.Status == ledger.Closed:
		return refuse(ledger.CodeAccountClosed, "The account %s is closed.")
	}
	return nil
}

// Renew lets the term run for ttl from now on; see Grants.Renew.
func (a *Accounts) Renew(ctx context.Context, id ledger.AccountID, holder string, token Token, ttl time.Duration) (Grant, error) {
	return a.grants.Renew(ctx, AccountName(id), holder, token, ttl)
}

// Release ends the term; see Grants.Release. The fence stays: the next token is
// above it.
func (a *Accounts) Release(ctx context.Context, id ledger.AccountID, holder string, token Token) (Grant, error) {
	return a.grants.Release(ctx, AccountName(id), holder, token)
}

// Look reads the last term of the account's lease; see Grants.Look.
func (a *Accounts) Look(ctx context.Context, id ledger.AccountID) (Grant, error) {
	return a.grants.Look(ctx, AccountName(id))
}
