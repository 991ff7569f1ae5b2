package httpapi

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// A cursor names a place in a list together with the filters and the order of
// that list, so a page that follows is always a page of the same list. It is
// opaque to clients: base64url of a version, the kind of list, the
// length-prefixed fields and a CRC-32 that catches a cursor cut or mistyped on
// its way. It is not a secret and gives no access: everything in it is
// checked like any other input.

// accountsCursor is the place after one account in the list of accounts.
type accountsCursor struct {
	after    ledger.AccountID
	currency ledger.Currency // "" = any
	status   ledger.Status   // "" = any
}

// entriesCursor is the place after one entry in the list of an account's
// entries.
type entriesCursor struct {
	account   ledger.AccountID
	after     ledger.Seq
	ascending bool
	filter    ledger.EntryFilter
}

// rejectionsCursor is the place before one rejection in their list.
type rejectionsCursor struct {
	before  int64
	account ledger.AccountID // "" = any
}

const (
	cursorVersion    = 1
	cursorAccounts   = 'a'
	cursorEntries    = 'e'
	cursorLeases     = 'l'
	cursorRejections = 'r'
	// cursorBytesMax bounds what is decoded; the longest real cursor, with a
	// counterparty and a metadata key of four-byte characters, is shorter than
	// 2,100 bytes.
	cursorBytesMax = 4096
)

var errCursor = errors.New("this is not a cursor of this list")

func (c accountsCursor) String() string {
	b := []byte{cursorVersion, cursorAccounts}
	b = appendField(b, string(c.after))
	b = appendField(b, string(c.currency))
	b = appendField(b, string(c.status))
	return sealCursor(b)
}

func parseAccountsCursor(s string) (accountsCursor, error) {
	b, err := openCursor(s, cursorAccounts)
	if err != nil {
		return accountsCursor{}, err
	}
	var fields [3]string
	for i := range fields {
		if fields[i], b, err = cutField(b); err != nil {
			return accountsCursor{}, err
		}
	}
	if len(b) != 0 {
		return accountsCursor{}, errCursor
	}
	c := accountsCursor{status: ledger.Status(fields[2])}
	if c.after, err = ledger.ParseAccountID(fields[0]); err != nil {
		return accountsCursor{}, errCursor
	}
	if fields[1] != "" {
		if c.currency, err = ledger.ParseCurrency(fields[1]); err != nil {
			return accountsCursor{}, errCursor
		}
	}
	if c.status != "" && !validStatus(c.status) {
		return accountsCursor{}, errCursor
	}
	return c, nil
}

