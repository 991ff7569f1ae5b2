package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Status says what an account accepts.
type Status string

const (
	// Active accounts accept everything.
	Active Status = "active"
	// Frozen accounts accept credits only.
	Frozen Status = "frozen"
	// Closed accounts accept nothing, for ever.
	Closed Status = "closed"
)

// Sources of the fencing tokens of an account.
const (
	SourceLease    = "lease"
	SourceExternal = "external"
)

// Fencing is the fencing rule of an account.
type Fencing struct {
	// Source says who hands out the tokens: SourceLease (the service) or
	// SourceExternal (another coordinator).
	Source string `json:"source"`
	// Required refuses writes that carry no token.
	Required bool `json:"required"`
}

// Account is a wallet as it is after its last entry. Money is in minor units.
type Account struct {
	ID         string            `json:"account_id"`
	Currency   string            `json:"currency"`
	Exponent   int               `json:"exponent"`
	Status     Status            `json:"status"`
	Balance    int64             `json:"balance"`
	Held       int64             `json:"held"`
	Available  int64             `json:"available"`
	MinBalance int64             `json:"min_balance"`
	Fencing    Fencing           `json:"fencing"`
	Fence      int64             `json:"fence"`
	Seq        int64             `json:"seq"`
	Metadata   map[string]string `json:"metadata"`
	OpenedAt   time.Time         `json:"opened_at"`
}

// Opening is what an account is opened with. Only Currency is required.
type Opening struct {
	// Currency is an ISO 4217 code or a unit of your own such as POINTS.
	Currency string `json:"currency"`
	// Exponent is the number of decimal places of a minor unit, 0 to 18; nil
	// takes the one of ISO 4217, otherwise 2.
	Exponent *int `json:"exponent,omitempty"`
	// MinBalance is at or below 0: how far the balance may go below zero.
	MinBalance int64             `json:"min_balance,omitempty"`
	Fencing    *Fencing          `json:"fencing,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
}

// Change is a change of an account; nil members stay as they are.
type Change struct {
	Status     *Status        `json:"status,omitempty"`
	MinBalance *int64         `json:"min_balance,omitempty"`
	Fencing    *FencingChange `json:"fencing,omitempty"`
	// Metadata takes the place of all metadata; an empty map removes it.
	Metadata map[string]string `json:"metadata,omitzero"`
}

// FencingChange is a change of the fencing rule; nil members stay as they are.
type FencingChange struct {
	Source   *string `json:"source,omitempty"`
	Required *bool   `json:"required,omitempty"`
	// Reset lowers the fence to this value and needs a Reason.
	Reset  *int64 `json:"reset,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// OpenAccount opens the account. When it was opened before with the same
// attributes it returns the account as it is now, with opened false; with other
// attributes it returns a *Problem with CodeAccountExists.
func (c *Client) OpenAccount(ctx context.Context, id string, o Opening) (a Account, opened bool, err error) {
	cl, err := newCall("open", http.MethodPut, id, "")
	if err != nil {
		return Account{}, false, err
	}
	if err := cl.setBody(o); err != nil {
		return Account{}, false, err
	}
	ans, err := c.do(ctx, cl, &a)
	if err != nil {
		return Account{}, false, err
	}
	return a, ans.status == http.StatusCreated, nil
}

// UpdateAccount changes settings of the account and returns it as it is after
// that. A change has no idempotency key, and needs none: repeated, it finds
// everything as it wants it. With IfMatch a repeated attempt can meet its own
// first effect; the error is then an *UnknownOutcome around CodeSeqMismatch.
func (c *Client) UpdateAccount(ctx context.Context, id string, ch Change, options ...WriteOption) (Account, error) {
	cl, err := newCall("update", http.MethodPatch, id, "")
	if err != nil {
		return Account{}, err
	}
	if err := cl.setBody(ch); err != nil {
		return Account{}, err
	}
	w := writeOptions(options)
	if w.key != "" {
		return Account{}, fmt.Errorf("%s: a change of an account has no idempotency key", cl.action)
	}
	w.under(ctx, id)
	w.setHeader(cl.header)
	var a Account
	if _, err = c.do(ctx, cl, &a); err != nil {
		w.refused(err)
	}
	return a, err
}

// Account returns the account as it is after its last entry.
func (c *Client) Account(ctx context.Context, id string) (Account, error) {
	cl, err := newCall("read", http.MethodGet, id, "")
	if err != nil {
		return Account{}, err
	}
	var a Account
	_, err = c.do(ctx, cl, &a)
	return a, err
}

// AccountQuery says which accounts a list has; zero members do not filter.
type AccountQuery struct {
	Currency string
	Status   Status
	// PageSize is how many accounts one request brings, 1 to 200; 0 means 200.
	PageSize int
}

// Accounts lists accounts in the order of their ids, fetching pages as they are
// needed. An error ends the list.
func (c *Client) Accounts(ctx context.Context, q AccountQuery) iter.Seq2[Account, error] {
	filter := url.Values{}
	if q.Currency != "" {
		filter.Set("currency", q.Currency)
	}
	if q.Status != "" {
		filter.Set("status", string(q.Status))
	}
	return pages[Account](ctx, c, "list accounts", "/v1/accounts", filter, q.PageSize)
}
