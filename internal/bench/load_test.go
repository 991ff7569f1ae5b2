package bench

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// TestOnlyCreatedCounts lets every fourth operation fail in its own way.
func TestOnlyCreatedCounts(t *testing.T) {
	var requests, created, refused, cut atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch requests.Add(1) % 8 {
		case 0:
			refused.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
		case 4:
			cut.Add(1)
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				conn.Close()
			}
		default:
			created.Add(1)
			w.WriteHeader(http.StatusCreated)
		}
	}))
	defer s.Close()
	l := &load{address: s.Listener.Addr().String(), workload: Uniform, accounts: 10, connections: 4, duration: 300 * time.Millisecond, seed: 1}
	r, err := l.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// What was answered after the end is not counted: one for each connection at most.
	within := func(name string, got, sent int64) {
		if got > sent || got < sent-4 || got == 0 {
			t.Errorf("%s: %d counted, %d sent", name, got, sent)
		}
	}
	within("created", r.applied, created.Load())
	within("refused", r.errors["503"], refused.Load())
	within("cut", r.errors["connection"], cut.Load())
	if r.latency.TotalCount() != r.applied {
		t.Errorf("%d latencies of %d operations", r.latency.TotalCount(), r.applied)
	}
	if r.elapsed < 300*time.Millisecond || len(r.errors) != 2 {
		t.Errorf("elapsed %s, errors %v", r.elapsed, r.errors)
	}
}

func TestLoadWithoutAServiceIsAnError(t *testing.T) {
	l := &load{address: "127.0.0.1:1", workload: Hot, accounts: 1, connections: 1, duration: time.Millisecond}
	if _, err := l.run(t.Context()); err == nil {
		t.Error("a load without a service succeeded")
	}
}

func TestMediansAndShares(t *testing.T) {
	var all []Measurement
	for _, rate := range []float64{100, 300, 200} {
		all = append(all,
			Measurement{Workload: Uniform, Connections: 4, Rate: rate, FloorBefore: 1000, FloorAfter: 600, Ratio: rate / 800},
			Measurement{Workload: Hot, Connections: 4, Rate: rate * 0.9})
	}
	all = append(all, Measurement{Workload: Uniform, Connections: 1, Rate: 10}, Measurement{Workload: Uniform, Connections: 1, Rate: 20})
	got := Summarize(all)
	if len(got) != 3 {
		t.Fatalf("%d summaries", len(got))
	}
	if u := got[0]; u.Runs != 3 || u.Rate != 200 || u.Floor != 800 || u.Ratio != 0.25 || u.OfUniform != 1 {
		t.Errorf("uniform %+v", u)
	}
	if h := got[1]; h.Rate != 180 || h.OfUniform != 0.9 {
		t.Errorf("hot %+v", h)
	}
	if one := got[2]; one.Rate != 15 || one.Connections != 1 {
		t.Errorf("even number of runs %+v", one)
	}
}
