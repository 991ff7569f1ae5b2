package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// handler answers one request by x.send, or returns the error that is to be
// answered as a problem document. It does not do both.
type handler func(x *exchange, r *http.Request) error

// exchange is one request and its answer. It is the http.ResponseWriter of its
// handler and belongs to the goroutine that serves the request.
type exchange struct {
	http.ResponseWriter
	// id is the request id.
	id string
	// status is what was sent, 0 before that.
	status int
	// write says that the route changes things, so that a problem document
	// says whether it did.
	write bool
	// base is the context of the request without the deadline of the service.
	base context.Context
	// request and pattern are for the list of refused writes.
	request *http.Request
	pattern string
	// values are the values of the headers set by set; they live here so that
	// a header costs no allocation.
	values [6]string
	used   int
	// buf is where the answer is put together; pooled is where buf goes back to.
	buf    []byte
	pooled *[]byte
}

// WriteHeader remembers the status for the metrics and the log.
func (x *exchange) WriteHeader(status int) {
	if x.status == 0 {
		x.status = status
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (x *exchange) Write(b []byte) (int, error) {
	if x.status == 0 {
		x.status = http.StatusOK
	}
	return x.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// set sets a header; name is in canonical form.
func (x *exchange) set(name, value string) {
	if x.used == len(x.values) {
		x.Header().Set(name, value)
		return
	}
	x.values[x.used] = value
	x.Header()[name] = x.values[x.used : x.used+1 : x.used+1]
	x.used++
}

// send answers with body. A client that went away is no error of ours.
func (x *exchange) send(status int, contentType string, body []byte) {
	x.set("Content-Type", contentType)
	x.set("Cache-Control", "no-store")
	if len(body) > 2<<10 { // shorter ones get their length from net/http
		x.set("Content-Length", strconv.Itoa(len(body)))
	}
	x.WriteHeader(status)
	_, _ = x.Write(body)
}

// sendJSON answers with the JSON text in body, which came from x.buf and
// becomes it again.
func (x *exchange) sendJSON(status int, body []byte) {
	x.send(status, "application/json", body)
	x.buf = body
}

func (x *exchange) sendProblem(p *problem) {
	p, k := known(p)
	if k.retryAfter > 0 {
		x.Header().Set("Retry-After", strconv.Itoa(k.retryAfter))
	}
	if p.retryAfter > 0 {
		x.Header().Set("Retry-After", strconv.FormatInt(int64((p.retryAfter+time.Second-1)/time.Second), 10))
	}
	if p.location != "" {
		x.Header().Set("Location", p.location)
	}
	if p.replayed {
		x.Header().Set("Idempotency-Replayed", "true")
	}
	if p.allow != "" {
		x.Header().Set("Allow", p.allow)
	}
	if p.code == codeRequestTooLarge {
		x.Header().Set("Connection", "close") // the rest of the body is not read
	}
	b := appendProblem(x.buf[:0], p, k, x.id, x.write)
	x.send(k.status, "application/problem+json", b)
	x.buf = b
}

// endpoint makes an http.HandlerFunc of a handler: it gives the request its id
// and its deadline, turns errors and panics into problem documents, counts and
// logs. write says that the route changes things.
func (s *server) endpoint(method, pattern string, write bool, h handler) http.HandlerFunc {
	m := s.metrics.route(method, pattern)
	return func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		s.metrics.inFlight.Inc()
		defer s.metrics.inFlight.Dec()
		x := &exchange{ResponseWriter: w, id: s.requestID(r), base: r.Context(), request: r, pattern: pattern, write: write, pooled: s.buffers.Get().(*[]byte)}
		x.buf = (*x.pooled)[:0]
		x.set("X-Request-Id", x.id)
		ctx, cancel := context.WithTimeout(r.Context(), s.timeout)
		defer cancel()
		var p *problem
		defer func() { // also when the connection is cut by a panic
			took := time.Since(begun)
			m.observe(x.status, took)
			s.log(r, x, pattern, p, took)
		}()
		if err := s.call(h, x, r.WithContext(ctx)); err != nil {
			p = s.asProblem(err)
			x.sendProblem(p)
			s.noteRejection(x, p)
			s.metrics.refusals.WithLabelValues(string(p.code)).Inc()
		}
		if cap(x.buf) <= pooledBytesMax {
			*x.pooled = x.buf
			s.buffers.Put(x.pooled)
		}
	}
}

// call runs h and turns a panic into an error. A panic after the answer began
// cuts the connection, because nothing true can be said on it any more.
func (s *server) call(h handler, x *exchange, r *http.Request) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if e, ok := v.(error); ok && errors.Is(e, http.ErrAbortHandler) {
			panic(v)
		}
		err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		if x.status != 0 {
			s.logger.LogAttrs(r.Context(), slog.LevelError, "panic after the answer began",
				slog.String("request_id", x.id), slog.String("error", err.Error()))
			panic(http.ErrAbortHandler)
		}
	}()
	return h(x, r)
}

