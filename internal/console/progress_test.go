package console

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

// clock is moved by the test alone.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func TestPlainLinesComeNowAndThen(t *testing.T) {
	var out bytes.Buffer
	c := &clock{t: time.Unix(1000, 0)}
	p := newProgress(&out, "import", "operations", 200, false, c.now)
	for range 100 {
		c.t = c.t.Add(250 * time.Millisecond)
		p.Add(1)
	}
	p.Println("line 7: declined")
	p.Set(150, 300)
	p.Stop()
	p.Stop()
	p.Add(1)
	want := `import: 40 of 200 operations (20 %) in 10.0 s, 4/s
import: 80 of 200 operations (40 %) in 20.0 s, 4/s
line 7: declined
import: 150 of 300 operations (50 %) in 25.0 s, 6/s
`
	if out.String() != want {
		t.Errorf("output\n%swant\n%s", out.String(), want)
	}
}

func TestUnknownTotal(t *testing.T) {
	var out bytes.Buffer
	c := &clock{t: time.Unix(1000, 0)}
	p := newProgress(&out, "verify", "accounts", 0, false, c.now)
	c.t = c.t.Add(2 * time.Second)
	p.Set(10, 0)
	p.Stop()
	if want := "verify: 10 accounts in 2.0 s, 5/s\n"; out.String() != want {
		t.Errorf("output %q, want %q", out.String(), want)
	}
}

// TestTerminalShowsABar reads what a terminal would get: a bar that grows, the
// lines between, and the summary at the end.
func TestTerminalShowsABar(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, "import", "operations", 4, true, time.Now)
	p.Add(2)
	p.Println("line 7: declined")
	p.Set(3, 6)
	p.Stop()
	s := out.String()
	for _, want := range []string{"import", "█", "line 7: declined\n", "import: 3 of 6 operations (50 %)"} {
		if !strings.Contains(s, want) {
			t.Errorf("no %q in %q", want, s)
		}
	}
	if !strings.HasSuffix(s, "/s\n") {
		t.Errorf("does not end with the summary: %q", s)
	}
}

func TestAFileIsNoTerminal(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if IsTerminal(f) || IsTerminal(&bytes.Buffer{}) {
		t.Error("a file or a buffer was taken for a terminal")
	}
}
