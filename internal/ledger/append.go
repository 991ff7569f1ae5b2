package ledger

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// write is what one commit sends: links, and what goes with some of them.
type write struct {
	life    life
	at      time.Time // when it was decided, by the database's clock
	entries []*Entry
	opened  []Head // accounts whose first entry is among the links
	changed []Head // accounts whose metadata a settings entry replaced
}

// reset empties the write for a batch of the life that is decided at the moment.
func (w *write) reset(l life, at time.Time) {
	clear(w.entries)
	clear(w.opened)
	clear(w.changed)
	w.life, w.at, w.entries, w.opened, w.changed = l, at, w.entries[:0], w.opened[:0], w.changed[:0]
}

// change notes the account's metadata; the last one of a batch counts.
func (w *write) change(h Head) {
	for i := range w.changed {
		if w.changed[i].Account.ID == h.Account.ID {
			w.changed[i] = h
			return
		}
	}
	w.changed = append(w.changed, h)
}

// sort brings the rows into the one order that all processes use.
func (w *write) sort() {
	slices.SortFunc(w.entries, func(a, b *Entry) int {
		return cmp.Or(cmp.Compare(a.AccountID, b.AccountID), cmp.Compare(a.Seq, b.Seq))
	})
	byID := func(a, b Head) int { return cmp.Compare(a.Account.ID, b.Account.ID) }
	slices.SortFunc(w.opened, byID)
	slices.SortFunc(w.changed, byID)
}

// appender sends writes over one connection at a time. It keeps its buffers, so
// it belongs to one goroutine.
type appender struct {
	columns [20]array
	extra   [8]array
	guard   [3][]byte
	steps   []step
}

// step is one statement of a write.
type step struct {
	name, sql string // name is empty for a statement without parameters
	values    [][]byte
}

// send commits the write: in one implicit transaction, or as the end of the one
// that lockAndLook began. It reports false when the guard found another life;
// then nothing was written.
//
// Before it returns nothing is promised to any caller. Once it returned true
// every link is durable. After an error the outcome is what postgres.Classify
// says of it; a crash at any moment leaves all links of the write or none.
func (a *appender) send(ctx context.Context, conn *pgx.Conn, w *write, inTransaction bool) (bool, error) {
	a.steps = a.steps[:0]
	a.guard[0] = binary.BigEndian.AppendUint64(a.guard[0][:0], uint64(w.life.startedAt))
	a.guard[1] = binary.BigEndian.AppendUint32(a.guard[1][:0], w.life.entriesOID)
	a.guard[2] = binary.BigEndian.AppendUint64(a.guard[2][:0], uint64(w.at.UnixMicro()-postgresEpoch))
	if len(w.opened) > 0 {
		a.encodeOpened(w.opened)
	}
	at := len(a.steps)
	a.encodeEntries(w)
	if len(w.changed) > 0 {
		a.encodeChanged(w.changed)
	}
	if inTransaction {
		a.steps = append(a.steps, step{sql: "commit"})
	}
	for _, s := range a.steps {
		if s.name == "" {
			continue
		}
		if _, err := conn.Prepare(ctx, s.name, s.sql); err != nil {
			return false, fmt.Errorf("prepare %s: %w", s.name, err)
		}
	}
	rows, err := a.run(ctx, conn.PgConn(), at)
	if err != nil {
		return false, err
	}
	if rows != 0 && rows != int64(len(w.entries)) {
		return false, fmt.Errorf("append: %d rows of %d were inserted", rows, len(w.entries))
	}
	return rows != 0, nil
}

