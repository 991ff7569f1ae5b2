package projection

import "github.com/prometheus/client_golang/prometheus"

// metrics are the numbers of the projection in one process.
type metrics struct {
	lagEntries prometheus.Gauge
	lagSeconds prometheus.Gauge
	delay      prometheus.Histogram
	applied    prometheus.Counter
	writes     prometheus.Counter
	fenced     prometheus.Counter
	drift      prometheus.Counter
	parked     prometheus.Gauge
	failures   prometheus.Counter
	rebuilt    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		lagEntries: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ledgerd_projection_lag_entries",
			Help: "Entries found and not applied yet, as far as known, of the shards that this process owns and without parked accounts. While it cannot keep up it counts all that it has not read, whoever owns it.",
		}),
		lagSeconds: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ledgerd_projection_lag_seconds",
			Help: "Age of the oldest entry of the last round when it was applied, or since then when rounds fail; 0 when nothing waits.",
		}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "ledgerd_projection_apply_delay_seconds",
			Help:    "Time from the posting of the oldest entry of a write to an account until it was applied, by the database's clock.",
			Buckets: []float64{.005, .01, .025, .05, .1, .15, .2, .25, .3, .4, .5, .75, 1, 2.5, 5, 10, 30, 60},
		}),
		applied: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_projection_applied_entries_total",
			Help: "Entries applied to balance rows.",
		}),
		writes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_projection_writes_total",
			Help: "Statements that moved balance rows forward.",
		}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_projection_fenced_writes_total",
			Help: "Writes to an account that the database refused because a newer owner had written.",
		}),
		drift: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_projection_drift_total",
			Help: "Balance rows found to differ from the fold of their entries.",
		}),
		parked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ledgerd_projection_parked_accounts",
			Help: "Accounts that this process cannot apply and has set aside.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_projection_failures_total",
			Help: "Rounds that ended with an error of the database.",
		}),
		rebuilt: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_projection_rebuilt_entries_total",
			Help: "Entries folded again by a rebuild.",
		}),
	}
	reg.MustRegister(m.lagEntries, m.lagSeconds, m.delay, m.applied, m.writes, m.fenced, m.drift, m.parked, m.failures, m.rebuilt)
	return m
}
