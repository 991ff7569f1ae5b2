package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Config is everything that can be set about a running service. A field is set
// by its flag, else by its environment variable, else it has its default. The
// comments of the fields are the manual: docs/configuration.md holds them too,
// and a test keeps the two the same.
type Config struct {
	// The PostgreSQL database, as a connection URL or a keyword/value string.
	// Several hosts may be given, with target_session_attrs=read-write, so that
	// the service finds the primary after a failover. Prefer the environment
	// variable: other users of the machine can read a command line. It is never
	// printed or logged with its password.
	DatabaseURL secretURL `name:"database-url" env:"LEDGERD_DATABASE_URL" placeholder:"URL" help:"PostgreSQL connection URL."`

	// The role that every session of the service works in. It may add entries
	// and cannot change one; the service refuses to run in a role that can. It
	// is set with the start-up parameter "role". Behind a pooler that drops
	// start-up parameters leave it empty, and give the login the role with
	// ALTER ROLE … SET role = ledgerd_service.
	DatabaseRole string `name:"database-role" env:"LEDGERD_DATABASE_ROLE" default:"ledgerd_service" help:"Role of the sessions; empty behind a pooler."`

	// The most connections for reads, 1 to 1000. Writes, the projection, leases and
	// checks have their own few, so a service opens at most 21 more than this,
	// and 3 besides while a verification runs that was asked for over HTTP.
	DatabasePool int `name:"database-pool" env:"LEDGERD_DATABASE_POOL" default:"8" help:"Most connections for reads."`

	// What it means that the database is on another WAL timeline, as after a
	// failover. With "any", committed rows may have been lost: writes are
	// refused until somebody runs ledgerd incarnation bump. With "synchronous"
	// you promise that only synchronous standbys are promoted, which lose
	// nothing, and the service goes on by itself.
	Promotion string `name:"promotion" env:"LEDGERD_PROMOTION" default:"any" help:"Which standbys may be promoted: any or synchronous."`

	// The address to listen on, HOST:PORT. Port 0 takes a free one, which the
	// log names. There is no authentication and no TLS: whoever reaches this
	// address can move money, so put the service behind what checks its callers.
	Listen string `name:"listen" env:"LEDGERD_LISTEN" default:"127.0.0.1:8080" help:"Address to listen on."`

	// The deadline of every request, 1s to 5m. It has to be longer than the
	// write deadline, whose answer tells more.
	RequestTimeout time.Duration `name:"request-timeout" env:"LEDGERD_REQUEST_TIMEOUT" default:"10s" help:"Deadline of every request."`

	// How long a write is tried while the database does not answer, 100ms to
	// 1m. Then its caller gets 503 and repeats the request as it is.
	WriteDeadline time.Duration `name:"write-deadline" env:"LEDGERD_WRITE_DEADLINE" default:"5s" help:"How long a write is tried while the database is away."`

	// The most operations that wait for their commit, 1 to 1,000,000. More are
	// answered with 503 overloaded.
	QueueMax int `name:"queue-max" env:"LEDGERD_QUEUE_MAX" default:"8192" help:"Most operations that wait for their commit."`

	// The most accounts whose last entry is remembered, 1 to 10,000,000, about
	// 1 KiB each. An account that is not remembered costs one more read.
	HeadsMax int `name:"heads-max" env:"LEDGERD_HEADS_MAX" default:"100000" help:"Most accounts that are remembered."`

	// How many declined operations an account may have a second, above 0,
	// before more are answered with 429: each one is an entry for ever. It is
	// counted by each process for itself.
	DeclinesPerSecond float64 `name:"declines-per-second" env:"LEDGERD_DECLINES_PER_SECOND" default:"20" help:"Declines an account may have a second."`

	// How many declined operations an account may have at once, 1 or more.
	DeclinesBurst float64 `name:"declines-burst" env:"LEDGERD_DECLINES_BURST" default:"100" help:"Declines an account may have at once."`

	// How long a process that vanished keeps its shards of the projection,
	// 300ms to 10m. Balance rows of those shards stand still that long; the money in
	// the entries, and strong reads, do not.
	LeaseTTL time.Duration `name:"lease-ttl" env:"LEDGERD_LEASE_TTL" default:"5s" help:"Lease of the projection's shards."`

	// How long an orderly shutdown may take, 1s to 10m. Keep it above the
	// request timeout, so that the requests under way get their answers.
	ShutdownTimeout time.Duration `name:"shutdown-timeout" env:"LEDGERD_SHUTDOWN_TIMEOUT" default:"15s" help:"How long an orderly shutdown may take."`

	// The least level that is logged: debug (every request), info (refusals and
	// what happens to the service), warn or error.
	LogLevel string `name:"log-level" env:"LEDGERD_LOG_LEVEL" default:"info" help:"debug, info, warn or error."`
}

