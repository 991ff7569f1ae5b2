package projection

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// wire is a network that fails at one chosen write of the client: without
// effect, the bytes never arrive; with effect, the server does its work and the
// answer never arrives.
type wire struct {
	mu         sync.Mutex
	left       int // writes until the one that fails; 0 when not armed
	withEffect bool
	hit        bool
}

func (w *wire) arm(step int, withEffect bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left, w.withEffect, w.hit = step, withEffect, false
}

func (w *wire) failNow() (fail, withEffect bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == 0 {
		return false, false
	}
	w.left--
	w.hit = w.left == 0
	return w.hit, w.withEffect
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: conn, wire: w}, nil
}

type wireConn struct {
	net.Conn
	wire *wire
	mu   sync.Mutex
	dead bool
}

var errCut = &net.OpError{Op: "read", Net: "unix", Err: os.ErrClosed}

func (c *wireConn) isDead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

func (c *wireConn) Write(b []byte) (int, error) {
	if c.isDead() {
		return 0, errCut
	}
	fail, withEffect := c.wire.failNow()
	if !fail {
		return c.Conn.Write(b)
	}
	c.mu.Lock()
	c.dead = true
	c.mu.Unlock()
	if withEffect {
		if _, err := c.Conn.Write(b); err != nil {
			return 0, err
		}
		if err := c.Conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return 0, err
		}
		if _, err := c.Conn.Read(make([]byte, 1)); err != nil { // the server has answered
			return 0, err
		}
	}
	_ = c.Conn.Close()
	return len(b), nil // the client believes that its bytes went out
}

func (c *wireConn) Read(b []byte) (int, error) {
	if c.isDead() {
		return 0, errCut
	}
	return c.Conn.Read(b)
}

// overWire opens a pool in the service role over the wire.
func (f *fixture) overWire(w *wire) *pgxpool.Pool {
	f.t.Helper()
	pool, err := postgres.Open(postgres.Config{
		URL: f.url, Role: postgres.ServiceRole, MaxConns: 4, Dial: w.dial, LockTimeout: 200 * time.Millisecond,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(pool.Close)
	return pool
}

// TestEveryWireStepOfAWrite fails each message to the server in turn, without
// and with effect, in a round that has everything in it: new entries, an account
// that is behind, a row that is missing. Afterwards the rows are right.
func TestEveryWireStepOfAWrite(t *testing.T) {
	t.Parallel()
	for _, withEffect := range []bool{false, true} {
		for step := 1; step <= 14; step++ {
			t.Run(fmt.Sprintf("effect=%v/step=%d", withEffect, step), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				f.open("A", "B", "C")
				net := new(wire)
				w := f.projectorOn(f.overWire(net)).worker
				owned(w, "A", 1)
				owned(w, "B", 1)
				c := owned(w, "C", 1)
				f.round(w)
				f.credit("A", 10)
				f.credit("B", 20)
				f.credit("C", 30)
				f.damage(`delete from balances where account_id = 'B'`)
				c.want("C", 0, 0, 0)
				net.arm(step, withEffect)
				for range 6 {
					_, _, _ = w.round(t.Context()) // fails when it is cut
				}
				hit := net.hit
				if step <= 6 && !hit {
					t.Error("the wire was not cut")
				}
				if n := f.behind(); n != 0 {
					t.Errorf("%d rows are behind", n)
				}
				for id, want := range map[ledger.AccountID]ledger.Amount{"A": 10, "B": 20, "C": 30} {
					if got := f.row(id).balance; got != want {
						t.Errorf("%s has %d, want %d", id, got, want)
					}
				}
				for _, s := range w.shards {
					if s != nil && len(s.parked) > 0 {
						t.Errorf("shard %d parked %v", s.number, s.parked)
					}
				}
			})
		}
	}
}

// TestEveryWireStepOfARebuild does the same to a rebuild of damaged rows, with
// live entries in between.
func TestEveryWireStepOfARebuild(t *testing.T) {
	t.Parallel()
	for _, withEffect := range []bool{false, true} {
		for step := 1; step <= 14; step++ {
			t.Run(fmt.Sprintf("effect=%v/step=%d", withEffect, step), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				ids := append(sameShard("A", 3), "A")
				f.open(ids...)
				net := new(wire)
				w := f.projectorOn(f.overWire(net)).worker
				owned(w, "A", 1)
				f.round(w)
				for _, id := range ids {
					f.credit(id, 10)
				}
				f.round(w)
				f.damage(`update balances set balance = 7 where account_id = 'A'`)
				f.damage(`update balances set applied_seq = 1, balance = 3 where account_id = $1`, string(ids[0]))
				f.damage(`delete from balances where account_id = $1`, string(ids[1]))
				f.credit(ids[2], 5)
				r, _, err := requestRebuild(t.Context(), f.pool, "test")
				if err != nil {
					t.Fatal(err)
				}
				net.arm(step, withEffect)
				for range 6 {
					_ = w.rebuildOwned(t.Context()) // fails when it is cut
					if step%2 == 0 {
						_, _, _ = w.round(t.Context())
					}
				}
				f.round(w)
				jobs, err := newStore(f.pool).rebuildJobs(t.Context(), []int16{int16(ids[0].Shard())})
				if err != nil || len(jobs) != 0 {
					t.Errorf("the shard is not done: %v %v", jobs, err)
				}
				if r, err = readRebuild(t.Context(), f.pool, r.ID); err != nil || r.AccountsDone != 4 || r.Damaged != 0 {
					t.Errorf("the rebuild is %+v (%v)", r, err)
				}
			})
		}
	}
}
