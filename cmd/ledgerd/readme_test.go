package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// example is one command of the README with the output that it shows.
type example struct {
	words []string
	want  string
}

const shownURL = "http://127.0.0.1:8080"

// TestReadmeIsTrue runs what the README shows, in its order, against `ledgerd
// dev`, and compares the answers.
func TestReadmeIsTrue(t *testing.T) {
	t.Parallel()
	dir := devFolder(t)
	b := &books{receipts: map[string]booked{}, unsure: map[string]bool{}}
	n := b.start(t, "dev", "--data="+dir, "--listen=127.0.0.1:0")
	checkWelcome(t, n)
	examples := readExamples(t)
	if len(examples) < 9 {
		t.Fatalf("the README has %d examples", len(examples))
	}
	for _, e := range examples {
		for i, w := range e.words {
			e.words[i] = strings.NewReplacer(shownURL, n.url, "$DATA", dir, "examples/", "../../examples/").Replace(w)
		}
		switch e.words[0] {
		case "curl":
			e.checkCall(t, n)
		case "bin/ledgerd":
			e.checkCommand(t)
		default:
			t.Errorf("no test knows the command %q", e.words[0])
		}
	}
}

// checkWelcome proves that the calls that dev prints are the first of the README.
func checkWelcome(t *testing.T, n *node) {
	t.Helper()
	var printed []string
	for line := range strings.Lines(n.out.text()) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "curl ") {
			printed = append(printed, strings.ReplaceAll(line, n.url, shownURL))
		}
	}
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	rest := string(text)
	for _, line := range printed {
		_, after, found := strings.Cut(rest, "$ "+line+"\n")
		if !found {
			t.Errorf("dev prints a call that is not in the README at its place: %s", line)
			continue
		}
		rest = after
	}
	if len(printed) != 5 {
		t.Errorf("dev prints %d calls, want 5", len(printed))
	}
}

// readExamples returns the commands of the console blocks.
func readExamples(t *testing.T) []example {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var examples []example
	for _, block := range regexp.MustCompile("(?s)```console\n\\$ (.*?)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		examples = append(examples, example{words: shellWords(t, block[1]), want: block[2]})
	}
	return examples
}

// shellWords splits a command line with quotes as a shell does.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	var words []string
	for _, m := range regexp.MustCompile(`((?:'[^']*'|"[^"]*"|[^\s'"])+)`).FindAllString(line, -1) {
		words = append(words, strings.NewReplacer("'", "", `"`, "").Replace(unquoted(m)))
	}
	return words
}

// unquoted takes one pair of single quotes away and protects what is inside.
func unquoted(word string) string {
	if len(word) >= 2 && word[0] == '\'' && word[len(word)-1] == '\'' {
		return strings.ReplaceAll(word[1:len(word)-1], `"`, quoteMark)
	}
	return word
}

// quoteMark stands for a quote that belongs to a word.
const quoteMark = "\x00"

func (e *example) checkCall(t *testing.T, n *node) {
	t.Helper()
	method, path, body, headers := e.request(n)
	if method == http.MethodGet {
		awaitProjected(t, n, "wallet-81", 3) // a person types more slowly than that
	}
	a := n.do(method, path, body, headers...)
	var want, got any
	if err := json.Unmarshal([]byte(e.want), &want); err != nil {
		t.Errorf("the README shows for %s %s what is not JSON: %v", method, path, err)
		return
	}
	if err := json.Unmarshal(a.body, &got); err != nil {
		t.Fatal(err)
	}
	if want, got := normal(want), normal(got); !reflect.DeepEqual(want, got) {
		t.Errorf("%s %s: the README shows\n%v\nthe answer is\n%v", method, path, want, got)
	}
}

// request reads what a curl command sends to the node.
func (e *example) request(n *node) (method, path, body string, headers []string) {
	method = http.MethodGet
	for i := 1; i < len(e.words); i++ {
		next := func() string {
			i++
			return strings.ReplaceAll(e.words[i], quoteMark, `"`)
		}
		switch e.words[i] {
		case "-X":
			method = next()
		case "-H":
			name, value, _ := strings.Cut(next(), ": ")
			headers = append(headers, name, value)
		case "-d":
			body = next()
		default:
			path = strings.TrimPrefix(e.words[i], n.url)
		}
	}
	return method, path, body, headers
}

// varying are the forms of what differs from run to run.
var varying = regexp.MustCompile(`^([0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{64}|\d{4}-\d\d-\d\dT[\d:.]+Z|[0-9a-z]{8}-[0-9a-z]+)$`)

// normal replaces what differs from run to run by the name of its form.
func normal(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			v[name] = normal(inner)
			if text, ok := inner.(string); ok && name != "account_id" && varying.MatchString(text) {
				v[name] = fmt.Sprintf("(%d characters)", len(text))
			}
			if name == "request_id" {
				v[name] = "(an id)"
			}
		}
	case []any:
		for i := range v {
			v[i] = normal(v[i])
		}
	}
	return v
}

func (e *example) checkCommand(t *testing.T) {
	t.Helper()
	timing := regexp.MustCompile(`(?m)^time .*$`)
	want := timing.ReplaceAllString(e.want, "time")
	check := func() error {
		code, out, errs := program(t.Context(), e.words[1:]...)
		if got := timing.ReplaceAllString(out, "time"); code != exitOK || want != got {
			return fmt.Errorf("it ended with %d:\n%s%s\nthe README shows\n%s", code, out, errs, e.want)
		}
		return nil
	}
	if e.words[1] == "verify" {
		// Right after an import it says how many rows are still behind.
		eventually(t, strings.Join(e.words, " ")+" says what the README shows", check)
		return
	}
	if err := check(); err != nil {
		t.Errorf("%s: %v", strings.Join(e.words, " "), err)
	}
}

// Every relative link in the documents leads to a file.
func TestLinksOfTheDocumentsExist(t *testing.T) {
	t.Parallel()
	documents, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	documents = append(documents, "../../README.md", "../../ARCHITECTURE.md", "../../CHANGELOG.md", "../../examples/README.md")
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(document), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", document, m[1])
			}
		}
	}
}
