package main

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// proxy is the network between a service and its database, as bad as a test
// wants it to be. The service reaches it over TCP; the proxy reaches the private
// server over its socket.
type proxy struct {
	url string // of the database through the proxy

	mu      sync.Mutex
	network string // where the database is
	target  string
	rule    *cut // the next cut, nil for none
	conns   map[net.Conn]bool

	hole  atomic.Bool  // nothing passes, and nobody is told
	down  atomic.Bool  // new connections are closed at once
	delay atomic.Int64 // of each packet from the service, in nanoseconds
}

// cut breaks one connection when a packet of the service carries the marker. The
// description of an operation is a good one: of all statements only the INSERT
// has it.
type cut struct {
	marker  []byte
	applied bool          // after the server has answered, else before it heard
	silent  bool          // the connection stays open and carries nothing any more
	done    chan struct{} // closed when it happened
}

// newProxy returns a proxy in front of the database at the URL.
func newProxy(t testing.TB, url string) *proxy {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{conns: make(map[net.Conn]bool)}
	p.point(t, url)
	p.url = fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", cfg.User, l.Addr(), cfg.Database)
	var accepting sync.WaitGroup
	accepting.Go(func() { p.accept(l, &accepting) })
	t.Cleanup(func() {
		_ = l.Close()
		p.breakAll()
		accepting.Wait()
	})
	return p
}

// point leads new connections to the database at the URL.
func (p *proxy) point(t testing.TB, url string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network, p.target = "tcp", net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port))
	if strings.HasPrefix(cfg.Host, "/") {
		p.network, p.target = "unix", fmt.Sprintf("%s/.s.PGSQL.%d", cfg.Host, cfg.Port)
	}
}

func (p *proxy) dial() (net.Conn, error) {
	p.mu.Lock()
	network, target := p.network, p.target
	p.mu.Unlock()
	return net.Dial(network, target)
}

func (p *proxy) accept(l net.Listener, running *sync.WaitGroup) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		if p.down.Load() {
			_ = client.Close()
			continue
		}
		server, err := p.dial()
		if err != nil {
			_ = client.Close()
			continue
		}
		p.keep(client, server)
		link := &proxyLink{proxy: p, client: client, server: server}
		running.Go(link.upstream)
		running.Go(link.downstream)
	}
}

func (p *proxy) keep(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = true
	}
}

// breakAll closes every connection at once.
func (p *proxy) breakAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

// cutOnce arms one cut and returns a channel that is closed when it happened.
func (p *proxy) cutOnce(marker string, applied, silent bool) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = &cut{marker: []byte(marker), applied: applied, silent: silent, done: make(chan struct{})}
	return p.rule.done
}

// match takes the rule when the packet has its marker.
func (p *proxy) match(packet []byte) *cut {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rule == nil || !bytes.Contains(packet, p.rule.marker) {
		return nil
	}
	rule := p.rule
	p.rule = nil
	return rule
}

// proxyLink is one connection through the proxy.
type proxyLink struct {
	proxy          *proxy
	client, server net.Conn
	armed          atomic.Pointer[cut] // to be carried out at the next answer
	dead           atomic.Bool         // carries nothing any more
}

func (l *proxyLink) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// sever carries the cut out.
func (l *proxyLink) sever(c *cut) {
	if c.silent {
		l.dead.Store(true)
	} else {
		l.close()
	}
	close(c.done)
}

// upstream carries packets from the service to the server.
func (l *proxyLink) upstream() {
	defer l.close()
	buffer := make([]byte, 256<<10)
	for {
		n, err := l.client.Read(buffer)
		if err != nil {
			return
		}
		if d := l.proxy.delay.Load(); d > 0 {
			time.Sleep(time.Duration(d)) // the network under test is slow
		}
		if rule := l.proxy.match(buffer[:n]); rule != nil {
			if !rule.applied {
				l.sever(rule)
				continue
			}
			l.armed.Store(rule)
		}
		if l.dead.Load() || l.proxy.hole.Load() {
			continue
		}
		if _, err := l.server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// downstream carries answers back.
func (l *proxyLink) downstream() {
	defer l.close()
	buffer := make([]byte, 256<<10)
	for {
		n, err := l.server.Read(buffer)
		if err != nil {
			return
		}
		if rule := l.armed.Swap(nil); rule != nil {
			l.sever(rule)
			continue
		}
		if l.dead.Load() || l.proxy.hole.Load() {
			continue
		}
		if _, err := l.client.Write(buffer[:n]); err != nil {
			return
		}
	}
}
