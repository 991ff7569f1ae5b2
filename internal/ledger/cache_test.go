package ledger

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func headOfSeq(id AccountID, seq Seq) Head { return Head{Account: Account{ID: id}, Seq: seq} }

func TestHeadsBelongToOneLife(t *testing.T) {
	t.Parallel()
	c := newHeadCache(2)
	here, restarted, restored := life{startedAt: 1, entriesOID: 2}, life{startedAt: 3, entriesOID: 2}, life{startedAt: 1, entriesOID: 4}
	if _, ok := c.get("A", here); ok {
		t.Error("a head that nobody put")
	}
	c.put(headOfSeq("A", 5), here)
	if h, ok := c.get("A", here); !ok || h.Seq != 5 {
		t.Errorf("got %+v, %v", h, ok)
	}
	for _, other := range []life{restarted, restored, {}} {
		if h, ok := c.get("A", other); ok {
			t.Errorf("the life %v got the head %+v of another", other, h)
		}
	}
	c.contend("B", noon) // a record without a head
	if _, ok := c.get("B", life{}); ok {
		t.Error("a head of seq 0")
	}
}

func TestForeignLinksMakeAnAccountContended(t *testing.T) {
	t.Parallel()
	here, other := life{startedAt: 1, entriesOID: 2}, life{startedAt: 2, entriesOID: 2}
	until := noon.Add(time.Second)
	for name, c := range map[string]struct {
		known   func(*headCache)
		foreign bool
	}{
		"nothing was known":         {func(*headCache) {}, false},
		"nothing new":               {func(c *headCache) { c.put(headOfSeq("A", 5), here) }, false},
		"somebody added a link":     {func(c *headCache) { c.put(headOfSeq("A", 4), here) }, true},
		"it was known in another":   {func(c *headCache) { c.put(headOfSeq("A", 4), other) }, false},
		"only declines were known":  {func(c *headCache) { c.mayDecline("A", DeclineLimit{1, 1}, noon) }, false},
		"it is behind what we know": {func(c *headCache) { c.put(headOfSeq("A", 6), here) }, false},
	} {
		cache := newHeadCache(10)
		c.known(cache)
		if got := cache.observed(headOfSeq("A", 5), here, until); got != c.foreign {
			t.Errorf("%s: foreign %v", name, got)
		}
		if got := cache.contended("A", noon); got != c.foreign {
			t.Errorf("%s: contended %v", name, got)
		}
		if cache.contended("A", until) || cache.contended("B", noon) {
			t.Errorf("%s: contended after its time, or another account is", name)
		}
		if h, ok := cache.get("A", here); !ok || h.Seq != 5 {
			t.Errorf("%s: the head that was read is not remembered: %+v, %v", name, h, ok)
		}
	}
}

// TestHeadCacheIsBounded runs random uses against a list of what was used last.
func TestHeadCacheIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 5).Draw(t, "limit")
		c := newHeadCache(limit)
		var used []AccountID // last used at the end
		use := func(id AccountID) {
			kept := []AccountID{}
			for _, other := range used {
				if other != id {
					kept = append(kept, other)
				}
			}
			used = append(kept, id)
			used = used[max(0, len(used)-limit):]
		}
		seqs := map[AccountID]Seq{}
		for range rapid.IntRange(1, 60).Draw(t, "uses") {
			id := AccountID(fmt.Sprint("A", rapid.IntRange(0, 7).Draw(t, "account")))
			if rapid.Bool().Draw(t, "put") {
				seqs[id]++
				c.put(headOfSeq(id, seqs[id]), life{})
				use(id)
				continue
			}
			remembered := false
			for _, other := range used {
				remembered = remembered || other == id
			}
			h, ok := c.get(id, life{})
			if ok != remembered || ok && h.Seq != seqs[id] {
				t.Fatalf("%s: got %d, %v; used were %v", id, h.Seq, ok, used)
			}
			if ok {
				use(id)
			}
		}
		if len(c.accounts) != len(used) || c.recent.Len() != len(used) {
			t.Fatalf("%d accounts and %d places for %d", len(c.accounts), c.recent.Len(), len(used))
		}
	})
}

func TestDeclineBucket(t *testing.T) {
	t.Parallel()
	var b declineBucket
	limit := DeclineLimit{PerSecond: 2, Burst: 3}
	at := noon
	for i, step := range []struct {
		after time.Duration
		want  bool
	}{
		{0, true}, {0, true}, {0, true}, {0, false}, // the burst
		{499 * time.Millisecond, false}, {time.Millisecond, true}, {0, false}, // two a second
		{time.Hour, true}, {0, true}, {0, true}, {0, false}, // no more than the burst is saved up
		{-time.Hour, false}, {time.Hour, false}, // a clock that goes back gives nothing
	} {
		at = at.Add(step.after)
		if got := b.take(limit, at); got != step.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
}

func TestRecentKeys(t *testing.T) {
	t.Parallel()
	k := newRecentKeys(4)
	if k.has(1) || k.has(5) {
		t.Error("a key that nobody added")
	}
	k.add(1)
	if !k.has(1) || k.has(5) {
		t.Error("1 was added, and 5 shares its slot")
	}
	k.add(5)
	if k.has(1) || !k.has(5) {
		t.Error("5 takes the slot of 1")
	}
}
