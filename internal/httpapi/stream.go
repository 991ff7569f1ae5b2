package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// lineBytesMax is the longest line of a stream, without its end.
const lineBytesMax = bodyBytesMax

// stoppingKey is the key of a context value: a channel that is closed when the
// server shuts down. Streams have no end of their own, so they have to be told.
type stoppingKey struct{}

var errStopping = errors.New("the service shuts down")

// applyStream answers newline-delimited JSON line by line, while it is read.
func (s *server) applyStream(x *exchange, r *http.Request) error {
	controller := http.NewResponseController(x)
	_ = controller.EnableFullDuplex() // only HTTP/1 needs it, or has it
	body := &streamBody{body: r.Body, controller: controller, stopping: stoppingOf(r.Context())}
	defer body.close()
	x.set("Content-Type", "application/x-ndjson")
	x.set("Cache-Control", "no-store")
	x.WriteHeader(http.StatusOK)
	_ = controller.Flush() // an error shows at the first write
	lines := &lineReader{in: bufio.NewReaderSize(body, 64<<10)}
	p := newPipeline(s, x, lines.next)
	p.terminator, p.flushes = "\n", true
	p.halt = body.halt
	body.watch(p.ctx)
	p.run()
	return nil
}

func stoppingOf(ctx context.Context) <-chan struct{} {
	c, _ := ctx.Value(stoppingKey{}).(chan struct{})
	return c
}

// streamBody is the body of a stream. A read of it ends when the client is
// quiet for too long, when the server shuts down, and after halt.
type streamBody struct {
	body       io.Reader
	controller *http.ResponseController
	stopping   <-chan struct{} // nil when the server is not one of NewHTTPServer
	until      time.Time       // when all of it must be there; zero for a stream
	stopWatch  context.CancelFunc
	watched    chan struct{}
}

// Read implements io.Reader.
func (s *streamBody) Read(b []byte) (int, error) {
	// First the deadline, then the question: watch does it the other way round,
	// so none of its deadlines is lost.
	until := s.until
	if until.IsZero() {
		until = time.Now().Add(quietMax)
	}
	_ = s.controller.SetReadDeadline(until) // not every server has deadlines
	select {
	case <-s.stopping:
		return 0, errStopping
	default:
	}
	n, err := s.body.Read(b)
	select {
	case <-s.stopping:
		if err != nil && !errors.Is(err, io.EOF) {
			return n, errStopping
		}
	default:
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("read the stream: %w", err)
	}
	return n, err
}

// watch halts the reading when the server shuts down, until ctx or close ends it.
func (s *streamBody) watch(ctx context.Context) {
	ctx, s.stopWatch = context.WithCancel(ctx)
	s.watched = make(chan struct{})
	go func() {
		defer close(s.watched)
		select {
		case <-ctx.Done():
		case <-s.stopping:
			s.halt()
			_ = s.controller.SetWriteDeadline(time.Now().Add(partingMax))
		}
	}()
}

func (s *streamBody) halt() {
	_ = s.controller.SetReadDeadline(time.Unix(1, 0)) // not every server has deadlines
}

func (s *streamBody) close() {
	if s.stopWatch != nil {
		s.stopWatch()
		<-s.watched
	}
}

// lineReader cuts a stream into lines. Empty ones are left out.
type lineReader struct {
	in   *bufio.Reader
	long []byte // backs a line that is longer than the reader's buffer
}

// next returns the next line without its end, valid until the following call. A
// line that is too long is a *problem, and the one behind it is found again.
func (l *lineReader) next() ([]byte, error) {
	for {
		line, err := l.line()
		if err != nil {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
	}
}

// line returns what stands before the next line feed, or before the end of the
// stream. A connection that is cut in the middle of a line is an error.
func (l *lineReader) line() ([]byte, error) {
	part, err := l.in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return whole(part, err)
	}
	l.long = append(l.long[:0], part...)
	for errors.Is(err, bufio.ErrBufferFull) {
		part, err = l.in.ReadSlice('\n')
		if len(l.long) <= lineBytesMax {
			l.long = append(l.long, part...)
		}
	}
	line, err := whole(l.long, err)
	if err == nil && len(bytes.TrimRight(line, "\r\n")) > lineBytesMax {
		return nil, &problem{code: codeRequestTooLarge, detail: "A line has at most 1 MiB."}
	}
	return line, err
}

// whole accepts a last line that has no line feed.
func whole(line []byte, err error) ([]byte, error) {
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	return line, err
}
