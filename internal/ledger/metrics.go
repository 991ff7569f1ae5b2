package ledger

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the writer's counters. Every label has a small fixed set of values.
type metrics struct {
	entries       *prometheus.CounterVec
	declines      *prometheus.CounterVec
	replays       prometheus.Counter
	conflicts     prometheus.Counter
	lives         prometheus.Counter
	unknown       prometheus.Counter
	splits        prometheus.Counter
	batchSize     *prometheus.HistogramVec
	appendSeconds *prometheus.HistogramVec
	incarnation   prometheus.Gauge
	writable      prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, queued func() float64) *metrics {
	m := &metrics{
		entries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ledgerd_entries_total", Help: "Entries committed by this process, by kind."}, []string{"kind"}),
		declines: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ledgerd_declines_total", Help: "Operations declined and recorded, by reason."}, []string{"reason"}),
		replays: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_replays_total", Help: "Requests answered from an entry that was there before."}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_append_conflicts_total", Help: "Batches refused because a link or a key existed."}),
		lives: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_append_other_life_total", Help: "Batches refused because the database had restarted or been replaced."}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_append_unknown_total", Help: "Batches whose outcome had to be read because the connection was lost."}),
		splits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ledgerd_append_splits_total", Help: "Batches split to isolate an operation that PostgreSQL refused or a lock that blocked."}),
		batchSize: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ledgerd_batch_entries", Help: "Entries a committed batch.", Buckets: prometheus.ExponentialBuckets(1, 2, 11)}, []string{"path"}),
		appendSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ledgerd_append_seconds", Help: "Duration of one append, until it was durable or refused.",
			Buckets: prometheus.ExponentialBuckets(0.0002, 2, 15)}, []string{"path"}),
		incarnation: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ledgerd_incarnation", Help: "The newest incarnation of the database that this process saw."}),
		writable: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ledgerd_writable", Help: "1 when the database's life and incarnation allow writes, else 0."}),
	}
	if reg == nil {
		return m
	}
	reg.MustRegister(m.entries, m.declines, m.replays, m.conflicts, m.lives, m.unknown, m.splits,
		m.batchSize, m.appendSeconds, m.incarnation, m.writable,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ledgerd_queued_operations", Help: "Operations that wait for their batch."}, queued))
	return m
}
