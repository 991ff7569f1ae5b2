package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

const (
	// itemsInFlight is how many items of one request are started and not
	// answered. It is below what the writer's queue holds, so that no batch is
	// turned away because of itself.
	itemsInFlight = 1000
	// legsInFlight bounds what these items hold in memory; one transaction of
	// the largest size always fits.
	legsInFlight = 4 * ledger.LegsMax
	// flushBytes is how much of an answer is gathered at most.
	flushBytes = 32 << 10
	// quietMax is how long one side of a stream may neither send nor read.
	quietMax = 5 * time.Minute
	// partingMax is how long a client may still take to read when the service
	// shuts down.
	partingMax = 3 * time.Second
	// faultsLoggedMax is how many items of a request that met a fault of the
	// service are logged one by one.
	faultsLoggedMax = 10
)

// started is an item that was begun, or refused before that.
type started struct {
	op      *ledger.Operation // nil when the item cannot be read at all
	refusal error             // set when nothing was begun
	pending ledger.Pending
	begun   time.Time
	weight  int64
}

// pipeline carries out the items of one request. One goroutine starts them in
// their order, and so the operations of an account are decided in that order;
// the handler's own waits for them in the same order and writes the results. At
// most itemsInFlight are between the two, so memory stays the same however long
// the request is, and a client that reads slowly is read from slowly.
type pipeline struct {
	s *server
	x *exchange
	// ctx ends with the connection. No deadline of the whole is on it: each
	// item has its own.
	ctx    context.Context
	cancel context.CancelFunc
	// next returns the next item, valid until the following call, io.EOF behind
	// the last, and a *problem for one that cannot be read.
	next  func() ([]byte, error)
	items chan started
	room  *semaphore.Weighted
	// halt makes a next that waits for the client return; nil when it does not
	// wait.
	halt func()
	// stopping is closed when the service shuts down.
	stopping <-chan struct{}

	controller *http.ResponseController
	// opening and closing stand around all results, separator between two and
	// terminator behind each.
	opening, separator, terminator, closing string

	flushes         bool // each write is sent to the client at once
	out             []byte
	results, faults int
	broken          error // of the connection to the client
}

func newPipeline(s *server, x *exchange, next func() ([]byte, error)) *pipeline {
	p := &pipeline{
		s: s, x: x, next: next,
		items:      make(chan started, itemsInFlight),
		room:       semaphore.NewWeighted(legsInFlight),
		stopping:   stoppingOf(x.base),
		controller: http.NewResponseController(x),
		out:        make([]byte, 0, flushBytes+4<<10),
	}
	p.ctx, p.cancel = context.WithCancel(x.base)
	return p
}

// run answers 200 and returns when every item has its result. When the items did
// not come to their end, or the client cannot be reached, it cuts the
// connection: the status is sent, and only a cut tells the client that what has
// no result was perhaps not carried out.
func (p *pipeline) run() {
	defer p.cancel()
	fed := make(chan error, 1)
	go func() { fed <- p.feed() }()
	p.out = append(p.out, p.opening...)
	p.answer()
	err := <-fed
	if err == nil {
		p.out = append(p.out, p.closing...)
	}
	p.write()
	if err = errors.Join(err, p.broken); err != nil {
		p.s.logger.LogAttrs(p.x.base, slog.LevelInfo, "a batch was cut",
			slog.String("request_id", p.x.id), slog.Int("results", p.results), slog.String("error", err.Error()))
		panic(http.ErrAbortHandler)
	}
}

// feed starts the items. A panic in it must not end the process: it ends the
// request.
func (p *pipeline) feed() (err error) {
	defer close(p.items)
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	for {
		raw, err := p.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		it := started{weight: 1}
		var refused *problem
		switch {
		case err == nil:
			it.op, it.refusal = p.s.readItem(raw)
		case errors.As(err, &refused):
			it.refusal = refused
		default:
			return err
		}
		if it.op != nil {
			it.weight = max(1, int64(len(it.op.Legs)))
		}
		if err := p.room.Acquire(p.ctx, it.weight); err != nil {
			return err
		}
		if err := p.s.items.Acquire(p.ctx, 1); err != nil {
			return err
		}
		if it.refusal == nil {
			it.begun = time.Now()
			it.pending = p.start(it.op)
		}
		select {
		case p.items <- it:
		case <-p.ctx.Done():
			p.s.items.Release(1)
			return p.ctx.Err()
		}
	}
}

func (s *server) readItem(raw []byte) (*ledger.Operation, error) {
	d := s.decoder()
	defer s.release(d)
	return d.item(raw)
}

