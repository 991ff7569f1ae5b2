package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

// worker is the example examples/settlement as a process of its own.
type worker struct {
	*node
}

// startWorker builds and starts a worker that pays out of the account.
func startWorker(t *testing.T, n *node, account string, ttl time.Duration) *worker {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settlement")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", path, "../../examples/settlement").CombinedOutput(); err != nil {
		t.Fatalf("build the worker: %v\n%s", err, out)
	}
	n.books.lossy() // the payouts do not go through the books
	w := &worker{newNode(t, n.books)}
	cmd := exec.Command(path, "-url="+n.url, "-account="+account, "-ttl="+ttl.String(), "-every=20ms")
	cmd.Stdout, cmd.Stderr = w.out, w.log
	cmd.SysProcAttr = childAttributes()
	w.runChild(cmd)
	w.pid = cmd.Process.Pid
	w.end = func(s os.Signal) {
		if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("signal %v: %v", s, err)
		}
	}
	return w
}

// awaitLine waits until the worker has said a line that begins so.
func (w *worker) awaitLine(begin string) {
	w.t.Helper()
	eventually(w.t, "the worker says "+begin, func() error {
		if !strings.Contains("\n"+w.out.text(), "\n"+begin) {
			return fmt.Errorf("it said:\n%s%s", w.out.tail(5), w.log.tail(5))
		}
		return nil
	})
}

