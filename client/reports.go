package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// TrialBalance is all accounts of a currency added up, for the entries that the
// projection has applied. Credits - Debits = Balance, and
// InFromOutside - OutToOutside + InTransit = Balance. Sums beyond 2^63-1 are an
// error of the call.
type TrialBalance struct {
	Currency string    `json:"currency"`
	AsOf     time.Time `json:"as_of"`
	Accounts int64     `json:"accounts"`
	// Entries are in the numbers, EntriesBehind are not applied yet.
	Entries       int64 `json:"entries"`
	EntriesBehind int64 `json:"entries_behind"`
	Credits       int64 `json:"credits"`
	Debits        int64 `json:"debits"`
	Balance       int64 `json:"balance"`
	Held          int64 `json:"held"`
	InFromOutside int64 `json:"in_from_outside"`
	OutToOutside  int64 `json:"out_to_outside"`
	// InTransit is not 0 only while one part of a transaction is applied and
	// another is not.
	InTransit int64 `json:"in_transit"`
	Declines  int64 `json:"declines"`
}

// TrialBalance adds up the accounts of a currency. The service reads all of
// their entries for it.
func (c *Client) TrialBalance(ctx context.Context, currency string) (TrialBalance, error) {
	var t TrialBalance
	cl := &call{
		action: "read the trial balance of " + currency,
		method: http.MethodGet,
		path:   "/v1/reports/trial-balance?" + url.Values{"currency": {currency}}.Encode(),
	}
	_, err := c.do(ctx, cl, &t)
	return t, err
}
