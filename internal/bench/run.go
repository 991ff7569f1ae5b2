package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ledgerd/ledgerd/client"
)

// Target is what is measured.
type Target struct {
	// Address is host:port of the service.
	Address string
	// DatabaseURL is the service's database, as its owner. Without it there is
	// no floor and no lag.
	DatabaseURL string
}

// Config says what is run.
type Config struct {
	// Workloads and Connections are combined; each pair is one measurement.
	Workloads   []Workload
	Connections []int
	// Repeat runs the whole series so many times, so that workloads alternate.
	Repeat   int
	Accounts int
	// WarmUp, Duration and Floor are how long the service is warmed up, loaded,
	// and each of the two floors measured.
	WarmUp, Duration, Floor time.Duration
	Seed                    uint64
	// Done is called after each measurement.
	Done func(Measurement)
	// Step is called before each part, with what is done next.
	Step func(what string)
}

// Measurement is one load with its floors.
type Measurement struct {
	Workload    Workload `json:"workload"`
	Connections int      `json:"connections"`
	Accounts    int      `json:"accounts"`
	Seconds     float64  `json:"seconds"`
	Operations  int64    `json:"operations"`
	// Rate is durable operations a second.
	Rate float64 `json:"operations_per_second"`
	// Latencies are in milliseconds.
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	P999 float64 `json:"p999_ms"`
	Max  float64 `json:"max_ms"`
	// Errors counts everything that was not a 201, by status.
	Errors map[string]int64 `json:"errors"`
	// BatchMean is how many entries one INSERT of the service had.
	BatchMean float64 `json:"batch_mean"`
	// FloorBatch is how many entries one INSERT of the floor had.
	FloorBatch  int     `json:"floor_batch"`
	FloorBefore float64 `json:"floor_before"`
	FloorAfter  float64 `json:"floor_after"`
	// Ratio is the entries a second over the mean of the floors, 0 when there is
	// none. An operation adds one entry, a transfer two.
	Ratio float64 `json:"floor_ratio"`
	// Lags are in milliseconds, of single accounts at random moments.
	LagP99 float64 `json:"lag_p99_ms"`
	LagMax float64 `json:"lag_max_ms"`
	// CatchUp is how long after the load the last balance row was at its head.
	CatchUp float64 `json:"catch_up_ms"`
	// LoadCPU is the share of one CPU that the load generator used.
	LoadCPU float64 `json:"load_cpu"`
}

// Run opens the accounts and takes all measurements.
func Run(ctx context.Context, target Target, cfg Config) ([]Measurement, error) {
	cfg.Step(fmt.Sprintf("open %d accounts", cfg.Accounts))
	if err := openAccounts(ctx, target.Address, cfg.Accounts); err != nil {
		return nil, err
	}
	var all []Measurement
	for range max(1, cfg.Repeat) {
		for _, connections := range cfg.Connections {
			for _, w := range cfg.Workloads {
				m, err := measure(ctx, target, &cfg, w, connections, cfg.Seed+uint64(len(all))<<8)
				if err != nil {
					return all, err
				}
				all = append(all, m)
				cfg.Done(m)
			}
		}
	}
	return all, nil
}

// overdraft lets transfers go on for ever without a decline.
const overdraft = 1 << 50

func openAccounts(ctx context.Context, address string, n int) error {
	c, err := client.New("http://" + address)
	if err != nil {
		return err
	}
	defer c.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(64)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			_, _, err := c.OpenAccount(ctx, accountID(i), client.Opening{Currency: "EUR", MinBalance: -overdraft})
			return err
		})
	}
	return group.Wait()
}

// measure is one measurement: warm-up, floor, load, floor.
func measure(ctx context.Context, target Target, cfg *Config, w Workload, connections int, seed uint64) (Measurement, error) {
	m := Measurement{Workload: w, Connections: connections, Accounts: cfg.Accounts}
	name := fmt.Sprintf("%s, %d connections: ", w, connections)
	l := &load{address: target.Address, workload: w, accounts: cfg.Accounts, connections: connections, duration: cfg.WarmUp, seed: seed}

	cfg.Step(name + "warm-up")
	batches, err := readBatches(ctx, target.Address)
	if err != nil {
		return m, err
	}
	if _, err := l.run(ctx); err != nil {
		return m, err
	}
	if batches, err = batches.since(ctx, target.Address); err != nil {
		return m, err
	}
	var watch *lag
	if target.DatabaseURL != "" {
		if watch, err = newLag(ctx, target.DatabaseURL, w, cfg.Accounts, seed); err != nil {
			return m, err
		}
		defer watch.close()
		if _, err := watch.caughtUp(ctx, catchUpLimit); err != nil {
			return m, err
		}
	}
	m.FloorBatch = max(1, min(connections*w.operations()*w.entries(), int(batches.mean()+0.5)))
	f := &floor{databaseURL: target.DatabaseURL, workload: w, accounts: cfg.Accounts, batch: m.FloorBatch, duration: cfg.Floor, seed: seed}
	if m.FloorBefore, err = f.measure(ctx, cfg, name+"floor before"); err != nil {
		return m, err
	}

	cfg.Step(name + "load")
	l.duration, l.seed = cfg.Duration, seed+1
	if err := m.load(ctx, target, l, watch); err != nil {
		return m, err
	}
	f.seed++
	if m.FloorAfter, err = f.measure(ctx, cfg, name+"floor after"); err != nil {
		return m, err
	}
	if mean := (m.FloorBefore + m.FloorAfter) / 2; mean > 0 {
		m.Ratio = m.Rate * float64(w.entries()) / mean
	}
	return m, ctx.Err()
}

// catchUpLimit is how long the projection may need after a load.
const catchUpLimit = 60 * time.Second

// measure is run, or 0 when the database is not known.
func (f *floor) measure(ctx context.Context, cfg *Config, name string) (float64, error) {
	if f.databaseURL == "" || f.duration == 0 {
		return 0, nil
	}
	cfg.Step(name)
	return f.run(ctx)
}

// load runs the load and fills in what it achieved.
func (m *Measurement) load(ctx context.Context, target Target, l *load, watch *lag) error {
	before, err := readBatches(ctx, target.Address)
	if err != nil {
		return err
	}
	watchContext, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan error, 1)
	go func() {
		if watch == nil {
			watched <- nil
			return
		}
		watched <- watch.watch(watchContext)
	}()
	r, err := l.run(ctx)
	stop()
	if watchErr := <-watched; err == nil {
		err = watchErr
	}
	if err != nil {
		return err
	}
	m.fill(r)
	batches, err := before.since(ctx, target.Address)
	if err != nil {
		return err
	}
	m.BatchMean = batches.mean()
	if watch == nil {
		return nil
	}
	m.LagP99, m.LagMax = milliseconds(watch.seen.ValueAtPercentile(99)), milliseconds(watch.seen.Max())
	took, err := watch.caughtUp(ctx, catchUpLimit)
	m.CatchUp = milliseconds(took.Microseconds())
	return err
}

func (m *Measurement) fill(r *loadResult) {
	m.Seconds = r.elapsed.Seconds()
	m.Operations = r.applied
	m.Rate = float64(r.applied) / m.Seconds
	m.P50 = milliseconds(r.latency.ValueAtPercentile(50))
	m.P99 = milliseconds(r.latency.ValueAtPercentile(99))
	m.P999 = milliseconds(r.latency.ValueAtPercentile(99.9))
	m.Max = milliseconds(r.latency.Max())
	m.Errors = r.errors
	m.LoadCPU = r.ownCPU.Seconds() / m.Seconds
}

func milliseconds(micros int64) float64 { return float64(micros) / 1000 }
