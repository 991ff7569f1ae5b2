package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/httpapi"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// verificationsKept is how many verifications are remembered, the newest ones.
const verificationsKept = 16

// verifications runs the verifications that are asked for over HTTP, one at a
// time, in this process. What they found is lost when it ends.
type verifications struct {
	// connect opens a pool for one verification: it reads for a long time, and
	// shall not compete with requests for their connections.
	connect func() (*pgxpool.Pool, error)
	log     *slog.Logger

	ctx     context.Context // ends with the service
	stop    context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex
	jobs []*httpapi.Verification // oldest first; the last one may be at work
}

func newVerifications(connect func() (*pgxpool.Pool, error), log *slog.Logger) *verifications {
	v := &verifications{connect: connect, log: log}
	v.ctx, v.stop = context.WithCancel(context.Background())
	return v
}

// close ends what is at work and waits for it.
func (v *verifications) close() {
	v.stop()
	v.running.Wait()
}

// StartVerification implements httpapi.Verifications.
func (v *verifications) StartVerification(context.Context) (httpapi.Verification, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := len(v.jobs); n > 0 && v.jobs[n-1].State == httpapi.JobRunning {
		return snapshot(v.jobs[n-1]), nil
	}
	id, err := uuid.NewV7()
	if err != nil {
		return httpapi.Verification{}, fmt.Errorf("make an id: %w", err)
	}
	now := time.Now().UTC()
	job := &httpapi.Verification{ID: id.String(), State: httpapi.JobRunning, RequestedAt: now, StartedAt: now, Findings: []httpapi.Finding{}}
	v.jobs = append(v.jobs, job)
	if extra := len(v.jobs) - verificationsKept; extra > 0 {
		v.jobs = slices.Delete(v.jobs, 0, extra)
	}
	v.running.Go(func() { v.work(job) })
	return snapshot(job), nil
}

// Verification implements httpapi.Verifications.
func (v *verifications) Verification(_ context.Context, id string) (httpapi.Verification, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, job := range v.jobs {
		if job.ID == id {
			return snapshot(job), nil
		}
	}
	return httpapi.Verification{}, httpapi.ErrNotFound
}

// snapshot copies a job for a caller, under v.mu.
func snapshot(job *httpapi.Verification) httpapi.Verification {
	c := *job
	c.Findings = slices.Clone(job.Findings)
	return c
}

// work carries one job out.
func (v *verifications) work(job *httpapi.Verification) {
	report, err := v.verify(func(r projection.VerifyReport) {
		v.mu.Lock()
		defer v.mu.Unlock()
		progress(job, &r)
	})
	v.mu.Lock()
	defer v.mu.Unlock()
	progress(job, &report)
	job.State, job.FinishedAt = httpapi.JobDone, time.Now().UTC()
	if err != nil {
		job.State, job.Error = httpapi.JobFailed, "The database could not be read to the end."
		if !errors.Is(err, context.Canceled) {
			v.log.Error("verification failed", "id", job.ID, "error", err)
		}
		return
	}
	if report.Count > 0 {
		v.log.Error("verification found differences", "id", job.ID, "count", report.Count, "first", report.Findings[0].String())
	}
}

func (v *verifications) verify(report func(projection.VerifyReport)) (projection.VerifyReport, error) {
	pool, err := v.connect()
	if err != nil {
		return projection.VerifyReport{}, err
	}
	defer pool.Close()
	return projection.Verify(v.ctx, pool, projection.VerifyConfig{FindingsMax: httpapi.FindingsMax, Progress: report})
}

// progress copies a report into its job, under v.mu.
func progress(job *httpapi.Verification, r *projection.VerifyReport) {
	job.AccountsTotal, job.AccountsDone, job.EntriesDone, job.Differences = r.AccountsTotal, r.AccountsDone, r.EntriesDone, r.Count
	for _, f := range r.Findings[min(len(job.Findings), len(r.Findings)):] {
		job.Findings = append(job.Findings, httpapi.Finding{
			AccountID: string(f.AccountID), Seq: int64(f.Seq), Kind: string(f.Rule), Detail: f.Detail,
		})
	}
}
