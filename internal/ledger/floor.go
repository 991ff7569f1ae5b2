package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Floor repeats the append of the writer with nothing around it: no queue, no
// decision, no hash. What it reaches in a loop is what the database alone can
// do on a machine, and what the rate of the whole service is compared with.
//
// It is for measuring, on a connection whose search_path finds a scratch copy
// of entries first. It uses the writer's own statement and encoding, so that
// the two cannot drift apart. One goroutine at a time may use it.
type Floor struct {
	conn  *pgx.Conn
	clock clockReading
	a     appender
	write write
}

// NewFloor reads which database and which table conn is on.
func NewFloor(ctx context.Context, conn *pgx.Conn) (*Floor, error) {
	f := &Floor{conn: conn}
	err := conn.QueryRow(ctx, lifeStatement).Scan(&f.write.life.startedAt, &f.write.life.entriesOID, &f.write.life.incarnation, &f.clock.database)
	if err != nil {
		return nil, fmt.Errorf("read life: %w", err)
	}
	f.clock.local = time.Now()
	return f, nil
}

// Append adds the entries as one batch, in the writer's order, and returns when
// they are durable.
func (f *Floor) Append(ctx context.Context, entries []*Entry) error {
	f.write.entries = append(f.write.entries[:0], entries...)
	f.write.at = f.clock.now()
	f.write.sort()
	ok, err := f.a.send(ctx, f.conn, &f.write, false)
	if err == nil && !ok {
		err = errors.New("the database or the table was replaced")
	}
	return err
}
