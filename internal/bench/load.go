package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
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
	// Transfers moves money between two accounts at random.
	Transfers Workload = "transfers"
	// TransfersHouse moves money from accounts at random to one and the same.
	TransfersHouse Workload = "transfers-house"
	// Batches sends 1,000 credits in a request, spread over all accounts.
	Batches Workload = "batches"
)

// Workloads are all of them.
func Workloads() []Workload { return []Workload{Uniform, Hot, Transfers, TransfersHouse, Batches} }

// operations is how many operations one request has.
func (w Workload) operations() int {
	if w == Batches {
		return 1000
	}
	return 1
}

// entries is how many entries one operation adds.
func (w Workload) entries() int {
	if w == Transfers || w == TransfersHouse {
		return 2
	}
	return 1
}

// account returns the account at place i of a request whose first one is first.
// The two accounts of a transfer differ, so it needs two of them.
func (w Workload) account(rng *rand.Rand, accounts, i, first int) int {
	switch {
	case w == TransfersHouse && i == 1:
		return 0
	case w == TransfersHouse:
		return 1 + rng.IntN(accounts-1)
	case w == Transfers && i == 1:
		return (first + 1 + rng.IntN(accounts-1)) % accounts
	}
	return w.pick(rng, accounts)
}

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
	applied   int64 // operations that were answered with 201 in time, an item of a batch too
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
		w := &worker{conn: newWorkloadConn(l.address, deadline, source, l.workload), rng: rand.New(source), latency: newHistogram()}
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
	first := 0
	account := func(i int) int {
		n := l.workload.account(w.rng, l.accounts, i, first)
		if i == 0 {
			first = n
		}
		return n
	}
	for !over.Load() {
		begin := time.Now()
		applied, status, err := w.conn.postTo(account)
		took := time.Since(begin)
		switch {
		case over.Load():
		case err != nil:
			w.lost++
			w.err = err
			time.Sleep(10 * time.Millisecond) // a service that is away must not be hammered
		case applied == l.workload.operations():
			w.applied += int64(applied)
			_ = w.latency.RecordValue(min(took.Microseconds(), latencyMax))
		case status >= 0 && status < len(w.statuses):
			w.applied += int64(applied)
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
