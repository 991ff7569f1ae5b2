package httpapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/semaphore"
)

// DefaultTimeout is how long a request may take when Config.Timeout is zero.
const DefaultTimeout = 10 * time.Second

// DefaultItemsInFlight is used when Config.ItemsInFlight is zero.
const DefaultItemsInFlight = 4096

// Config is what the HTTP interface needs from the rest of the program. All but
// Timeout and Logger are required.
type Config struct {
	Writer        Writer
	Accounts      AccountReader
	Balances      BalanceReader
	Entries       EntryReader
	Reports       ReportReader
	Projection    ProjectionStatus
	Rebuilds      Rebuilds
	Verifications Verifications
	AccountLeases Leases
	NamedLeases   Leases
	LeaseAdmin    LeaseAdmin
	Fencing       FencingLog
	Health        Health
	// Unavailable says whether an error that one of the above returned means
	// that the database is away for now: it is answered with 503, other errors
	// with 500. A *ledger.Refusal says by itself what it means.
	Unavailable func(error) bool
	// Registry receives the metrics of the requests, and /metrics shows
	// everything that is in it.
	Registry *prometheus.Registry
	// ItemsInFlight bounds the items of all batches and streams together that
	// are started and not answered; DefaultItemsInFlight when zero. Half of what
	// the writer's queue holds leaves the other half to single calls.
	ItemsInFlight int
	// Timeout is the deadline of every request; DefaultTimeout when zero. It
	// has to be longer than the writer's own, which tells more.
	Timeout time.Duration
	// Logger receives one line a request: successes at debug, refusals at
	// info, faults at error. slog.Default when nil.
	Logger *slog.Logger
}

// server carries what the handlers share.
type server struct {
	writer        Writer
	accounts      AccountReader
	balances      BalanceReader
	entries       EntryReader
	reports       ReportReader
	projection    ProjectionStatus
	rebuilds      Rebuilds
	verifications Verifications
	leases        Leases // of accounts
	named         Leases
	leaseAdmin    LeaseAdmin
	fencing       FencingLog
	health        Health
	unavailable   func(error) bool
	exposition    http.Handler
	metrics       *metrics
	logger        *slog.Logger
	timeout       time.Duration
	mux           *chi.Mux
	times         json.Options

	// idPrefix and requests make request ids.
	idPrefix string
	requests atomic.Uint64

	// items has room for the items of all batches and streams.
	items *semaphore.Weighted

	// decoders holds *decoder, buffers *[]byte; both only save allocations.
	decoders sync.Pool
	buffers  sync.Pool
}

// New returns the handler of all routes of api.yaml. It registers its metrics,
// so a registry serves one handler.
func New(cfg Config) (http.Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Registry)
	if err != nil {
		return nil, fmt.Errorf("register the metrics of the HTTP interface: %w", err)
	}
	s := &server{
		writer: cfg.Writer, accounts: cfg.Accounts, balances: cfg.Balances, entries: cfg.Entries, reports: cfg.Reports,
		projection: cfg.Projection, rebuilds: cfg.Rebuilds, verifications: cfg.Verifications, health: cfg.Health,
		leases: cfg.AccountLeases, named: cfg.NamedLeases, leaseAdmin: cfg.LeaseAdmin, fencing: cfg.Fencing,
		unavailable: cfg.Unavailable,
		exposition:  promhttp.HandlerFor(cfg.Registry, promhttp.HandlerOpts{EnableOpenMetrics: true, DisableCompression: true}),
		metrics:     m,
		logger:      cfg.Logger,
		timeout:     cmp.Or(cfg.Timeout, DefaultTimeout),
		mux:         chi.NewRouter(),
		items:       semaphore.NewWeighted(int64(cmp.Or(cfg.ItemsInFlight, DefaultItemsInFlight))),
		times:       timesInMicroseconds(),
		idPrefix:    strings.ToLower(rand.Text()[:8]) + "-",
	}
	if s.logger == nil {
		s.logger = slog.Default()
	}
	s.decoders.New = func() any { return new(decoder) }
	s.buffers.New = func() any { return new([]byte) }
	s.routes()
	return s.mux, nil
}

