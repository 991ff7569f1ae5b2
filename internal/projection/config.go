package projection

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config says how a process takes part in the projection. Zero fields get the
// defaults that are named here.
type Config struct {
	// Process names this process in leases and in the status, for people: host
	// and process id, for instance. A unique suffix is added. Default "ledgerd".
	Process string
	// LeaseTTL is how long the shards of a stopped process wait for another
	// one; 300 ms to 10 minutes, default 5 s. Default RenewEvery is a fifth of
	// it, default LeaseMargin a tenth.
	LeaseTTL    time.Duration
	RenewEvery  time.Duration
	LeaseMargin time.Duration
	// PollEvery is the longest time between two scans of the tail, and so the
	// delay of entries that another process wrote; default 50 ms.
	PollEvery time.Duration
	// GatherIdle and Gather are the shortest times between two rounds, after a
	// round with fewer than GatherEntries entries and after a larger one.
	// Defaults 15 ms, 150 ms, 100.
	GatherIdle    time.Duration
	Gather        time.Duration
	GatherEntries int
	// SweepEvery is how often every head is compared with its balance row, and
	// parked accounts are tried again; default 1 minute.
	SweepEvery time.Duration
	// StatementTimeout bounds each statement; default 10 s.
	StatementTimeout time.Duration
	// RebuildParallel is how many shards are rebuilt at once; default 3.
	RebuildParallel int
	// Registerer gets the metrics; default none.
	Registerer prometheus.Registerer
	// Logger gets alarms and changes of ownership; default slog.Default().
	Logger *slog.Logger
	// BeforeWrite, when not nil, is called between the fold and the write. It is
	// an inert signal for tests that stop a process there.
	BeforeWrite func()
}

func (c Config) withDefaults() Config {
	set(&c.Process, "ledgerd")
	set(&c.LeaseTTL, 5*time.Second)
	set(&c.RenewEvery, c.LeaseTTL/5)
	set(&c.LeaseMargin, c.LeaseTTL/10)
	set(&c.PollEvery, 50*time.Millisecond)
	set(&c.GatherIdle, 15*time.Millisecond)
	set(&c.Gather, 150*time.Millisecond)
	set(&c.GatherEntries, 100)
	set(&c.SweepEvery, time.Minute)
	set(&c.StatementTimeout, 10*time.Second)
	set(&c.RebuildParallel, 3)
	if c.Registerer == nil {
		c.Registerer = prometheus.NewRegistry()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate returns an error that names the first rule that c breaks.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.LeaseTTL < 300*time.Millisecond || c.LeaseTTL > 10*time.Minute:
		return fmt.Errorf("lease TTL must be 300ms to 10m, not %v", c.LeaseTTL)
	case c.LeaseMargin < 0 || c.LeaseMargin >= c.LeaseTTL/2:
		return fmt.Errorf("lease margin must be below half of the lease TTL %v, not %v", c.LeaseTTL, c.LeaseMargin)
	case c.RenewEvery <= 0 || 2*c.RenewEvery > c.LeaseTTL-c.LeaseMargin:
		return fmt.Errorf("leases of %v must be renewed at least twice in their time, not every %v", c.LeaseTTL, c.RenewEvery)
	case c.PollEvery < time.Millisecond || c.GatherIdle < 0 || c.Gather < c.GatherIdle || c.GatherEntries < 1:
		return fmt.Errorf("projection times must be: poll at least 1ms, gather not below gather when idle")
	case c.SweepEvery < 10*time.Millisecond:
		return fmt.Errorf("sweeps must be at least 10ms apart, not %v", c.SweepEvery)
	case c.StatementTimeout < 100*time.Millisecond:
		return fmt.Errorf("the statement timeout must be at least 100ms, not %v", c.StatementTimeout)
	case c.RebuildParallel < 1 || c.RebuildParallel > 64:
		return fmt.Errorf("1 to 64 shards can be rebuilt at once, not %d", c.RebuildParallel)
	}
	return nil
}
