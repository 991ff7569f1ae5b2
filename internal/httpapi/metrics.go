package httpapi

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts requests. Every label has a bounded set of values: the route
// is a pattern of api.yaml or "unmatched", the method one that the route has,
// the code one of the table in problem.go.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	inFlight prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ledgerd_http_requests_total",
			Help: "Requests answered, by route, method and status.",
		}, []string{"route", "method", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "ledgerd_http_request_duration_seconds",
			Help:    "Time from the routed request to its answer.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10},
		}, []string{"route", "method"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ledgerd_http_refusals_total",
			Help: "Problem documents sent, by their code.",
		}, []string{"code"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ledgerd_http_requests_in_flight",
			Help: "Requests that are being answered.",
		}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.seconds, m.refusals, m.inFlight} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// routeMetrics are the metrics of one route, looked up once. The common
// statuses are kept at hand because a look-up costs more than the count.
type routeMetrics struct {
	all             *metrics
	pattern, method string
	seconds         prometheus.Observer
	ok, created     prometheus.Counter
}

func (m *metrics) route(method, pattern string) *routeMetrics {
	return &routeMetrics{
		all: m, pattern: pattern, method: method,
		seconds: m.seconds.WithLabelValues(pattern, method),
		ok:      m.requests.WithLabelValues(pattern, method, "200"),
		created: m.requests.WithLabelValues(pattern, method, "201"),
	}
}

func (m *routeMetrics) observe(status int, took time.Duration) {
	m.seconds.Observe(took.Seconds())
	switch status {
	case 200:
		m.ok.Inc()
	case 201:
		m.created.Inc()
	default:
		m.all.requests.WithLabelValues(m.pattern, m.method, strconv.Itoa(status)).Inc()
	}
}
