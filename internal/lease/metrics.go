package lease

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the numbers of the leases of one process.
type Metrics struct {
	held     prometheus.Gauge
	acquired prometheus.Counter
	renewals prometheus.Counter
	lost     prometheus.Counter
}

// NewMetrics registers the metrics at reg. It panics when they are registered
// already, which is a mistake in the program.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ledgerd_lease_held",
			Help: "Shard leases that this process holds.",
		}),
		acquired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_lease_acquisitions_total",
			Help: "Shard leases acquired by this process.",
		}),
		renewals: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_lease_renewals_total",
			Help: "Leases renewed by this process.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_lease_losses_total",
			Help: "Shard leases that ended before this process gave them up.",
		}),
	}
	reg.MustRegister(m.held, m.acquired, m.renewals, m.lost)
	return m
}
