package lease

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// model is what the table of leases should do, as plain Go. The state machine
// test holds the real store against it; the tests of the holder then use it
// where they need a clock of their own.
type model struct {
	mu          sync.Mutex
	now         func() time.Time
	incarnation int
	rows        map[string]*modelRow
}

type modelRow struct {
	Lease
	ttl, delay time.Duration
	released   bool
}

func newModel(now func() time.Time) *model {
	return &model{now: now, incarnation: 1, rows: make(map[string]*modelRow)}
}

func (m *model) free(r *modelRow) bool {
	return r == nil || r.released || r.Incarnation < m.incarnation ||
		!r.ExpiresAt.Add(r.delay).After(m.now()) || r.ExpiresAt.After(m.now().Add(2*r.ttl))
}

func (m *model) Acquire(_ context.Context, holder string, ttl, delay time.Duration, names []string) ([]Term, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var terms []Term
	for _, name := range names {
		old := m.rows[name]
		if !m.free(old) || old != nil && old.Incarnation > m.incarnation {
			continue
		}
		r := &modelRow{ttl: ttl, delay: delay}
		r.Term = Term{Name: name, Incarnation: m.incarnation, Generation: 1, Nonce: uuid.New()}
		if old != nil {
			r.Generation = old.Generation + 1
		}
		r.Holder, r.AcquiredAt, r.ExpiresAt = holder, m.now(), m.now().Add(ttl)
		m.rows[name] = r
		terms = append(terms, r.Term)
	}
	return terms, nil
}

// stands reports whether the exact term can be renewed or released.
func (m *model) stands(t Term) bool {
	r := m.rows[t.Name]
	return r != nil && r.Generation == t.Generation && r.Nonce == t.Nonce && !r.released &&
		r.Incarnation == m.incarnation && r.ExpiresAt.After(m.now())
}

func (m *model) Renew(_ context.Context, ttl time.Duration, terms []Term) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for _, t := range terms {
		if m.stands(t) {
			r := m.rows[t.Name]
			r.ttl, r.ExpiresAt = ttl, m.now().Add(ttl)
			names = append(names, t.Name)
		}
	}
	return names, nil
}

func (m *model) Release(_ context.Context, terms []Term) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for _, t := range terms {
		if m.stands(t) {
			r := m.rows[t.Name]
			r.released, r.ExpiresAt = true, m.now()
			names = append(names, t.Name)
		}
	}
	return names, nil
}

func (m *model) Look(_ context.Context, names []string) ([]Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var leases []Lease
	for _, name := range slices.Sorted(slices.Values(names)) {
		r := m.rows[name]
		if r == nil {
			continue
		}
		l := r.Lease
		l.Live = m.stands(r.Term) && !r.ExpiresAt.After(m.now().Add(2*r.ttl))
		l.Free = m.free(r)
		leases = append(leases, l)
	}
	return leases, nil
}
