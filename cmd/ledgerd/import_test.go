package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sample is the bank's history that README and CI import.
const (
	sample     = "../../examples/berka-sample.csv"
	sampleRows = 2974
)

// importInto runs the import command and returns its exit code and output.
func importInto(ctx context.Context, n *node, file string, args ...string) (code int, out string) {
	var stdout, stderr bytes.Buffer
	line := append([]string{"import", file, "--url=" + n.url}, args...)
	code = run(ctx, line, &stdout, &stderr)
	return code, stdout.String() + stderr.String()
}

var openSample = []string{"--open", "--currency=CZK", "--min-balance=-600000"}

// count reads one line of the summary.
func count(t *testing.T, out, name string) (n int) {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + ` +(\d+)`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no %q in\n%s", name, out)
	}
	if _, err := fmt.Sscan(m[1], &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestImportReproducesTheBank imports real history twice: every balance is the
// one that the bank recorded, and the second time adds nothing.
func TestImportReproducesTheBank(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.lossy() // the import does not go through the books
	n := serve(t, b)
	code, out := importInto(t.Context(), n, sample, openSample...)
	if code != exitOK || count(t, out, "posted") != sampleRows || count(t, out, "balances") != sampleRows || !strings.Contains(out, "compared, 0 differ") {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	code, out = importInto(t.Context(), n, sample, openSample...)
	if code != exitOK || count(t, out, "posted") != 0 || count(t, out, "replayed") != sampleRows || !strings.Contains(out, "compared, 0 differ") {
		t.Fatalf("the second time: exit code %d\n%s", code, out)
	}
}

// TestImportSurvivesKills kills the import half-way, then the service half-way,
// each with kill -9, and runs the same command again.
func TestImportSurvivesKills(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.lossy()
	first := serveProcess(t, b)

	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	client := exec.Command(path, append([]string{"import", sample, "--url=" + first.url}, openSample...)...)
	client.SysProcAttr = childAttributes()
	var screen bytes.Buffer
	client.Stdout, client.Stderr = &screen, &screen
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	awaitEntries(t, first, 400)
	if err := client.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := client.Wait(); err == nil {
		t.Fatalf("the import was done before it was killed\n%s", &screen)
	}

	ended := make(chan string, 1)
	go func() {
		code, out := importInto(context.Background(), first, sample, append(openSample, "--retry-for=300ms")...)
		ended <- fmt.Sprintf("exit code %d\n%s", code, out)
	}()
	awaitEntries(t, first, 1200)
	first.kill()
	if out := <-ended; !strings.HasPrefix(out, "exit code 3\n") || !strings.Contains(out, "run the same command again") {
		t.Fatalf("the service was killed: %s", out)
	}

	second := serveProcess(t, b)
	code, out := importInto(t.Context(), second, sample, openSample...)
	if code != exitOK || count(t, out, "posted")+count(t, out, "replayed") != sampleRows || count(t, out, "replayed") < 400 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
}

func awaitEntries(t *testing.T, n *node, least float64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%.0f entries are posted", least), func() error {
		if got := n.metric("ledgerd_entries_total"); got < least {
			return fmt.Errorf("%.0f entries", got)
		}
		return nil
	})
}

// TestImportIsInterrupted ends the context half-way, as Ctrl-C does.
func TestImportIsInterrupted(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.lossy()
	n := serve(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		code, out := importInto(ctx, n, sample, openSample...)
		if code != exitInterrupted || !strings.Contains(out, "run the same command again to go on") {
			ended <- fmt.Errorf("exit code %d\n%s", code, out)
			return
		}
		ended <- nil
	}()
	awaitEntries(t, n, 300)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if code, out := importInto(t.Context(), n, sample, openSample...); code != exitOK {
		t.Fatalf("exit code %d\n%s", code, out)
	}
}

