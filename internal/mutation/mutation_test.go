package mutation

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestOnlyTheTestsOwnJudgementIsRed(t *testing.T) {
	t.Parallel()
	exit := errors.New("exit status 1")
	for out, c := range map[string]struct {
		err  error
		want bool // red
	}{
		"ok  \tx\t0.1s\n": {nil, false},
		"--- FAIL: TestX (0.00s)\n    x_test.go:1: no\nFAIL\n":                            {exit, true},
		"panic: index out of range\n\ngoroutine 1\nFAIL\tx\t0.1s\n":                       {exit, true},
		"./x.go:1:1: undefined: y\nFAIL\tx [build failed]\n":                              {exit, false},
		"--- FAIL: TestX (0.00s)\n    x_test.go:1: pgtest: start the shared server: no\n": {exit, false},
		"--- FAIL: TestXY (0.00s)\nFAIL\n":                                                {exit, false},
		"go: cannot find main module\n":                                                   {exit, false},
	} {
		if reason := survived("TestX", out, c.err); (reason == "") != c.want {
			t.Errorf("%q: %q, want red %v", out, reason, c.want)
		}
	}
}

// guarded is what TestRun breaks: see there.
func guarded(n int) bool { return n < 3 }

func TestGuarded(t *testing.T) {
	if guarded(3) || !guarded(2) {
		t.Error("the limit is not 3")
	}
}

// TestRun breaks this very file in a copy, by way of the whole machinery.
func TestRun(t *testing.T) {
	t.Parallel()
	before, err := os.ReadFile("mutation_test.go")
	if err != nil {
		t.Fatal(err)
	}
	Run(t, []Mutant{{
		Name: "the limit", File: "mutation_test.go",
		Old: "bool { return n " + "< 3 }", New: "bool { return n " + "<= 3 }",
		Test: "TestGuarded",
	}})
	if after, err := os.ReadFile("mutation_test.go"); err != nil || string(after) != string(before) {
		t.Errorf("the checkout was written: %v", err)
	}
	if !strings.Contains(string(before), "n < 3") {
		t.Error("nothing was there to break")
	}
}
