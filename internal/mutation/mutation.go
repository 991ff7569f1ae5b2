// Package mutation proves that guards are real: it breaks one line of a package
// and runs one test in the broken copy, which must go red.
//
// A mutant is a replaced piece of text in one file. Nothing in the checkout is
// written: the changed file is given to `go test` with its -overlay flag, so
// that production code needs no hook. Embedded files, such as migrations, can
// be broken in the same way.
package mutation

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Mutant is one guard taken away.
type Mutant struct {
	// Name says what is broken, for the list of subtests.
	Name string
	// File is the file to change, relative to the folder of the package.
	File string
	// Old must occur in the file exactly once; New takes its place.
	Old, New string
	// Test is the name of the top-level test that must go red. It has to be in
	// the package of the caller.
	Test string
}

// runTimeout bounds one run of `go test`, its build included.
const runTimeout = 2 * time.Minute

// Run proves that the tests of all mutants are green as things are, and then
// that each goes red in the copy of the caller's package that its mutant breaks.
// A mutant that does not compile, or whose Old is not there exactly once, fails
// the test: then the guard has moved, and the table with it.
func Run(t *testing.T, mutants []Mutant) {
	t.Helper()
	green(t, mutants)
	for _, m := range mutants {
		t.Run(m.Name, func(t *testing.T) { m.run(t) })
	}
}

// green runs the tests of the mutants in this very test binary, unbroken: a
// test that is red anyway would prove nothing.
func green(t *testing.T, mutants []Mutant) {
	t.Helper()
	var names []string
	for _, m := range mutants {
		if !slices.Contains(names, m.Test) {
			names = append(names, m.Test)
		}
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatalf("find the test binary: %v", err)
	}
	out, err := execute(t, binary, "-test.count=1", "-test.v", "-test.run=^("+strings.Join(names, "|")+")$")
	if err != nil {
		t.Fatalf("the tests are red without any mutant: %v\n%s", err, out)
	}
	for _, name := range names {
		if !strings.Contains(out, "--- PASS: "+name+" (") {
			t.Fatalf("the test %s was not run:\n%s", name, out)
		}
	}
}

func (m *Mutant) run(t *testing.T) {
	t.Helper()
	out, err := execute(t, "go", "test", "-count=1", "-vet=off", "-ldflags=-s -w", "-overlay="+m.overlay(t), "-run=^"+m.Test+"$", ".")
	if reason := survived(m.Test, out, err); reason != "" {
		t.Fatalf("%q became %q: %s\n%s", m.Old, m.New, reason, out)
	}
	t.Logf("red as it should be:\n%s", out)
}

// survived says why a run of the test does not count as red, "" when it does.
// Only the test's own judgement counts: a run that was not built, or had no
// database, has judged nothing.
func survived(test, out string, err error) string {
	failed := strings.Contains(out, "--- FAIL: "+test+" (") || strings.Contains(out, "panic: ")
	switch {
	case err == nil:
		return test + " stays green"
	case strings.Contains(out, "pgtest: "):
		return "the run had no database"
	case !failed:
		return fmt.Sprintf("the run failed before %s did: %v", test, err)
	}
	return ""
}

// overlay writes the broken file and the description that makes the go command
// read it in the place of the real one, and returns the latter's path.
func (m *Mutant) overlay(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(m.File)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), m.Old); n != 1 {
		t.Fatalf("%s: %q occurs %d times in %s, not once", m.Name, m.Old, n, m.File)
	}
	dir := t.TempDir()
	broken := filepath.Join(dir, filepath.Base(m.File))
	if err := os.WriteFile(broken, []byte(strings.Replace(string(text), m.Old, m.New, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	description, err := json.Marshal(map[string]map[string]string{"Replace": {path: broken}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, description, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

func execute(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return string(out), err
}