// TestImportSaysWhatDiffers is the table of exit codes.
func TestImportSaysWhatDiffers(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.lossy()
	n := serve(t, b)
	const columns = "idempotency_key,account_id,effective_at,direction,amount,balance_after\n"
	write := func(name, rows string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(columns+rows), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	away := &node{url: "http://127.0.0.1:1"}
	cases := []struct {
		name, rows string
		node       *node
		args       []string
		code       int
		want       string
	}{
		{"declined", "k1,d,1993-01-01,debit,5,\n", n, openSample[:2], exitDifferences, "line 2: account d, key k1: declined: insufficient_funds"},
		{"differs", "k1,e,1993-01-01,credit,5,6\n", n, openSample[:2], exitDifferences, "line 2: account e, key k1: the balance is 5 after entry 2, the file has 6"},
		{"no account", "k1,none,1993-01-01,credit,5,5\n", n, nil, exitDifferences, "account_not_found"},
		{"another amount under a key", "k1,f,,credit,5,5\nk2,f,,credit,1,\n", n, openSample[:2], exitOK, ""},
		{"the same keys again, changed", "k1,f,,credit,6,6\nk2,f,,credit,1,\n", n, openSample[:2], exitDifferences, "1, and 1 rows behind them skipped"},
		{"bad file", "k1,g,1993-01-01,credit,0,\n", n, openSample[:2], exitUsage, "nothing was sent"},
		{"bad file, service away", "k1,g,1993-01-01,credit,0,\n", away, openSample[:2], exitUsage, "nothing was sent"},
		{"service away", "k1,g,1993-01-01,credit,1,\n", away, openSample[:2], exitUnreachable, "no service answers at http://127.0.0.1:1"},
		{"currency without open", "", n, []string{"--currency=CZK"}, exitUsage, "give --open too"},
	}
	for _, tc := range cases { // one after the other: two of them belong together
		code, out := importInto(t.Context(), tc.node, write("rows.csv", tc.rows), tc.args...)
		if code != tc.code || !strings.Contains(out, tc.want) {
			t.Errorf("%s: exit code %d, want %d with %q\n%s", tc.name, code, tc.code, tc.want, out)
		}
	}
	if code, out := importInto(t.Context(), n, filepath.Join(t.TempDir(), "none.csv")); code != exitUsage {
		t.Errorf("no file: exit code %d\n%s", code, out)
	}
}

// An account that is open otherwise is refused with the attribute that differs.
func TestImportSaysWhatTheAccountHas(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.lossy()
	n := serve(t, b)
	for id, body := range map[string]string{
		"euro":  `{"currency":"EUR","min_balance":-500}`,
		"ruled": `{"currency":"CZK","fencing":{"required":true},"metadata":{"owner":"c-1"}}`,
		"moved": `{"currency":"CZK","min_balance":-500}`,
	} {
		n.do("PUT", "/v1/accounts/"+id, body)
	}
	n.do("PATCH", "/v1/accounts/moved", `{"min_balance":0}`)
	file := filepath.Join(t.TempDir(), "rows.csv")
	rows := "idempotency_key,account_id,effective_at,direction,amount\n1,euro,,credit,5\n1,ruled,,credit,5\n1,moved,,credit,5\n"
	if err := os.WriteFile(file, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out := importInto(t.Context(), n, file, "--open", "--currency=CZK", "--exponent=3")
	if code != exitDifferences {
		t.Errorf("exit code %d", code)
	}
	for _, says := range []string{
		"The account exists, with currency EUR, not CZK; exponent 2, not 3; min_balance -500, not 0.",
		"exponent 2, not 3; fencing tokens of source lease, required: true; metadata, and none was asked for.",
	} {
		if !strings.Contains(out, says) {
			t.Errorf("no %q in\n%s", says, out)
		}
	}
	if _, out = importInto(t.Context(), n, file, "--open", "--currency=CZK"); !strings.Contains(out, "min_balance 0 now; it was opened with others.") {
		t.Errorf("what was changed since is not said:\n%s", out)
	}
}
