package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/httpapi/apitest"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// service is the HTTP interface over a real ledger on a database of its own.
// All its exchanges are checked against api.yaml, and all chains are audited
// when the test ends.
type service struct {
	t      testing.TB
	db     *pgtest.DB
	client *http.Client
	jobs   *jobs
}

func newService(t testing.TB) *service {
	t.Helper()
	db := pgtest.Database(t)
	w, err := ledger.OpenWriter(
		postgres.Config{URL: db.URL, Role: postgres.ServiceRole},
		ledger.WriterConfig{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	reader := ledger.NewReader(db.Pool(t))
	s := &service{t: t, db: db, jobs: newJobs()}
	cfg := configOf(s.jobs)
	cfg.Writer, cfg.Accounts, cfg.Balances, cfg.Entries, cfg.Reports = w, reader, reader, reader, reader
	s.client = clientOf(t, cfg)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			t.Errorf("close writer: %v", err)
		}
		audit(t, db)
	})
	return s
}

// configOf returns a configuration in which only what the ledger does is
// missing.
func configOf(j *jobs) Config {
	d := newDesk()
	return Config{
		AccountLeases: d, NamedLeases: d, LeaseAdmin: d, Fencing: d,
		Reports:    (*ledger.Reader)(nil), // only tests of reports read them
		Projection: j, Rebuilds: j, Verifications: j, Health: j,
		Unavailable: func(error) bool { return false },
		Registry:    prometheus.NewRegistry(),
		Logger:      slog.New(slog.DiscardHandler),
	}
}

// clientOf returns a client of a new handler; every exchange is checked.
func clientOf(t testing.TB, cfg Config) *http.Client {
	t.Helper()
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: apitest.New(t).Handler(t, h)}
}

// audit checks every chain of the database with the auditor that the program
// ships.
func audit(t testing.TB, db *pgtest.DB) {
	t.Helper()
	rows, err := db.OwnerPool(t).Query(context.Background(),
		"select "+ledger.EntryColumns+" from entries as e order by e.account_id, e.seq")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := pgx.CollectRows(rows, ledger.ScanEntry)
	if err != nil {
		t.Fatal(err)
	}
	var auditor *ledger.Auditor
	for i := range entries {
		e := &entries[i]
		if e.Seq == 1 {
			auditor = ledger.NewAuditor(e.AccountID)
		}
		for _, f := range auditor.Add(e) {
			t.Errorf("audit: %s", f)
		}
	}
}

// reply is an answer that was read completely.
type reply struct {
	t      testing.TB
	status int
	header http.Header
	text   string
}

// do sends a request; headers are given as name, value, name, value …
func (s *service) do(method, path, body string, headers ...string) reply {
	s.t.Helper()
	return do(s.t, s.client, method, path, body, headers...)
}

