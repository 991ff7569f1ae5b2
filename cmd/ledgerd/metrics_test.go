package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The manual says how many connections a process opens, for those who set
// max_connections; the pools say it themselves.
func TestConnectionsAreAsManyAsTheManualSays(t *testing.T) {
	t.Parallel()
	const readers = 7
	n := serve(t, newBooks(t), fmt.Sprint("--database-pool=", readers))
	n.awaitReady()
	for _, pool := range []string{"checks", "reads", "projection", "writer"} {
		if n.metric("ledgerd_pool_connections_max", `pool="`+pool+`"`) < 1 {
			t.Errorf("the pool %s has no metrics", pool)
		}
	}
	besides := int(n.metric("ledgerd_pool_connections_max")) - readers
	if says := numbersIn(t, manual, `at most (\d+) more than this, and (\d+) besides`); says[0] != besides || says[1] != verifyConns {
		t.Errorf("%s says %v, not %d and %d", manual, says, besides, verifyConns)
	}
	const running = "../../docs/running.md"
	if says := numbersIn(t, running, "\\((\\d+) \\+ `LEDGERD_DATABASE_POOL`\\)"); says[0] != besides+verifyConns {
		t.Errorf("%s says %v, not %d", running, says, besides+verifyConns)
	}
}

// numbersIn returns what the groups of a pattern match in a page, whose lines
// may be broken anywhere.
func numbersIn(t *testing.T, path, pattern string) []int {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(pattern).FindStringSubmatch(strings.Join(strings.Fields(string(page)), " "))
	if found == nil {
		t.Fatalf("%s does not say how many connections: %s", path, pattern)
	}
	var numbers []int
	for _, group := range found[1:] {
		number, err := strconv.Atoi(group)
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, number)
	}
	return numbers
}
