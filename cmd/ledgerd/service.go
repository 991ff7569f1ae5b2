package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/ledgerd/ledgerd/internal/httpapi"
	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/postgres"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// verifyConns is how many connections a verification opens while it runs.
const verifyConns = 3

// service is everything that one process of the ledger is made of. serve and
// dev run the same one.
type service struct {
	cfg      Config
	log      *slog.Logger
	registry *prometheus.Registry

	checks, reads, shards *pgxpool.Pool // of the gate, of HTTP reads, of the projection
	leasing               *pgxpool.Pool // of the leases of workers, and of the list of rejections
	rejections            *lease.RejectionLog
	gate                  *gate
	projector             *projection.Projector
	verifications         *verifications
	http                  *http.Server

	// opened is closed when the gate opened, so that the projection may begin.
	opened chan struct{}
	// ready, when not nil, is called once the service listens.
	ready func()
}

// listen takes the address. It comes first of all, so that a port that is taken
// is said before anything else is started.
func listen(ctx context.Context, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, exit(exitRefused, fmt.Errorf("listen on %s: %w; choose another address with --listen", address, err))
	}
	return l, nil
}

// newService puts the parts together. Nothing is connected yet.
func newService(cfg Config, log *slog.Logger) (*service, error) {
	s := &service{cfg: cfg, log: log, registry: newRegistry(), opened: make(chan struct{})}
	s.gate = &gate{log: log, open: s.open}
	if err := s.openPools(); err != nil {
		s.closePools()
		return nil, exit(exitUsage, err)
	}
	var err error
	if s.projector, err = projection.New(s.shards, projection.Config{
		Process:     processName(),
		LeaseTTL:    cfg.LeaseTTL,
		Registerer:  s.registry,
		Logger:      log,
		BeforeWrite: pauseAt(pauseProjection),
	}); err != nil {
		s.closePools()
		return nil, exit(exitUsage, err)
	}
	s.verifications = newVerifications(func() (*pgxpool.Pool, error) {
		return postgres.Open(s.postgresConfig("verify", verifyConns))
	}, log)
	s.gate.pool = s.checks
	s.registry.MustRegister(newPoolCollector(map[string]func() *pgxpool.Stat{
		"checks": s.checks.Stat, "reads": s.reads.Stat, "projection": s.shards.Stat, "leases": s.leasing.Stat,
		"writer": s.gate.writerPool,
	}))
	reader := reads{ledger.NewReader(s.reads)}
	s.rejections = lease.NewRejectionLog(s.leasing, s.registry, log)
	grants := lease.NewGrants(s.leasing)
	named := namedLeases{grants, s.gate}
	handler, err := httpapi.New(httpapi.Config{
		Writer: s.gate, Health: s.gate,
		Accounts: reader, Balances: reader, Entries: reader, Reports: reader,
		Projection: projectionStatus{s.projector}, Rebuilds: rebuilds{s.projector},
		Verifications: s.verifications,
		AccountLeases: accountLeases{lease.NewAccounts(grants, ledgerForLeases{reader, s.gate})},
		NamedLeases:   named, LeaseAdmin: named,
		Fencing:       fencingLog{s.rejections},
		Unavailable:   unavailable,
		ItemsInFlight: max(1, cfg.QueueMax/2),
		Registry:      s.registry, Timeout: cfg.RequestTimeout, Logger: log,
	})
	if err != nil {
		s.closePools()
		return nil, err
	}
	s.http = httpapi.NewHTTPServer(handler, cfg.RequestTimeout)
	s.http.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	return s, nil
}

// processName names this process in leases, for people.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "ledgerd"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// postgresConfig is how every pool of the service reaches the database.
func (s *service) postgresConfig(part string, conns int) postgres.Config {
	return postgres.Config{
		URL: s.cfg.DatabaseURL.reveal(), Role: s.cfg.DatabaseRole,
		ApplicationName: "ledgerd " + part, MaxConns: int32(conns),
	}
}