// run sends the steps in one round trip and returns how many rows step at wrote.
func (a *appender) run(ctx context.Context, conn *pgconn.PgConn, at int) (rows int64, err error) {
	binaryFormat := []int16{pgx.BinaryFormatCode}
	if len(a.steps) == 1 {
		tag, err := conn.ExecPrepared(ctx, a.steps[0].name, a.steps[0].values, binaryFormat, nil).Close()
		if err != nil {
			return 0, fmt.Errorf("append: %w", err)
		}
		return tag.RowsAffected(), nil
	}
	p := conn.StartPipeline(ctx)
	defer func() {
		if closeErr := p.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("append: %w", closeErr)
		}
	}()
	for _, s := range a.steps {
		if s.name == "" {
			p.SendQueryParams(s.sql, nil, nil, nil, nil)
		} else {
			p.SendQueryPrepared(s.name, s.values, binaryFormat, nil)
		}
	}
	if err := p.Sync(); err != nil {
		return 0, fmt.Errorf("append: %w", err)
	}
	for i := 0; i <= len(a.steps); {
		result, err := p.GetResults()
		if err != nil {
			return 0, fmt.Errorf("append: %w", err)
		}
		switch r := result.(type) {
		case *pgconn.ResultReader:
			tag, err := r.Close()
			if err != nil {
				return 0, fmt.Errorf("append: %w", err)
			}
			if i == at {
				rows = tag.RowsAffected()
			}
			i++
		case *pgconn.PipelineSync:
			return rows, nil
		case nil:
			return 0, fmt.Errorf("append: the pipeline ended before its end")
		}
	}
	return 0, fmt.Errorf("append: more results than statements")
}

func (a *appender) encodeEntries(w *write) {
	types := [len(a.columns)]uint32{oidText, oidInt8, oidText, oidInt8,
		oidInt8, oidInt8, oidInt8, oidInt8, oidText, oidText,
		oidUUID, oidText, oidBytea, oidText, oidText,
		oidTimestamptz, oidText, oidTimestamptz, oidBytea, oidInt2}
	c := &a.columns
	for i := range c {
		c[i].reset(types[i], len(w.entries))
	}
	for _, e := range w.entries {
		c[0].text(string(e.AccountID))
		c[1].int8(int64(e.Seq))
		c[2].text(string(e.Kind))
		c[3].int8(int64(e.Amount))
		c[4].int8(int64(e.After.Balance))
		c[5].int8(int64(e.After.Held))
		c[6].int8(int64(e.After.Fence))
		c[7].int8(int64(e.After.MinBalance))
		c[8].text(string(e.After.Status))
		c[9].text(e.After.Fencing.String())
		c[10].bytes(e.TransactionID[:])
		c[11].optional(e.Key)
		c[12].bytes(e.RequestHash[:])
		c[13].optional(e.Counterparty)
		c[14].optional(e.Reason)
		c[15].time(e.EffectiveAt)
		c[16].optional(e.Details)
		c[17].time(e.PostedAt)
		c[18].bytes(e.Hash[:])
		c[19].int2(int16(e.HashVersion))
	}
	a.steps = append(a.steps, step{"ledgerd_append", appendStatement, a.guarded(c[:])})
}

func (a *appender) encodeOpened(opened []Head) {
	c := a.extra[:6]
	for i, oid := range []uint32{oidText, oidText, oidInt2, oidInt2, oidText, oidTimestamptz} {
		c[i].reset(oid, len(opened))
	}
	for i := range opened {
		account := &opened[i].Account
		c[0].text(string(account.ID))
		c[1].text(string(account.Currency))
		c[2].int2(int16(account.Exponent))
		c[3].int2(int16(account.ID.Shard()))
		c[4].text(account.Metadata.String())
		c[5].time(account.OpenedAt)
	}
	a.steps = append(a.steps,
		step{"ledgerd_open_accounts", openAccountsStatement, a.guarded(c)},
		step{"ledgerd_open_balances", openBalancesStatement, a.guarded(c[:1])})
}

func (a *appender) encodeChanged(changed []Head) {
	c := a.extra[6:]
	c[0].reset(oidText, len(changed))
	c[1].reset(oidText, len(changed))
	for i := range changed {
		c[0].text(string(changed[i].Account.ID))
		c[1].text(changed[i].Account.Metadata.String())
	}
	a.steps = append(a.steps, step{"ledgerd_metadata", metadataStatement, values(c)})
}

// guarded returns the columns and, behind them, the life that they were decided
// in and when.
func (a *appender) guarded(columns []array) [][]byte {
	return append(values(columns), a.guard[0], a.guard[1], a.guard[2])
}

func values(columns []array) [][]byte {
	v := make([][]byte, len(columns), len(columns)+3)
	for i := range columns {
		v[i] = columns[i].buf
	}
	return v
}