// log writes the one line of a request: successes at debug, refusals at info,
// what could not be done for now at warn, faults of the service at error.
func (s *server) log(r *http.Request, x *exchange, pattern string, p *problem, took time.Duration) {
	level := slog.LevelDebug
	switch {
	case x.status == http.StatusServiceUnavailable:
		level = slog.LevelWarn
	case x.status >= 500:
		level = slog.LevelError
	case x.status >= 400:
		level = slog.LevelInfo
	}
	ctx := r.Context()
	if !s.logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("request_id", x.id),
		slog.String("method", r.Method),
		slog.String("route", pattern),
		slog.String("path", clip(r.URL.EscapedPath())),
		slog.Int("status", x.status),
		slog.Duration("took", took),
	}
	if p != nil {
		attrs = append(attrs, slog.String("code", string(p.code)), slog.String("detail", p.detail))
		if p.cause != nil {
			attrs = append(attrs, slog.String("error", p.cause.Error()))
		}
	}
	s.logger.LogAttrs(ctx, level, "request", attrs...)
}

// requestID returns the client's X-Request-Id when it is fit to be logged, and
// otherwise a new one: a random prefix of this process and a count.
func (s *server) requestID(r *http.Request) string {
	if v := r.Header["X-Request-Id"]; len(v) == 1 && validRequestID(v[0]) {
		return v[0]
	}
	var b [32]byte
	id := append(b[:0], s.idPrefix...)
	return string(strconv.AppendUint(id, s.requests.Add(1), 36))
}

func validRequestID(s string) bool {
	if len(s) < 1 || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alnum && !strings.ContainsRune("._:/+=-", rune(c)) {
			return false
		}
	}
	return true
}

// notFound answers for paths that no route has.
func notFound(*exchange, *http.Request) error {
	return &problem{code: codeNotFound, detail: "No route has this path; /docs lists them."}
}

// methodNotAllowed answers for methods that the path does not have.
func (s *server) methodNotAllowed(_ *exchange, r *http.Request) error {
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	var allow []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if s.mux.Match(chi.NewRouteContext(), m, path) {
			allow = append(allow, m)
		}
	}
	list := strings.Join(allow, ", ")
	return &problem{code: codeMethodNotAllowed, detail: "This path has " + list + ".", allow: list}
}

// pathValue returns a parameter of the path, decoded.
func pathValue(r *http.Request, name string) string {
	v := chi.URLParam(r, name)
	if strings.IndexByte(v, '%') < 0 {
		return v
	}
	if decoded, err := url.PathUnescape(v); err == nil {
		return decoded
	}
	return v
}

// accountID returns the account that the path names.
func accountID(r *http.Request) (ledger.AccountID, error) {
	id, err := ledger.ParseAccountID(pathValue(r, "account_id"))
	if err != nil {
		return "", invalid(fieldError{parameter: "account_id", detail: err.Error()})
	}
	return id, nil
}
