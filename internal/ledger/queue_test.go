package ledger

import (
	"sync/atomic"
	"testing"

	"github.com/ledgerd/ledgerd/internal/postgres"
)

// gate stops a writer between the decision and the append of the next batch.
type gate struct {
	armed   atomic.Bool
	reached chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) pause() {
	if g.armed.CompareAndSwap(true, false) {
		close(g.reached)
		<-g.open
	}
}

// oneBatch gets the operations into one batch of the writer, in their order,
// while the gate holds up a batch before it, which is the operation first.
func (g *gate) oneBatch(t *testing.T, w *Writer, first *Operation, ops ...*Operation) []outcome {
	t.Helper()
	outcomes := make([]outcome, len(ops))
	var waiting atomic.Int64
	apply := func(i int, op *Operation) {
		r, err := w.Apply(t.Context(), op)
		outcomes[i].receipt = r
		if err != nil {
			outcomes[i].refusal = err.(*Refusal) //nolint:errorlint // the contract of Apply
		}
		waiting.Add(-1)
	}
	g.armed.Store(true)
	done := make(chan struct{})
	go func() { must(t, w, first); close(done) }()
	<-g.reached
	for i, op := range ops {
		waiting.Add(1)
		go apply(i, op)
		eventually(t, "the operation is queued", func() bool { return w.queued() == float64(i+1) })
	}
	close(g.open)
	<-done
	eventually(t, "all are answered", func() bool { return waiting.Load() == 0 })
	return outcomes
}

// TestKeyComesFirstForAllOfABatch repeats an operation whose key this process
// does not remember, in one batch with another one that makes it look: what the
// look found out about the account must not be used before the key was asked too.
func TestKeyComesFirstForAllOfABatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	g := newGate()
	other, w := f.writer(), f.writer(func(_ *postgres.Config, c *WriterConfig) { c.Pause = g.pause })
	open(t, other, "A", "B")
	must(t, other, credit("A", 1, "theirs"))
	must(t, w, credit("A", 1, "ours"))
	again := credit("A", 1, "theirs")
	again.IfMatch = 1
	got := g.oneBatch(t, w, credit("B", 1, "first"), again, credit("A", 1, "ours"))
	for i, o := range got {
		if o.refusal != nil || !o.receipt.Replayed {
			t.Errorf("operation %d: receipt %+v, refusal %v; want a replay", i, o.receipt, o.refusal)
		}
	}
}
