package ledger

import (
	"encoding/binary"
	"time"
)

// The append sends one array a column. These builders write PostgreSQL's binary
// array format straight into reused buffers, so that a batch costs no
// allocation per entry. The format is that of array_recv: dimensions, null
// flag, element type, then length and lower bound, then each element with its
// length; see src/backend/utils/adt/arrayfuncs.c of PostgreSQL.

// Object ids of the element types, from pg_type.dat; they never change.
const (
	oidBytea       = 17
	oidInt8        = 20
	oidInt2        = 21
	oidText        = 25
	oidTimestamptz = 1184
	oidUUID        = 2950
)

// array is one column of a batch, in binary form.
type array struct{ buf []byte }

// reset starts an array of n elements.
func (a *array) reset(oid uint32, n int) {
	b := a.buf[:0]
	b = binary.BigEndian.AppendUint32(b, 1) // one dimension
	b = binary.BigEndian.AppendUint32(b, 1) // may contain nulls
	b = binary.BigEndian.AppendUint32(b, oid)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	b = binary.BigEndian.AppendUint32(b, 1) // lower bound
	a.buf = b
}

func (a *array) text(s string) {
	a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(len(s)))
	a.buf = append(a.buf, s...)
}

// optional appends s, and null when it is empty.
func (a *array) optional(s string) {
	if s == "" {
		a.buf = append(a.buf, 0xff, 0xff, 0xff, 0xff)
		return
	}
	a.text(s)
}

func (a *array) bytes(v []byte) {
	a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(len(v)))
	a.buf = append(a.buf, v...)
}

func (a *array) int8(v int64) {
	a.buf = binary.BigEndian.AppendUint32(a.buf, 8)
	a.buf = binary.BigEndian.AppendUint64(a.buf, uint64(v))
}

func (a *array) int2(v int16) {
	a.buf = binary.BigEndian.AppendUint32(a.buf, 2)
	a.buf = binary.BigEndian.AppendUint16(a.buf, uint16(v))
}

// postgresEpoch is 2000-01-01T00:00:00Z in Unix microseconds: timestamptz
// counts from there.
const postgresEpoch = 946_684_800_000_000

func (a *array) time(t time.Time) { a.int8(t.UnixMicro() - postgresEpoch) }
