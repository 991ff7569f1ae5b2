package httpapi

import (
	"bytes"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/pb33f/libopenapi"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"

	"github.com/ledgerd/ledgerd"
	"github.com/ledgerd/ledgerd/internal/httpapi/apidoc"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

func contractModel(t *testing.T) *v3.Document {
	t.Helper()
	document, err := libopenapi.NewDocument(ledgerd.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	model, err := document.BuildV3Model()
	if err != nil {
		t.Fatal(err)
	}
	return &model.Model
}

func TestRoutesAreTheOperations(t *testing.T) {
	t.Parallel()
	var operations []string
	ids := map[string]string{}
	for path, item := range contractModel(t).Paths.PathItems.FromOldest() {
		for method, op := range item.GetOperations().FromOldest() {
			call := strings.ToUpper(method) + " " + path
			operations = append(operations, call)
			if other := ids[op.OperationId]; other != "" || op.OperationId == "" {
				t.Errorf("%s and %s have the operationId %q", call, other, op.OperationId)
			}
			ids[op.OperationId] = call
		}
	}
	cfg := configOf(newJobs())
	cfg.Writer = writerFunc(nil)
	reader := (*ledger.Reader)(nil)
	cfg.Accounts, cfg.Balances, cfg.Entries = reader, reader, reader
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var routes []string
	err = chi.Walk(h.(*chi.Mux), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		routes = append(routes, method+" "+route)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(operations)
	slices.Sort(routes)
	if !slices.Equal(routes, operations) {
		t.Errorf("routes\n%s\noperations\n%s", strings.Join(routes, "\n"), strings.Join(operations, "\n"))
	}
}

func TestCodesAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	code, _ := contractModel(t).Components.Schemas.Get("ProblemCode")
	listed := map[string]int{}
	for _, row := range regexp.MustCompile("\\| `([a-z_]+)` \\| ([0-9]+) \\|").FindAllStringSubmatch(code.Schema().Description, -1) {
		listed[row[1]], _ = strconv.Atoi(row[2])
	}
	enum := map[string]int{}
	for _, v := range code.Schema().Enum {
		k, ok := kindOf(ledger.Code(v.Value))
		if !ok {
			t.Errorf("%s is in api.yaml and not in the table", v.Value)
		}
		enum[v.Value] = k.status
	}
	if !maps.Equal(enum, listed) {
		t.Errorf("the table of problem.go is %v, that of api.yaml %v", enum, listed)
	}
	// The constants of both packages, as their sources have them.
	for _, file := range []string{"problem.go", "../ledger/errors.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range regexp.MustCompile(`(?m)^\s+[cC]ode\w+\s+(?:ledger\.)?Code\s*=\s*"([a-z_]+)"`).FindAllSubmatch(source, -1) {
			if _, ok := enum[string(c[1])]; !ok {
				t.Errorf("%s of %s is not in api.yaml", c[1], file)
			}
			delete(listed, string(c[1]))
		}
	}
	if len(listed) > 0 {
		t.Errorf("codes of api.yaml that no package has: %v", listed)
	}
}

func TestPageIsCurrent(t *testing.T) {
	t.Parallel()
	page, err := apidoc.Render(ledgerd.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page, docsPage) {
		t.Error("docs.html is not what api.yaml makes: run go generate ./internal/httpapi")
	}
	if bytes.Contains(page, []byte("<script")) || regexp.MustCompile(`(src|href)="(https?:)?//`).Match(page) {
		t.Error("the page needs something from elsewhere")
	}
	// Links within the page, and the anchors that problem documents point at.
	for _, target := range regexp.MustCompile(`href="#([^"]+)"`).FindAllSubmatch(page, -1) {
		if !bytes.Contains(page, []byte(`id="`+string(target[1])+`"`)) {
			t.Errorf("#%s leads nowhere", target[1])
		}
	}
	for _, code := range []ledger.Code{codeInvalidRequest, ledger.CodeStaleToken, codeProjectionBehind} {
		if !bytes.Contains(page, []byte(`id="`+string(code)+`"`)) {
			t.Errorf("the page has no place for the problem type /docs#%s", code)
		}
	}
}

// The examples of the page have the address that the page was asked for at, and
// nothing else that a client sends.
func TestPageShowsItsOwnAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ host, proto, want string }{
		{"ledger.example:8443", "", "http://ledger.example:8443"},
		{"ledger.example", "https", "https://ledger.example"},
		{"[::1]:8080", "gopher", "http://[::1]:8080"},
		{"", "", docsAddress},
		{"a<b", "", docsAddress},
		{"a';rm", "https", docsAddress},
	} {
		r := &http.Request{Host: c.host, Header: http.Header{"X-Forwarded-Proto": {c.proto}}}
		if got := addressOf(r); got != c.want {
			t.Errorf("host %q, protocol %q: %s, want %s", c.host, c.proto, got, c.want)
		}
	}
}
