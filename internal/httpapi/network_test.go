package httpapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/httpapi/apitest"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// listen serves cfg on a port of its own and returns the address.
func listen(t *testing.T, cfg Config) string {
	t.Helper()
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := NewHTTPServer(h, cfg.Timeout)
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		serving.Wait()
	})
	return l.Addr().String()
}

// Case 19: the database is away, from the start or later; every request is
// answered within its deadline, and all is well when it comes back.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	instance := pgtest.Server(t)
	instance.Stop(t)
	w, err := ledger.OpenWriter(
		postgres.Config{URL: instance.URL, Role: postgres.ServiceRole},
		ledger.WriterConfig{Log: slog.New(slog.DiscardHandler), Deadline: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := postgres.Open(postgres.Config{URL: instance.URL, Role: postgres.ServiceRole, MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			t.Errorf("close writer: %v", err)
		}
	})
	reader := ledger.NewReader(pool)
	cfg := configOf(newJobs())
	cfg.Writer, cfg.Accounts, cfg.Balances, cfg.Entries = w, reader, reader, reader
	cfg.Unavailable = func(err error) bool { return postgres.Classify(err) == postgres.ClassUnsent }
	client := clientOf(t, cfg)
	away := func() {
		t.Helper()
		for _, call := range [][3]string{
			{"PUT", "/v1/accounts/A", `{"currency":"EUR"}`}, {"POST", "/v1/accounts/A/credits", `{"amount":1}`},
			{"GET", "/v1/accounts/A", ""}, {"GET", "/v1/accounts", ""}, {"GET", "/v1/accounts/A/balance", ""}, {"GET", "/v1/accounts/A/entries", ""},
		} {
			do(t, client, call[0], call[1], call[2], headerKey, "k").refused(503, ledger.CodeUnavailable).headerIs("Retry-After", "1")
		}
		do(t, client, "POST", "/v1/accounts/A/credits", `{"amount":0}`, headerKey, "k").refused(400, codeInvalidRequest)
	}
	away()
	instance.Start(t)
	eventually(t, func() bool { return do(t, client, "PUT", "/v1/accounts/A", `{"currency":"EUR"}`).status == 201 })
	do(t, client, "POST", "/v1/accounts/A/credits", `{"amount":1}`, headerKey, "k").expect(201).has("balance", 1)
	instance.Stop(t)
	away()
	instance.Start(t)
	eventually(t, func() bool {
		return do(t, client, "POST", "/v1/accounts/A/credits", `{"amount":1}`, headerKey, "k2").status == 201
	})
	do(t, client, "GET", "/v1/accounts/A", "").expect(200).has("balance", 2)
	audit(t, instance.DB)
}

// eventually polls until it is so.
func eventually(t *testing.T, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !so(); {
		if time.Now().After(deadline) {
			t.Fatal("not within 30 s")
		}
		<-time.After(10 * time.Millisecond)
	}
}

// Case 11: callers that go away in mid-request leave nothing behind.
func TestCallersThatGoAway(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	w, err := ledger.OpenWriter(postgres.Config{URL: db.URL, Role: postgres.ServiceRole}, ledger.WriterConfig{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	reader := ledger.NewReader(db.Pool(t))
	cfg := configOf(newJobs())
	cfg.Writer, cfg.Accounts, cfg.Balances, cfg.Entries = w, reader, reader, reader
	address := listen(t, cfg)
	client := &http.Client{Transport: apitest.New(t).Transport(t, nil)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			t.Errorf("close writer: %v", err)
		}
		audit(t, db)
	})
	send := func(ctx context.Context, method, path, body, key string) (int, error) {
		r, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		r.Header.Set("Content-Type", "application/json")
		if key != "" {
			r.Header.Set(headerKey, key)
		}
		response, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	if status, err := send(t.Context(), "PUT", "/v1/accounts/A", `{"currency":"EUR"}`, ""); status != 201 {
		t.Fatal(status, err)
	}
	together(100, func(i int) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*50*time.Microsecond)
		defer cancel()
		if status, err := send(ctx, "POST", "/v1/accounts/A/credits", `{"amount":1}`, "same"); err == nil && status != 201 {
			t.Errorf("status %d", status)
		}
	})
	if status, err := send(t.Context(), "POST", "/v1/accounts/A/credits", `{"amount":1}`, "same"); status != 201 {
		t.Errorf("the next write: %d, %v", status, err)
	}
	head, err := reader.Head(t.Context(), "A")
	if err != nil || head.Seq != 2 || head.State.Balance != 1 {
		t.Errorf("the account is at %d with %d: %v", head.Seq, head.State.Balance, err)
	}
}

// raw sends bytes on a connection of their own and returns the answer.
func raw(t *testing.T, address string, parts ...string) string {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, p := range parts {
		if _, err := io.WriteString(c, p); err != nil {
			break // the server has seen enough
		}
	}
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(c) // until the server closes, or resets what it did not read
	return string(answer)
}

func TestHostileConnections(t *testing.T) {
	t.Parallel()
	cfg := configOf(newJobs())
	reader := (*ledger.Reader)(nil)
	cfg.Writer, cfg.Accounts, cfg.Balances, cfg.Entries = instantWriter(), reader, reader, reader
	cfg.Timeout = 200 * time.Millisecond
	address := listen(t, cfg)
	const head = "POST /v1/accounts/A/credits HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\n"
	for name, tt := range map[string]struct {
		parts []string
		want  string
	}{
		"DeclaredTooLong": {[]string{head + "Content-Length: 1048577\r\n\r\n"}, "HTTP/1.1 413 "},
		"BodyThatStops":   {[]string{head + "Content-Length: 20\r\n\r\n", `{"amount"`}, "HTTP/1.1 503 "},
		"BodyThatIsCut":   {[]string{head + "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n", "3\r\n{}xZZZZ"}, "HTTP/1.1 400 "},
		"NoHost":          {[]string{"GET /healthz HTTP/1.1\r\n\r\n"}, "HTTP/1.1 400 "},
		"Closed":          {[]string{"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"}, "HTTP/1.1 200 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if answer := raw(t, address, tt.parts...); !strings.HasPrefix(answer, tt.want) {
				t.Errorf("answer %.200q, want %q", answer, tt.want)
			}
		})
	}
}
