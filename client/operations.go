package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Operation is a credit or debit. Only Amount is required.
type Operation struct {
	// Amount is in minor units, 1 to 2^53-1.
	Amount int64 `json:"amount"`
	// Currency, when given, must be the account's.
	Currency    string `json:"currency,omitempty"`
	Description string `json:"description,omitempty"`
	// EffectiveAt is the business date, for reports only; zero is the time of
	// posting. The service keeps microseconds.
	EffectiveAt  time.Time         `json:"effective_at,omitzero"`
	Counterparty string            `json:"counterparty,omitempty"`
	Metadata     map[string]string `json:"metadata,omitempty"`
}

// Receipt is the answer to an operation that is in the account's chain.
type Receipt struct {
	Entry
	// Replayed is true when an earlier request with the same key, which may be
	// an earlier attempt of this call, had added the entry.
	Replayed bool `json:"-"`
}

// WriteOption is a condition or a name of one write.
type WriteOption func(*write)

// Key sets the idempotency key of a credit or debit: 1 to 255 visible ASCII
// characters, unique on the account. Without it the client makes one up, which
// protects the retries of this call but not a repetition by its caller.
func Key(key string) WriteOption { return func(w *write) { w.key = key } }

// IfMatch makes a write conditional: the account's last entry must be seq,
// otherwise the answer is a *Problem with CodeSeqMismatch.
func IfMatch(seq int64) WriteOption { return func(w *write) { w.ifMatch = seq } }

// FencingToken presents the token under which the caller works. When somebody
// else owns the account by now the answer is a *Problem with
// CodeStaleFencingToken: stop.
func FencingToken(token int64) WriteOption { return func(w *write) { w.token = token } }

type write struct {
	key            string
	ifMatch, token int64
	lease          *HeldLease // under which it happens, or nil
}

// under takes over the token of the lease of the account that ctx works under,
// unless the caller gave one.
func (w *write) under(ctx context.Context, accountID string) {
	w.lease, w.token = leaseOn(ctx, accountID), tokenOn(ctx, accountID, w.token)
}

func (w *write) refused(err error) {
	if w.lease != nil {
		w.lease.refused(err)
	}
}

func writeOptions(options []WriteOption) write {
	var w write
	for _, o := range options {
		o(&w)
	}
	return w
}

func (w *write) setHeader(h http.Header) {
	if w.key != "" {
		h.Set("Idempotency-Key", quoteKey(w.key))
	}
	if w.ifMatch != 0 {
		h.Set("If-Match", `"`+strconv.FormatInt(w.ifMatch, 10)+`"`)
	}
	if w.token != 0 {
		h.Set("Fencing-Token", strconv.FormatInt(w.token, 10))
	}
	if w.lease != nil {
		h.Set("User-Agent", "ledgerd-client lease-holder="+w.lease.Holder) // for the list of refused writes
	}
}

// quoteKey writes a key as a structured-field string (RFC 9651, section 3.3.3)
// when the bare form could be mistaken for one.
func quoteKey(key string) string {
	if !strings.ContainsAny(key, `"\`) {
		return key
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

// Credit adds money to the account. A refusal is a *Problem.
func (c *Client) Credit(ctx context.Context, accountID string, op Operation, options ...WriteOption) (Receipt, error) {
	return c.apply(ctx, "credit", "/credits", accountID, op, options)
}

// Debit takes money from the account, never more than is available. A refusal
// is a *Problem; CodeInsufficientFunds and its like are recorded under the key.
func (c *Client) Debit(ctx context.Context, accountID string, op Operation, options ...WriteOption) (Receipt, error) {
	return c.apply(ctx, "debit", "/debits", accountID, op, options)
}

func (c *Client) apply(ctx context.Context, verb, resource, accountID string, op Operation, options []WriteOption) (Receipt, error) {
	cl, err := newCall(verb, http.MethodPost, accountID, resource)
	if err != nil {
		return Receipt{}, err
	}
	if err := op.check(); err != nil {
		return Receipt{}, fmt.Errorf("%s: %w", cl.action, err)
	}
	op.EffectiveAt = op.EffectiveAt.Truncate(time.Microsecond)
	if err := cl.setBody(op); err != nil {
		return Receipt{}, err
	}
	w := writeOptions(options)
	w.under(ctx, accountID)
	if w.key == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return Receipt{}, fmt.Errorf("%s: make an idempotency key: %w", cl.action, err)
		}
		w.key = id.String()
	}
	w.setHeader(cl.header)
	cl.key = w.key
	var r Receipt
	ans, err := c.do(ctx, cl, &r)
	if err != nil {
		w.refused(err)
		return Receipt{}, err
	}
	r.Replayed = ans.header.Get("Idempotency-Replayed") == "true"
	return r, nil
}

// check refuses text that JSON would carry changed; every other rule is the
// service's.
func (op *Operation) check() error {
	if !utf8.ValidString(op.Description) || !utf8.ValidString(op.Counterparty) {
		return fmt.Errorf("description and counterparty must be valid UTF-8")
	}
	for k, v := range op.Metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("metadata %q is not valid UTF-8", k)
		}
	}
	return nil
}

// newCall returns a call on an account, or on something below it.
func newCall(verb, method, accountID, below string) (*call, error) {
	if accountID == "" || accountID == "." || accountID == ".." {
		return nil, fmt.Errorf("%s account: %q is not an account id", verb, accountID)
	}
	return &call{
		action: verb + " account " + accountID,
		method: method,
		path:   "/v1/accounts/" + url.PathEscape(accountID) + below,
		header: http.Header{},
		write:  method != http.MethodGet,
	}, nil
}

func (cl *call) setBody(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: encode the request: %w", cl.action, err)
	}
	cl.body = b
	return nil
}