// overloadPause is how long an item waits before it is offered again to a
// writer whose queue is full of others.
const overloadPause = 2 * time.Millisecond

// start hands an operation to the writer. While that is overloaded it waits, so
// that no later item of the same account goes in before this one.
func (p *pipeline) start(op *ledger.Operation) ledger.Pending {
	giveUp := time.Now().Add(p.s.timeout)
	for {
		pending := p.s.writer.Start(p.ctx, op)
		if r := pending.Refused(); r == nil || r.Code != ledger.CodeOverloaded || time.Now().After(giveUp) {
			return pending
		}
		select {
		case <-p.ctx.Done():
			return pending
		case <-time.After(overloadPause):
		}
	}
}

// answer writes the results until there are no more items. What is gathered is
// sent before each wait, so a client that sends little gets its results at once
// and one that sends much gets them in large pieces.
func (p *pipeline) answer() {
	for {
		it, more := p.take()
		if !more {
			return
		}
		if it.refusal == nil && !it.pending.Ready() {
			p.write()
		}
		if p.results > 0 {
			p.out = append(p.out, p.separator...)
		}
		p.out = append(p.appendResult(p.out, &it), p.terminator...)
		p.results++
		p.room.Release(it.weight)
		p.s.items.Release(1)
		if len(p.out) >= flushBytes {
			p.write()
		}
	}
}

func (p *pipeline) take() (started, bool) {
	select {
	case it, more := <-p.items:
		return it, more
	default:
	}
	p.write()
	it, more := <-p.items
	return it, more
}

// write sends what is gathered. When the client cannot be reached any more the
// items that are under way are still waited for, and no others are begun.
func (p *pipeline) write() {
	if len(p.out) == 0 {
		return
	}
	if p.broken == nil {
		patience := quietMax
		select {
		case <-p.stopping:
			patience = partingMax
		default:
		}
		_ = p.controller.SetWriteDeadline(time.Now().Add(patience)) // not every server has deadlines
		_, p.broken = p.x.Write(p.out)
		if p.broken == nil && p.flushes {
			p.broken = p.controller.Flush()
		}
		if p.broken != nil {
			p.cancel()
			if p.halt != nil {
				p.halt()
			}
		}
	}
	p.out = p.out[:0]
}

// appendResult waits for one item and appends what a single call would have
// been answered.
func (p *pipeline) appendResult(b []byte, it *started) []byte {
	begin := len(b)
	receipt, err := p.await(it)
	if err == nil && receipt.Declined() {
		err = declined(receipt)
	}
	if err == nil {
		b = appendResultHead(b, http.StatusCreated, it.op, receipt.Replayed)
		if b, err = appendReceipt(b, receipt); err == nil {
			return append(b, '}')
		}
	}
	refused, k := known(p.s.asProblem(err))
	p.note(refused, k)
	b = appendResultHead(b[:begin], k.status, it.op, refused.replayed)
	b = appendProblem(b, refused, k, p.x.id, true)
	return append(b, '}')
}

func (p *pipeline) await(it *started) (*ledger.Receipt, error) {
	if it.refusal != nil {
		return nil, it.refusal
	}
	ctx := p.ctx
	if !it.pending.Ready() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(p.ctx, it.begun.Add(p.s.timeout))
		defer cancel()
	}
	return it.pending.Wait(ctx)
}

// appendResultHead appends a result as far as its body.
func appendResultHead(b []byte, status int, op *ledger.Operation, replayed bool) []byte {
	b = append(b, `{"status":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	if op != nil && op.Key != "" {
		b = append(b, `,"idempotency_key":`...)
		b = appendString(b, op.Key)
	}
	if replayed {
		b = append(b, `,"replayed":true`...)
	}
	return append(b, `,"body":`...)
}

// note counts a refused item, and logs the first faults of the service.
func (p *pipeline) note(refused *problem, k kind) {
	p.s.metrics.refusals.WithLabelValues(string(refused.code)).Inc()
	p.s.noteRejection(p.x, refused)
	if k.status < http.StatusInternalServerError || p.ctx.Err() != nil { // not when the client has left
		return
	}
	if p.faults++; p.faults > faultsLoggedMax {
		return
	}
	attrs := []slog.Attr{
		slog.String("request_id", p.x.id), slog.Int("item", p.results),
		slog.String("code", string(refused.code)), slog.String("detail", refused.detail),
	}
	if refused.cause != nil {
		attrs = append(attrs, slog.String("error", refused.cause.Error()))
	}
	p.s.logger.LogAttrs(p.ctx, slog.LevelError, "an item of a batch met a fault", attrs...)
}
