package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pgserver"
)

// buildLedgerd builds the service that the tests measure.
func buildLedgerd(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "ledgerd")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, "../ledgerd").CombinedOutput()
	if err != nil {
		t.Fatalf("build ledgerd: %v\n%s", err, out)
	}
	return program
}

// openDir is a folder that PostgreSQL can enter as another user.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ledgerlab-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func lab(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// TestBench runs the whole command on a ledgerd that is built once.
func TestBench(t *testing.T) {
	program := buildLedgerd(t)
	t.Run("MeasuresAndAudits", func(t *testing.T) { measuresAndAudits(t, program) })
	t.Run("ReplayIsTimed", func(t *testing.T) { replayIsTimed(t, program) })
}

// measuresAndAudits takes short measurements of everything, then
// damages a balance row behind the service's back: the next audit is not clean.
func measuresAndAudits(t *testing.T, program string) {
	dir := filepath.Join(openDir(t), "data")
	short := []string{"bench", "--ledgerd=" + program, "--data=" + dir, "--accounts=50", "--warm-up=200ms", "--floor=200ms", "--duration=300ms"}
	code, out, errs := lab(t, append(short, "--json", "--connections=8", "--alternate=2")...)
	if code != exitOK {
		t.Fatalf("exit code %d\n%s%s", code, out, errs)
	}
	var doc document
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Measurements) != 4 || len(doc.Medians) != 2 || doc.Audit != "clean" {
		t.Fatalf("document %+v", doc)
	}
	for _, m := range doc.Measurements {
		if m.Rate <= 0 || m.P50 <= 0 || m.P99 < m.P50 || m.FloorBefore <= 0 || m.FloorAfter <= 0 || m.Ratio <= 0 || m.BatchMean < 1 || len(m.Errors) != 0 {
			t.Errorf("measurement %+v", m)
		}
	}
	others := []string{"--json", "--connections=2", "--workload=transfers,transfers-house,batches"}
	if code, out, errs = lab(t, append(short, others...)...); code != exitOK {
		t.Fatalf("exit code %d\n%s%s", code, out, errs)
	}
	doc = document{}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Measurements) != 3 || doc.Audit != "clean" {
		t.Fatalf("document %+v", doc)
	}
	for _, m := range doc.Measurements {
		if m.Rate <= 0 || m.P50 <= 0 || m.Ratio <= 0 || len(m.Errors) != 0 || m.Workload == "batches" && m.BatchMean < 20 {
			t.Errorf("measurement %+v", m)
		}
	}
	damage(t, dir)
	code, out, errs = lab(t, append(short, "--workload=hot", "--connections=2")...)
	if code != exitFailed || !strings.Contains(errs, "the audit is not clean") {
		t.Errorf("with a damaged balance row: exit code %d\n%s%s", code, out, errs)
	}
}

// damage changes the balance row of an account that the hot workload leaves alone.
func damage(t *testing.T, dir string) {
	t.Helper()
	ctx := context.Background()
	server, err := pgserver.Attach(ctx, pgserver.Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	conn, err := pgx.Connect(ctx, server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	tag, err := conn.Exec(ctx, `update balances set balance = balance + 1 where account_id = 'bench-00000007'`)
	if err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("%s, %v", tag, err)
	}
}

func replayIsTimed(t *testing.T, program string) {
	code, out, errs := lab(t, "bench", "--ledgerd="+program, "--json", "--replay-entries=5000", "--replay-accounts=70")
	if code != exitOK {
		t.Fatalf("exit code %d\n%s%s", code, out, errs)
	}
	var doc document
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if r := doc.Replay; r == nil || r.Entries != 5000 || r.Replay.Rate <= 0 || r.Verify.Rate <= 0 || r.Replay.PeakBytes < 1<<20 {
		t.Errorf("document %+v", doc)
	}
}

func TestWrongUseIsSaid(t *testing.T) {
	for _, args := range [][]string{
		{"bench", "--workload=cold"},
		{"bench", "--connections=0"},
		{"bench", "--alternate=0"},
		{"bench", "--replay-entries=10"},
		{"bench", "--replay-entries=5000", "--url=http://127.0.0.1:1"},
		{"none"},
		{},
	} {
		if code, out, _ := lab(t, args...); code != exitUsage {
			t.Errorf("%v: exit code %d\n%s", args, code, out)
		}
	}
	if code, out, _ := lab(t, "bench", "--help"); code != exitOK || !strings.Contains(out, "--connections") {
		t.Errorf("help: exit code %d\n%s", code, out)
	}
	if code, _, errs := lab(t, "bench", "--url=http://127.0.0.1:1"); code != exitFailed || !strings.Contains(errs, "127.0.0.1:1") {
		t.Errorf("no service: exit code %d\n%s", code, errs)
	}
}
