package importer

import (
	"context"
	"sync"
)

// window is how many rows are read ahead of the oldest one without an answer. It
// bounds memory, and is large enough to find work for all connections even in a
// file that is sorted by account.
const window = 1 << 16

// lane is one account: its rows that wait, in the order of the file.
type lane struct {
	accountID string
	// opened is set by the worker that has the lane, once per run.
	opened bool
	// stopped is set by that worker when a row has no definitive answer: the
	// later rows must not overtake it.
	stopped bool

	// rows and busy are under schedule.mu.
	rows []row
	// busy is true while the lane is in the ready queue or with a worker.
	busy bool
}

// schedule hands out rows so that at most one row of an account is under way.
type schedule struct {
	mu    sync.Mutex
	lanes map[string]*lane
	// open counts the rows that were read and are not done; complete is set
	// when there is nothing more to read.
	open     int
	complete bool
	// ready holds each busy lane that no worker has. A busy lane has a row, so
	// it never needs more room than there are rows in the window.
	ready chan *lane
	// room holds one token for each row that was read and is not done.
	room chan struct{}
}

func newSchedule() *schedule {
	return &schedule{lanes: map[string]*lane{}, ready: make(chan *lane, window), room: make(chan struct{}, window)}
}

// put adds a row; it waits while the window is full.
func (s *schedule) put(ctx context.Context, rw row) error {
	select {
	case s.room <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	l := s.lanes[rw.accountID]
	if l == nil {
		l = &lane{accountID: rw.accountID}
		s.lanes[rw.accountID] = l
	}
	l.rows = append(l.rows, rw)
	if !l.busy {
		l.busy = true
		s.ready <- l
	}
	return nil
}

// finish says that the reader adds nothing more; ready is closed when all rows
// are done.
func (s *schedule) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = true
	if s.open == 0 {
		close(s.ready)
	}
}

// take returns the next row of a lane that came from ready.
func (s *schedule) take(l *lane) row {
	s.mu.Lock()
	defer s.mu.Unlock()
	rw := l.rows[0]
	l.rows = l.rows[1:]
	return rw
}

// done ends the row that was taken and gives the lane back, which goes to the
// end of the queue when it has more rows.
func (s *schedule) done(l *lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(l.rows) > 0 {
		s.ready <- l
	} else {
		l.busy, l.rows = false, nil
	}
	<-s.room
	s.open--
	if s.complete && s.open == 0 {
		close(s.ready)
	}
}
