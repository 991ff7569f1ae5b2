package httpapi

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestGoldenExchanges plays the scripts of testdata/*.http and compares every
// answer with the one written there. A script is a list of exchanges: a line
// "> METHOD PATH", request headers, an empty line and a body of one line, then
// the answer. What differs from run to run is written as <time>, <uuid>,
// <hash> and <cursor>. LEDGERD_GOLDEN=write writes the answers anew; read them
// before they are committed.
func TestGoldenExchanges(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.http")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := newService(t)
			var played strings.Builder
			for i, exchange := range strings.Split("\n"+string(text), "\n> ")[1:] {
				request, _, _ := strings.Cut(exchange, "\n< ")
				request = strings.TrimSpace(request)
				if i > 0 {
					played.WriteString("\n")
				}
				played.WriteString("> " + request + "\n\n" + s.play(request))
			}
			if os.Getenv("LEDGERD_GOLDEN") == "write" {
				if err := os.WriteFile(file, []byte(played.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if played.String() != string(text) {
				t.Errorf("the answers are not those of %s:\n%s", file, difference(string(text), played.String()))
			}
		})
	}
}

// play sends one request of a script and returns the answer as scripts have it.
func (s *service) play(request string) string {
	s.t.Helper()
	head, body, _ := strings.Cut(request, "\n\n")
	lines := strings.Split(head, "\n")
	method, path, _ := strings.Cut(lines[0], " ")
	headers := []string{"X-Request-Id", "golden"}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		headers = append(headers, name, value)
	}
	r := s.do(method, path, body, headers...)
	var b strings.Builder
	fmt.Fprintf(&b, "< %d\n", r.status)
	var names []string
	for name := range r.header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "%s: %s\n", name, mask(r.header.Get(name)))
	}
	b.WriteString("\n" + mask(r.text) + "\n")
	return b.String()
}

var masks = []struct {
	pattern *regexp.Regexp
	by      string
}{
	{regexp.MustCompile(`20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{6}Z`), "<time>"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uuid>"},
	{regexp.MustCompile(`[0-9a-f]{64}`), "<hash>"},
	{regexp.MustCompile(`"next_cursor":"[^"]+"`), `"next_cursor":"<cursor>"`},
}

func mask(s string) string {
	for _, m := range masks {
		s = m.pattern.ReplaceAllString(s, m.by)
	}
	return s
}

// difference returns the first lines that are not equal.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d\nwant %s\ngot  %s", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}
