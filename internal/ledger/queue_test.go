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

func newTask(op *Operation) *task { return &task{op: op, done: make(chan outcome, 1)} }

func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	q := newQueue(2)
	a, b, c := newTask(credit("A", 1, "a")), newTask(credit("A", 1, "b")), newTask(credit("A", 1, "c"))
	if !q.offer(a) || !q.offer(b) || q.offer(c) {
		t.Fatal("a queue of two took three, or not two")
	}
	if !q.hand([]*task{c}) || q.length() != 3 {
		t.Fatal("a task that moves between runners was turned away")
	}
	a.taken.Store(taskAbandoned)
	if got := q.take(nil, 10, 1<<20); len(got) != 2 || got[0] != b || got[1] != c || b.taken.Load() != taskTaken {
		t.Fatalf("took %d tasks", len(got))
	}
	if q.length() != 0 {
		t.Fatalf("%d tasks are left", q.length())
	}
	if !q.offer(a) {
		t.Fatal("there is room again")
	}
}

func TestBatchIsBounded(t *testing.T) {
	t.Parallel()
	q := newQueue(100)
	for i := range 10 {
		q.offer(newTask(credit("A", 1, keyN("k", i))))
	}
	if got := q.take(nil, 3, 1<<20); len(got) != 3 || got[0].op.Key != "k-0" || got[2].op.Key != "k-2" {
		t.Fatalf("took %d tasks of at most 3", len(got))
	}
	large := credit("A", 1, "large")
	large.Metadata = Metadata{"k": string(make([]byte, 5000))}
	q.offer(newTask(large))
	if got := q.take(nil, 100, 1000); len(got) != 2 {
		t.Fatalf("took %d tasks into 1000 bytes", len(got))
	}
	if got := q.take(nil, 5, 1); len(got) != 1 {
		t.Fatalf("took %d tasks into one byte: a task must never be too large for all batches", len(got))
	}
}

func TestClosedQueueIsDrained(t *testing.T) {
	t.Parallel()
	q := newQueue(10)
	a := newTask(credit("A", 1, "a"))
	q.offer(a)
	q.close()
	if q.offer(newTask(credit("A", 1, "b"))) || q.hand([]*task{newTask(credit("A", 1, "c"))}) {
		t.Fatal("a closed queue took a task")
	}
	if got := q.take(nil, 10, 1<<20); len(got) != 1 || got[0] != a {
		t.Fatalf("took %d tasks", len(got))
	}
	if got := q.take(nil, 10, 1<<20); len(got) != 0 {
		t.Fatalf("took %d tasks of a drained queue", len(got))
	}
}

func TestTakeWaitsForATask(t *testing.T) {
	t.Parallel()
	q := newQueue(10)
	took := make(chan []*task)
	go func() { took <- q.take(nil, 10, 1<<20) }()
	gone := newTask(credit("A", 1, "gone"))
	gone.taken.Store(taskAbandoned)
	q.offer(gone)
	eventually(t, "the abandoned task is dropped", func() bool { return q.length() == 0 })
	a := newTask(credit("A", 1, "a"))
	q.offer(a)
	if got := <-took; len(got) != 1 || got[0] != a {
		t.Fatalf("took %d tasks", len(got))
	}
}

// TestUnknownStaysUnknown: once an append may have had an effect, no refusal of
// its task says that nothing was applied.
func TestUnknownStaysUnknown(t *testing.T) {
	t.Parallel()
	shared := refuse(CodeUnavailable, "for several tasks")
	lost, calm := newTask(credit("A", 1, "a")), newTask(credit("A", 1, "b"))
	lost.unknown = true
	lost.fail(shared)
	calm.fail(shared)
	if o := <-lost.done; o.refusal.Applied != AppliedUnknown || o.refusal.Code != CodeUnavailable {
		t.Errorf("refusal %+v", o.refusal)
	}
	if o := <-calm.done; o.refusal.Applied != NotApplied {
		t.Errorf("the neighbour got %+v", o.refusal)
	}
}

// TestOverload fills a queue of one while a batch is held up: what does not fit
// is refused at once and was not applied.
func TestOverload(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	g := newGate()
	w := f.writer(func(_ *postgres.Config, c *WriterConfig) { c.Pause, c.QueueMax = g.pause, 1 })
	open(t, w, "A")
	g.armed.Store(true)
	done := make(chan *Receipt, 2)
	go func() { done <- must(t, w, credit("A", 1, "first")) }()
	<-g.reached
	go func() { done <- must(t, w, credit("A", 1, "second")) }()
	eventually(t, "one waits", func() bool { return w.queued() == 1 })
	if r := refused(t, w, credit("A", 1, "third"), CodeOverloaded); r.Applied != NotApplied {
		t.Errorf("refusal %+v", r)
	}
	close(g.open)
	<-done
	<-done
	must(t, w, credit("A", 1, "third"))
	if got := f.balanceOf("A"); got != 3 {
		t.Errorf("balance %d, want 3", got)
	}
}

// TestRefusalIsNeverFromMemory: an operation that the remembered head would
// refuse is decided from a head that is read.
func TestRefusalIsNeverFromMemory(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w, other := f.writer(), f.writer()
	open(t, w, "A", "B", "C")
	for _, id := range []AccountID{"A", "B", "C"} {
		must(t, w, credit(id, 1, "warm")) // seq 2 is remembered
	}
	must(t, other, credit("A", 1, "foreign"))
	conditional := credit("A", 1, "k")
	conditional.IfMatch = 3
	if r := must(t, w, conditional); r.Entry.Seq != 4 {
		t.Errorf("seq %d, want 4", r.Entry.Seq)
	}
	must(t, other, settings("B", Change{FencingSource: ptr(SourceExternal)}))
	token := credit("B", 1, "k")
	token.Token = 7 // from the future for the head that is remembered
	if r := must(t, w, token); r.Entry.After.Fence != 7 {
		t.Errorf("fence %d, want 7", r.Entry.After.Fence)
	}
	must(t, other, credit("C", 1, "foreign"))
	conditional = credit("C", 1, "k")
	conditional.IfMatch = 2 // would fit the head that is remembered
	refused(t, w, conditional, CodeSeqMismatch)
}

// TestKeysOutliveTheProcess repeats an operation of an earlier process through
// one that knows the account and not the key: only the database can find it.
func TestKeysOutliveTheProcess(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	earlier := f.writer()
	open(t, earlier, "A")
	first := must(t, earlier, credit("A", 1, "k"))
	w := f.writer()
	must(t, w, credit("A", 1, "warm"))
	if r := must(t, w, credit("A", 1, "k")); !r.Replayed || r.Entry.Hash != first.Entry.Hash {
		t.Fatalf("replayed %v at seq %d", r.Replayed, r.Entry.Seq)
	}
	refused(t, w, debit("A", 1, "k"), CodeKeyReused)
	if got := f.balanceOf("A"); got != 2 {
		t.Errorf("balance %d, want 2", got)
	}
}
