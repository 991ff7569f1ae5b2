package main

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// newRegistry returns a registry with what Go and the process say about
// themselves, and the build.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "ledgerd_build_info", Help: "Always 1; the label says which build runs.",
		ConstLabels: prometheus.Labels{"version": version()},
	})
	build.Set(1)
	reg.MustRegister(build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// poolCollector exports the numbers of connection pools, by the pool's name. A
// pool that is not there yet returns nil.
type poolCollector struct {
	pools map[string]func() *pgxpool.Stat

	connections, limit, acquires, waits, waitSeconds, opened *prometheus.Desc
}

func newPoolCollector(pools map[string]func() *pgxpool.Stat) *poolCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("ledgerd_pool_"+name, help, append([]string{"pool"}, labels...), nil)
	}
	return &poolCollector{
		pools:       pools,
		connections: desc("connections", "Connections to the database, by state.", "state"),
		limit:       desc("connections_max", "Most connections that the pool may open."),
		acquires:    desc("acquires_total", "Connections that were asked for and given."),
		waits:       desc("waits_total", "Connections that had to be waited for."),
		waitSeconds: desc("wait_seconds_total", "Time that callers waited for a connection."),
		opened:      desc("opened_total", "Connections that were opened."),
	}
}

// Describe implements prometheus.Collector.
func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.connections, c.limit, c.acquires, c.waits, c.waitSeconds, c.opened} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	for name, stat := range c.pools {
		s := stat()
		if s == nil {
			continue
		}
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{name}, labels...)...)
		}
		counter := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, name)
		}
		gauge(c.connections, float64(s.AcquiredConns()), "used")
		gauge(c.connections, float64(s.IdleConns()), "idle")
		gauge(c.connections, float64(s.ConstructingConns()), "opening")
		gauge(c.limit, float64(s.MaxConns()))
		counter(c.acquires, float64(s.AcquireCount()))
		counter(c.waits, float64(s.EmptyAcquireCount()))
		counter(c.waitSeconds, s.EmptyAcquireWaitTime().Seconds())
		counter(c.opened, float64(s.NewConnsCount()))
	}
}