func (c *Config) validate() error {
	var missing []string
	for _, f := range []struct {
		name   string
		absent bool
	}{
		{"Writer", c.Writer == nil}, {"Accounts", c.Accounts == nil}, {"Balances", c.Balances == nil},
		{"Entries", c.Entries == nil}, {"Reports", c.Reports == nil}, {"Projection", c.Projection == nil}, {"Rebuilds", c.Rebuilds == nil},
		{"AccountLeases", c.AccountLeases == nil}, {"NamedLeases", c.NamedLeases == nil},
		{"LeaseAdmin", c.LeaseAdmin == nil}, {"Fencing", c.Fencing == nil},
		{"Verifications", c.Verifications == nil}, {"Health", c.Health == nil}, {"Unavailable", c.Unavailable == nil}, {"Registry", c.Registry == nil},
	} {
		if f.absent {
			missing = append(missing, f.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the HTTP interface needs %s", strings.Join(missing, ", "))
	}
	if c.Timeout < 0 {
		return errors.New("the HTTP interface needs a timeout above zero")
	}
	return nil
}

// routes registers every operation of api.yaml; a test proves that it is the
// same set.
func (s *server) routes() {
	s.mux.Use(middleware.GetHead)
	s.read("GET", "/v1/accounts", s.listAccounts)
	s.write("PUT", "/v1/accounts/{account_id}", s.openAccount)
	s.write("PATCH", "/v1/accounts/{account_id}", s.changeAccount)
	s.read("GET", "/v1/accounts/{account_id}", s.getAccount)
	s.write("POST", "/v1/accounts/{account_id}/credits", s.applyCredit)
	s.write("POST", "/v1/accounts/{account_id}/debits", s.applyDebit)
	s.read("GET", "/v1/accounts/{account_id}/balance", s.getBalance)
	s.read("GET", "/v1/accounts/{account_id}/entries", s.listEntries)
	s.read("GET", "/v1/accounts/{account_id}/entries/{seq}", s.getEntry)
	s.write("POST", "/v1/transfers", s.applyTransfer)
	s.write("POST", "/v1/transactions", s.applyTransaction)
	s.write("POST", "/v1/batches", s.applyBatch)
	s.read("GET", "/v1/transactions/{transaction_id}", s.getTransaction)
	s.leaseRoutes("/v1/accounts/{account_id}/lease", accountOf, s.leases)
	s.read("GET", "/v1/leases", s.listLeases)
	s.leaseRoutes("/v1/leases/{name}", leaseName, s.named)
	s.write("POST", "/v1/leases/{name}/force-release", s.forceRelease)
	s.read("POST", "/v1/sequencers/check", s.checkSequencer)
	s.read("GET", "/v1/fencing/rejections", s.listFencingRejections)
	s.read("GET", "/v1/reports/trial-balance", s.getTrialBalance)
	s.read("GET", "/v1/projections/balances", s.getProjection)
	s.read("POST", "/v1/projections/balances/rebuild", s.startRebuild)
	s.read("GET", "/v1/projections/balances/rebuilds/{rebuild_id}", s.getRebuild)
	s.read("POST", "/v1/projections/balances/verify", s.startVerification)
	s.read("GET", "/v1/projections/balances/verifications/{verification_id}", s.getVerification)
	s.read("GET", "/healthz", getHealth)
	s.read("GET", "/readyz", s.getReadiness)
	s.read("GET", "/metrics", s.getMetrics)
	s.read("GET", "/api.yaml", getAPIDescription)
	s.read("GET", "/docs", getDocs)
	s.mux.NotFound(s.endpoint("any", "unmatched", false, notFound))
	s.mux.MethodNotAllowed(s.endpoint("any", "unmatched", false, s.methodNotAllowed))
}

// read registers a route that changes no account.
func (s *server) read(method, pattern string, h handler) {
	s.mux.MethodFunc(method, pattern, s.endpoint(method, pattern, false, h))
}

// write registers a route that changes an account: its problem documents say
// whether it did.
func (s *server) write(method, pattern string, h handler) {
	s.mux.MethodFunc(method, pattern, s.endpoint(method, pattern, true, h))
}

func (s *server) decoder() *decoder { return s.decoders.Get().(*decoder) }

func (s *server) release(d *decoder) {
	if d.recyclable() {
		s.decoders.Put(d)
	}
}

// NewHTTPServer returns a server for the handler that New made, with the
// limits that keep slow or silent clients from holding its connections.
// timeout is Config.Timeout, or zero for DefaultTimeout.
func NewHTTPServer(h http.Handler, timeout time.Duration) *http.Server {
	timeout = cmp.Or(timeout, DefaultTimeout)
	stopping := make(chan struct{})
	base := context.WithValue(context.Background(), stoppingKey{}, stopping)
	server := &http.Server{
		BaseContext:       func(net.Listener) context.Context { return base },
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       timeout,
		WriteTimeout:      timeout + 5*time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	server.RegisterOnShutdown(sync.OnceFunc(func() { close(stopping) }))
	return server
}
