package projection

import (
	"context"
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// shard is a shard that this process owns, for one term. The worker's mutex
// guards it.
type shard struct {
	number int
	term   lease.Term
	// ctx ends when the lease may be over by this process's clock.
	ctx context.Context
	// writes is the last write number that was used under this term.
	writes int64
	// over is closed when the database refused a write, or when the write
	// numbers run out: the term is given up.
	over chan struct{}
	// pending has the accounts whose entries are to be read from their balance
	// row on.
	pending backlog
	// attempts counts the writes of an account that were refused although its
	// row looks as it should, since the last one that took effect.
	attempts map[ledger.AccountID]int
	// parked has the accounts that cannot be applied.
	parked map[ledger.AccountID]parked
	// rebuild is the part of the open rebuild that this process does, nil when it
	// did none in this term.
	rebuild *rebuildJob
	// lastError is the last trouble in words, for the status.
	lastError string
	changed   bool // since the last report
	// swept is when the last sweep ended, zero in a new term. The sweep loop
	// writes it.
	swept time.Time
}

// parked is an account that is left alone until a sweep tries it again.
type parked struct {
	// damaged is true when a rebuild found its entries contradicting each other:
	// only a rebuild that finds them right ends that. Later entries may well fit
	// the row, and would end the alarm.
	damaged  bool
	since    time.Time
	lag      int64 // entries, as far as known
	oldest   time.Time
	retrying bool // a sweep has it tried again
}

const (
	// writesSpare is how many write numbers before the end a term is given up.
	writesSpare = 1000
	// attemptsMax is how often a write that should have taken effect is tried.
	attemptsMax = 5
)

func newShard(number int, term lease.Term, ctx context.Context) *shard {
	return &shard{
		number: number, term: term, ctx: ctx,
		over:     make(chan struct{}),
		pending:  backlog{accounts: make(map[ledger.AccountID]waiting)},
		attempts: make(map[ledger.AccountID]int),
		parked:   make(map[ledger.AccountID]parked),
		changed:  true,
	}
}

// token returns the token of the next write.
func (s *shard) token() (lease.ProjectionToken, error) {
	if s.writes >= lease.WriteNumberMax-writesSpare {
		s.giveUp()
		return 0, fmt.Errorf("shard %d: the write numbers of its term run out", s.number)
	}
	s.writes++
	return s.term.ProjectionToken(s.writes)
}

// usable reports whether this process may believe that it owns the shard.
func (s *shard) usable() bool {
	if s == nil || s.ctx.Err() != nil {
		return false
	}
	select {
	case <-s.over:
		return false
	default:
		return true
	}
}

func (s *shard) giveUp() {
	select {
	case <-s.over:
	default:
		close(s.over)
	}
}

// want puts the account, whose row is at the seq from and whose entries reach to,
// both as far as known, on the list of the first round after wait.
func (s *shard) want(id ledger.AccountID, from, to ledger.Seq, wait time.Duration) {
	s.pending.put(id, waiting{notBefore: time.Now().Add(wait), from: from, to: to})
	s.changed = true
}

func (s *shard) note(format string, args ...any) {
	s.lastError = fmt.Sprintf(format, args...)
	s.changed = true
}
