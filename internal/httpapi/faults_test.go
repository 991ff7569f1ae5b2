package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

func post(t testing.TB, c *http.Client) reply {
	t.Helper()
	return do(t, c, "POST", "/v1/accounts/A/credits", `{"amount":1}`, headerKey, "k")
}

func TestHangingWriterIsAnswered(t *testing.T) {
	t.Parallel()
	c, _ := clientWith(t, writerFunc(func(ctx context.Context, _ *ledger.Operation) (*ledger.Receipt, error) {
		<-ctx.Done()
		return nil, fmt.Errorf("apply: %w", ctx.Err())
	}), func(cfg *Config) { cfg.Timeout = 20 * time.Millisecond })
	post(t, c).refused(503, ledger.CodeUnavailable).has("applied", "unknown").headerIs("Retry-After", "1")
}

func TestPanicIsAnswered(t *testing.T) {
	t.Parallel()
	c, logged := clientWith(t, writerFunc(func(context.Context, *ledger.Operation) (*ledger.Receipt, error) {
		panic("a broken invariant")
	}))
	r := post(t, c).refused(500, ledger.CodeInternal).has("applied", "unknown")
	if strings.Contains(r.text, "invariant") || strings.Contains(r.text, "goroutine") {
		t.Errorf("the client sees %s", r.text)
	}
	if text := logged.String(); !strings.Contains(text, "a broken invariant") || !strings.Contains(text, r.get("request_id").(string)) {
		t.Errorf("the log says %s", text)
	}
}

func TestInnerErrorsStayInside(t *testing.T) {
	t.Parallel()
	secret := errors.New(`ERROR: duplicate key value violates unique constraint "entries_pkey" (SQLSTATE 23505)`)
	for name, tt := range map[string]struct {
		err    error
		status int
		code   ledger.Code
	}{
		"Unknown":     {secret, 500, ledger.CodeInternal},
		"UnknownCode": {&ledger.Refusal{Code: "new_code", Detail: secret.Error()}, 500, ledger.CodeInternal},
		"Cause": {&ledger.Refusal{Code: ledger.CodeUnavailable, Detail: "Away.", Applied: ledger.AppliedUnknown, Err: secret},
			503, ledger.CodeUnavailable},
		"Unavailable": {fmt.Errorf("wrapped: %w", errAway), 503, ledger.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, logged := clientWith(t, writerFunc(func(context.Context, *ledger.Operation) (*ledger.Receipt, error) {
				return nil, tt.err
			}), func(cfg *Config) { cfg.Unavailable = func(err error) bool { return errors.Is(err, errAway) } })
			r := post(t, c).refused(tt.status, tt.code).has("applied", "unknown")
			if strings.Contains(r.text, "SQLSTATE") || strings.Contains(r.text, "wrapped") {
				t.Errorf("the client sees %s", r.text)
			}
			if !strings.Contains(logged.String(), "wrapped") && !strings.Contains(logged.String(), "SQLSTATE") {
				t.Errorf("the log says %s", logged)
			}
		})
	}
}

var errAway = errors.New("away")

func TestRefusalsOfTheLedger(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		refusal    ledger.Refusal
		status     int
		retryAfter string
		applied    any
	}{
		{ledger.Refusal{Code: ledger.CodeOverloaded, Detail: "Too many.", Applied: ledger.NotApplied}, 503, "1", false},
		{ledger.Refusal{Code: ledger.CodeUnavailable, Detail: "Away.", Applied: ledger.AppliedUnknown}, 503, "1", "unknown"},
		{ledger.Refusal{Code: ledger.CodeIncarnationMismatch, Detail: "Other.", Applied: ledger.NotApplied}, 503, "10", false},
		{ledger.Refusal{Code: ledger.CodeTooManyDeclines, Detail: "Slow down.", Applied: ledger.NotApplied}, 429, "1", false},
		{ledger.Refusal{Code: ledger.CodeInternal, Detail: "Oops.", Applied: ledger.AppliedUnknown}, 500, "", "unknown"},
	} {
		t.Run(string(tt.refusal.Code), func(t *testing.T) {
			t.Parallel()
			c, _ := clientWith(t, writerFunc(func(context.Context, *ledger.Operation) (*ledger.Receipt, error) {
				return nil, fmt.Errorf("apply: %w", &tt.refusal)
			}))
			post(t, c).refused(tt.status, tt.refusal.Code).has("applied", tt.applied, "detail", tt.refusal.Detail).
				headerIs("Retry-After", tt.retryAfter).headerIs("Content-Type", "application/problem+json").headerIs("Cache-Control", "no-store")
		})
	}
}

