package httpapi

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// The answers of the hot path are appended by hand: a receipt is written for
// every operation, and so costs no allocation but the buffer's. A test compares
// each of them with what the generic encoder makes of the same values.

// timeLayout is RFC 3339 in UTC with microseconds.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// appendEntry appends e as JSON; account says in which currency it is.
func appendEntry(b []byte, e *ledger.Entry, currency ledger.Currency) ([]byte, error) {
	b = append(b, `{"transaction_id":`...)
	b = appendUUID(b, e.TransactionID)
	b = append(b, `,"account_id":"`...)
	b = append(b, e.AccountID...)
	b = append(b, `","seq":`...)
	b = strconv.AppendInt(b, int64(e.Seq), 10)
	b = append(b, `,"kind":"`...)
	b = append(b, e.Kind...)
	b = append(b, `","amount":`...)
	b = strconv.AppendInt(b, int64(e.Amount), 10)
	b = append(b, `,"currency":"`...)
	b = append(b, currency...)
	b = append(b, '"')
	b = appendState(b, &e.After)
	b = append(b, `,"posted_at":`...)
	b = appendTime(b, e.PostedAt)
	b = append(b, `,"effective_at":`...)
	b = appendTime(b, e.EffectiveAt)
	b, err := appendDetails(b, e)
	if err != nil {
		return b, err
	}
	if e.Counterparty != "" {
		b = append(b, `,"counterparty":`...)
		b = appendString(b, e.Counterparty)
	}
	if e.Key != "" {
		b = append(b, `,"idempotency_key":`...)
		b = appendString(b, e.Key)
	}
	if e.Reason != "" {
		b = append(b, `,"reason":`...)
		b = appendString(b, e.Reason)
	}
	b = append(b, `,"hash":"`...)
	b = hex.AppendEncode(b, e.Hash[:])
	return append(b, `"}`...), nil
}

// appendState appends the members that say how the account stands.
func appendState(b []byte, s *ledger.State) []byte {
	b = append(b, `,"balance":`...)
	b = strconv.AppendInt(b, int64(s.Balance), 10)
	b = append(b, `,"held":`...)
	b = strconv.AppendInt(b, int64(s.Held), 10)
	b = append(b, `,"available":`...)
	b = strconv.AppendInt(b, int64(s.Available()), 10)
	b = append(b, `,"min_balance":`...)
	b = strconv.AppendInt(b, int64(s.MinBalance), 10)
	b = append(b, `,"status":"`...)
	b = append(b, s.Status...)
	b = append(b, `","fencing":{"source":"`...)
	b = append(b, s.Fencing.Source...)
	b = append(b, `","required":`...)
	b = strconv.AppendBool(b, s.Fencing.Required)
	b = append(b, `},"fence":`...)
	return strconv.AppendInt(b, int64(s.Fence), 10)
}

// appendDetails appends the members attempted, description and metadata. Of a
// credit, a debit and a declined entry the stored details are exactly these
// members, in canonical JSON, so they are copied as they are; other kinds have
// members of their own there.
func appendDetails(b []byte, e *ledger.Entry) ([]byte, error) {
	if e.Details == "" {
		return b, nil
	}
	switch e.Kind {
	case ledger.KindCredit, ledger.KindDebit, ledger.KindDeclined:
		n := len(e.Details)
		if n < 2 || e.Details[0] != '{' || e.Details[n-1] != '}' {
			return b, fmt.Errorf("entry %d of account %s: its details are not an object", e.Seq, e.AccountID)
		}
		b = append(b, ',')
		return append(b, e.Details[1:n-1]...), nil
	}
	d, err := ledger.ParseDetails(e.Details)
	if err != nil {
		return b, fmt.Errorf("entry %d of account %s: %w", e.Seq, e.AccountID, err)
	}
	if d.Attempted != "" {
		b = append(b, `,"attempted":"`...)
		b = append(b, d.Attempted...)
		b = append(b, '"')
	}
	if d.Description != "" {
		b = append(b, `,"description":`...)
		b = appendString(b, d.Description)
	}
	if d.Metadata != nil {
		b = append(b, `,"metadata":`...)
		b = append(b, d.Metadata.String()...)
	}
	return b, nil
}

// appendAccount appends the account as it stands after entry seq.
func appendAccount(b []byte, a *ledger.Account, s *ledger.State, seq ledger.Seq) []byte {
	b = append(b, `{"account_id":"`...)
	b = append(b, a.ID...)
	b = append(b, `","currency":"`...)
	b = append(b, a.Currency...)
	b = append(b, `","exponent":`...)
	b = strconv.AppendInt(b, int64(a.Exponent), 10)
	b = appendState(b, s)
	b = append(b, `,"seq":`...)
	b = strconv.AppendInt(b, int64(seq), 10)
	b = append(b, `,"metadata":`...)
	b = append(b, a.Metadata.String()...)
	b = append(b, `,"opened_at":`...)
	b = appendTime(b, a.OpenedAt)
	return append(b, '}')
}

// appendPage appends the envelope of a list around data, which item appends
// one by one; next is "" on the last page.
func appendPage(b []byte, n int, item func(b []byte, i int) ([]byte, error), next string) ([]byte, error) {
	b = append(b, `{"data":[`...)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = item(b, i); err != nil {
			return b, err
		}
	}
	b = append(b, `],"next_cursor":`...)
	if next == "" {
		return append(b, `null}`...), nil
	}
	b = append(b, '"')
	b = append(b, next...)
	return append(b, `"}`...), nil
}

func appendTime(b []byte, t time.Time) []byte {
	b = append(b, '"')
	b = t.UTC().AppendFormat(b, timeLayout)
	return append(b, '"')
}

func appendUUID(b []byte, id uuid.UUID) []byte {
	b = append(b, '"')
	b = hex.AppendEncode(b, id[0:4])
	b = append(b, '-')
	b = hex.AppendEncode(b, id[4:6])
	b = append(b, '-')
	b = hex.AppendEncode(b, id[6:8])
	b = append(b, '-')
	b = hex.AppendEncode(b, id[8:10])
	b = append(b, '-')
	b = hex.AppendEncode(b, id[10:16])
	return append(b, '"')
}
