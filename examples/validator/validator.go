// Package validator shows how a resource of your own refuses a worker that lost
// its lease: it keeps the highest token that it has seen, and compares it in
// the same statement as the write. A comparison before the write is not enough;
// the worker can be stopped in between.
package validator

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrStale says that a newer owner has written: stop.
var ErrStale = errors.New("the fencing token is stale")

// Execer is a pool, a connection or a transaction of pgx.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// write stores the value unless a higher token has been here. The comparison is
// done on the locked row, so of two writes at once one waits for the other.
const write = `
insert into documents as d (id, body, token)
values ($1, $2, $3)
    on conflict (id) do update
   set body = excluded.body, token = excluded.token
 where d.token <= excluded.token`

// Write stores body under id on behalf of the holder of token, or returns
// ErrStale.
func Write(ctx context.Context, db Execer, id, body string, token int64) error {
	tag, err := db.Exec(ctx, write, id, body, token)
	if err != nil {
		return fmt.Errorf("write document %s: %w", id, err)
	}
	if tag.RowsAffected() == 0 {
		return ErrStale
	}
	return nil
}

// RedisScript is the same for Redis: EVAL it with the key of a hash, the token
// and the value. It returns 1, or 0 when the token is stale. Tokens stay below
// 2^53, so Lua's numbers hold them exactly.
//
//go:embed validator.lua
var RedisScript string
