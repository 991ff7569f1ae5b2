package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"sync"
	"time"
)

const (
	// streamItemsMax and streamBytesMax bound the items of a stream that have
	// no result yet; they are kept to be sent again.
	streamItemsMax = 2000
	streamBytesMax = 4 << 20
	// resultBytesMax bounds one line of the answer.
	resultBytesMax = 64 << 20
)

// Stream carries out any number of operations over one connection and yields
// their results in the order of the items, while items are still sent. The
// operations of one account are carried out in that order, but for one that the
// service could not decide for now: it is sent again, and those that were under
// way behind it can have overtaken it. Memory does not
// grow: who takes results slowly is asked for items slowly.
//
// The stream ends when items is closed and everything has its result. When the
// connection is lost, or the service cannot decide an item for now (429, 503,
// "unknown"), the items without a result are sent again, with their keys, over
// a new connection; those that had been carried out come back as replays. A
// result is therefore definitive: its Err is nil or a *Problem.
//
// Only when nothing came for the time of WithRetryFor, when ctx ends, or when an
// item cannot be encoded, the last pair has an error; items behind the last
// result are then undecided, an *UnknownOutcome names the key of the first. The
// caller may leave the loop at any time, with the same meaning. Nobody takes
// from items after the end, so a sender selects on ctx too.
func (c *Client) Stream(ctx context.Context, items <-chan Item) iter.Seq2[Result, error] {
	return func(yield func(Result, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		s := &stream{c: c, yield: yield}
		s.changed.L = &s.mu
		var filling sync.WaitGroup
		filling.Go(func() { s.fill(ctx, items) })
		wake := context.AfterFunc(ctx, s.wake)
		defer func() {
			cancel()
			s.wake()
			filling.Wait()
			wake()
		}()
		s.run(ctx)
	}
}

// stream is one call of Stream.
type stream struct {
	c     *Client
	yield func(Result, error) bool
	left  bool // yield returned false

	mu      sync.Mutex
	changed sync.Cond
	// window are the items without a result, the oldest first; answered is how
	// many have one, so it is the number of the first in window.
	window   []waiting
	bytes    int
	answered int
	sent     int // items up to this number have been given to a connection
	complete bool
	failed   error // of the item behind the window, which cannot be sent
}

// waiting is an item without a result.
type waiting struct {
	key  string
	line []byte // with its line feed
}

// wake lets everybody who waits look again. It takes the lock so that it cannot
// come between a look and the wait after it.
func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}

// fill moves items into the window while there is room.
func (s *stream) fill(ctx context.Context, items <-chan Item) {
	for {
		var it Item
		var more bool
		select {
		case it, more = <-items:
		case <-ctx.Done():
			return
		}
		var line []byte
		var err error
		if more {
			it = it.under(ctx)
			if line, err = it.encode(); err != nil {
				err = fmt.Errorf("stream: item with key %q: %w", it.Key, err)
			}
		}
		s.mu.Lock()
		for ctx.Err() == nil && (len(s.window) >= streamItemsMax || s.bytes >= streamBytesMax) {
			s.changed.Wait()
		}
		if !more || err != nil || ctx.Err() != nil {
			s.complete, s.failed = true, err
			s.changed.Broadcast()
			s.mu.Unlock()
			return
		}
		s.window = append(s.window, waiting{it.Key, append(line, '\n')})
		s.bytes += len(line) + 1
		s.changed.Broadcast()
		s.mu.Unlock()
	}
}

// run connects until everything has its result or the time is over.
func (s *stream) run(ctx context.Context) {
	var giveUp time.Time // counts from the first failure after something went well
	for attempt := 1; ; attempt++ {
		s.mu.Lock()
		before := s.answered
		s.mu.Unlock()
		err := s.connect(ctx)
		if giveUp.IsZero() {
			giveUp = time.Now().Add(s.c.retryFor)
		}
		if s.left {
			return
		}
		s.mu.Lock()
		after, rest, failed, key := s.answered, len(s.window), s.failed, ""
		if rest > 0 {
			key = s.window[0].key
		}
		s.mu.Unlock()
		if err == nil {
			if failed != nil {
				s.yield(Result{}, failed)
			}
			return
		}
		if after > before {
			attempt, giveUp = 1, time.Now().Add(s.c.retryFor)
		}
		repeat, maybe, wait := judge(err)
		if repeat {
			ended := pause(ctx, attempt, wait, giveUp)
			if ended == nil {
				continue
			}
			if s.c.retryFor > 0 && !errors.Is(err, ended) {
				err = fmt.Errorf("%w (%w)", err, ended)
			}
		}
		if key != "" && (repeat || maybe) {
			err = &UnknownOutcome{Key: key, Attempts: attempt, Err: err}
		}
		s.yield(Result{}, fmt.Errorf("stream: after %d results: %w", after, err))
		return
	}
}

