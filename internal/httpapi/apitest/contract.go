// Package apitest checks HTTP exchanges against api.yaml. Tests of the handlers
// and end-to-end tests send their requests through it, so every exchange of
// the whole suite is one with the contract.
package apitest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi-validator/errors"

	"github.com/ledgerd/ledgerd"
)

// Contract judges exchanges. It is safe for concurrent use.
type Contract struct {
	mu        sync.Mutex // the validator fills caches of its own
	validator validator.Validator
}

// New returns the contract of api.yaml, and ends the test when that is not a
// valid OpenAPI 3.1 description.
func New(t testing.TB) *Contract {
	t.Helper()
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// load reads api.yaml once for all tests of a binary: compiling its schemas
// takes longer than most tests.
var load = sync.OnceValues(func() (*Contract, error) {
	document, err := libopenapi.NewDocument(ledgerd.OpenAPI)
	if err != nil {
		return nil, fmt.Errorf("read api.yaml: %w", err)
	}
	v, errs := validator.NewValidator(document, config.WithFormatAssertions(), config.WithStrictMode(),
		config.WithStrictIgnorePaths("$.body.**metadata**", "$.body.items**"), // the names of metadata are the client's; an item of a batch may be wrong
		config.WithStrictIgnoredHeadersExtra("Allow", "Connection", "Cache-Control", "Content-Security-Policy", "Traceparent"))
	if len(errs) > 0 {
		return nil, fmt.Errorf("read api.yaml: %v", errs)
	}
	if ok, errs := v.ValidateDocument(); !ok {
		return nil, fmt.Errorf("api.yaml is not valid OpenAPI 3.1:\n%s", describe(errs))
	}
	return &Contract{validator: v}, nil
})

// Check returns an error that says how an exchange breaks the contract:
//
//   - a request that was accepted (2xx) has to be one that api.yaml allows;
//   - the answer has to be one that api.yaml describes, without undeclared
//     members, except that a path or method that is in no operation is
//     answered with the problem documents not_found and method_not_allowed.
//
// A request that api.yaml allows may still be refused: the program is stricter
// than a schema can say. Both bodies are given as bytes; those of request and
// response are not read.
func (c *Contract) Check(request *http.Request, requestBody []byte, response *http.Response, responseBody []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	path := request.URL.EscapedPath()
	head := request.Method == http.MethodHead
	if head && response.StatusCode < 300 {
		return nil // the answer of GET without its body, which is all there is to check
	}
	asked := request.Clone(request.Context())
	asked.Body = io.NopCloser(bytes.NewReader(requestBody))
	answered := *response
	answered.Body = io.NopCloser(bytes.NewReader(responseBody))
	answered.Request = asked
	if response.StatusCode == http.StatusMethodNotAllowed || isUnknownPath(response.StatusCode, responseBody) {
		return c.checkUnrouted(asked, response, responseBody)
	}
	lines := response.StatusCode == http.StatusOK && response.Header.Get("Content-Type") == "application/x-ndjson"
	if lines {
		asBatch(&answered, responseBody)
	}
	if ok, errs := c.validator.ValidateHttpResponse(asked, &answered); !ok {
		return fmt.Errorf("the answer %d to %s %s is not in api.yaml:\n%s\n%s", response.StatusCode, request.Method, path, describe(errs), clip(responseBody))
	}
	if response.StatusCode >= 300 || lines { // the lines of a request may be anything
		return nil
	}
	asked.Body = io.NopCloser(bytes.NewReader(requestBody))
	if ok, errs := c.validator.ValidateHttpRequestSync(asked); !ok {
		return fmt.Errorf("%s %s was answered with %d, but api.yaml does not allow it:\n%s\n%s", request.Method, path, response.StatusCode, describe(errs), clip(requestBody))
	}
	return nil
}

// asBatch makes the answer of a stream the one of a batch with the same results.
func asBatch(answered *http.Response, body []byte) {
	results := bytes.Join(bytes.Split(bytes.TrimSpace(body), []byte("\n")), []byte(","))
	answered.Header = answered.Header.Clone()
	answered.Header.Set("Content-Type", "application/json")
	answered.Body = io.NopCloser(io.MultiReader(strings.NewReader(`{"results":[`), bytes.NewReader(results), strings.NewReader(`]}`)))
}

func isUnknownPath(status int, body []byte) bool {
	return status == http.StatusNotFound && bytes.Contains(body, []byte(`"code":"not_found"`))
}

// checkUnrouted checks the problem documents that belong to no operation, by
// the schema of one that every operation has.
func (c *Contract) checkUnrouted(asked *http.Request, response *http.Response, body []byte) error {
	like := asked.Clone(asked.Context())
	like.Method = http.MethodGet
	like.URL.Path, like.URL.RawPath, like.URL.RawQuery = "/v1/accounts", "", ""
	answered := *response
	answered.StatusCode = http.StatusInternalServerError
	answered.Body = io.NopCloser(bytes.NewReader(body))
	if ok, errs := c.validator.ValidateHttpResponse(like, &answered); !ok {
		return fmt.Errorf("the answer %d to %s %s is not a problem document:\n%s\n%s", response.StatusCode, asked.Method, asked.URL.Path, describe(errs), clip(body))
	}
	return nil
}

// clip shortens a body that is shown.
func clip(body []byte) []byte { return body[:min(len(body), 2000)] }

func describe(errs []*errors.ValidationError) string {
	var lines []string
	for _, e := range errs {
		lines = append(lines, "  "+e.Message+": "+e.Reason)
		for _, s := range e.SchemaValidationErrors {
			lines = append(lines, "    "+s.FieldPath+" "+s.Reason)
		}
	}
	return strings.Join(lines, "\n")
}

// Transport returns a transport that checks every exchange that base carries
// and reports those that break the contract to t, which goes on. base is
// http.DefaultTransport when nil. Bodies are read completely, so a caller sees
// the same answer, later. Exchanges that fail without an answer are not checked.
func (c *Contract) Transport(t testing.TB, base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &transport{contract: c, t: t, base: base}
}

type transport struct {
	contract *Contract
	t        testing.TB
	base     http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (tr *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var sent []byte
	if r.Body != nil {
		var err error
		if sent, err = io.ReadAll(r.Body); err != nil {
			return nil, fmt.Errorf("read the body of the request: %w", err)
		}
		if err := r.Body.Close(); err != nil {
			return nil, fmt.Errorf("close the body of the request: %w", err)
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(sent))
	}
	response, err := tr.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	received, err := io.ReadAll(response.Body)
	if closeErr := response.Body.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(received))
	if err := tr.contract.Check(r, sent, response, received); err != nil {
		tr.t.Errorf("%v", err)
	}
	return response, nil
}

// Handler returns a transport that gives requests to h without a network and
// checks every exchange like Transport.
func (c *Contract) Handler(t testing.TB, h http.Handler) http.RoundTripper {
	return c.Transport(t, handlerTransport{h})
}

type handlerTransport struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (tr handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	served := r.Clone(r.Context())
	if served.Body == nil {
		served.Body = http.NoBody
	}
	served.RequestURI = r.URL.RequestURI()
	w := httptest.NewRecorder()
	tr.handler.ServeHTTP(w, served)
	response := w.Result()
	response.Request = r
	return response, nil
}
