package client

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Transfer is money that moves between two accounts of one currency. From, To
// and Amount are required.
type Transfer struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Amount is in minor units, 1 to 2^53-1.
	Amount int64 `json:"amount"`
	// Currency, when given, must be that of both accounts.
	Currency    string `json:"currency,omitempty"`
	Description string `json:"description,omitempty"`
	// EffectiveAt is the business date, for reports only; zero is the time of
	// posting. The service keeps microseconds.
	EffectiveAt time.Time         `json:"effective_at,omitzero"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	// ToFencingToken, when not 0, is the token for To. That for From is given
	// by the option FencingToken.
	ToFencingToken int64 `json:"to_fencing_token,omitempty"`
}

// NewTransaction is money that moves between several accounts, all legs or none.
type NewTransaction struct {
	// Legs are 2 to 1,000; in each currency the credits equal the debits.
	Legs []Leg `json:"legs"`
	// Currency, when given, must be that of every account.
	Currency    string            `json:"currency,omitempty"`
	Description string            `json:"description,omitempty"`
	EffectiveAt time.Time         `json:"effective_at,omitzero"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// Leg is one movement of a transaction.
type Leg struct {
	AccountID string `json:"account_id"`
	// Direction is KindCredit, money into the account, or KindDebit.
	Direction Kind  `json:"direction"`
	Amount    int64 `json:"amount"`
	// FencingToken, when not 0, is the token for the account.
	FencingToken int64 `json:"fencing_token,omitempty"`
}

// TransactionReceipt is the answer to an operation on several accounts that is
// in their chains: its entries in the order of the legs.
type TransactionReceipt struct {
	Transaction
	// Replayed is true when an earlier request with the same key, which may be
	// an earlier attempt of this call, had added the entries.
	Replayed bool `json:"-"`
}

// Transfer moves money from one account to another, both entries or none. The
// key belongs to From. A refusal is a *Problem; a recorded decline is an entry
// of From, also when To is the reason, which Problem.RefusedBy then names.
// IfMatch is not for transfers.
func (c *Client) Transfer(ctx context.Context, t Transfer, options ...WriteOption) (TransactionReceipt, error) {
	if err := checkText(t.Description, t.Metadata); err != nil {
		return TransactionReceipt{}, fmt.Errorf("transfer: %w", err)
	}
	t.EffectiveAt = t.EffectiveAt.Truncate(time.Microsecond)
	t.ToFencingToken = tokenOn(ctx, t.To, t.ToFencingToken)
	return c.applyLegs(ctx, "transfer from "+t.From+" to "+t.To, "/v1/transfers", t.From, t, options)
}

// Transact carries out a transaction: all its legs or none. The key belongs to
// the account of the first leg, and so does a recorded decline; the option
// FencingToken speaks for it. IfMatch is not for transactions.
func (c *Client) Transact(ctx context.Context, t NewTransaction, options ...WriteOption) (TransactionReceipt, error) {
	if err := checkText(t.Description, t.Metadata); err != nil {
		return TransactionReceipt{}, fmt.Errorf("transact: %w", err)
	}
	t.EffectiveAt = t.EffectiveAt.Truncate(time.Microsecond)
	first := ""
	t.Legs = slices.Clone(t.Legs)
	for i := range t.Legs {
		if leg := &t.Legs[i]; i == 0 {
			first = leg.AccountID // the header speaks for it
		} else if leg.AccountID != first {
			leg.FencingToken = tokenOn(ctx, leg.AccountID, leg.FencingToken)
		}
	}
	return c.applyLegs(ctx, fmt.Sprintf("transact %d legs", len(t.Legs)), "/v1/transactions", first, t, options)
}

func (c *Client) applyLegs(ctx context.Context, action, path, first string, body any, options []WriteOption) (TransactionReceipt, error) {
	cl := &call{action: action, method: http.MethodPost, path: path, header: http.Header{}, write: true}
	if err := cl.setBody(body); err != nil {
		return TransactionReceipt{}, err
	}
	w := writeOptions(options)
	w.under(ctx, first)
	if w.key == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return TransactionReceipt{}, fmt.Errorf("%s: make an idempotency key: %w", action, err)
		}
		w.key = id.String()
	}
	w.setHeader(cl.header)
	cl.key = w.key
	var r TransactionReceipt
	ans, err := c.do(ctx, cl, &r)
	if err != nil {
		w.refused(err)
		return TransactionReceipt{}, err
	}
	r.Replayed = ans.header.Get("Idempotency-Replayed") == "true"
	return r, nil
}

// checkText refuses text that JSON would carry changed.
func checkText(description string, metadata map[string]string) error {
	if !utf8.ValidString(description) {
		return fmt.Errorf("description must be valid UTF-8")
	}
	for k, v := range metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("metadata %q is not valid UTF-8", k)
		}
	}
	return nil
}
