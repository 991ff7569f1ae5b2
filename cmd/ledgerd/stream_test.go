package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

// streamTo is a client without the contract in between, which would gather
// whole bodies. What streams answer is checked in internal/httpapi.
func streamTo(t *testing.T, n *node, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(n.url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// feed sends items until there are no more or ctx ends.
func feed(ctx context.Context, count int, item func(i int) client.Item) <-chan client.Item {
	items := make(chan client.Item)
	go func() {
		defer close(items)
		for i := range count {
			select {
			case items <- item(i):
			case <-ctx.Done():
				return
			}
		}
	}()
	return items
}

// TestStreamHasFlatMemory sends 100,000 lines through one connection. Client and
// service are in this process, and no other test is at the same time.
func TestStreamHasFlatMemory(t *testing.T) {
	const lines, accounts, warm = 100_000, 100, 20_000
	const growthMax = 24 << 20 // the results alone are 60 MB
	b := newBooks(t)
	b.lossy()
	n := serve(t, b)
	for i := range accounts {
		n.open(fmt.Sprint("s-", i))
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	items := feed(ctx, lines, func(i int) client.Item {
		return client.CreditItem(fmt.Sprint("k-", i), fmt.Sprint("s-", i%accounts), client.Operation{Amount: 1})
	})
	got, base := 0, uint64(0)
	for r, err := range streamTo(t, n).Stream(ctx, items) {
		if err != nil || r.Err != nil || r.Key != fmt.Sprint("k-", got) || r.Entry().Balance != int64(got/accounts+1) {
			t.Fatalf("result %d: %+v, %v", got, r, err)
		}
		got++
		switch {
		case got == warm:
			base = heap()
		case got > warm && got%warm == 0:
			if now := heap(); now > base+growthMax {
				t.Errorf("after %d lines the heap is %d MB, after %d it was %d MB", got, now>>20, warm, base>>20)
			}
		}
	}
	if got != lines {
		t.Errorf("%d results of %d lines", got, lines)
	}
	if seq := n.balance("s-7").Seq; seq != lines/accounts+1 {
		t.Errorf("seq %d", seq)
	}
}

// cuttingDialer makes connections that break after some bytes.
type cuttingDialer struct {
	dialer net.Dialer
	rng    *rand.Rand
	dials  atomic.Int64
}

func (d *cuttingDialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &cutConn{Conn: conn}
	c.left.Store(30_000 + d.rng.Int64N(300_000)) // dials come one after the other
	d.dials.Add(1)
	return c, nil
}

type cutConn struct {
	net.Conn
	left atomic.Int64
}

var errCut = errors.New("cut")

func (c *cutConn) pass(n int) error {
	if c.left.Add(int64(-n)) > 0 {
		return nil
	}
	return errors.Join(errCut, c.Close())
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if cut := c.pass(n); cut != nil {
		return 0, cut
	}
	return n, err
}

func (c *cutConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if cut := c.pass(n); cut != nil {
		return 0, cut
	}
	return n, err
}

// TestStreamIsResumed cuts the connection again and again: every item is carried
// out once and has its result in its place.
func TestStreamIsResumed(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.lossy()
	n := serve(t, b)
	const lines, accounts = 5000, 10
	for i := range accounts {
		n.open(fmt.Sprint("s-", i))
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dialer := &cuttingDialer{rng: rand.New(rand.NewPCG(seed, 1))}
	c := streamTo(t, n, client.WithHTTPClient(&http.Client{Transport: &http.Transport{DialContext: dialer.dial, DisableCompression: true}}))
	credits, transfers := int64(0), int64(0)
	for i := range lines {
		if i >= accounts && i%4 == 3 {
			transfers++
		} else {
			credits++
		}
	}
	items := feed(t.Context(), lines, func(i int) client.Item {
		if i >= accounts && i%4 == 3 {
			return client.TransferItem(fmt.Sprint("k-", i), client.Transfer{
				From: fmt.Sprint("s-", i%accounts), To: fmt.Sprint("s-", (i+1)%accounts), Amount: 1, Currency: "EUR"})
		}
		return client.CreditItem(fmt.Sprint("k-", i), fmt.Sprint("s-", i%accounts), client.Operation{Amount: 5})
	})
	got, replayed := 0, 0
	for r, err := range c.Stream(t.Context(), items) {
		if err != nil || r.Err != nil || r.Key != fmt.Sprint("k-", got) {
			t.Fatalf("result %d: %+v, %v", got, r, err)
		}
		got++
		if r.Replayed {
			replayed++
		}
	}
	t.Logf("%d connections, %d replays", dialer.dials.Load(), replayed)
	if got != lines || dialer.dials.Load() < 3 {
		t.Errorf("%d results over %d connections", got, dialer.dials.Load())
	}
	sum, links := int64(0), int64(0)
	for i := range accounts {
		r := n.balance(fmt.Sprint("s-", i))
		sum, links = sum+r.Balance, links+r.Seq
	}
	if sum != credits*5 || links != accounts+credits+2*transfers {
		t.Errorf("the sum is %d, the chains have %d links", sum, links)
	}
}

// TestStreamEndsWithTheService shuts down while a stream waits for its next line:
// the shutdown does not wait for the client, and the client learns of it.
func TestStreamEndsWithTheService(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.lossy()
	n := serve(t, b)
	n.open("s")
	items := make(chan client.Item, 1)
	items <- client.CreditItem("k", "s", client.Operation{Amount: 5})
	results := 0
	for r, err := range streamTo(t, n, client.WithRetryFor(0)).Stream(t.Context(), items) {
		if results == 1 {
			if err == nil {
				t.Errorf("a second result: %+v", r)
			}
			break
		}
		if err != nil || r.Err != nil {
			t.Fatalf("result %+v, %v", r, err)
		}
		results++
		begun := time.Now()
		if code := n.shutdown(); code != exitOK || time.Since(begun) > 10*time.Second {
			t.Errorf("the shutdown took %s and ended with %d", time.Since(begun), code)
		}
	}
	if results != 1 {
		t.Errorf("%d results", results)
	}
}
