package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// The rules for Prometheus speak of metrics that there are.
func TestAlertsNameWhatIsMeasured(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../../deploy/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	n := serve(t, newBooks(t))
	n.awaitReady()
	measured := string(n.do("GET", "/metrics", "").body)
	names := regexp.MustCompile(`ledgerd_[a-z_]+`).FindAllString(string(rules), -1)
	if len(names) < 5 {
		t.Errorf("the rules name only %v", names)
	}
	for _, name := range names {
		if !strings.Contains(measured, "\n"+name+" ") && !strings.Contains(measured, "\n"+name+"{") {
			t.Errorf("no metric is called %s", name)
		}
	}
}

// ledgerd_writable tells an outage of the database too: an alert looks at it.
func TestOutageIsMeasured(t *testing.T) {
	t.Parallel()
	pg := pgtest.Server(t)
	n := serve(t, booksOf(t, pg.URL))
	for _, step := range []struct {
		does func(testing.TB)
		want float64
	}{{func(testing.TB) {}, 1}, {pg.Stop, 0}, {pg.Start, 1}} {
		step.does(t)
		eventually(t, fmt.Sprint("ledgerd_writable is ", step.want), func() error {
			if got := n.metric("ledgerd_writable"); got != step.want {
				return fmt.Errorf("it is %v", got)
			}
			return nil
		})
	}
}
