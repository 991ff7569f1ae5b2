package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"
)

// Item is one operation of a batch or stream. Make it with CreditItem,
// DebitItem, TransferItem or TransactionItem.
type Item struct {
	// Type is KindCredit, KindDebit, KindTransfer or KindTransaction.
	Type Kind `json:"type"`
	// Key is the idempotency key. It is required: only with it can an item be
	// sent again.
	Key string `json:"idempotency_key"`
	// AccountID is set for a credit or debit, From and To for a transfer, Legs
	// for a transaction.
	AccountID string `json:"account_id,omitempty"`
	From      string `json:"from,omitempty"`
	To        string `json:"to,omitempty"`
	Legs      []Leg  `json:"legs,omitempty"`

	Amount       int64             `json:"amount,omitempty"`
	Currency     string            `json:"currency,omitempty"`
	Description  string            `json:"description,omitempty"`
	EffectiveAt  time.Time         `json:"effective_at,omitzero"`
	Counterparty string            `json:"counterparty,omitempty"`
	Metadata     map[string]string `json:"metadata,omitempty"`

	// FencingToken speaks for the account, for From or for the account of the
	// first leg; ToFencingToken for To. IfMatch is for a credit or debit alone.
	FencingToken   int64 `json:"fencing_token,omitempty"`
	ToFencingToken int64 `json:"to_fencing_token,omitempty"`
	IfMatch        int64 `json:"if_match,omitempty"`
}

// under returns the item with the tokens of the leases that ctx works under.
func (it Item) under(ctx context.Context) Item {
	first := it.AccountID
	switch {
	case it.From != "":
		first = it.From
	case len(it.Legs) > 0:
		first = it.Legs[0].AccountID
		it.Legs = slices.Clone(it.Legs)
		for i := range it.Legs {
			if leg := &it.Legs[i]; leg.AccountID != first {
				leg.FencingToken = tokenOn(ctx, leg.AccountID, leg.FencingToken)
			}
		}
	}
	it.FencingToken = tokenOn(ctx, first, it.FencingToken)
	if it.To != "" {
		it.ToFencingToken = tokenOn(ctx, it.To, it.ToFencingToken)
	}
	return it
}

// CreditItem is what Client.Credit does, as an item.
func CreditItem(key, accountID string, op Operation) Item {
	return accountItem(KindCredit, key, accountID, op)
}

// DebitItem is what Client.Debit does, as an item.
func DebitItem(key, accountID string, op Operation) Item {
	return accountItem(KindDebit, key, accountID, op)
}

func accountItem(kind Kind, key, accountID string, op Operation) Item {
	return Item{
		Type: kind, Key: key, AccountID: accountID, Amount: op.Amount, Currency: op.Currency, Description: op.Description,
		EffectiveAt: op.EffectiveAt, Counterparty: op.Counterparty, Metadata: op.Metadata,
	}
}

// TransferItem is what Client.Transfer does, as an item.
func TransferItem(key string, t Transfer) Item {
	return Item{
		Type: KindTransfer, Key: key, From: t.From, To: t.To, Amount: t.Amount, Currency: t.Currency, Description: t.Description,
		EffectiveAt: t.EffectiveAt, Metadata: t.Metadata, ToFencingToken: t.ToFencingToken,
	}
}

// TransactionItem is what Client.Transact does, as an item.
func TransactionItem(key string, t NewTransaction) Item {
	return Item{
		Type: KindTransaction, Key: key, Legs: t.Legs, Currency: t.Currency, Description: t.Description,
		EffectiveAt: t.EffectiveAt, Metadata: t.Metadata,
	}
}

// encode returns the item as JSON, or an error when it cannot be an item of
// anything: what else is wrong with it is the service's to say.
func (it Item) encode() ([]byte, error) {
	if it.Key == "" {
		return nil, fmt.Errorf("an item needs an idempotency key")
	}
	if !utf8.ValidString(it.Counterparty) {
		return nil, fmt.Errorf("counterparty must be valid UTF-8")
	}
	if err := checkText(it.Description, it.Metadata); err != nil {
		return nil, err
	}
	it.EffectiveAt = it.EffectiveAt.Truncate(time.Microsecond)
	return json.Marshal(it)
}

