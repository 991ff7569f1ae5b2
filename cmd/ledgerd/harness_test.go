package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// answer is a response with its body.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// receipt is what the tests read of answers, problem documents included.
type receipt struct {
	TransactionID string          `json:"transaction_id"`
	AccountID     string          `json:"account_id"`
	Seq           int64           `json:"seq"`
	ProjectedSeq  int64           `json:"projected_seq"`
	Kind          string          `json:"kind"`
	Amount        int64           `json:"amount"`
	Balance       int64           `json:"balance"`
	Available     int64           `json:"available"`
	Status        json.RawMessage `json:"status"` // a number in problem documents
	Code          string          `json:"code"`
	Applied       any             `json:"applied"`
	Errors        []struct {
		Pointer string `json:"pointer"`
		Header  string `json:"header"`
	} `json:"errors"`
}

// read decodes the body into a receipt; what is not there is zero.
func (a answer) read() receipt {
	var r receipt
	_ = json.Unmarshal(a.body, &r) // an answer of another form is judged by its status
	return r
}

func (a answer) String() string {
	return fmt.Sprintf("%d %s", a.status, bytes.TrimSpace(a.body))
}

func (a answer) replayed() bool { return a.header.Get("Idempotency-Replayed") == "true" }

// try sends a request; headers are names and values in turn. It may be called
// from any goroutine.
func (n *node) try(method, path, body string, headers ...string) (answer, error) {
	return n.tryContext(context.Background(), method, path, body, headers...)
}

func (n *node) tryContext(ctx context.Context, method, path, body string, headers ...string) (answer, error) {
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, n.url+path, content)
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := n.http.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, text}, err
}

// do is try for the goroutine of the test.
func (n *node) do(method, path, body string, headers ...string) answer {
	n.t.Helper()
	a, err := n.try(method, path, body, headers...)
	if err != nil {
		n.t.Fatal(err)
	}
	return a
}

// want is do for a request whose status is known.
func (n *node) want(status int, method, path, body string, headers ...string) receipt {
	n.t.Helper()
	a := n.do(method, path, body, headers...)
	if a.status != status {
		n.t.Fatalf("%s %s %s: the answer is %s, not %d", method, path, body, a, status)
	}
	return a.read()
}

// open opens an account in EUR.
func (n *node) open(account string) {
	n.t.Helper()
	n.want(http.StatusCreated, "PUT", "/v1/accounts/"+account, `{"currency":"EUR"}`)
}

// post sends a credit or a debit; kind is "credits" or "debits".
func (n *node) post(kind, account string, amount int64, key string) (answer, error) {
	return n.try("POST", "/v1/accounts/"+account+"/"+kind, fmt.Sprintf(`{"amount":%d}`, amount), "Idempotency-Key", key)
}

// credit posts a credit that is accepted.
func (n *node) credit(account string, amount int64, key string) receipt {
	n.t.Helper()
	a, err := n.post("credits", account, amount, key)
	if err != nil || a.status != http.StatusCreated {
		n.t.Fatalf("credit %d to %s: %s %v", amount, account, a, err)
	}
	return a.read()
}

// balance reads an account strongly.
func (n *node) balance(account string) receipt {
	n.t.Helper()
	return n.want(http.StatusOK, "GET", "/v1/accounts/"+account+"/balance", "")
}

// metric returns the sum of all samples of a metric, with the labels if any
// are given as `name="value"`.
func (n *node) metric(name string, labels ...string) float64 {
	n.t.Helper()
	var sum float64
	for line := range strings.Lines(string(n.do("GET", "/metrics", "").body)) {
		sample, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		family, _, _ := strings.Cut(sample, "{")
		if family != name {
			continue
		}
		has := true
		for _, l := range labels {
			has = has && strings.Contains(sample, l)
		}
		var v float64
		if _, err := fmt.Sscan(value, &v); has && err == nil {
			sum += v
		}
	}
	return sum
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
