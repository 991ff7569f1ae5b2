// Package console shows the progress of long commands: as a bar on a terminal,
// as a plain line now and then everywhere else, so that a log stays readable.
package console

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

const (
	barRefresh = 100 * time.Millisecond
	// linePause is how often a plain line is written where there is no terminal.
	linePause = 10 * time.Second
)

// IsTerminal reports whether w is a terminal that a person looks at.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}

// Progress shows how far one task is. It is safe for concurrent use.
type Progress struct {
	w     io.Writer
	label string
	unit  string
	now   func() time.Time
	bar   *progressbar.ProgressBar // nil where there is no terminal

	mu          sync.Mutex
	begin, last time.Time
	done, total int64
	finished    bool
}

// NewProgress begins a task of total units; 0 when the total is not known yet.
// The label says what is done ("import"), the unit what is counted ("operations").
func NewProgress(w io.Writer, label, unit string, total int64) *Progress {
	return newProgress(w, label, unit, total, IsTerminal(w), time.Now)
}

func newProgress(w io.Writer, label, unit string, total int64, terminal bool, now func() time.Time) *Progress {
	p := &Progress{w: w, label: label, unit: unit, total: total, now: now, begin: now(), last: now()}
	if terminal {
		p.bar = progressbar.NewOptions64(barTotal(total),
			progressbar.OptionSetWriter(w),
			progressbar.OptionSetDescription(label),
			progressbar.OptionShowCount(),
			progressbar.OptionShowIts(),
			progressbar.OptionSetItsString(unit),
			progressbar.OptionThrottle(barRefresh),
			progressbar.OptionSetWidth(30),
			progressbar.OptionUseANSICodes(true),
		)
	}
	return p
}

// barTotal is the bar's own way to say "not known".
func barTotal(total int64) int64 {
	if total <= 0 {
		return -1
	}
	return total
}

// Add counts n more units as done.
func (p *Progress) Add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(p.done+n, p.total)
}

// Set says that done of total units are done, for tasks that count themselves.
// A total of 0 is not known.
func (p *Progress) Set(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(done, total)
}

// set runs under p.mu. Errors of the terminal are not the task's business.
func (p *Progress) set(done, total int64) {
	if p.finished {
		return
	}
	if p.bar != nil && total != p.total {
		p.bar.ChangeMax64(barTotal(total))
	}
	p.done, p.total = done, total
	if p.bar != nil {
		if total > 0 && done > total {
			done = total
		}
		_ = p.bar.Set64(done)
		return
	}
	if now := p.now(); now.Sub(p.last) >= linePause {
		p.last = now
		fmt.Fprintln(p.w, p.line())
	}
}

// Println writes a line of its own without tearing the bar.
func (p *Progress) Println(args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil && !p.finished {
		p.erase()
	}
	fmt.Fprintln(p.w, args...)
}

// Stop ends the display, with a line that says how far the task came. The bar
// stays where it is: a task that stops half-way is not shown as complete.
func (p *Progress) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished {
		return
	}
	p.finished = true
	if p.bar != nil {
		p.erase()
		_ = p.bar.Exit()
	}
	fmt.Fprintln(p.w, p.line())
}

// erase makes room for a line; the next change draws the bar again. It runs
// under p.mu. The library's own way to print beside a bar keeps the text back
// until the bar is drawn again, which may never happen.
func (p *Progress) erase() {
	_ = p.bar.Clear()
	fmt.Fprint(p.w, "\r")
}

// line runs under p.mu.
func (p *Progress) line() string {
	seconds := p.now().Sub(p.begin).Seconds()
	rate := 0.0
	if seconds > 0 {
		rate = float64(p.done) / seconds
	}
	if p.total <= 0 {
		return fmt.Sprintf("%s: %d %s in %.1f s, %.0f/s", p.label, p.done, p.unit, seconds, rate)
	}
	return fmt.Sprintf("%s: %d of %d %s (%d %%) in %.1f s, %.0f/s",
		p.label, p.done, p.total, p.unit, min(100, p.done*100/p.total), seconds, rate)
}
