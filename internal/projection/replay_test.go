package projection

import (
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// TestLockedRowDoesNotStopARebuild: the rows that somebody has locked are left
// for later, all others are rewritten, also those of later pages; and it is not
// finished before the locked ones were done.
func TestLockedRowDoesNotStopARebuild(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := sameShard("A", rebuildPage+20)
	elsewhere := ledger.AccountID("B")
	f.open(ids...)
	f.open(elsewhere)
	w := f.stepper()
	s := owned(w, "A", 1)
	owned(w, elsewhere, 1)
	f.round(w)
	f.round(w)
	f.damage(`update balances set balance = 7`)
	locked := []ledger.AccountID{ids[3], ids[rebuildPage+10]}
	var unlock []func()
	for _, id := range locked {
		unlock = append(unlock, f.lock(id))
	}
	r := f.rebuild(w)
	damaged := func() (left []ledger.AccountID) {
		for _, id := range append(ids, elsewhere) {
			if f.row(id).balance != 0 {
				left = append(left, id)
			}
		}
		return left
	}
	if left := damaged(); !slices.Equal(left, locked) {
		t.Errorf("with %v locked, %v were not rewritten", locked, left)
	}
	if r.ShardsDone != 1 || r.AccountsDone != 1 {
		t.Errorf("with locked rows the rebuild is %+v", r)
	}
	if !strings.Contains(s.lastError, string(locked[0])) && !strings.Contains(s.lastError, string(locked[1])) {
		t.Errorf("the shard says %q", s.lastError)
	}
	for i := range unlock {
		unlock[i]()
		if r = f.rebuild(w); !slices.Equal(damaged(), locked[i+1:]) {
			t.Errorf("after %v was released %v are damaged", locked[i], damaged())
		}
	}
	if all := int64(len(ids) + 1); r.ShardsDone != 2 || r.AccountsDone != all || r.EntriesDone != all || r.Repaired != all || r.Damaged != 0 {
		t.Errorf("the rebuild ended with %+v", r)
	}
}

// TestRebuildOfLockedRowsIsTakenOver: another owner does what was left, and what
// was done beyond it again.
func TestRebuildOfLockedRowsIsTakenOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := sameShard("A", 5)
	f.open(ids...)
	first, second := f.stepper(), f.stepper()
	owned(first, "A", 1)
	f.round(first)
	f.damage(`update balances set balance = 7`)
	unlock := f.lock(ids[2])
	f.rebuild(first)
	owned(second, "A", 2)
	unlock()
	if r := f.rebuild(second); r.ShardsDone != 1 || r.AccountsDone != 5 {
		t.Errorf("the second owner left %+v", r)
	}
	if err := first.rebuildOwned(t.Context()); err != nil {
		t.Errorf("the first owner goes on with %v", err)
	}
}
