package ledger

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/postgres"
)

// wire is a network whose connections can be cut at one chosen write of the
// client. It stands where the network is: everything above is the real driver,
// everything below the real server.
type wire struct {
	mu    sync.Mutex
	armed bool
	step  int // the write that fails, 1 = the next one
	mode  cutMode
	hit   bool
	held  []heldWrite
}

type cutMode int

const (
	cutBefore  cutMode = iota // the bytes never reach the server
	cutAfter                  // the server has answered; the answer is lost
	cutHold                   // the bytes are stuck in the network, see release
	cutSwallow                // the server gets the bytes, and nothing comes back any more
)

func (m cutMode) String() string { return [...]string{"before", "after", "hold", "swallow"}[m] }

type heldWrite struct {
	conn  net.Conn
	bytes []byte
}

func (w *wire) arm(step int, mode cutMode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed, w.step, w.mode, w.hit = true, step, mode, false
}

func (w *wire) wasHit() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hit
}

// release delivers what was held, as a network does that is late, and waits
// until the server has answered it. It returns an error when the server had
// ended the session meanwhile, as it does with one that idles in a transaction.
func (w *wire) release() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := w.held
	w.held = nil
	for _, h := range held {
		defer func() { _ = h.conn.Close() }()
		if _, err := h.conn.Write(h.bytes); err != nil {
			return fmt.Errorf("deliver the late bytes: %w", err)
		}
		if err := h.conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		if _, err := h.conn.Read(make([]byte, 4096)); err != nil {
			return fmt.Errorf("read the answer to the late bytes: %w", err)
		}
	}
	return nil
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
	kept bool // the connection below outlives this one
	deaf bool // answers are swallowed until a deadline
}

var errCut = &net.OpError{Op: "write", Err: os.ErrDeadlineExceeded}

// Write fails the write that the wire is armed for.
func (c *wireConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	dead := c.dead
	c.mu.Unlock()
	if dead {
		return 0, errCut // nothing more reaches the server, not even a goodbye
	}
	mode, cut := c.wire.count()
	if !cut {
		return c.Conn.Write(b)
	}
	if mode == cutSwallow {
		n, err := c.Conn.Write(b)
		c.mu.Lock()
		c.deaf = true
		c.mu.Unlock()
		return n, err
	}
	c.mu.Lock()
	c.dead = true
	c.mu.Unlock()
	switch mode {
	case cutHold:
		c.mu.Lock()
		c.kept = true
		c.mu.Unlock()
		c.wire.mu.Lock()
		c.wire.held = append(c.wire.held, heldWrite{c.Conn, append([]byte(nil), b...)})
		c.wire.mu.Unlock()
	case cutAfter:
		if _, err := c.Conn.Write(b); err == nil {
			_ = c.Conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			_, _ = c.Conn.Read(make([]byte, 1)) // the server is done with it
		}
		_ = c.Conn.Close()
	default:
		_ = c.Conn.Close()
	}
	// The client is told that its bytes went out; the answer never comes.
	return len(b), nil
}

func (w *wire) count() (cutMode, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.armed {
		return 0, false
	}
	w.step--
	if w.step > 0 {
		return 0, false
	}
	w.armed, w.hit = false, true
	return w.mode, true
}

func (c *wireConn) Read(b []byte) (int, error) {
	c.mu.Lock()
	dead, deaf := c.dead, c.deaf
	c.mu.Unlock()
	if dead {
		return 0, errCut
	}
	for deaf { // until the deadline that the client has set, or its close
		if _, err := c.Conn.Read(b); err != nil {
			return 0, err
		}
	}
	return c.Conn.Read(b)
}

func (c *wireConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept {
		return nil
	}
	return c.Conn.Close()
}

// TestEveryWireStepOfAnAppend fails each write to the server in turn, without
// and with effect, on both paths. Whatever was cut: the operation is in the
// chain once, and its answer is true.
func TestEveryWireStepOfAnAppend(t *testing.T) {
	t.Parallel()
	for _, contended := range []bool{false, true} {
		for _, mode := range []cutMode{cutBefore, cutAfter, cutHold} {
			for step := 1; step <= 4; step++ {
				t.Run(fmt.Sprintf("contended=%v/%v/step=%d", contended, mode, step), func(t *testing.T) {
					t.Parallel()
					cutOneAppend(t, contended, mode, step)
				})
			}
		}
	}
}

func cutOneAppend(t *testing.T, contended bool, mode cutMode, step int) {
	f := newFixture(t)
	net := &wire{}
	w := f.writer(func(pg *postgres.Config, c *WriterConfig) {
		pg.Dial = net.dial
		c.Deadline, c.AppendTimeout = 20*time.Second, 2*time.Second
	})
	w.stop() // the periodic check would take a step
	open(t, w, "A")
	must(t, w, credit("A", 10, "first"))
	if contended {
		w.lanes[0].heads.contend("A", time.Now().Add(time.Hour))
		must(t, w, credit("A", 10, "second"))
	}
	before := f.balanceOf("A")

	net.arm(step, mode)
	r := must(t, w, credit("A", 5, "cut"))
	hit := net.wasHit()
	f.audit()
	if err := net.release(); err != nil && !contended {
		t.Fatal(err)
	}
	again := must(t, w, credit("A", 5, "cut"))
	if !again.Replayed || again.Entry.Hash != r.Entry.Hash {
		t.Fatalf("the retry got seq %d, replayed %v; the first answer was seq %d", again.Entry.Seq, again.Replayed, r.Entry.Seq)
	}
	must(t, w, credit("A", 1, "after"))
	if got := f.balanceOf("A"); got != before+6 {
		t.Fatalf("balance %d, want %d", got, before+6)
	}
	if steps := map[bool]int{false: 1, true: 2}[contended]; !hit && step <= steps {
		t.Fatalf("step %d was not cut: the append has fewer wire steps than %d", step, steps)
	}
}

// TestLateStatementIsRefused is the late packet: an INSERT that stayed in the
// network while its writer gave up, and another process wrote the link.
func TestLateStatementIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	net := &wire{}
	w := f.writer(func(pg *postgres.Config, c *WriterConfig) {
		pg.Dial = net.dial
		c.Deadline, c.AppendTimeout = 20*time.Second, time.Second
	})
	w.stop()
	other := f.writer()
	open(t, w, "A")
	must(t, w, credit("A", 100, "in"))

	net.arm(1, cutHold)
	if r := must(t, w, debit("A", 80, "late")); r.Declined() {
		t.Fatal("declined")
	}
	must(t, other, debit("A", 20, "other"))
	if err := net.release(); err != nil {
		t.Fatal(err)
	}
	if got := f.balanceOf("A"); got != 0 {
		t.Fatalf("balance %d, want 0", got)
	}
}
