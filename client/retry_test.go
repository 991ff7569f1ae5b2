package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

// request is what the service saw of one attempt.
type request struct {
	method, uri string
	header      http.Header
	body        string
}

// service is an HTTP server that plays one step of a script for each request,
// the last one for ever, and keeps what it saw.
type service struct {
	*httptest.Server
	mu   sync.Mutex
	seen []request
}

func newService(t testing.TB, script ...http.HandlerFunc) *service {
	t.Helper()
	s := &service{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.seen = append(s.seen, request{r.Method, r.RequestURI, r.Header.Clone(), string(body)})
		step := script[min(len(s.seen), len(script))-1]
		s.mu.Unlock()
		step(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *service) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]request(nil), s.seen...)
}

func (s *service) client(t testing.TB, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(s.URL, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func answer(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		media := "application/json"
		if status >= 400 {
			media = "application/problem+json"
		}
		w.Header().Set("Content-Type", media)
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// cut closes the connection after the request was read.
func cut(w http.ResponseWriter, r *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		conn.Close()
	}
}

// hang answers nothing until the client goes away.
func hang(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

const (
	receiptBody = `{"transaction_id":"019ad3f5-7c1e-7d3a-9b1f-0b8a5c2d4e6f","account_id":"a","seq":2,"kind":"credit","amount":9007199254740991,
		"currency":"EUR","balance":9007199254740991,"held":0,"available":9007199254740991,"min_balance":0,"status":"active",
		"fencing":{"source":"lease","required":false},"fence":0,"posted_at":"2026-11-30T09:30:00.000001Z",
		"effective_at":"1993-01-01T00:00:00.000000Z","idempotency_key":"k","hash":"` +
		`00000000000000000000000000000000ffffffffffffffffffffffffffffffff"}`
	unavailable     = `{"type":"/docs#unavailable","title":"unavailable","status":503,"code":"unavailable","request_id":"r","applied":false}`
	unknownOutcome  = `{"type":"/docs#unavailable","title":"unavailable","status":503,"code":"unavailable","request_id":"r","applied":"unknown"}`
	notFound        = `{"type":"/docs#account_not_found","title":"no account","status":404,"code":"account_not_found","request_id":"r","applied":false}`
	seqMismatch     = `{"type":"/docs#seq_mismatch","title":"changed","status":412,"code":"seq_mismatch","request_id":"r","applied":false,"current_seq":9}`
	declined        = `{"type":"/docs#insufficient_funds","title":"no","status":422,"code":"insufficient_funds","request_id":"r","applied":false,"seq":7,"transaction_id":"019ad3f5-7c1e-7d3a-9b1f-0b8a5c2d4e6f"}`
	internalUnknown = `{"type":"/docs#internal","title":"fault","status":500,"code":"internal","request_id":"r"}`
)

// TestFaultsAreRetriedWithTheIdenticalRequest meets every fault before the
// answer and compares the attempts.
func TestFaultsAreRetriedWithTheIdenticalRequest(t *testing.T) {
	faults := map[string]http.HandlerFunc{
		"connection cut":        cut,
		"no answer in time":     hang,
		"half an answer":        answer(201, receiptBody[:40], "Content-Length", fmt.Sprint(len(receiptBody))),
		"nonsense":              answer(201, "<html>"),
		"unavailable":           answer(503, unavailable),
		"unavailable, unknown":  answer(503, unknownOutcome),
		"a proxy without words": answer(502, "bad gateway"),
		"gateway time-out":      answer(504, ""),
		"too many declines":     answer(429, `{"code":"too_many_declines","status":429,"applied":false}`),
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, fault, fault, answer(201, receiptBody, "Idempotency-Replayed", "true"))
			c := s.client(t, client.WithAttemptTimeout(300*time.Millisecond))
			op := client.Operation{Amount: 1<<53 - 1, Metadata: map[string]string{"b": "é", "a": `"`}}
			r, err := c.Credit(t.Context(), "a", op, client.IfMatch(1), client.FencingToken(102))
			if err != nil {
				t.Fatal(err)
			}
			if !r.Replayed || r.Seq != 2 || r.Balance != 1<<53-1 || r.Kind != client.KindCredit {
				t.Errorf("receipt %+v", r)
			}
			seen := s.requests()
			if len(seen) != 3 {
				t.Fatalf("%d attempts, want 3", len(seen))
			}
			first := seen[0]
			if first.method != "POST" || first.uri != "/v1/accounts/a/credits" || first.header.Get("If-Match") != `"1"` ||
				first.header.Get("Fencing-Token") != "102" || len(first.header.Get("Idempotency-Key")) != 36 {
				t.Errorf("request %+v", first)
			}
			for _, again := range seen[1:] {
				if again.body != first.body || again.header.Get("Idempotency-Key") != first.header.Get("Idempotency-Key") {
					t.Errorf("attempts differ: %+v then %+v", first, again)
				}
			}
		})
	}
}

