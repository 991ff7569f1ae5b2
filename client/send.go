package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"
)

const (
	backoffFirst = 25 * time.Millisecond
	backoffMax   = 2 * time.Second
	// answerBytesMax bounds what is read of an answer: a page of 200 entries
	// with all the metadata they can have fits.
	answerBytesMax = 16 << 20
)

// call is one request; it is sent again unchanged until it has an answer.
type call struct {
	// action is for messages: "credit account wallet-81".
	action string
	method string
	// path begins with /v1 and is escaped, with its query.
	path   string
	header http.Header
	body   []byte
	// write is true for everything that can change something.
	write bool
	// key is the idempotency key, "" when there is none.
	key string
	// answerMax bounds what is read of the answer; 0 means answerBytesMax.
	answerMax int64
}

// answer is what a 2xx answer says beside its body.
type answer struct {
	status int
	header http.Header
}

// lostError is an attempt without an answer. sent is false when the request
// certainly never left.
type lostError struct {
	sent bool
	err  error
}

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// do sends the call until it has a definitive answer, which is decoded into
// out, or until the time is over.
func (c *Client) do(ctx context.Context, cl *call, out any) (answer, error) {
	giveUp := time.Now().Add(c.retryFor)
	unknown := false
	for attempt := 1; ; attempt++ {
		a, err := c.attempt(ctx, cl, out)
		if err == nil {
			return a, nil
		}
		repeat, maybe, after := judge(err)
		unknown = unknown || cl.write && maybe
		if repeat {
			ended := pause(ctx, attempt, after, giveUp)
			if ended == nil {
				continue
			}
			if c.retryFor > 0 && !errors.Is(err, ended) {
				err = fmt.Errorf("%w (%w)", err, ended)
			}
		}
		if unknown && (repeat || maybe || !settles(err, cl.key != "")) {
			err = &UnknownOutcome{Key: cl.key, Attempts: attempt, Err: err}
		}
		return answer{}, fmt.Errorf("%s: %w", cl.action, err)
	}
}

// judge says whether the call may be repeated, whether this attempt may have
// been applied, and how long the service wants to be left alone.
func judge(err error) (repeat, maybe bool, after time.Duration) {
	var lost *lostError
	if errors.As(err, &lost) {
		return true, lost.sent, 0
	}
	var r *refusedError
	if errors.As(err, &r) {
		return r.Problem.mayRepeat(), r.Problem.mayHaveApplied(), r.after
	}
	return false, false, 0
}

// settles reports whether the refusal err decides about earlier attempts too.
func settles(err error, keyed bool) bool {
	var p *Problem
	return errors.As(err, &p) && p.settles(keyed)
}

// refusedError is an answer that is not 2xx.
type refusedError struct {
	*Problem
	after time.Duration
}

func (e *refusedError) Unwrap() error { return e.Problem }

func (c *Client) attempt(ctx context.Context, cl *call, out any) (answer, error) {
	if err := ctx.Err(); err != nil {
		return answer{}, &lostError{err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, c.attemptTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, cl.method, c.base+cl.path, bytes.NewReader(cl.body))
	if err != nil {
		return answer{}, err
	}
	if cl.header != nil {
		req.Header = cl.header.Clone()
	}
	if cl.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{}, &lostError{sent: !neverSent(err), err: err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, cmp.Or(cl.answerMax, answerBytesMax)))
	if err != nil {
		return answer{}, &lostError{sent: true, err: fmt.Errorf("read the answer: %w", err)}
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		p := problemOf(res.StatusCode, res.Header, body)
		return answer{}, &refusedError{Problem: p, after: retryAfter(res.Header)}
	}
	if err := json.Unmarshal(body, out); err != nil {
		return answer{}, &lostError{sent: true, err: fmt.Errorf("decode the answer: %w", err)}
	}
	return answer{status: res.StatusCode, header: res.Header}, nil
}

// neverSent reports whether err says that there was no connection at all.
func neverSent(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, &dns)
}

// retryAfter reads the header in both forms of RFC 9110, section 10.2.3.
func retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if s, err := strconv.ParseInt(v, 10, 32); err == nil && s > 0 {
		return time.Duration(s) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, time.Until(t))
	}
	return 0
}

var errRetriesEnded = errors.New("the time for retries is over")

// pause waits before the next attempt: a random part of a time that doubles,
// and never less than the service asked for. It returns an error at once when
// the next attempt could not begin in time.
func pause(ctx context.Context, attempt int, after time.Duration, giveUp time.Time) error {
	ceiling := min(backoffFirst<<min(attempt-1, 10), backoffMax)
	wait := after + rand.N(ceiling)
	wake := time.Now().Add(wait)
	if wake.After(giveUp) {
		return errRetriesEnded
	}
	if deadline, ok := ctx.Deadline(); ok && wake.After(deadline) {
		return context.DeadlineExceeded
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
