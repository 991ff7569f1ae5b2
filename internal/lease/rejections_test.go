package lease

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// testLog is a log together with the registry of its metrics.
type testLog struct {
	*RejectionLog
	registry *prometheus.Registry
}

func newTestLog(t *testing.T) *testLog {
	t.Helper()
	registry := prometheus.NewRegistry()
	return &testLog{NewRejectionLog(pgtest.Database(t).Pool(t), registry, slog.New(slog.DiscardHandler)), registry}
}

// count returns the sum of all samples of a counter.
func (l *testLog) count(t *testing.T, name string) (sum float64) {
	t.Helper()
	families, err := l.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func rejection(account ledger.AccountID) Rejection {
	return Rejection{AccountID: account, Code: ledger.CodeStaleToken, Presented: 1, Current: 2,
		Method: "POST", Route: "/r", RequestID: "q", RemoteAddress: "::1", UserAgent: "u", At: time.Now().UTC().Truncate(time.Microsecond)}
}

// Nobody writes the list, and Note returns all the same.
func TestRejectionsAreNeverWaitedFor(t *testing.T) {
	t.Parallel()
	l := newTestLog(t)
	const extra = 7
	for range rejectionsQueued + extra {
		l.Note(rejection("a"))
	}
	if got := l.count(t, "ledgerd_fencing_rejections_total"); got != rejectionsQueued+extra {
		t.Errorf("%v are counted", got)
	}
	if got := l.count(t, "ledgerd_fencing_rejections_unlisted_total"); got != extra {
		t.Errorf("%v are counted as not listed, want %d", got, extra)
	}
}

func TestRejectionsAreListedAndPruned(t *testing.T) {
	t.Parallel()
	l := newTestLog(t)
	l.kept = 10
	ctx := context.Background()
	for _, account := range []ledger.AccountID{"old", "a", "b"} {
		for range 5 {
			l.Note(rejection(account))
		}
		l.flush(ctx)
	}
	all, err := l.List(ctx, 1<<40, "", 100)
	if err != nil || len(all) != 10 || all[0].AccountID != "b" || all[9].AccountID != "a" {
		t.Fatalf("the list is %+v %v, want 5 of b and 5 of a", all, err)
	}
	want := rejection("b")
	want.ID, want.At = all[0].ID, all[0].At
	if all[0] != want {
		t.Errorf("the first is %+v, want %+v", all[0], want)
	}
	some, err := l.List(ctx, all[6].ID, "a", 2)
	if err != nil || len(some) != 2 || some[0] != all[7] || some[1] != all[8] {
		t.Errorf("the page is %+v %v", some, err)
	}
}

// A database that is away loses the list and nothing else; the end of Run
// writes what is left.
func TestRejectionsSurviveNothing(t *testing.T) {
	t.Parallel()
	l := newTestLog(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.Note(rejection("a"))
	l.Run(ctx)
	if all, err := l.List(t.Context(), 1<<40, "", 100); err != nil || len(all) != 1 {
		t.Errorf("the end of Run has written %+v %v", all, err)
	}
	l.Note(rejection("a"))
	l.flush(ctx) // a context that is over stands for a database that is away
	if got := l.count(t, "ledgerd_fencing_rejections_unlisted_total"); got != 1 {
		t.Errorf("%v are counted as not listed, want 1", got)
	}
}
