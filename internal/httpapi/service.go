package httpapi

import (
	"bytes"
	"context"
	_ "embed"
	"net/http"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

//go:generate go run ./apidoc/gen -in ../../api.yaml -out docs.html

// docsPage is api.yaml as a page; make generate writes it.
//
//go:embed docs.html
var docsPage []byte

// Health answers whether the service can do its work.
type Health interface {
	// Ready returns one check for each thing that the service needs, within
	// the deadline of ctx. The details are shown to clients: no SQL, no secret.
	Ready(ctx context.Context) []Check
}

// Check is one thing that the service needs, such as the database.
type Check struct {
	Name string
	OK   bool
	// Detail says why it does not pass, or is "".
	Detail string
}

func appendChecks(b []byte, checks []Check) []byte {
	b = append(b, '[')
	for i, c := range checks {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"name":`...)
		b = appendString(b, c.Name)
		b = append(b, `,"ok":`...)
		b = strconv.AppendBool(b, c.OK)
		if c.Detail != "" {
			b = append(b, `,"detail":`...)
			b = appendString(b, c.Detail)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

func getHealth(x *exchange, _ *http.Request) error {
	x.sendJSON(http.StatusOK, append(x.buf, `{"status":"ok"}`...))
	return nil
}

func (s *server) getReadiness(x *exchange, r *http.Request) error {
	checks := s.health.Ready(r.Context())
	for _, c := range checks {
		if !c.OK {
			return &problem{code: ledger.CodeUnavailable, detail: "Not ready: " + c.Name + ".", checks: checks}
		}
	}
	b := append(x.buf, `{"status":"ready","checks":`...)
	b = appendChecks(b, checks)
	x.sendJSON(http.StatusOK, append(b, '}'))
	return nil
}

func (s *server) getMetrics(x *exchange, r *http.Request) error {
	s.exposition.ServeHTTP(x, r)
	return nil
}

func getAPIDescription(x *exchange, _ *http.Request) error {
	x.send(http.StatusOK, "application/yaml", ledgerd.OpenAPI)
	return nil
}

func getDocs(x *exchange, r *http.Request) error {
	x.set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	x.send(http.StatusOK, "text/html; charset=utf-8", bytes.ReplaceAll(docsPage, []byte(docsAddress), []byte(addressOf(r))))
	return nil
}

// docsAddress is the address of the service in the examples of docsPage.
const docsAddress = "http://127.0.0.1:8080"

// addressOf is the address that the request was sent to, as far as the service
// and the proxy before it say; docsAddress when it could be anything else, so
// that nothing a client sends becomes a part of a page.
func addressOf(r *http.Request) string {
	scheme := "http"
	if r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	for _, c := range r.Host {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune("-.:[]", c) {
			return docsAddress
		}
	}
	if r.Host == "" {
		return docsAddress
	}
	return scheme + "://" + r.Host
}
