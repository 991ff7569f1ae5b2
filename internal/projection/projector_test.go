package projection

import (
	"testing"
)

func TestEntriesAreApplied(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := accountIDs("a", 50)
	f.open(ids...)
	p := f.projector()
	f.committed = p.Hint
	f.run(p)
	for i := range 500 {
		f.credit(ids[i%len(ids)], 3)
		if i%3 == 0 {
			f.debit(ids[i%len(ids)], 2)
		}
	}
	f.caughtUp()
	if got := value(p.worker.metrics.applied); got != 50+500+167 {
		t.Errorf("%v entries were applied", got)
	}
}
