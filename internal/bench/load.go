package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Workload says which accounts the operations go to.
type Workload string

const (
	// Uniform spreads them evenly over all accounts.
	Uniform Workload = "uniform"
	// Hot sends all of them to one account.
	Hot Workload = "hot"
)

// pick returns the account of the next operation.
func (w Workload) pick(rng *rand.Rand, accounts int) int {
	if w == Hot {
		return 0
	}
	return rng.IntN(accounts)
}

// load is one closed loop: each connection sends its next operation when the one
// before it is answered.
type load struct {
	address     string // host:port
	workload    Workload
	accounts    int
	connections int
	duration    time.Duration
	seed        uint64
}

// loadResult is what a load achieved.
type loadResult struct {
	applied   int64 // operations that were answered with 201 in time
	elapsed   time.Duration
	latency   *hdrhistogram.Histogram // microseconds
	errors    map[string]int64        // by status or "connection"
	firstFail error
	ownCPU    time.Duration // what the load generator itself used
}

// answerWait is how long the last answers may take after the load.
const answerWait = 30 * time.Second

// latencyMax is the longest latency that is told apart, in microseconds.
const latencyMax = int64(60 * time.Second / time.Microsecond)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, latencyMax, 3) }

// worker is one connection's share of the result.
type worker struct {
	conn     *httpConn
	rng      *rand.Rand
	latency  *hdrhistogram.Histogram
	applied  int64
	statuses [600]int64
	lost     int64
	err      error
}

// run drives the load for its duration, or until ctx ends.
func (l *load) run(ctx context.Context) (*loadResult, error) {
	deadline := time.Now().Add(l.duration + answerWait)
	workers := make([]*worker, l.connections)
	for i := range workers {
		source := rand.NewPCG(l.seed, uint64(i))
		w := &worker{conn: newHTTPConn(l.address, deadline, source), rng: rand.New(source), latency: newHistogram()}
		if err := w.conn.dial(); err != nil {
			return nil, fmt.Errorf("connect to the service: %w", err)
		}
		workers[i] = w
		defer w.conn.close()
	}
	var over atomic.Bool
	cpu, begin := ownCPU(), time.Now()
	ctx, cancel := context.WithTimeout(ctx, l.duration)
	defer cancel()
	var group sync.WaitGroup
	for _, w := range workers {
		group.Go(func() { w.loop(l, &over) })
	}
	<-ctx.Done()
	over.Store(true)
	r := &loadResult{elapsed: time.Since(begin), latency: newHistogram(), errors: map[string]int64{}, ownCPU: ownCPU() - cpu}
	group.Wait()
	for _, w := range workers {
		r.add(w)
	}
	return r, nil
}

// loop posts until the time is over. What is answered after that is not counted.
func (w *worker) loop(l *load, over *atomic.Bool) {
	for !over.Load() {
		account := l.workload.pick(w.rng, l.accounts)
		begin := time.Now()
		status, err := w.conn.post(account)
		took := time.Since(begin)
		switch {
		case over.Load():
		case err != nil:
			w.lost++
			w.err = err
			time.Sleep(10 * time.Millisecond) // a service that is away must not be hammered
		case status == http.StatusCreated:
			w.applied++
			_ = w.latency.RecordValue(min(took.Microseconds(), latencyMax))
		case status >= 0 && status < len(w.statuses):
			w.statuses[status]++
		}
	}
}

func (r *loadResult) add(w *worker) {
	r.applied += w.applied
	r.latency.Merge(w.latency)
	for status, n := range w.statuses {
		if n > 0 {
			r.errors[fmt.Sprint(status)] += n
		}
	}
	if w.lost > 0 {
		r.errors["connection"] += w.lost
		r.firstFail = w.err
	}
}

// ownCPU is the CPU time that this process has used.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
