package projection

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// childVariable makes the test binary a process of its own that runs a
// projector on the database that it names.
const childVariable = "LEDGERD_TEST_PROJECTION_CHILD"

func TestMain(m *testing.M) {
	if url := os.Getenv(childVariable); url != "" {
		child(url)
		return
	}
	os.Exit(m.Run())
}

// child runs until standard input ends, and prints what it owns and how many of
// its writes were refused whenever that changes.
func child(url string) {
	pool, err := postgres.Open(postgres.Config{URL: url, Role: postgres.ServiceRole, MaxConns: 6, LockTimeout: 200 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	cfg := config()
	cfg.LeaseTTL, cfg.RenewEvery = time.Second, 100*time.Millisecond
	cfg.BeforeWrite = pauseFromEnvironment()
	cfg.Registerer = prometheus.NewRegistry()
	p, err := New(pool, cfg)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	go func() {
		last := ""
		for {
			line := fmt.Sprintf("%d %v", bits.OnesCount64(p.worker.owned.Load()), value(p.worker.metrics.fenced))
			if line != last {
				fmt.Println(line)
				last = line
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	p.Run(ctx)
	os.Exit(0)
}

// pauseVariable names a file. While it does not exist, the signal does nothing.
const pauseVariable = "LEDGERD_TEST_PROJECTION_PAUSE"

// pauseFromEnvironment returns a BeforeWrite that stops between a fold and its
// write, nil when pauseVariable is not set. When the named file exists, the next write renames it to the name with ".reached" and
// waits until that is removed.
func pauseFromEnvironment() func() {
	path := os.Getenv(pauseVariable)
	if path == "" {
		return nil
	}
	return func() {
		reached := path + ".reached"
		if os.Rename(path, reached) != nil {
			return
		}
		for {
			if _, err := os.Stat(reached); errors.Is(err, fs.ErrNotExist) {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// process is a projector in a process of its own.
type process struct {
	cmd   *exec.Cmd
	pause string

	mu     sync.Mutex
	shards int
	fenced float64
}

func (f *fixture) process() *process {
	f.t.Helper()
	p := &process{pause: filepath.Join(f.t.TempDir(), "pause")}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), childVariable+"="+f.url, pauseVariable+"="+p.pause)
	p.cmd.Stderr = os.Stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			p.mu.Lock()
			if _, err := fmt.Sscan(lines.Text(), &p.shards, &p.fenced); err != nil {
				slog.Error("child says", "line", lines.Text())
			}
			p.mu.Unlock()
		}
	}()
	f.t.Cleanup(func() {
		_ = os.Remove(p.pause + ".reached")
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = stdin.Close()
		<-read
		_ = p.cmd.Wait()
	})
	return p
}

func (p *process) says() (shards int, fenced float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shards, p.fenced
}

func (p *process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// TestStoppedProcessIsRefused: case 21, with real processes. The first owns
// everything and is stopped between fold and write for longer than its leases;
// the second takes over and applies; the first goes on and is refused.
func TestStoppedProcessIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A", "B")
	first := f.process()
	f.eventually("the first process owns all shards", func() bool { n, _ := first.says(); return n == ledger.Shards })
	f.caughtUp()

	if err := os.WriteFile(first.pause, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.credit("A", 100)
	f.eventually("the first process is between fold and write", func() bool {
		_, err := os.Stat(first.pause + ".reached")
		return err == nil
	})
	first.signal(t, syscall.SIGSTOP)
	second := f.process()
	f.eventually("the second process owns all shards", func() bool { n, _ := second.says(); return n == ledger.Shards })
	f.credit("A", 10)
	f.credit("B", 1)
	f.caughtUp()
	before := f.row("A")

	first.signal(t, syscall.SIGCONT)
	if err := os.Remove(first.pause + ".reached"); err != nil {
		t.Fatal(err)
	}
	f.eventually("the late write is refused", func() bool { _, fenced := first.says(); return fenced > 0 })
	if row := f.row("A"); row != before || row.balance != 110 {
		t.Errorf("the row was %+v and is %+v", before, row)
	}
	f.eventually("both work on", func() bool {
		a, _ := first.says()
		b, _ := second.says()
		return a == ledger.Shards/2 && b == ledger.Shards/2
	})
	f.credit("A", 1)
	f.credit("B", 1)
	f.caughtUp()
}

// TestKilledProcessIsReplaced: case 25. Another process takes over within the
// time of the lease and one look.
func TestKilledProcessIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("A")
	first, second := f.process(), f.process()
	f.eventually("both have half", func() bool {
		a, _ := first.says()
		b, _ := second.says()
		return a == ledger.Shards/2 && b == ledger.Shards/2
	})
	first.signal(t, syscall.SIGKILL)
	killed := time.Now()
	f.eventually("the other has all", func() bool { n, _ := second.says(); return n == ledger.Shards })
	t.Logf("taken over after %v, the lease is 1 s and a look every 100 ms", time.Since(killed))
	f.credit("A", 1)
	f.caughtUp()
}