func TestRequestIDComesBack(t *testing.T) {
	t.Parallel()
	c, _ := clientWith(t, writerFunc(func(context.Context, *ledger.Operation) (*ledger.Receipt, error) {
		return nil, &ledger.Refusal{Code: ledger.CodeOverloaded}
	}))
	headers := []string{headerKey, "k", "X-Request-Id", "trace-1:a/b"}
	do(t, c, "POST", "/v1/accounts/A/credits", `{"amount":1}`, headers...).has("request_id", "trace-1:a/b").headerIs("X-Request-Id", "trace-1:a/b")
	seen := map[string]bool{}
	for _, bad := range []string{"", "a b", `"><script>`, strings.Repeat("a", 129)} {
		r := do(t, c, "POST", "/v1/accounts/A/credits", `{"amount":1}`, headerKey, "k", "X-Request-Id", bad)
		id := r.header.Get("X-Request-Id")
		if id == bad || !validRequestID(id) || seen[id] || r.get("request_id") != id {
			t.Errorf("%q got the id %q", bad, id)
		}
		seen[id] = true
	}
}

// Case 20: expected refusals are logged at info, faults at error, and both are
// counted by their code.
func TestLogAndMetrics(t *testing.T) {
	t.Parallel()
	answer := error(nil)
	c, logged := clientWith(t, writerFunc(func(_ context.Context, op *ledger.Operation) (*ledger.Receipt, error) {
		return &ledger.Receipt{Entry: ledger.Entry{AccountID: op.AccountID, Seq: 1, Kind: op.Kind, After: ledger.State{
			Status: ledger.Active, Fencing: ledger.Fencing{Source: ledger.SourceLease}}}, Account: ledger.Account{Currency: "EUR"}}, answer
	}))
	post(t, c).expect(201)
	if logged.String() != "" {
		t.Errorf("a success is logged: %s", logged)
	}
	answer = &ledger.Refusal{Code: ledger.CodeSeqMismatch, Detail: "d", Presented: 1, Current: 2}
	post(t, c).expect(412)
	if text := logged.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `"level":"INFO"`) || !strings.Contains(text, `"code":"seq_mismatch"`) {
		t.Errorf("a refusal is logged as %s", text)
	}
	answer = errors.New("broken")
	post(t, c).expect(500)
	if text := logged.String(); strings.Count(text, `"level":"ERROR"`) != 1 {
		t.Errorf("a fault is logged as %s", text)
	}
	do(t, c, "GET", "/v1/no/such/path", "").expect(404)
	text := do(t, c, "GET", "/metrics", "").expect(200).text
	for _, line := range []string{
		`ledgerd_http_requests_total{method="POST",route="/v1/accounts/{account_id}/credits",status="201"} 1`,
		`ledgerd_http_requests_total{method="POST",route="/v1/accounts/{account_id}/credits",status="412"} 1`,
		`ledgerd_http_requests_total{method="any",route="unmatched",status="404"} 1`,
		`ledgerd_http_request_duration_seconds_count{method="POST",route="/v1/accounts/{account_id}/credits"} 3`,
		`ledgerd_http_requests_in_flight 1`,
		`ledgerd_http_refusals_total{code="internal"} 1`,
		`ledgerd_http_refusals_total{code="not_found"} 1`,
		`ledgerd_http_refusals_total{code="seq_mismatch"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("/metrics has no line %s", line)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := New(Config{})
	if err == nil || !strings.Contains(err.Error(), "Writer, Accounts, Balances, Entries, Reports, Projection, Rebuilds, AccountLeases, NamedLeases, LeaseAdmin, Fencing, Verifications, Health, Unavailable, Registry") {
		t.Errorf("%v", err)
	}
}
