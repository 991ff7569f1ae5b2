package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/httpapi/apitest"
)

// These tests run the program through its own entry point: most of them in this
// process on port 0, those about crashes and stopped processes with the binary,
// which is built once a run. Every exchange is checked against api.yaml, and
// every test ends with `ledgerd verify` on its database; see newBooks.

// patience bounds every wait for something that has to happen.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	code := m.Run()
	if binaryDir != "" {
		_ = os.RemoveAll(binaryDir)
	}
	os.Exit(code)
}

// binaryDir is where binary built the program, "" when it did not.
var binaryDir string

// binary builds the program once for all tests and returns its path.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "ledgerd-test-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "ledgerd")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return path, nil
})

// contract is api.yaml, read once for all tests.
var contract struct {
	once sync.Once
	*apitest.Contract
}

func theContract(t testing.TB) *apitest.Contract {
	t.Helper()
	contract.once.Do(func() { contract.Contract = apitest.New(t) })
	if contract.Contract == nil {
		t.Fatal("api.yaml could not be read")
	}
	return contract.Contract
}

// node is one running ledgerd, in this process or in one of its own.
type node struct {
	t     testing.TB
	url   string // http://127.0.0.1:PORT
	http  *http.Client
	books *books
	log   *logTap
	out   *logTap // standard output

	pid  int                // of a process of its own, else 0
	end  func(os.Signal)    // asks it to end
	done chan struct{}      // closed when it ended
	code int                // its exit code, read after done
	stop context.CancelFunc // of a node in this process
}

// serve starts `ledgerd serve` in this process on the database of the books.
func serve(t testing.TB, b *books, args ...string) *node {
	t.Helper()
	return b.start(t, append([]string{"serve", "--listen=127.0.0.1:0", "--database-url=" + b.url}, args...)...)
}

// start runs a command line that serves in this process.
func (b *books) start(t testing.TB, args ...string) *node {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n := newNode(t, b)
	n.stop = cancel
	n.end = func(os.Signal) { cancel() }
	go func() {
		defer close(n.done)
		n.code = run(ctx, args, n.out, n.log)
	}()
	n.awaitListening()
	return n
}

// serveProcess starts `ledgerd serve` as a process of its own. env holds
// further variables, NAME=value.
func serveProcess(t testing.TB, b *books, env ...string) *node {
	t.Helper()
	return b.startProcess(t, append([]string{"LEDGERD_DATABASE_URL=" + b.url, "LEDGERD_LISTEN=127.0.0.1:0"}, env...), "serve")
}

// startProcess runs a command line that serves as a process of its own, which
// does not outlive this one.
func (b *books) startProcess(t testing.TB, env []string, args ...string) *node {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t, b)
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = n.out, n.log
	cmd.SysProcAttr = childAttributes()
	n.runChild(cmd)
	n.pid = cmd.Process.Pid
	n.end = func(s os.Signal) {
		if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("signal %v: %v", s, err)
		}
	}
	n.awaitListening()
	return n
}

// runChild starts cmd and waits for its end on a goroutine that keeps its
// thread: the death signal follows the thread that started a child.
func (n *node) runChild(cmd *exec.Cmd) {
	n.t.Helper()
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // the exit code tells
		n.code = cmd.ProcessState.ExitCode()
		close(n.done)
	}()
	if err := <-started; err != nil {
		n.t.Fatal(err)
	}
}

func newNode(t testing.TB, b *books) *node {
	n := &node{t: t, books: b, log: &logTap{}, out: &logTap{}, done: make(chan struct{})}
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	n.http = &http.Client{
		Timeout:   patience,
		Transport: &recorder{books: b, base: theContract(t).Transport(t, transport)},
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		n.shutdown()
		if t.Failed() {
			t.Logf("the log of %s:\n%s", n.url, n.log.tail(40))
		}
	})
	return n
}

// shutdown ends the node in good order, if it still runs, and returns its exit
// code. One that was killed returns -1.
func (n *node) shutdown() int {
	n.t.Helper()
	n.http.CloseIdleConnections()
	if n.pid != 0 {
		_ = syscall.Kill(n.pid, syscall.SIGCONT) // a stopped process ends no sooner
	}
	n.end(syscall.SIGTERM)
	return n.wait()
}

// kill ends a process as a crash does.
func (n *node) kill() {
	n.t.Helper()
	n.end(syscall.SIGKILL)
	n.wait()
	n.http.CloseIdleConnections()
}

// wait returns the exit code of a node that ends.
func (n *node) wait() int {
	n.t.Helper()
	select {
	case <-n.done:
		return n.code
	case <-time.After(patience):
		n.t.Fatalf("%s does not end\n%s", n.url, n.log.tail(40))
		return -1
	}
}

// freeze stops a process with SIGSTOP and returns once it stands still.
func (n *node) freeze() {
	n.t.Helper()
	n.end(syscall.SIGSTOP)
	n.awaitStopped()
}

// thaw lets a stopped process go on.
func (n *node) thaw() { n.end(syscall.SIGCONT) }

// awaitStopped returns when the process stands still, stopped by whomever.
func (n *node) awaitStopped() {
	n.t.Helper()
	eventually(n.t, "the process is stopped", func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.pid))
		if err != nil {
			return err
		}
		if state := stat[bytes.LastIndexByte(stat, ')')+2]; state != 'T' {
			return fmt.Errorf("its state is %c", state)
		}
		return nil
	})
}

var listening = regexp.MustCompile(`msg="?listening"?.*address=(\S+)|"msg":"listening".*"address":"([^"]+)"`)

// awaitListening reads the address from the log.
func (n *node) awaitListening() {
	n.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		if m := listening.FindStringSubmatch(n.log.text()); m != nil {
			n.url = "http://" + m[1] + m[2]
			return
		}
		select {
		case <-n.done:
			n.t.Fatalf("the service ended with %d before it listened:\n%s", n.code, n.log.tail(40))
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("the service does not listen:\n%s", n.log.tail(40))
		}
	}
}

// parallel calls f count times at once and fails the test with every error.
func parallel(t testing.TB, count int, f func(i int) error) {
	t.Helper()
	errs := make([]error, count)
	begin := make(chan struct{})
	var group sync.WaitGroup
	for i := range count {
		group.Go(func() {
			<-begin
			errs[i] = f(i)
		})
	}
	close(begin)
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until check returns nil.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s until %s: %v", patience, what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// logTap keeps what a program writes.
type logTap struct {
	mu   sync.Mutex
	kept bytes.Buffer
}

// Write implements io.Writer.
func (l *logTap) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.Write(b)
}

func (l *logTap) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.String()
}

// tail returns the last lines.
func (l *logTap) tail(lines int) string {
	all := strings.Split(strings.TrimSpace(l.text()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// at returns the lines of the JSON log that have one of the levels.
func (l *logTap) at(levels ...string) []string {
	var found []string
	for line := range strings.Lines(l.text()) {
		for _, level := range levels {
			if strings.Contains(line, `"level":"`+level+`"`) {
				found = append(found, line)
			}
		}
	}
	return found
}