// The story of the design, with a service, a worker and a test that are three
// processes. A acquires and is stopped for longer than its lease. B acquires.
// Before B writes anything A goes on, and its payout is refused. B writes as
// often as it likes. A asks again, and gets the next token.
func TestStoppedWorkerIsRefused(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serveProcess(t, b)
	n.open("a")
	n.credit("a", 1000, "funds")
	path := fmt.Sprintf(accountLease, "a")

	w := startWorker(t, n, "a", 500*time.Millisecond)
	w.awaitLine("acquired 1 balance 1000")
	w.awaitLine("paid 1 3")
	w.freeze()
	before := n.balance("a")

	heir := n.awaitAcquired(path, "B", time.Minute)
	if heir.Token != 2 || heir.Balance != before.Balance {
		t.Errorf("B got token %d with balance %d, want 2 with %d", heir.Token, heir.Balance, before.Balance)
	}
	w.thaw()
	w.awaitLine("refused 1 current 2")
	if got := n.balance("a"); got.Seq != heir.Seq || got.Balance != heir.Balance {
		t.Errorf("A's late payout changed the account: seq %d with %d, want %d with %d", got.Seq, got.Balance, heir.Seq, heir.Balance)
	}
	for i := range 50 {
		if a := n.fencedCredit("a", heir.Token, fmt.Sprint("B", i)); a.status != http.StatusCreated {
			t.Fatalf("B's write: %s", a)
		}
	}
	n.releaseLease(path, "B", heir.Token)
	w.awaitLine("acquired 3 balance")
	w.awaitLine("paid 3 2")
	eventually(t, "the refusal is listed with who it was", func() error {
		a := n.do("GET", "/v1/fencing/rejections", "")
		if !bytes.Contains(a.body, []byte(`lease-holder=`)) {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	if code := w.shutdownBy(syscall.SIGINT); code != 0 {
		t.Errorf("the worker ended with %d: %s", code, w.log.tail(5))
	}
	n.mustAcquire(path, "C", time.Minute) // the worker has released its lease
}

func (w *worker) shutdownBy(s os.Signal) int {
	w.t.Helper()
	w.end(s)
	return w.wait()
}

// A killed worker's account is free when its lease has run out.
func TestKilledWorkersLeaseIsTaken(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	n.credit("a", 1000, "funds")
	const ttl = 500 * time.Millisecond
	w := startWorker(t, n, "a", ttl)
	w.awaitLine("paid 1 2")
	w.kill()
	begun := time.Now()
	n.awaitAcquired(fmt.Sprintf(accountLease, "a"), "B", time.Minute)
	if took := time.Since(begun); took > ttl+5*time.Second {
		t.Errorf("the takeover lasted %s", took)
	}
}

// holdProxy carries TCP to a service, and can hold back what a client sends.
type holdProxy struct {
	url    string
	marker atomic.Pointer[string] // a packet with it, and all behind it, waits
	held   chan struct{}          // closed when one waits
	letGo  chan struct{}          // closed to send it on
	hole   atomic.Bool            // swallows everything in both directions
}

func newHoldProxy(t *testing.T, serviceURL string) *holdProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &holdProxy{url: "http://" + l.Addr().String(), held: make(chan struct{}), letGo: make(chan struct{})}
	var running sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	running.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", strings.TrimPrefix(serviceURL, "http://"))
			if err != nil {
				_ = down.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, down, up)
			mu.Unlock()
			running.Go(func() { p.carry(up, down, true) })
			running.Go(func() { p.carry(down, up, false) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return p
}

func (p *holdProxy) carry(to, from net.Conn, upstream bool) {
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if m := p.marker.Load(); upstream && m != nil && bytes.Contains(buffer[:n], []byte(*m)) {
			p.marker.Store(nil)
			close(p.held)
			<-p.letGo
		}
		if p.hole.Load() {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// The same story with the request on its way instead of the process stopped:
// A's write is held back in the network until A's lease has run out and B has
// acquired. It arrives late and is refused.
func TestRequestThatIsHeldBackIsRefused(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	n.credit("a", 100, "funds")
	p := newHoldProxy(t, n.url)
	c, err := client.New(p.url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	path := fmt.Sprintf(accountLease, "a")
	var heir leaseAnswer
	err = c.WithLease(t.Context(), "a", func(ctx context.Context, lease *client.HeldLease) error {
		marker := "held-back"
		p.marker.Store(&marker)
		answered := make(chan error, 1)
		go func() {
			_, err := lease.Debit(context.WithoutCancel(ctx), client.Operation{Amount: 10, Description: marker}, client.Key("late"))
			answered <- err
		}()
		<-p.held
		p.hole.Store(true) // so that no renewal arrives either
		heir = n.awaitAcquired(path, "B", time.Minute)
		p.hole.Store(false)
		close(p.letGo)
		return <-answered
	}, client.LeaseTTL(3*time.Second))
	var problem *client.Problem
	if !errors.As(err, &problem) || problem.Code != client.CodeStaleFencingToken || problem.PresentedToken != 1 || problem.CurrentToken != heir.Token {
		t.Errorf("the late write: %v, want stale_fencing_token", err)
	}
	if got := n.balance("a"); got.Seq != heir.Seq || got.Balance != 100 {
		t.Errorf("the late write changed the account: seq %d with %d", got.Seq, got.Balance)
	}
}

// Case 26: the network swallows everything. The holder knows by its own clock
// that it lost the lease, and stops.
func TestSilentNetworkEndsTheWork(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	p := newHoldProxy(t, n.url)
	c, err := client.New(p.url, client.WithAttemptTimeout(1500*time.Millisecond), client.WithRetryFor(0))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const ttl = 6 * time.Second
	var jeopardies atomic.Int64
	var ended time.Duration
	sent := time.Now()
	err = c.WithLease(t.Context(), "a", func(ctx context.Context, lease *client.HeldLease) error {
		p.hole.Store(true)
		sent = time.Now()
		<-ctx.Done()
		ended = time.Since(sent)
		if lease.Left() != 0 {
			t.Errorf("%s are left of a lease that is over", lease.Left())
		}
		return ctx.Err()
	}, client.LeaseTTL(ttl), client.LeaseJeopardy(func(err error, left time.Duration) {
		if err == nil || left > ttl {
			t.Errorf("jeopardy: %v, %s left", err, left)
		}
		jeopardies.Add(1)
	}))
	if !errors.Is(err, client.ErrLeaseExpired) || jeopardies.Load() == 0 {
		t.Errorf("the work ended with %v after %d jeopardies", err, jeopardies.Load())
	}
	if ended > ttl+2*time.Second {
		t.Errorf("the work ended after %s", ended)
	}
	p.hole.Store(false)
	n.awaitAcquired(fmt.Sprintf(accountLease, "a"), "B", time.Minute)
}

// An acquisition whose answer is lost is recognised by its holder, given back
// and made again: nobody waits for a term that nobody has.
func TestLostAnswerOfAnAcquisition(t *testing.T) {
	t.Parallel()
	n := serve(t, newBooks(t))
	n.open("a")
	n.books.lossy() // the credit does not go through the books
	lost := &loseFirst{base: http.DefaultTransport, method: "POST"}
	c, err := client.New(n.url, client.WithHTTPClient(&http.Client{Transport: lost}))
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	err = c.WithLease(t.Context(), "a", func(ctx context.Context, lease *client.HeldLease) error {
		if lease.Token != 2 {
			t.Errorf("the token is %d, want 2", lease.Token)
		}
		if _, err := c.Credit(ctx, "a", client.Operation{Amount: 1}); err != nil {
			return err
		}
		if receipt, err := c.Transfer(ctx, client.Transfer{From: "a", To: "a", Amount: 1}); err == nil {
			t.Errorf("a transfer to itself: %+v", receipt)
		}
		return nil
	}, client.LeaseTTL(time.Minute))
	if err != nil || time.Since(begun) > 20*time.Second || !lost.done.Load() {
		t.Errorf("%v after %s", err, time.Since(begun))
	}
	if a := n.do("GET", fmt.Sprintf(accountLease, "a"), ""); a.lease().State != "free" {
		t.Errorf("the lease is not released: %s", a)
	}
}

// loseFirst carries out the first request with the method and loses its answer.
type loseFirst struct {
	base   http.RoundTripper
	method string
	done   atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (l *loseFirst) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.base.RoundTrip(r)
	if err == nil && r.Method == l.method && l.done.CompareAndSwap(false, true) {
		_ = response.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return response, err
}
