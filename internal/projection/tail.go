package projection

import (
	"slices"
	"time"
)

// The limits of what the tail scan remembers.
const (
	missingMax    = 10_000           // positions
	missingAge    = 60 * time.Second // how long each is asked for
	missingRunMax = 500              // positions of one run, which is asked for as a whole
	missingFirst  = 50 * time.Millisecond
)

// tail is what the scan by position has seen. The scan only moves forward;
// positions that were handed out but not visible when it passed them are
// remembered and asked for again, less and less often. A position that never
// comes belongs to a transaction that failed. What the tail forgets, the sweep
// finds.
type tail struct {
	high    int64 // every position up to here was seen, is missing, or was given up
	missing []run // by lo, without overlaps
	count   int64 // positions in missing
}

// run is a range of missing positions, both ends included.
type run struct {
	lo, hi int64
	since  time.Time
	due    time.Time
	wait   time.Duration
}

func (r run) len() int64 { return r.hi - r.lo + 1 }

// advance takes the positions above high that a scan returned, in order.
func (t *tail) advance(positions []int64, now time.Time) {
	for _, p := range positions {
		// No more of a gap than is kept: positions may jump by any number.
		for lo := max(t.high+1, p-missingMax); lo < p; lo += missingRunMax {
			hi := min(lo+missingRunMax, p) - 1
			t.missing = append(t.missing, run{lo: lo, hi: hi, since: now, due: now.Add(missingFirst), wait: missingFirst})
			t.count += hi - lo + 1
		}
		t.high = p
		t.forget(now)
	}
}

// forget drops what is too old, and the oldest of what is too many.
func (t *tail) forget(now time.Time) {
	for len(t.missing) > 0 && (now.Sub(t.missing[0].since) > missingAge || t.count > missingMax) {
		t.count -= t.missing[0].len()
		t.missing = t.missing[1:]
	}
}

// due returns the runs that are to be asked for now, and puts off the next time.
func (t *tail) due(now time.Time) (lo, hi []int64) {
	t.forget(now)
	for i := range t.missing {
		r := &t.missing[i]
		if r.due.After(now) {
			continue
		}
		lo, hi = append(lo, r.lo), append(hi, r.hi)
		r.wait = min(2*r.wait, missingAge/4)
		r.due = now.Add(r.wait)
	}
	return lo, hi
}

// found takes positions out of what is missing.
func (t *tail) found(positions []int64) {
	for _, p := range positions {
		i, ok := slices.BinarySearchFunc(t.missing, p, func(r run, p int64) int {
			switch {
			case r.hi < p:
				return -1
			case r.lo > p:
				return 1
			}
			return 0
		})
		if !ok {
			continue
		}
		r := t.missing[i]
		t.count--
		var rest []run
		if r.lo < p {
			left := r
			left.hi = p - 1
			rest = append(rest, left)
		}
		if p < r.hi {
			right := r
			right.lo = p + 1
			rest = append(rest, right)
		}
		t.missing = slices.Replace(t.missing, i, i+1, rest...)
	}
}

// restart moves the scan back when the database has fewer positions than it
// had: it was restored.
func (t *tail) restart(high int64) { *t = tail{high: high} }
