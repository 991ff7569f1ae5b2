package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/alecthomas/kong"

	"github.com/ledgerd/ledgerd/internal/pgserver"
	"github.com/ledgerd/ledgerd/internal/postgres"
	"github.com/ledgerd/ledgerd/migrations"
)

type devCmd struct {
	Data     string `type:"path" env:"LEDGERD_DATA" default:"" placeholder:"DIR" help:"Data folder, kept between runs. Default: /var/lib/ledgerd for root, else ~/.local/share/ledgerd."`
	Listen   string `env:"LEDGERD_LISTEN" default:"127.0.0.1:8080" help:"Address to listen on."`
	PGBin    string `name:"pg-bin" env:"LEDGERD_PG_BIN" placeholder:"DIR" help:"Folder with initdb and postgres. Default: what the system has."`
	LogLevel string `env:"LEDGERD_LOG_LEVEL" default:"info" help:"debug, info, warn or error."`
}

// Validate is called by the command line parser: what is wrong is said before
// anything is made or started.
func (c *devCmd) Validate() error {
	_, err := c.config("postgres:///ledgerd", c.Listen)
	return err
}

// Run starts the private PostgreSQL, applies the migrations and serves until
// ctx ends.
func (c *devCmd) Run(ctx context.Context, s *streams) error {
	dir, err := c.dataDir()
	if err != nil {
		return exit(exitUsage, err)
	}
	l, err := listen(ctx, c.Listen)
	if err != nil {
		return err
	}
	server, err := pgserver.Start(ctx, pgserver.Config{
		DataDir: dir, BinDir: c.PGBin,
		Starting: func() { fmt.Fprintf(s.out, "PostgreSQL starts in %s\n", dir) },
	})
	if err != nil {
		_ = l.Close()
		return privateServerError(err)
	}
	err = c.serve(ctx, s, server, l)
	if stopErr := server.Stop(); stopErr != nil {
		err = errors.Join(err, stopErr)
	}
	if err == nil {
		fmt.Fprintln(s.out, "Stopped. The data is kept in", dir)
	}
	return err
}

func (c *devCmd) dataDir() (string, error) {
	if c.Data != "" {
		return c.Data, nil
	}
	return pgserver.DefaultDataDir()
}

// serve runs the service on the private server until ctx or the server ends. It
// owns l.
func (c *devCmd) serve(ctx context.Context, s *streams, server *pgserver.Server, l net.Listener) error {
	cfg, err := c.config(server.URL(), l.Addr().String())
	if err != nil {
		_ = l.Close()
		return exit(exitUsage, err)
	}
	if _, err := migrations.Up(ctx, server.URL()); err != nil {
		_ = l.Close()
		return databaseError(err)
	}
	log := slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: cfg.level()}))
	service, err := newService(cfg, log)
	if err != nil {
		_ = l.Close()
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-server.Done():
			cancel(exit(exitUnreachable, fmt.Errorf("%w; its log is %s", pgserver.ErrStopped, server.LogFile())))
		case <-ctx.Done():
		}
	}()
	service.ready = func() { c.welcome(s.out, server, l.Addr().String()) }
	err = service.run(ctx, l)
	if cause := context.Cause(ctx); errors.Is(cause, pgserver.ErrStopped) {
		err = errors.Join(cause, err)
	}
	return err
}

// config is that of a service with nothing set but what dev knows.
func (c *devCmd) config(url, address string) (Config, error) {
	type fields Config // without Validate, which would ask for a database too early
	var defaults fields
	if err := kong.ApplyDefaults(&defaults); err != nil {
		return Config{}, fmt.Errorf("read the defaults: %w", err)
	}
	cfg := Config(defaults)
	cfg.DatabaseURL, cfg.DatabaseRole = secretURL(url), postgres.ServiceRole
	cfg.Listen, cfg.LogLevel = address, c.LogLevel
	return cfg, cfg.Validate()
}

// welcome says where everything is, with calls that work as they stand.
func (c *devCmd) welcome(w io.Writer, server *pgserver.Server, address string) {
	base := "http://" + address
	fmt.Fprintf(w, `
ledgerd %s is ready.

  API       %[2]s
  pages     %[2]s/docs
  database  %[3]s
            psql '%[3]s'
  data      %[4]s  (kept; --data %[4]s reaches it from other commands)

Try:

  curl -X PUT %[2]s/v1/accounts/wallet-81 -H 'Content-Type: application/json' -d '{"currency":"EUR"}'
  curl -X POST %[2]s/v1/accounts/wallet-81/credits -H 'Content-Type: application/json' -H 'Idempotency-Key: top-up-1' -d '{"amount":12500,"description":"top-up"}'
  curl -X POST %[2]s/v1/accounts/wallet-81/debits -H 'Content-Type: application/json' -H 'Idempotency-Key: order-1047' -d '{"amount":3999,"counterparty":"shop-12"}'
  curl -X POST %[2]s/v1/accounts/wallet-81/debits -H 'Content-Type: application/json' -H 'Idempotency-Key: order-1047' -d '{"amount":3999,"counterparty":"shop-12"}'
  curl %[2]s/v1/accounts/wallet-81/balance

The fourth is the third again, as after a lost answer: it gets the same receipt, and nothing is added.
Ctrl-C stops it.

`, version(), base, server.URL(), server.DataDir())
}