func do(t testing.TB, client *http.Client, method, path, body string, headers ...string) reply {
	t.Helper()
	r, err := http.NewRequest(method, "http://ledgerd.test"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return read(t, client, r)
}

// read sends a request and reads its answer.
func read(t testing.TB, client *http.Client, r *http.Request) reply {
	t.Helper()
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{t, response.StatusCode, response.Header, string(text)}
}

// open opens an account in EUR.
func (s *service) open(id string) {
	s.t.Helper()
	s.do("PUT", "/v1/accounts/"+id, `{"currency":"EUR"}`).expect(201)
}

func (s *service) credit(id, body, key string, headers ...string) reply {
	s.t.Helper()
	return s.do("POST", "/v1/accounts/"+id+"/credits", body, append([]string{headerKey, key}, headers...)...)
}

func (s *service) debit(id, body, key string, headers ...string) reply {
	s.t.Helper()
	return s.do("POST", "/v1/accounts/"+id+"/debits", body, append([]string{headerKey, key}, headers...)...)
}

// expect ends the test when the status is another one.
func (r reply) expect(status int) reply {
	r.t.Helper()
	if r.status != status {
		r.t.Fatalf("status %d, want %d: %s", r.status, status, r.text)
	}
	return r
}

// refused ends the test when the answer is not a problem with this status and
// code.
func (r reply) refused(status int, code ledger.Code) reply {
	r.t.Helper()
	r.expect(status)
	r.has("code", string(code))
	return r
}

// get returns a member of the body; a nested one by its path with dots.
func (r reply) get(path string) any {
	r.t.Helper()
	d := json.NewDecoder(strings.NewReader(r.text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		r.t.Fatalf("%v: %s", err, r.text)
	}
	for name := range strings.SplitSeq(path, ".") {
		object, _ := v.(map[string]any)
		v = object[name]
	}
	if n, ok := v.(json.Number); ok {
		i, err := n.Int64()
		if err != nil {
			return n
		}
		return int(i)
	}
	return v
}

// has checks members of the body, given as path, value, path, value …
func (r reply) has(members ...any) reply {
	r.t.Helper()
	for i := 0; i+1 < len(members); i += 2 {
		if got := r.get(members[i].(string)); got != members[i+1] {
			r.t.Errorf("%s is %v (%T), want %v: %s", members[i], got, got, members[i+1], r.text)
		}
	}
	return r
}

// headerIs checks a header of the answer.
func (r reply) headerIs(name, value string) reply {
	r.t.Helper()
	if got := r.header.Get(name); got != value {
		r.t.Errorf("%s is %q, want %q", name, got, value)
	}
	return r
}

// jobs stands for what the projection does: it is a part of its own, and here
// only what HTTP makes of it is of interest.
type jobs struct {
	mu            sync.Mutex
	projection    Projection
	rebuilds      map[string]Rebuild
	verifications map[string]Verification
	checks        []Check
	err           error
}

func newJobs() *jobs {
	return &jobs{
		rebuilds: map[string]Rebuild{}, verifications: map[string]Verification{},
		checks: []Check{{Name: "database", OK: true}},
	}
}

func (j *jobs) Projection(context.Context) (Projection, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.projection, j.err
}

func (j *jobs) StartRebuild(context.Context) (Rebuild, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := Rebuild{ID: "r1", State: JobPending, ShardsTotal: 64, RequestedAt: time.Unix(1700000000, 0)}
	j.rebuilds[b.ID] = b
	return b, j.err
}

func (j *jobs) Rebuild(_ context.Context, id string) (Rebuild, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b, ok := j.rebuilds[id]
	if !ok {
		return Rebuild{}, ErrNotFound
	}
	return b, j.err
}

func (j *jobs) StartVerification(context.Context) (Verification, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := Verification{ID: "v1", State: JobRunning, RequestedAt: time.Unix(1700000000, 0), StartedAt: time.Unix(1700000001, 0)}
	j.verifications[v.ID] = v
	return v, j.err
}

func (j *jobs) Verification(_ context.Context, id string) (Verification, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	v, ok := j.verifications[id]
	if !ok {
		return Verification{}, ErrNotFound
	}
	return v, j.err
}

func (j *jobs) Ready(context.Context) []Check {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.checks
}

// writerFunc is a writer that is a function, for faults that a real one cannot
// be made to have.
type writerFunc func(ctx context.Context, op *ledger.Operation) (*ledger.Receipt, error)

func (f writerFunc) Apply(ctx context.Context, op *ledger.Operation) (*ledger.Receipt, error) {
	return f(ctx, op)
}

// Start implements Writer for refusals alone: a receipt needs a real writer.
func (f writerFunc) Start(ctx context.Context, op *ledger.Operation) ledger.Pending {
	_, err := f(ctx, op)
	refusal := &ledger.Refusal{Code: ledger.CodeInternal, Err: err}
	errors.As(err, &refusal)
	return ledger.NotStarted(refusal)
}

// clientWith returns a client of a handler whose only working part is w; the
// log is returned too.
func clientWith(t testing.TB, w Writer, change ...func(*Config)) (*http.Client, *logBuffer) {
	t.Helper()
	logged := &logBuffer{}
	cfg := configOf(newJobs())
	cfg.Writer = w
	reader := (*ledger.Reader)(nil) // no test of this kind reads
	cfg.Accounts, cfg.Balances, cfg.Entries = reader, reader, reader
	cfg.Logger = slog.New(slog.NewJSONHandler(logged, nil))
	for _, c := range change {
		c(&cfg)
	}
	return clientOf(t, cfg), logged
}

// logBuffer collects log lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