// Validate returns every rule that the configuration breaks.
func (c *Config) Validate() error {
	return errors.Join(
		rule(c.DatabaseURL != "", "LEDGERD_DATABASE_URL is missing"),
		rule(c.DatabaseURL == "" || c.DatabaseURL.valid(), "LEDGERD_DATABASE_URL is not a PostgreSQL connection URL"),
		rule(1 <= c.DatabasePool && c.DatabasePool <= 1000, "LEDGERD_DATABASE_POOL must be 1 to 1000, not %d", c.DatabasePool),
		rule(c.Promotion == "any" || c.Promotion == "synchronous", "LEDGERD_PROMOTION must be any or synchronous, not %q", c.Promotion),
		rule(validAddress(c.Listen), "LEDGERD_LISTEN must be HOST:PORT, not %q", c.Listen),
		within("LEDGERD_REQUEST_TIMEOUT", c.RequestTimeout, time.Second, 5*time.Minute),
		within("LEDGERD_WRITE_DEADLINE", c.WriteDeadline, 100*time.Millisecond, time.Minute),
		rule(c.WriteDeadline < c.RequestTimeout, "LEDGERD_WRITE_DEADLINE (%s) must be below LEDGERD_REQUEST_TIMEOUT (%s)", c.WriteDeadline, c.RequestTimeout),
		within("LEDGERD_QUEUE_MAX", c.QueueMax, 1, 1_000_000),
		within("LEDGERD_HEADS_MAX", c.HeadsMax, 1, 10_000_000),
		rule(c.DeclinesPerSecond > 0 && c.DeclinesPerSecond <= 1e6, "LEDGERD_DECLINES_PER_SECOND must be above 0 and at most 1000000, not %v", c.DeclinesPerSecond),
		rule(c.DeclinesBurst >= 1 && c.DeclinesBurst <= 1e6, "LEDGERD_DECLINES_BURST must be 1 to 1000000, not %v", c.DeclinesBurst),
		within("LEDGERD_LEASE_TTL", c.LeaseTTL, 300*time.Millisecond, 10*time.Minute),
		within("LEDGERD_SHUTDOWN_TIMEOUT", c.ShutdownTimeout, time.Second, 10*time.Minute),
		rule(c.ShutdownTimeout >= c.RequestTimeout, "LEDGERD_SHUTDOWN_TIMEOUT (%s) must not be below LEDGERD_REQUEST_TIMEOUT (%s)", c.ShutdownTimeout, c.RequestTimeout),
		rule(new(slog.Level).UnmarshalText([]byte(c.LogLevel)) == nil, "LEDGERD_LOG_LEVEL must be debug, info, warn or error, not %q", c.LogLevel),
	)
}

func rule(holds bool, format string, args ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func within[T cmp.Ordered](name string, v, low, high T) error {
	return rule(low <= v && v <= high, "%s must be %v to %v, not %v", name, low, high, v)
}

func validAddress(address string) bool {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// LogValue prints the configuration at start. The database URL comes out
// without its password.
func (c Config) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("database", c.DatabaseURL.String()),
		slog.String("database_role", c.DatabaseRole),
		slog.Int("database_pool", c.DatabasePool),
		slog.String("promotion", c.Promotion),
		slog.String("listen", c.Listen),
		slog.String("request_timeout", c.RequestTimeout.String()),
		slog.String("write_deadline", c.WriteDeadline.String()),
		slog.Int("queue_max", c.QueueMax),
		slog.Int("heads_max", c.HeadsMax),
		slog.Float64("declines_per_second", c.DeclinesPerSecond),
		slog.Float64("declines_burst", c.DeclinesBurst),
		slog.String("lease_ttl", c.LeaseTTL.String()),
		slog.String("shutdown_timeout", c.ShutdownTimeout.String()),
		slog.String("log_level", c.LogLevel),
	)
}

func (c *Config) promotion() ledger.Promotion {
	if c.Promotion == "synchronous" {
		return ledger.PromotionSynchronous
	}
	return ledger.PromotionAny
}

func (c *Config) level() slog.Level {
	var l slog.Level
	_ = l.UnmarshalText([]byte(c.LogLevel)) // validated; the zero value is info
	return l
}

// secretURL is a database URL. However it is formatted, only user, hosts and
// database come out.
type secretURL string

// reveal returns the URL itself, to connect with.
func (s secretURL) reveal() string { return string(s) }

func (s secretURL) valid() bool {
	_, err := pgxpool.ParseConfig(string(s))
	return err == nil
}

// String implements fmt.Stringer.
func (s secretURL) String() string {
	if s == "" {
		return ""
	}
	cfg, err := pgxpool.ParseConfig(string(s))
	if err != nil {
		return "(not a connection URL)"
	}
	var hosts []string
	add := func(host string, port uint16) {
		if name := net.JoinHostPort(host, fmt.Sprint(port)); len(hosts) == 0 || hosts[len(hosts)-1] != name {
			hosts = append(hosts, name) // a host comes twice when TLS is optional
		}
	}
	add(cfg.ConnConfig.Host, cfg.ConnConfig.Port)
	for _, f := range cfg.ConnConfig.Fallbacks {
		add(f.Host, f.Port)
	}
	return fmt.Sprintf("%s@%s/%s", cfg.ConnConfig.User, strings.Join(hosts, ","), cfg.ConnConfig.Database)
}

// GoString implements fmt.GoStringer, so that %#v keeps the secret too.
func (s secretURL) GoString() string { return s.String() }

// LogValue implements slog.LogValuer.
func (s secretURL) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText keeps the secret out of JSON.
func (s secretURL) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
