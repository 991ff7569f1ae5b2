package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
)

// ErrNotFound is what Rebuilds and Verifications return, wrapped or not, for
// an id that they do not know.
var ErrNotFound = errors.New("not found")

// Rebuilds starts the rebuild of all balance rows and follows it. Any process
// can answer for a rebuild that another one carries out.
type Rebuilds interface {
	// StartRebuild asks for a rebuild, durably, and returns at once; when one
	// is at work it returns that one.
	StartRebuild(ctx context.Context) (Rebuild, error)
	// Rebuild returns the progress of a rebuild, or ErrNotFound.
	Rebuild(ctx context.Context, id string) (Rebuild, error)
}

// Verifications starts the verification of the whole ledger and follows it.
type Verifications interface {
	// StartVerification begins a verification that outlives ctx and returns at
	// once; when one is at work in this process it returns that one.
	StartVerification(ctx context.Context) (Verification, error)
	// Verification returns the progress of a verification, or ErrNotFound.
	Verification(ctx context.Context, id string) (Verification, error)
}

// ProjectionStatus tells how far the projection is.
type ProjectionStatus interface {
	// Projection returns the state of all shards, in the order of their numbers.
	Projection(ctx context.Context) (Projection, error)
}

// Projection is the state of the projection of balances.
type Projection struct {
	// LagEntries is the number of entries that are not applied yet, and
	// LagSeconds the age of the oldest of them.
	LagEntries     int64   `json:"lag_entries"`
	LagSeconds     float64 `json:"lag_seconds"`
	ParkedAccounts int64   `json:"parked_accounts"`
	Shards         []Shard `json:"shards"`
}

// Shard is the state of one shard. The pointers are nil for what is not known.
type Shard struct {
	Shard int `json:"shard"`
	// State is "held" when a live process works on the shard, else "free".
	State string `json:"state"`
	// Holder names the process that works on it, or did last.
	Holder         string    `json:"holder,omitzero"`
	Generation     int64     `json:"generation,omitzero"`
	ExpiresAt      time.Time `json:"expires_at,omitzero"`
	LagEntries     *int64    `json:"lag_entries,omitzero"`
	LagSeconds     *float64  `json:"lag_seconds,omitzero"`
	ParkedAccounts *int64    `json:"parked_accounts,omitzero"`
}

// JobState says how far a rebuild or a verification is.
type JobState string

// The states of a job, in their order; a job ends as JobDone or JobFailed.
const (
	JobPending JobState = "pending"
	JobRunning JobState = "running"
	JobDone    JobState = "done"
	JobFailed  JobState = "failed"
)

// Rebuild is the progress of a rebuild of all balance rows. Totals that are 0
// are not known; times that are zero have not come.
type Rebuild struct {
	ID            string   `json:"id"`
	State         JobState `json:"state"`
	ShardsTotal   int      `json:"shards_total"`
	ShardsDone    int      `json:"shards_done"`
	AccountsTotal int64    `json:"accounts_total,omitzero"`
	AccountsDone  int64    `json:"accounts_done"`
	EntriesTotal  int64    `json:"entries_total,omitzero"`
	EntriesDone   int64    `json:"entries_done"`
	// DriftedAccounts is the number of balance rows that were wrong.
	DriftedAccounts int64     `json:"drifted_accounts"`
	RequestedAt     time.Time `json:"requested_at"`
	StartedAt       time.Time `json:"started_at,omitzero"`
	FinishedAt      time.Time `json:"finished_at,omitzero"`
	// Error says, in words for a client, why a JobFailed one failed.
	Error string `json:"error,omitzero"`
}

// FindingsMax is the number of findings that a Verification carries at most.
const FindingsMax = 200

// Verification is the progress and the result of a verification. Totals that
// are 0 are not known; times that are zero have not come.
type Verification struct {
	ID            string   `json:"id"`
	State         JobState `json:"state"`
	AccountsTotal int64    `json:"accounts_total,omitzero"`
	AccountsDone  int64    `json:"accounts_done"`
	EntriesTotal  int64    `json:"entries_total,omitzero"`
	EntriesDone   int64    `json:"entries_done"`
	// Differences counts all of them; Findings holds the first FindingsMax.
	Differences int64     `json:"differences"`
	Findings    []Finding `json:"findings"`
	RequestedAt time.Time `json:"requested_at"`
	StartedAt   time.Time `json:"started_at,omitzero"`
	FinishedAt  time.Time `json:"finished_at,omitzero"`
	// Error says, in words for a client, why a JobFailed one failed.
	Error string `json:"error,omitzero"`
}