// TestOutcome is the table of what a write may say after it ended badly.
func TestOutcome(t *testing.T) {
	cases := []struct {
		name    string
		script  []http.HandlerFunc
		change  bool
		code    client.Code
		unknown bool
	}{
		{"refused at once", []http.HandlerFunc{answer(404, notFound)}, false, client.CodeAccountNotFound, false},
		{"declined at once", []http.HandlerFunc{answer(422, declined)}, false, client.CodeInsufficientFunds, false},
		{"declined after a cut", []http.HandlerFunc{cut, answer(422, declined)}, false, client.CodeInsufficientFunds, false},
		{"never applied", []http.HandlerFunc{answer(503, unavailable)}, false, client.CodeUnavailable, false},
		{"unknown at the end", []http.HandlerFunc{answer(503, unknownOutcome)}, false, client.CodeUnavailable, true},
		{"unknown, then not applied", []http.HandlerFunc{cut, answer(503, unavailable)}, false, client.CodeUnavailable, true},
		{"unknown, then a refusal that can pass", []http.HandlerFunc{cut, answer(404, notFound)}, false, client.CodeAccountNotFound, true},
		{"unknown, then the seq moved: the key was looked up first", []http.HandlerFunc{cut, answer(412, seqMismatch)}, false, client.CodeSeqMismatch, false},
		{"a change without a key may have moved the seq itself", []http.HandlerFunc{cut, answer(412, seqMismatch)}, true, client.CodeSeqMismatch, true},
		{"fault that does not deny", []http.HandlerFunc{answer(500, internalUnknown)}, false, client.CodeInternal, true},
		{"cut for ever", []http.HandlerFunc{cut}, false, "", true},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, tc.script...)
			c := s.client(t, client.WithRetryFor(200*time.Millisecond))
			var err error
			if tc.change {
				_, err = c.UpdateAccount(t.Context(), "a", client.Change{Metadata: map[string]string{}}, client.IfMatch(8))
			} else {
				_, err = c.Debit(t.Context(), "a", client.Operation{Amount: 1}, client.Key("k"))
			}
			var p *client.Problem
			if errors.As(err, &p); tc.code != "" && (p == nil || p.Code != tc.code) {
				t.Errorf("error %v, want code %s", err, tc.code)
			}
			var u *client.UnknownOutcome
			if got := errors.As(err, &u); got != tc.unknown {
				t.Fatalf("unknown outcome %t, want %t: %v", got, tc.unknown, err)
			}
			if u != nil && !tc.change && u.Key != "k" {
				t.Errorf("the key to repeat with is %q", u.Key)
			}
		})
	}
}

func TestRefusedConnectionIsNoUnknownOutcome(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	c, err := client.New("http://"+l.Addr().String(), client.WithRetryFor(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Credit(t.Context(), "a", client.Operation{Amount: 1})
	var u *client.UnknownOutcome
	var op *net.OpError
	if errors.As(err, &u) || !errors.As(err, &op) {
		t.Errorf("error %v, want a plain dial error", err)
	}
}

func TestRetryAfterIsWaitedFor(t *testing.T) {
	s := newService(t, answer(503, unavailable, "Retry-After", "1"), answer(201, receiptBody))
	begin := time.Now()
	if _, err := s.client(t).Credit(t.Context(), "a", client.Operation{Amount: 1}); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d < time.Second {
		t.Errorf("repeated after %s, the service asked for 1 s", d)
	}
}

// TestContextBoundsTheRetries gives a deadline before Retry-After: there is no
// point in waiting for it.
func TestContextBoundsTheRetries(t *testing.T) {
	s := newService(t, answer(503, unavailable, "Retry-After", "30"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := s.client(t, client.WithRetryFor(time.Hour)).Credit(ctx, "a", client.Operation{Amount: 1})
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("error %v with the context at %v, want to give up before the deadline", err, ctx.Err())
	}
	if n := len(s.requests()); n != 1 {
		t.Errorf("%d attempts, want 1", n)
	}
}

func TestCancelledCallEndsAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newService(t, func(w http.ResponseWriter, r *http.Request) {
		cancel()
		hang(w, r)
	})
	_, err := s.client(t).Credit(ctx, "a", client.Operation{Amount: 1}, client.Key("k"))
	var u *client.UnknownOutcome
	if !errors.Is(err, context.Canceled) || !errors.As(err, &u) || u.Attempts != 1 {
		t.Errorf("error %v, want a cancelled call with an unknown outcome", err)
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	s := newService(t, answer(302, "", "Location", "/elsewhere"))
	_, err := s.client(t).Credit(t.Context(), "a", client.Operation{Amount: 1})
	var p *client.Problem
	if !errors.As(err, &p) || p.Status != 302 || len(s.requests()) != 1 {
		t.Errorf("error %v after %d requests, want the redirect itself", err, len(s.requests()))
	}
}

func TestKeyWithQuotesTravelsQuoted(t *testing.T) {
	s := newService(t, answer(201, receiptBody))
	if _, err := s.client(t).Credit(t.Context(), "a", client.Operation{Amount: 1}, client.Key(`"a\b"`)); err != nil {
		t.Fatal(err)
	}
	if got, want := s.requests()[0].header.Get("Idempotency-Key"), `"\"a\\b\""`; got != want {
		t.Errorf("header %s, want %s", got, want)
	}
}

func TestTextIsNeverSentChanged(t *testing.T) {
	s := newService(t, answer(201, receiptBody))
	_, err := s.client(t).Credit(t.Context(), "a", client.Operation{Amount: 1, Description: "\xff"})
	if err == nil || !strings.Contains(err.Error(), "UTF-8") || len(s.requests()) != 0 {
		t.Errorf("error %v after %d requests, want a refusal before sending", err, len(s.requests()))
	}
}
