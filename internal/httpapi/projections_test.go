package httpapi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

func clientOfJobs(t *testing.T) (*jobs, func(method, path, body string, headers ...string) reply) {
	t.Helper()
	j := newJobs()
	c, _ := clientWith(t, writerFunc(nil), func(cfg *Config) {
		cfg.Projection, cfg.Rebuilds, cfg.Verifications, cfg.Health = j, j, j, j
		cfg.Unavailable = func(err error) bool { return errors.Is(err, errAway) }
	})
	return j, func(method, path, body string, headers ...string) reply {
		t.Helper()
		return do(t, c, method, path, body, headers...)
	}
}

func TestProjectionStatus(t *testing.T) {
	t.Parallel()
	j, do := clientOfJobs(t)
	do("GET", "/v1/projections/balances", "").expect(200).has("name", "balances", "lag_entries", 0)
	lag := time.FixedZone("", 3600)
	j.projection = Projection{LagEntries: 5, LagSeconds: 0.25, Shards: []Shard{
		{Shard: 0, State: "held", Holder: "h-1", Generation: 7, ExpiresAt: time.Unix(1700000000, 5000).In(lag), LagEntries: new(int64(5)), LagSeconds: new(0.25), ParkedAccounts: new(int64(0))},
		{Shard: 1, State: "free"},
	}}
	r := do("GET", "/v1/projections/balances", "").expect(200)
	want := `{"name":"balances","lag_entries":5,"lag_seconds":0.25,"parked_accounts":0,"shards":[` +
		`{"shard":0,"state":"held","holder":"h-1","generation":7,"expires_at":"2023-11-14T22:13:20.000005Z","lag_entries":5,"lag_seconds":0.25,"parked_accounts":0},` +
		`{"shard":1,"state":"free"}]}`
	if r.text != want {
		t.Errorf("got  %s\nwant %s", r.text, want)
	}
	j.err = errAway
	do("GET", "/v1/projections/balances", "").refused(503, ledger.CodeUnavailable).has("applied", nil)
}

func TestRebuilds(t *testing.T) {
	t.Parallel()
	j, do := clientOfJobs(t)
	for _, body := range []string{"", "{}"} {
		do("POST", "/v1/projections/balances/rebuild", body).expect(202).has("id", "r1", "state", "pending").
			headerIs("Location", "/v1/projections/balances/rebuilds/r1")
	}
	do("POST", "/v1/projections/balances/rebuild", `{"from":1}`).refused(400, codeInvalidRequest)
	do("POST", "/v1/projections/balances/rebuild", `{}`, "Content-Encoding", "gzip").refused(415, codeUnsupportedMediaType)
	j.rebuilds["r1"] = Rebuild{
		ID: "r1", State: JobDone, ShardsTotal: 64, ShardsDone: 64, AccountsTotal: 10, AccountsDone: 10, EntriesTotal: 99, EntriesDone: 99,
		DriftedAccounts: 1, RequestedAt: time.Unix(1, 0), StartedAt: time.Unix(2, 0), FinishedAt: time.Unix(3, 0),
	}
	do("GET", "/v1/projections/balances/rebuilds/r1", "").expect(200).
		has("state", "done", "entries_done", 99, "drifted_accounts", 1, "finished_at", "1970-01-01T00:00:03.000000Z", "error", nil)
	do("GET", "/v1/projections/balances/rebuilds/r2", "").refused(404, codeRebuildNotFound)
}

func TestVerifications(t *testing.T) {
	t.Parallel()
	j, do := clientOfJobs(t)
	do("POST", "/v1/projections/balances/verify", "").expect(202).has("id", "v1", "state", "running", "differences", 0).
		headerIs("Location", "/v1/projections/balances/verifications/v1")
	findings := make([]Finding, FindingsMax+1)
	for i := range findings {
		findings[i] = Finding{AccountID: "A", Seq: int64(i + 1), Kind: "hash", Detail: "The hash is another one."}
	}
	j.verifications["v1"] = Verification{ID: "v1", State: JobDone, Differences: 201, Findings: findings, RequestedAt: time.Unix(1, 0)}
	r := do("GET", "/v1/projections/balances/verifications/v1", "").expect(200).has("differences", 201)
	if n := strings.Count(r.text, `"kind":"hash"`); n != FindingsMax {
		t.Errorf("%d findings are sent", n)
	}
	do("GET", "/v1/projections/balances/verifications/v2", "").refused(404, codeVerificationNotFound)
}

func TestServiceRoutes(t *testing.T) {
	t.Parallel()
	j, do := clientOfJobs(t)
	do("GET", "/healthz", "").expect(200).has("status", "ok")
	do("GET", "/readyz", "").expect(200).has("status", "ready")
	j.checks = []Check{{Name: "schema", OK: true}, {Name: "database", Detail: "no connection"}}
	r := do("GET", "/readyz", "").refused(503, ledger.CodeUnavailable).headerIs("Retry-After", "1")
	if !strings.Contains(r.text, `"checks":[{"name":"schema","ok":true},{"name":"database","ok":false,"detail":"no connection"}]`) {
		t.Errorf("not ready: %s", r.text)
	}
	do("GET", "/healthz", "").expect(200)
	if text := do("GET", "/api.yaml", "").expect(200).text; !strings.HasPrefix(text, "openapi: 3.1") {
		t.Errorf("/api.yaml begins with %.20q", text)
	}
	if text := do("GET", "/docs", "").expect(200).text; !strings.HasPrefix(text, "<!DOCTYPE html>") {
		t.Errorf("/docs begins with %.20q", text)
	}
}

// A readiness check gets the request's deadline.
func TestReadinessHasADeadline(t *testing.T) {
	t.Parallel()
	c, _ := clientWith(t, writerFunc(nil), func(cfg *Config) {
		cfg.Timeout = time.Minute
		cfg.Health = healthFunc(func(ctx context.Context) []Check {
			_, ok := ctx.Deadline()
			return []Check{{Name: "deadline", OK: ok}}
		})
	})
	do(t, c, "GET", "/readyz", "").expect(200)
}

type healthFunc func(ctx context.Context) []Check

func (f healthFunc) Ready(ctx context.Context) []Check { return f(ctx) }