func (c entriesCursor) String() string {
	b := []byte{cursorVersion, cursorEntries}
	b = appendField(b, string(c.account))
	b = binary.BigEndian.AppendUint64(b, uint64(c.after))
	if c.ascending {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	if f := c.filter; f != (ledger.EntryFilter{}) {
		b = appendField(b, string(f.Kind))
		for _, t := range []time.Time{f.PostedFrom, f.PostedTo, f.EffectiveFrom, f.EffectiveTo} {
			b = appendInstant(b, t)
		}
		b = appendLongField(b, f.Counterparty)
		b = appendLongField(b, f.MetadataKey)
	}
	return sealCursor(b)
}

func parseEntriesCursor(s string) (entriesCursor, error) {
	b, err := openCursor(s, cursorEntries)
	if err != nil {
		return entriesCursor{}, err
	}
	id, b, err := cutField(b)
	if err != nil || len(b) < 9 || b[8] > 1 {
		return entriesCursor{}, errCursor
	}
	c := entriesCursor{after: ledger.Seq(binary.BigEndian.Uint64(b)), ascending: b[8] == 1}
	if c.account, err = ledger.ParseAccountID(id); err != nil {
		return entriesCursor{}, errCursor
	}
	if c.after < 1 || int64(c.after) > int64(ledger.MaxAmount) {
		return entriesCursor{}, errCursor
	}
	if b = b[9:]; len(b) > 0 {
		c.filter, err = cutFilter(b)
	}
	return c, err
}

// cutFilter reads the filters of a list of entries, which are the rest of b.
func cutFilter(b []byte) (f ledger.EntryFilter, err error) {
	kind, b, err := cutField(b)
	if err != nil || kind != "" && !slices.Contains(entryKinds, kind) {
		return f, errCursor
	}
	f.Kind = ledger.Kind(kind)
	for _, t := range []*time.Time{&f.PostedFrom, &f.PostedTo, &f.EffectiveFrom, &f.EffectiveTo} {
		if len(b) < 8 {
			return f, errCursor
		}
		if micros := int64(binary.BigEndian.Uint64(b)); micros != noInstant {
			*t = time.UnixMicro(micros).UTC()
			if t.Year() < 1 || t.Year() > 9999 || t.IsZero() {
				return f, errCursor
			}
		}
		b = b[8:]
	}
	for _, text := range []struct {
		to       *string
		runesMax int
	}{{&f.Counterparty, ledger.CounterpartyRunesMax}, {&f.MetadataKey, ledger.MetadataKeyRunesMax}} {
		if len(b) < 2 || len(b) < 2+int(binary.BigEndian.Uint16(b)) {
			return f, errCursor
		}
		n := 2 + int(binary.BigEndian.Uint16(b))
		*text.to, b = string(b[2:n]), b[n:]
		if ledger.ValidateText(*text.to, text.runesMax) != nil {
			return f, errCursor
		}
	}
	if len(b) != 0 || f == (ledger.EntryFilter{}) {
		return f, errCursor
	}
	return f, nil
}

// noInstant stands for a time that is not given.
const noInstant = math.MinInt64

func appendInstant(b []byte, t time.Time) []byte {
	micros := int64(noInstant)
	if !t.IsZero() {
		micros = t.UnixMicro()
	}
	return binary.BigEndian.AppendUint64(b, uint64(micros))
}

func appendLongField(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// leasesCursor returns the place after a name in the list of named leases.
func leasesCursor(after string) string {
	return sealCursor(appendField([]byte{cursorVersion, cursorLeases}, after))
}

func parseLeasesCursor(s string) (string, error) {
	b, err := openCursor(s, cursorLeases)
	if err != nil {
		return "", err
	}
	name, b, err := cutField(b)
	if err != nil || len(b) != 0 {
		return "", errCursor
	}
	if _, err := ledger.ParseAccountID(name); err != nil {
		return "", errCursor
	}
	return name, nil
}

func (c rejectionsCursor) String() string {
	b := appendField([]byte{cursorVersion, cursorRejections}, string(c.account))
	return sealCursor(binary.BigEndian.AppendUint64(b, uint64(c.before)))
}

func parseRejectionsCursor(s string) (rejectionsCursor, error) {
	b, err := openCursor(s, cursorRejections)
	if err != nil {
		return rejectionsCursor{}, err
	}
	id, b, err := cutField(b)
	if err != nil || len(b) != 8 {
		return rejectionsCursor{}, errCursor
	}
	c := rejectionsCursor{account: ledger.AccountID(id), before: int64(binary.BigEndian.Uint64(b))}
	if id != "" {
		if _, err := ledger.ParseAccountID(id); err != nil {
			return rejectionsCursor{}, errCursor
		}
	}
	if c.before < 1 {
		return rejectionsCursor{}, errCursor
	}
	return c, nil
}

func appendField(b []byte, s string) []byte {
	return append(append(b, byte(len(s))), s...)
}

func cutField(b []byte) (field string, rest []byte, err error) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return "", nil, errCursor
	}
	n := 1 + int(b[0])
	return string(b[1:n]), b[n:], nil
}

func sealCursor(b []byte) string {
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return base64.RawURLEncoding.EncodeToString(b)
}

func openCursor(s string, kind byte) ([]byte, error) {
	if len(s) > cursorBytesMax {
		return nil, errCursor
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 6 {
		return nil, errCursor
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if crc32.ChecksumIEEE(body) != sum || body[0] != cursorVersion || body[1] != kind {
		return nil, errCursor
	}
	return body[2:], nil
}

func validStatus(s ledger.Status) bool {
	return s == ledger.Active || s == ledger.Frozen || s == ledger.Closed
}
