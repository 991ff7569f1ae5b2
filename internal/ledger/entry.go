package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// Kind says what an entry did.
type Kind string

// The kinds of entries.
const (
	// KindOpened is the first entry of every account.
	KindOpened Kind = "opened"
	// KindSettings changed the status, the minimum, the fencing rule or the metadata.
	KindSettings Kind = "settings"
	// KindFenced raised the fence for a new owner of the account's lease.
	KindFenced Kind = "fenced"
	// KindCredit added money.
	KindCredit Kind = "credit"
	// KindDebit took money.
	KindDebit Kind = "debit"
	// KindTransfer and KindTransaction are kinds of operations alone: their
	// entries are credits and debits.
	KindTransfer    Kind = "transfer"
	KindTransaction Kind = "transaction"
	// KindHold set money aside.
	KindHold Kind = "hold"
	// KindCapture took money that had been set aside.
	KindCapture Kind = "capture"
	// KindRelease gave money back that had been set aside.
	KindRelease Kind = "release"
	// KindDeclined records a definitive refusal, so that a retry can never
	// turn into a success. It moves nothing.
	KindDeclined Kind = "declined"
)

// HashVersion is the version of the canonical encoding of new entries. Old
// entries keep theirs.
const HashVersion = 1

// Entry is one immutable link of an account's chain.
type Entry struct {
	AccountID     AccountID
	Seq           Seq
	Kind          Kind
	Amount        Amount
	After         State
	TransactionID uuid.UUID
	// Key is the idempotency key, "" for entries that have none. Of the entries
	// of one transaction only the first has it.
	Key         string
	RequestHash [32]byte
	// Counterparty is free text about the other side, "" when absent; with two
	// legs it is the account of the other one.
	Counterparty string
	// HoldSeq is the hold that a capture or release belongs to, 0 when absent.
	HoldSeq Seq
	// Reverses is the transaction that this entry takes back, uuid.Nil when absent.
	Reverses uuid.UUID
	// Reason is the code of a declined entry, or the operator's words on a reset.
	Reason string
	// EffectiveAt is the business date. It is reported and decides nothing.
	EffectiveAt time.Time
	// Details holds the canonical JSON bytes of Details, "" when empty.
	Details string
	// PostedAt is the writer's clock, in microseconds, never before the
	// previous entry's.
	PostedAt    time.Time
	Hash        [32]byte
	HashVersion int
	// Position is a discovery hint given by the database; it is not hashed and
	// is not the order of anything. 0 when it was not read.
	Position int64
}

// genesis is what the hash of an account's first entry is chained to.
var genesis [32]byte

// ChainHash returns SHA-256(prev ‖ canonical encoding of e). The encoding
// covers every column but hash and position, in the order of the table, each
// as a 4-byte big-endian length and its bytes; integers and times (Unix
// microseconds) are 8 bytes big-endian, and an absent value has the length
// 0xFFFFFFFF. For the first entry prev is 32 zero bytes.
func ChainHash(prev [32]byte, e *Entry) [32]byte {
	var space [640]byte
	b := append(space[:0], prev[:]...)
	b = appendInt(b, int64(e.HashVersion))
	b = appendText(b, string(e.AccountID))
	b = appendInt(b, int64(e.Seq))
	b = appendText(b, string(e.Kind))
	b = appendInt(b, int64(e.Amount))
	b = appendInt(b, int64(e.After.Balance))
	b = appendInt(b, int64(e.After.Held))
	b = appendInt(b, int64(e.After.Fence))
	b = appendInt(b, int64(e.After.MinBalance))
	b = appendText(b, string(e.After.Status))
	b = appendText(b, e.After.Fencing.String())
	b = appendBytes(b, e.TransactionID[:])
	b = appendOptional(b, e.Key)
	b = appendBytes(b, e.RequestHash[:])
	b = appendOptional(b, e.Counterparty)
	if e.HoldSeq == 0 {
		b = appendAbsent(b)
	} else {
		b = appendInt(b, int64(e.HoldSeq))
	}
	if e.Reverses == uuid.Nil {
		b = appendAbsent(b)
	} else {
		b = appendBytes(b, e.Reverses[:])
	}
	b = appendOptional(b, e.Reason)
	b = appendInt(b, e.EffectiveAt.UnixMicro())
	b = appendOptional(b, e.Details)
	b = appendInt(b, e.PostedAt.UnixMicro())
	return sha256.Sum256(b)
}

func appendInt(b []byte, v int64) []byte {
	b = append(b, 0, 0, 0, 8)
	return binary.BigEndian.AppendUint64(b, uint64(v))
}

func appendText(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

func appendBytes(b, v []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
	return append(b, v...)
}

func appendOptional(b []byte, s string) []byte {
	if s == "" {
		return appendAbsent(b)
	}
	return appendText(b, s)
}

func appendAbsent(b []byte) []byte { return append(b, 0xff, 0xff, 0xff, 0xff) }