// connect sends what has no result over one connection and takes results until
// there are no more. It returns nil when everything has one.
func (s *stream) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	for len(s.window) == 0 && !s.complete && ctx.Err() == nil {
		s.changed.Wait() // nothing to say is no reason to connect
	}
	done := len(s.window) == 0 && s.complete
	body := &streamBody{s: s, ctx: ctx, next: s.answered}
	s.mu.Unlock()
	wake := context.AfterFunc(ctx, s.wake)
	defer wake()
	defer cancel()
	if done || ctx.Err() != nil {
		return ctx.Err()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.c.base+"/v1/batches", body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	stalled := s.watch(cancel)
	defer stalled.Stop()
	res, err := s.c.http.Do(req)
	if err != nil {
		return &lostError{sent: !neverSent(err), err: err}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, answerBytesMax)) // the status says enough
		return &refusedError{Problem: problemOf(res.StatusCode, res.Header, text), after: retryAfter(res.Header)}
	}
	return s.take(ctx, res.Body, stalled)
}

// watch cancels a connection on which results are due and none comes for three
// times the time of one attempt.
func (s *stream) watch(cancel context.CancelFunc) *stall {
	w := &stall{after: 3 * s.c.attemptTimeout}
	w.timer = time.AfterFunc(w.after, func() {
		s.mu.Lock()
		due := s.sent > s.answered
		s.mu.Unlock()
		if due {
			cancel()
			return
		}
		w.Reset()
	})
	return w
}

// stall is the watch over one connection.
type stall struct {
	timer *time.Timer
	after time.Duration
}

func (w *stall) Reset() { w.timer.Reset(w.after) }
func (w *stall) Stop()  { w.timer.Stop() }

var errShort = errors.New("the answer ended before every item had its result")

// take yields the results of one connection.
func (s *stream) take(ctx context.Context, answer io.Reader, watch *stall) error {
	lines := bufio.NewScanner(answer)
	lines.Buffer(make([]byte, 64<<10), resultBytesMax)
	for lines.Scan() {
		watch.Reset()
		var r Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return &lostError{sent: true, err: fmt.Errorf("decode a result: %w", err)}
		}
		var p *Problem
		if errors.As(r.Err, &p) && p.mayRepeat() {
			return &refusedError{Problem: p}
		}
		if err := s.settle(&r); err != nil {
			return err
		}
		if !s.yield(r, nil) {
			s.left = true
			return nil
		}
		watch.Reset() // the caller's time is not the service's
	}
	err := lines.Err()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && len(s.window) == 0 && s.complete {
		return ctx.Err()
	}
	if err == nil {
		err = errShort
	}
	return &lostError{sent: true, err: fmt.Errorf("read the results: %w", err)}
}

// settle takes the oldest item out of the window: the result is its.
func (s *stream) settle(r *Result) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.window) == 0 || r.Key != "" && r.Key != s.window[0].key {
		return fmt.Errorf("the result for key %q is not the one that is due", r.Key)
	}
	r.Key = s.window[0].key
	s.bytes -= len(s.window[0].line)
	s.window[0] = waiting{}
	s.window = s.window[1:]
	s.answered++
	s.changed.Broadcast()
	return nil
}

// streamBody is what one connection sends: everything without a result, and then
// what comes.
type streamBody struct {
	s      *stream
	ctx    context.Context
	next   int    // the number of the item that is sent next
	rest   []byte // of a line that did not fit
	closed bool   // under s.mu
}

// Read implements io.Reader. It returns as many lines as fit, at least a part
// of one, and waits only when there is none.
func (b *streamBody) Read(out []byte) (int, error) {
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	n := copy(out, b.rest)
	b.rest = b.rest[n:]
	for {
		if b.closed || b.ctx.Err() != nil {
			return 0, io.ErrClosedPipe
		}
		b.next = max(b.next, s.answered)
		for n < len(out) && b.next < s.answered+len(s.window) {
			line := s.window[b.next-s.answered].line
			k := copy(out[n:], line)
			b.rest = line[k:]
			n += k
			b.next++
			s.sent = max(s.sent, b.next)
		}
		switch {
		case n > 0:
			return n, nil
		case s.complete:
			return 0, io.EOF
		}
		s.changed.Wait()
	}
}

// Close implements io.Closer: the connection sends no more.
func (b *streamBody) Close() error {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.closed = true
	b.s.changed.Broadcast()
	return nil
}