// Result is what became of one item.
type Result struct {
	// Key is that of the item.
	Key string
	// Entries are what the operation added to the chains, one for a credit or
	// debit, otherwise one a leg in their order. None when Err is set.
	Entries []Entry
	// Replayed is true when an earlier request with the same key had added them.
	Replayed bool
	// Err is nil when the operation is in the chains. A refusal, also a recorded
	// decline, is a *Problem. An *UnknownOutcome, and only in a batch or at the
	// end of a stream's retries, says that it may have been carried out.
	Err error
}

// Entry returns the first entry, which has the key, or the zero Entry.
func (r *Result) Entry() Entry {
	if len(r.Entries) == 0 {
		return Entry{}
	}
	return r.Entries[0]
}

// UnmarshalJSON reads a result as the service writes it.
func (r *Result) UnmarshalJSON(b []byte) error {
	var wire struct {
		Status   int             `json:"status"`
		Key      string          `json:"idempotency_key"`
		Replayed bool            `json:"replayed"`
		Body     json.RawMessage `json:"body"`
	}
	if err := json.Unmarshal(b, &wire); err != nil {
		return err
	}
	*r = Result{Key: wire.Key, Replayed: wire.Replayed}
	if wire.Status > 299 {
		p := &Problem{}
		if err := json.Unmarshal(wire.Body, p); err != nil {
			return fmt.Errorf("the body of a refused item: %w", err)
		}
		p.Status, p.Replayed = wire.Status, wire.Replayed
		r.Err = p
		return nil
	}
	if wire.Status < 200 {
		return fmt.Errorf("an item has the status %d", wire.Status)
	}
	var t struct {
		Entry
		Entries []Entry `json:"entries"`
	}
	if err := json.Unmarshal(wire.Body, &t); err != nil {
		return fmt.Errorf("the body of an item: %w", err)
	}
	if r.Entries = t.Entries; r.Entries == nil {
		r.Entries = []Entry{t.Entry}
	}
	return nil
}

// BatchItemsMax and BatchBytesMax bound one Batch.
const (
	BatchItemsMax = 10_000
	BatchBytesMax = 8 << 20
)

// Batch carries out independent operations in one request; Transact is for all
// or nothing. The results are in the order of the items, and the operations of
// one account are carried out in that order. Like every call it is repeated as
// a whole while it has no answer; items that the service could not decide for
// now (503 …) are left to the caller, and sending the batch again replays the
// others. For more than BatchItemsMax items use Stream.
//
// The error is that of the request: then no result is known, and *UnknownOutcome
// says that items may have been carried out.
func (c *Client) Batch(ctx context.Context, items []Item) ([]Result, error) {
	var body bytes.Buffer
	body.WriteString(`{"items":[`)
	for i := range items {
		it := items[i].under(ctx)
		b, err := it.encode()
		if err != nil {
			return nil, fmt.Errorf("batch: item %d: %w", i, err)
		}
		if i > 0 {
			body.WriteByte(',')
		}
		body.Write(b)
	}
	body.WriteString(`]}`)
	cl := &call{
		action: fmt.Sprintf("batch of %d items", len(items)), method: http.MethodPost, path: "/v1/batches",
		header: http.Header{}, body: body.Bytes(), write: true,
		answerMax: batchAnswerBytesMax,
	}
	var answer struct {
		Results []Result `json:"results"`
	}
	if _, err := c.do(ctx, cl, &answer); err != nil {
		return nil, err
	}
	if len(answer.Results) != len(items) {
		return nil, fmt.Errorf("%s: the answer has %d results", cl.action, len(answer.Results))
	}
	return answer.Results, nil
}

// batchAnswerBytesMax bounds the answer to a batch: 8 MiB of legs make some
// hundred thousand entries.
const batchAnswerBytesMax = 256 << 20