func (s *service) openPools() (err error) {
	if s.checks, err = postgres.Open(s.postgresConfig("checks", 1)); err != nil {
		return err
	}
	reads := s.postgresConfig("reads", s.cfg.DatabasePool)
	reads.StatementTimeout = s.cfg.RequestTimeout
	if s.reads, err = postgres.Open(reads); err != nil {
		return err
	}
	leasing := s.postgresConfig("leases", leaseConns)
	leasing.LockTimeout, leasing.StatementTimeout = leaseLockTimeout, s.cfg.RequestTimeout
	leasing.OnConnect = s.gate.checkLife
	if s.leasing, err = postgres.Open(leasing); err != nil {
		return err
	}
	s.shards, err = projectionPool(s.postgresConfig("projection", 0), s.cfg.LeaseTTL)
	return err
}

func (s *service) closePools() {
	for _, p := range []*pgxpool.Pool{s.checks, s.reads, s.shards, s.leasing} {
		if p != nil {
			p.Close()
		}
	}
}

// open starts the writer and lets the projection begin: the gate calls it when
// it knows the database.
func (s *service) open() (*ledger.Writer, error) {
	w, err := ledger.OpenWriter(s.postgresConfig("writer", 0), ledger.WriterConfig{
		QueueMax:  s.cfg.QueueMax,
		HeadsMax:  s.cfg.HeadsMax,
		Deadline:  s.cfg.WriteDeadline,
		Declines:  ledger.DeclineLimit{PerSecond: s.cfg.DeclinesPerSecond, Burst: s.cfg.DeclinesBurst},
		Promotion: s.cfg.promotion(),
		Committed: s.projector.Hint,
		Registry:  s.registry,
		Log:       s.log,
		Pause:     pauseAt(pauseAppend),
	})
	if err != nil {
		return nil, fmt.Errorf("open the writer: %w", err)
	}
	close(s.opened)
	return w, nil
}

// run serves on l until ctx ends, or until something makes it impossible, and
// shuts down in order. It owns l from here on.
func (s *service) run(ctx context.Context, l net.Listener) error {
	defer s.closePools()
	if err := s.gate.look(ctx); err != nil {
		return errors.Join(err, s.abort(l))
	}
	if s.ready != nil {
		s.ready()
	}
	s.log.Info("listening", "address", l.Addr().String())

	// The parts end one after the other, so each has a context of its own.
	group, failed := errgroup.WithContext(ctx)
	projecting, stopProjection := context.WithCancel(context.WithoutCancel(ctx))
	projected := make(chan struct{})
	go func() {
		defer close(projected)
		s.project(projecting)
	}()
	listed := make(chan struct{})
	go func() {
		defer close(listed)
		s.rejections.Run(projecting)
	}()
	group.Go(func() error { return s.gate.watch(failed) })
	group.Go(func() error {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve HTTP: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-failed.Done()
		return s.drain(context.WithoutCancel(ctx))
	})
	err := group.Wait()
	s.verifications.close()
	stopProjection()
	<-projected // it has released its leases
	<-listed
	s.log.Info("stopped")
	return err
}

// abort gives the address back before anything was served.
func (s *service) abort(l net.Listener) error {
	if err := l.Close(); err != nil {
		return fmt.Errorf("close the listener: %w", err)
	}
	return nil
}

// project runs the projection from the moment on at which the gate opened. Its
// end releases the leases of its shards.
func (s *service) project(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.opened:
	}
	s.projector.Run(ctx)
}

// drain lets the requests under way finish and then the operations inside the
// writer. Afterwards nothing of this process can reach an account's chain.
func (s *service) drain(ctx context.Context) error {
	s.gate.closing.Store(true)
	s.log.Info("shutting down")
	begun := time.Now()
	httpCtx, cancel := context.WithTimeout(ctx, s.cfg.ShutdownTimeout)
	defer cancel()
	if err := s.http.Shutdown(httpCtx); err != nil {
		// A client that neither sends nor reads has no say in how we end.
		s.log.Warn("requests that did not end are cut", "error", errors.Join(err, s.http.Close()))
	}
	if w := s.gate.writer.Load(); w != nil {
		// On a time of its own: what is inside has at most its deadline to go.
		writerCtx, cancel := context.WithTimeout(ctx, s.cfg.WriteDeadline+time.Second)
		defer cancel()
		if err := w.Close(writerCtx); err != nil {
			return fmt.Errorf("drain the writer: %w", err)
		}
	}
	s.log.Info("drained", "took", time.Since(begun))
	return nil
}