// Finding is one difference that a verification found.
type Finding struct {
	AccountID string `json:"account_id"`
	// Seq is the entry, 0 when the difference is not about one.
	Seq int64 `json:"seq,omitzero"`
	// Kind is a word such as gap, hash, balance or drift.
	Kind   string `json:"kind"`
	Detail string `json:"detail"`
}

func (s *server) getProjection(x *exchange, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	p, err := s.projection.Projection(r.Context())
	if err != nil {
		return err
	}
	if p.Shards == nil {
		p.Shards = []Shard{}
	}
	return s.sendValue(x, http.StatusOK, struct {
		Name string `json:"name"`
		Projection
	}{"balances", p})
}

func (s *server) startRebuild(x *exchange, r *http.Request) error {
	if err := s.acceptNothing(r); err != nil {
		return err
	}
	b, err := s.rebuilds.StartRebuild(r.Context())
	if err != nil {
		return err
	}
	x.set("Location", "/v1/projections/balances/rebuilds/"+b.ID)
	return s.sendValue(x, http.StatusAccepted, b)
}

func (s *server) getRebuild(x *exchange, r *http.Request) error {
	id, err := jobID(r, "rebuild_id")
	if err != nil {
		return err
	}
	b, err := s.rebuilds.Rebuild(r.Context(), id)
	if errors.Is(err, ErrNotFound) {
		return &problem{code: codeRebuildNotFound, detail: "No rebuild has this id."}
	}
	if err != nil {
		return err
	}
	return s.sendValue(x, http.StatusOK, b)
}

func (s *server) startVerification(x *exchange, r *http.Request) error {
	if err := s.acceptNothing(r); err != nil {
		return err
	}
	v, err := s.verifications.StartVerification(r.Context())
	if err != nil {
		return err
	}
	x.set("Location", "/v1/projections/balances/verifications/"+v.ID)
	return s.sendVerification(x, http.StatusAccepted, v)
}

func (s *server) getVerification(x *exchange, r *http.Request) error {
	id, err := jobID(r, "verification_id")
	if err != nil {
		return err
	}
	v, err := s.verifications.Verification(r.Context(), id)
	if errors.Is(err, ErrNotFound) {
		return &problem{code: codeVerificationNotFound, detail: "No verification of this process has this id."}
	}
	if err != nil {
		return err
	}
	return s.sendVerification(x, http.StatusOK, v)
}

func (s *server) sendVerification(x *exchange, status int, v Verification) error {
	if v.Findings == nil {
		v.Findings = []Finding{}
	}
	if len(v.Findings) > FindingsMax {
		v.Findings = v.Findings[:FindingsMax]
	}
	return s.sendValue(x, status, v)
}

// acceptNothing checks a request that carries nothing but its path.
func (s *server) acceptNothing(r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	d := s.decoder()
	defer s.release(d)
	if err := d.fillAny(r); err != nil {
		return err
	}
	if d.body.Len() > 0 {
		if err := checkMediaType(r.Header); err != nil {
			return err
		}
	}
	return d.nothing()
}

// jobID returns the id of a rebuild or verification that the path names.
func jobID(r *http.Request, name string) (string, error) {
	if err := noQuery(r); err != nil {
		return "", err
	}
	id := pathValue(r, name)
	valid := len(id) >= 1 && len(id) <= 64
	for i := 0; valid && i < len(id); i++ {
		c := id[i]
		valid = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-'
	}
	if !valid {
		return "", invalid(fieldError{parameter: name, detail: "1 to 64 characters of [A-Za-z0-9-]"})
	}
	return id, nil
}

// sendValue answers with v in the generic encoding; for what is not on the hot
// path.
func (s *server) sendValue(x *exchange, status int, v any) error {
	b, err := json.Marshal(v, s.times)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	x.send(status, "application/json", b)
	return nil
}

// timesInMicroseconds makes the generic encoder write times as the rest of the
// interface does.
func timesInMicroseconds() json.Options {
	return json.WithMarshalers(json.MarshalFunc(func(t time.Time) ([]byte, error) {
		return appendTime(nil, t), nil
	}))
}
