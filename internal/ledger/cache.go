package ledger

import (
	"container/list"
	"sync"
	"time"
)

// headCache remembers the heads that this process read or wrote last, and which
// accounts other processes write too. It is a hint in every respect: the INSERT
// checks each link, and a lost entry costs one look.
type headCache struct {
	mu       sync.Mutex
	max      int
	accounts map[AccountID]*list.Element // of *cachedHead
	recent   *list.List                  // front = used last
	// moved counts the tasks of each account that wait for, or are with, the
	// runner of contended accounts: until it is done the later ones follow them.
	moved map[AccountID]int
}

// cachedHead is what is remembered of one account.
type cachedHead struct {
	id   AccountID
	head Head
	life life
	// contendedUntil is when the account stops to count as written by others.
	contendedUntil time.Time
	declines       declineBucket
}

func newHeadCache(limit int) *headCache {
	return &headCache{max: limit, accounts: make(map[AccountID]*list.Element), recent: list.New(), moved: make(map[AccountID]int)}
}

// get returns the remembered head when it belongs to the life.
func (c *headCache) get(id AccountID, l life) (Head, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.accounts[id]
	if !ok {
		return Head{}, false
	}
	c.recent.MoveToFront(el)
	h := el.Value.(*cachedHead)
	if h.life != l || h.head.Seq == 0 {
		return Head{}, false
	}
	return h.head, true
}

// put remembers the head.
func (c *headCache) put(head Head, l life) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entry(head.Account.ID).remember(head, l)
}

// remember leaves the metadata out: it can be large, and what needs it reads it.
func (h *cachedHead) remember(head Head, l life) {
	head.Account.Metadata = nil
	h.head, h.life = head, l
}

// observed is put for a head that was read. It reports whether links were added
// since this process last knew the account, and then marks it as contended until
// the given time. Usually they are somebody else's; a link of its own whose
// answer was lost counts too, which costs a lock for some seconds.
func (c *headCache) observed(head Head, l life, until time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.entry(head.Account.ID)
	foreign := h.head.Seq != 0 && h.life == l && h.head.Seq < head.Seq
	if foreign {
		h.contendedUntil = until
	}
	h.remember(head, l)
	return foreign
}

// contend marks the account as contended until the given time.
func (c *headCache) contend(id AccountID, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entry(id).contendedUntil = until
}

// contended reports whether operations on the account take the lock.
func (c *headCache) contended(id AccountID, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moved[id] > 0 {
		return true
	}
	el, ok := c.accounts[id]
	return ok && now.Before(el.Value.(*cachedHead).contendedUntil)
}

// move notes n more tasks of the account, or fewer, with the runner of contended
// accounts.
func (c *headCache) move(id AccountID, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moved[id] += n; c.moved[id] <= 0 {
		delete(c.moved, id)
	}
}

// mayDecline takes one decline out of the account's bucket, if there is one.
func (c *headCache) mayDecline(id AccountID, limit DeclineLimit, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entry(id).declines.take(limit, now)
}

// entry returns the record of the account, made new if need be. The caller
// holds mu.
func (c *headCache) entry(id AccountID) *cachedHead {
	if el, ok := c.accounts[id]; ok {
		c.recent.MoveToFront(el)
		return el.Value.(*cachedHead)
	}
	if len(c.accounts) >= c.max {
		last := c.recent.Back()
		delete(c.accounts, last.Value.(*cachedHead).id)
		c.recent.Remove(last)
	}
	h := &cachedHead{id: id}
	c.accounts[id] = c.recent.PushFront(h)
	return h
}

// DeclineLimit bounds how many declines one process records per account,
// because each costs a row for ever. The zero value means 20 a second with
// bursts of 100.
type DeclineLimit struct {
	PerSecond float64
	Burst     float64
}

// declineBucket is a token bucket. Its zero value is full.
type declineBucket struct {
	used float64
	at   time.Time
}

func (b *declineBucket) take(limit DeclineLimit, now time.Time) bool {
	b.used = max(0, b.used-now.Sub(b.at).Seconds()*limit.PerSecond)
	b.at = now
	if b.used+1 > limit.Burst {
		return false
	}
	b.used++
	return true
}

// recentKeys remembers fingerprints of keys that this process committed lately,
// so that a retry is looked up before it spoils a batch. It forgets by
// overwriting; a wrong guess in either direction costs one look.
type recentKeys struct {
	mu    sync.Mutex
	slots []uint64
}

func newRecentKeys(slots int) *recentKeys { return &recentKeys{slots: make([]uint64, slots)} }

func (k *recentKeys) add(fingerprint uint64) {
	k.mu.Lock()
	k.slots[fingerprint%uint64(len(k.slots))] = fingerprint
	k.mu.Unlock()
}

func (k *recentKeys) has(fingerprint uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.slots[fingerprint%uint64(len(k.slots))] == fingerprint
}
