package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Projection says how far the balance rows are.
type Projection struct {
	Name string `json:"name"`
	// LagEntries is how many entries are not applied yet, LagSeconds the age of
	// the oldest of them.
	LagEntries     int64   `json:"lag_entries"`
	LagSeconds     float64 `json:"lag_seconds"`
	ParkedAccounts int     `json:"parked_accounts"`
	Shards         []Shard `json:"shards"`
}

// Shard is one part of the accounts and who works on it.
type Shard struct {
	Shard int `json:"shard"`
	// State is "held" or "free".
	State          string    `json:"state"`
	Holder         string    `json:"holder"`
	Generation     int64     `json:"generation"`
	ExpiresAt      time.Time `json:"expires_at"`
	LagEntries     int64     `json:"lag_entries"`
	LagSeconds     float64   `json:"lag_seconds"`
	ParkedAccounts int       `json:"parked_accounts"`
}

// JobState says where a rebuild or a verification is.
type JobState string

// The states of a job. Done and Failed are the last ones.
const (
	Pending JobState = "pending"
	Running JobState = "running"
	Done    JobState = "done"
	Failed  JobState = "failed"
)

// Job is what a rebuild and a verification have in common. Totals are estimates
// and 0 when they are not known; times that have not come yet are zero.
type Job struct {
	ID            string    `json:"id"`
	State         JobState  `json:"state"`
	AccountsTotal int64     `json:"accounts_total"`
	AccountsDone  int64     `json:"accounts_done"`
	EntriesTotal  int64     `json:"entries_total"`
	EntriesDone   int64     `json:"entries_done"`
	RequestedAt   time.Time `json:"requested_at"`
	StartedAt     time.Time `json:"started_at"`
	FinishedAt    time.Time `json:"finished_at"`
	// Error says why the job failed.
	Error string `json:"error"`
}

// Ended reports whether the job is done or has failed.
func (j *Job) Ended() bool { return j.State == Done || j.State == Failed }

// Rebuild is the making of all balance rows anew.
type Rebuild struct {
	Job
	ShardsTotal int `json:"shards_total"`
	ShardsDone  int `json:"shards_done"`
	// DriftedAccounts is how many rows were wrong and have been repaired.
	DriftedAccounts int64 `json:"drifted_accounts"`
}

// Verification is a check of all entries and balance rows.
type Verification struct {
	Job
	// Differences is how many were found, Findings are the first 200 of them.
	Differences int64     `json:"differences"`
	Findings    []Finding `json:"findings"`
}

// Finding is one difference; Seq is 0 when it is not about one entry.
type Finding struct {
	AccountID string `json:"account_id"`
	Seq       int64  `json:"seq"`
	Kind      string `json:"kind"`
	Detail    string `json:"detail"`
}

const balancesPath = "/v1/projections/balances"

// Projection returns how far the balance rows are, by shard.
func (c *Client) Projection(ctx context.Context) (Projection, error) {
	var p Projection
	_, err := c.do(ctx, &call{action: "read the projection", method: http.MethodGet, path: balancesPath}, &p)
	return p, err
}

// StartRebuild asks for a rebuild of all balance rows, or joins the one that is
// at work.
func (c *Client) StartRebuild(ctx context.Context) (Rebuild, error) {
	var r Rebuild
	cl := &call{action: "start a rebuild", method: http.MethodPost, path: balancesPath + "/rebuild", write: true}
	_, err := c.do(ctx, cl, &r)
	return r, err
}

// Rebuild returns the progress of a rebuild.
func (c *Client) Rebuild(ctx context.Context, id string) (Rebuild, error) {
	var r Rebuild
	cl := &call{action: "read rebuild " + id, method: http.MethodGet, path: balancesPath + "/rebuilds/" + url.PathEscape(id)}
	_, err := c.do(ctx, cl, &r)
	return r, err
}

// StartVerification asks for a verification of everything, or joins the one
// that is at work. Only the process that answers knows its id.
func (c *Client) StartVerification(ctx context.Context) (Verification, error) {
	var v Verification
	cl := &call{action: "start a verification", method: http.MethodPost, path: balancesPath + "/verify", write: true}
	_, err := c.do(ctx, cl, &v)
	return v, err
}

// Verification returns the progress and, when it has ended, the result of a
// verification.
func (c *Client) Verification(ctx context.Context, id string) (Verification, error) {
	var v Verification
	cl := &call{action: "read verification " + id, method: http.MethodGet, path: balancesPath + "/verifications/" + url.PathEscape(id)}
	_, err := c.do(ctx, cl, &v)
	return v, err
}
