package projection

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// The limits of what waits, over all shards of a process. A sweep comes back for
// what it leaves, and the tail is read later; so both stop while much waits. The
// sweep stops first: new entries go before old ones.
const (
	sweepWaitingMax = 10_000  // accounts, above which a sweep pauses
	tailWaitingMax  = 100_000 // accounts, above which the tail is not read
)

// waiting is an account whose entries are to be read from its balance row on.
type waiting struct {
	notBefore time.Time
	// from is the seq of the balance row and to that of the last entry, both as
	// far as known.
	from, to ledger.Seq
}

// lag returns how many entries wait, at least one: else nothing would.
func (w waiting) lag() int64 { return max(int64(w.to-w.from), 1) }

// backlog has the accounts of a shard that wait. It counts their entries.
type backlog struct {
	accounts map[ledger.AccountID]waiting
	entries  int64
}

// put adds an account, or replaces what is known of it but for a higher to.
func (b *backlog) put(id ledger.AccountID, w waiting) {
	if old, ok := b.take(id); ok {
		w.to = max(w.to, old.to)
	}
	b.accounts[id] = w
	b.entries += w.lag()
}

// take removes an account.
func (b *backlog) take(id ledger.AccountID) (waiting, bool) {
	w, ok := b.accounts[id]
	if ok {
		delete(b.accounts, id)
		b.entries -= w.lag()
	}
	return w, ok
}

// seen takes note of an entry of an account, and returns false for one that
// does not wait.
func (b *backlog) seen(id ledger.AccountID, seq ledger.Seq) bool {
	w, ok := b.accounts[id]
	if ok && seq > w.to {
		b.entries -= w.lag()
		w.to = seq
		b.accounts[id] = w
		b.entries += w.lag()
	}
	return ok
}

// appendDue appends accounts that may be read now, until ids has length n.
func (b *backlog) appendDue(ids []string, n int, now time.Time) []string {
	for id, w := range b.accounts {
		if len(ids) >= n {
			break
		}
		if !w.notBefore.After(now) {
			ids = append(ids, string(id))
		}
	}
	return ids
}
