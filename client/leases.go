package client

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// Lease is the last term of an account's lease, as the service sees it.
type Lease struct {
	AccountID string `json:"account_id"`
	// State is "held", "lock_delay" (its holder vanished, nobody may acquire
	// yet) or "free".
	State  string `json:"state"`
	Holder string `json:"holder"`
	// Token goes with every write, as FencingToken.
	Token       int64     `json:"token"`
	TTLMs       int64     `json:"ttl_ms"`
	LockDelayMs int64     `json:"lock_delay_ms"`
	AcquiredAt  time.Time `json:"acquired_at"`
	// ExpiresAt is by the database's clock: for people. A holder counts from
	// before its request, on its own monotonic clock, as WithLease does.
	ExpiresAt time.Time `json:"expires_at"`
	FreeInMs  int64     `json:"free_in_ms"`
	// Sequencer describes the term to others; "" in what GetLease returns.
	Sequencer string `json:"sequencer"`
	// Seq is the entry that fenced the account, and the rest is the account
	// there: no write with an older token is or will be behind it. AcquireLease
	// alone sets them.
	Seq       int64  `json:"seq"`
	Currency  string `json:"currency"`
	Balance   int64  `json:"balance"`
	Held      int64  `json:"held"`
	Available int64  `json:"available"`
}

// AcquireLease takes the lease of the account for ttl, 100 ms to 10 minutes;
// when it ends without a release nobody may acquire it for lockDelay, 0 to one
// minute. When somebody else has it the error is a *Problem with CodeLeaseHeld.
// Give each acquisition a holder name of its own. WithLease does all of this.
func (c *Client) AcquireLease(ctx context.Context, accountID, holder string, ttl, lockDelay time.Duration) (Lease, error) {
	return c.lease(ctx, "acquire the lease of", http.MethodPost, accountID, map[string]any{
		"holder": holder, "ttl_ms": ttl.Milliseconds(), "lock_delay_ms": lockDelay.Milliseconds(),
	})
}

// RenewLease lets the term run for ttl from now on. When it does not stand any
// more the error is a *Problem with CodeLeaseLost: stop.
func (c *Client) RenewLease(ctx context.Context, accountID, holder string, token int64, ttl time.Duration) (Lease, error) {
	return c.lease(ctx, "renew the lease of", http.MethodPut, accountID, map[string]any{
		"holder": holder, "token": token, "ttl_ms": ttl.Milliseconds(),
	})
}

// ReleaseLease ends the term at once, so that another holder can go on.
func (c *Client) ReleaseLease(ctx context.Context, accountID, holder string, token int64) (Lease, error) {
	return c.lease(ctx, "release the lease of", http.MethodDelete, accountID, map[string]any{"holder": holder, "token": token})
}

// GetLease reads the last term of the account's lease. When nobody acquired it
// yet the error is a *Problem with CodeLeaseNotFound.
func (c *Client) GetLease(ctx context.Context, accountID string) (Lease, error) {
	return c.lease(ctx, "read the lease of", http.MethodGet, accountID, nil)
}

func (c *Client) lease(ctx context.Context, verb, method, accountID string, body map[string]any) (Lease, error) {
	cl, err := newCall(verb, method, accountID, "/lease")
	if err != nil {
		return Lease{}, err
	}
	if body != nil {
		if err := cl.setBody(body); err != nil {
			return Lease{}, err
		}
	}
	var l Lease
	if _, err := c.do(ctx, cl, &l); err != nil {
		return Lease{}, err
	}
	return l, nil
}

// CheckSequencer asks how the term that a sequencer describes stands: "valid",
// "superseded", "expired" or "unknown".
func (c *Client) CheckSequencer(ctx context.Context, sequencer string) (string, error) {
	cl := &call{action: "check a sequencer", method: http.MethodPost, path: "/v1/sequencers/check", header: http.Header{}}
	if err := cl.setBody(map[string]string{"sequencer": sequencer}); err != nil {
		return "", err
	}
	var answer struct {
		Status string `json:"status"`
	}
	if _, err := c.do(ctx, cl, &answer); err != nil {
		return "", fmt.Errorf("check a sequencer: %w", err)
	}
	return answer.Status, nil
}
