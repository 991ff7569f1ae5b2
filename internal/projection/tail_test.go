package projection

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestTailAsksForWhatItMissed lets positions become visible in any order. All
// that is due is either below the scan and asked for, or above it.
func TestTailAsksForWhatItMissed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		var tl tail
		visible := make(map[int64]bool)
		seen := make(map[int64]int)
		last := int64(rapid.IntRange(1, 2000).Draw(t, "positions"))
		for round := 0; len(seen) < len(visible) || round < 8; round++ {
			if round < 8 {
				for range rapid.IntRange(0, 30).Draw(t, "new") {
					visible[rapid.Int64Range(1, last).Draw(t, "position")] = true
				}
			}
			now = now.Add(time.Second)
			var late, fresh []int64
			lo, hi := tl.due(now)
			for p := range visible {
				switch {
				case p > tl.high:
					fresh = append(fresh, p)
				default:
					for i := range lo {
						if lo[i] <= p && p <= hi[i] {
							late = append(late, p)
						}
					}
				}
			}
			slices.Sort(fresh)
			tl.found(late)
			tl.advance(fresh, now)
			for _, p := range append(late, fresh...) {
				seen[p]++
			}
			if round > 60 {
				t.Fatalf("after %d rounds %d of %d positions were seen", round, len(seen), len(visible))
			}
		}
		for p, n := range seen {
			if n != 1 {
				t.Fatalf("position %d was seen %d times", p, n)
			}
		}
		var count int64
		for _, r := range tl.missing {
			count += r.len()
		}
		if count != tl.count {
			t.Fatalf("the tail counts %d missing positions and has %d", tl.count, count)
		}
	})
}

func TestTailForgets(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	var tl tail
	tl.advance([]int64{25_000}, now)
	if tl.count > missingMax || tl.count < missingMax-missingRunMax {
		t.Errorf("%d positions are remembered", tl.count)
	}
	if lo := tl.missing[0].lo; lo < 25_000-missingMax {
		t.Errorf("the oldest were kept: %d", lo)
	}
	lo, _ := tl.due(now)
	if len(lo) != 0 {
		t.Errorf("asked for at once")
	}
	asked := 0
	for range 600 {
		now = now.Add(100 * time.Millisecond)
		lo, _ = tl.due(now)
		if len(lo) > 0 {
			asked++
		}
	}
	if asked < 5 || asked > 30 {
		t.Errorf("asked %d times in a minute", asked)
	}
	tl.due(now.Add(time.Second))
	if len(tl.missing) != 0 || tl.count != 0 {
		t.Errorf("%d positions are remembered after a minute", tl.count)
	}
	if tl.high != 25_000 {
		t.Errorf("the scan moved to %d", tl.high)
	}
}

// TestTailRemembersNoMoreOfAGapThanItKeeps: a jump of the identity costs no more
// memory than the limit, nor do many gaps in one scan.
func TestTailRemembersNoMoreOfAGapThanItKeeps(t *testing.T) {
	t.Parallel()
	many := make([]int64, 1000)
	for i := range many {
		many[i] = int64(i+1) * (missingMax + 1)
	}
	for name, positions := range map[string][]int64{"huge gap": {1, 1 << 26}, "many gaps": many} {
		var tl tail
		tl.advance(positions, time.Unix(0, 0))
		if tl.count == 0 || tl.count > missingMax {
			t.Errorf("%s: %d positions are remembered", name, tl.count)
		}
		if runs := cap(tl.missing); runs > 10*missingMax/missingRunMax {
			t.Errorf("%s: there was room for %d runs", name, runs)
		}
		last := positions[len(positions)-1]
		if newest := tl.missing[len(tl.missing)-1]; newest.hi != last-1 || tl.high != last {
			t.Errorf("%s: the newest run is %+v, the scan at %d", name, newest, tl.high)
		}
	}
}
