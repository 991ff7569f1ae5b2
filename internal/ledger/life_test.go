package ledger

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// warmServer is a PostgreSQL of the test's own with two warm writers on it.
type warmServer struct {
	*pgtest.Instance
	writers []*Writer
	r       *Reader
	// instead, when set, is the server that connections go to from now on, as a
	// failover does it behind one address.
	instead atomic.Pointer[pgtest.Instance]
}

func (s *warmServer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if other := s.instead.Load(); other != nil {
		config, err := pgx.ParseConfig(other.URL)
		if err != nil {
			return nil, err
		}
		network, address = pgconn.NetworkAddress(config.Host, config.Port)
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

func newWarmServer(t *testing.T, settings ...string) *warmServer {
	t.Helper()
	s := &warmServer{Instance: pgtest.Server(t, settings...)}
	pool, err := postgres.Open(postgres.Config{URL: s.URL, Role: postgres.ServiceRole, MaxConns: 4, Dial: s.dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s.r = NewReader(pool)
	longer := func(pg *postgres.Config, c *WriterConfig) {
		pg.Dial = s.dial
		c.Deadline = 30 * time.Second
	}
	s.writers = []*Writer{openWriter(t, s.URL, longer), openWriter(t, s.URL, longer)}
	open(t, s.writers[0], "A", "B")
	s.credit(t, "warm")
	return s
}

// credit posts to both accounts through both writers.
func (s *warmServer) credit(t *testing.T, key string) {
	t.Helper()
	for i, w := range s.writers {
		must(t, w, credit("A", 1, keyN(key, i)))
		must(t, w, credit("B", 1, keyN(key, i)))
	}
}

// refusedUntilBump checks that both writers refuse writes and reads go on, bumps, and
// checks that both go on. visible says whether the server itself shows that it
// was restored; if not, only the services that were running know it.
func (s *warmServer) refusedUntilBump(t *testing.T, visible bool) {
	t.Helper()
	for i, w := range s.writers {
		refused(t, w, credit("A", 1, keyN("refused", i)), CodeIncarnationMismatch)
		refused(t, w, settings("A", Change{Metadata: Metadata{"a": "b"}}), CodeIncarnationMismatch)
	}
	if _, err := s.r.Head(context.Background(), "A"); err != nil {
		t.Fatalf("reads go on: %v", err)
	}
	config, err := pgx.ParseConfig(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.DialFunc = s.dial
	conn, err := pgx.ConnectConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	before, err := ReadIncarnation(context.Background(), conn)
	if err != nil || before.Matches == visible {
		t.Fatalf("status %+v, %v", before, err)
	}
	after, err := BumpIncarnation(context.Background(), conn, "test")
	if err != nil || after.Number != before.Current.Number+1 {
		t.Fatalf("bump: %+v, %v", after, err)
	}
	for _, w := range s.writers {
		eventually(t, "the writer accepts writes", func() bool { return w.Ready(context.Background()) == nil })
	}
	s.credit(t, "after-bump")
	auditAll(t, s.r)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		<-tick.C
	}
}

func TestOtherLifeDropsTheHeads(t *testing.T) {
	t.Parallel()
	t.Run("restart and crash", func(t *testing.T) {
		t.Parallel()
		s := newWarmServer(t)
		s.Restart(t)
		s.credit(t, "restarted")
		s.Kill(t)
		s.Start(t)
		s.credit(t, "crashed")
		auditAll(t, s.r)
	})
	t.Run("an older copy of the data folder", func(t *testing.T) {
		t.Parallel()
		s := newWarmServer(t)
		older := s.Snapshot(t)
		for i := range 50 {
			s.credit(t, keyN("lost", i))
		}
		s.Restore(t, older)
		s.refusedUntilBump(t, true)
	})
	t.Run("older files under the old timeline", func(t *testing.T) {
		t.Parallel()
		s := newWarmServer(t)
		older := s.Snapshot(t)
		for i := range 50 {
			s.credit(t, keyN("lost", i))
		}
		for _, w := range s.writers { // each has seen where the log ended
			if _, err := w.checkLife(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		s.RestoreFiles(t, older)
		s.refusedUntilBump(t, false)
	})
	t.Run("a standby that lagged is promoted", func(t *testing.T) {
		t.Parallel()
		testPromotion(t)
	})
	t.Run("the tables are made anew from a dump", func(t *testing.T) {
		t.Parallel()
		s := newWarmServer(t)
		restoreTables(t, s)
		s.refusedUntilBump(t, true)
	})
}

func testPromotion(t *testing.T) {
	s := newWarmServer(t)
	standby := s.Standby(t)
	s.credit(t, "replicated")
	eventually(t, "the standby has the last entry", func() bool { return lastSeq(t, standby.URL) == lastSeq(t, s.URL) })
	standby.Stop(t)
	for i := range 50 {
		s.credit(t, keyN("lost", i))
	}
	s.Kill(t)
	standby.Set(t, "primary_conninfo", "")
	standby.Start(t)
	s.instead.Store(standby)
	r := refused(t, s.writers[0], credit("A", 1, "on-a-standby"), CodeUnavailable)
	if r.Applied != NotApplied {
		t.Fatalf("refusal %+v", r)
	}
	standby.Promote(t)
	s.refusedUntilBump(t, true)
}

func lastSeq(t *testing.T, url string) (seq int64) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if err := conn.QueryRow(context.Background(), "select max(seq) from entries where account_id = 'A'").Scan(&seq); err != nil {
		t.Fatal(err)
	}
	return seq
}

// restoreTables makes the table of entries anew, with an older content, in the
// running cluster: what pg_restore --clean does.
func restoreTables(t *testing.T, s *warmServer) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	s.credit(t, "lost")
	_, err = conn.Exec(context.Background(), `
		begin;
		create table restored (like entries including all);
		insert into restored overriding system value select * from entries where seq <= 2;
		drop table entries;
		alter table restored rename to entries;
		grant select, insert on entries to ledgerd_service;
		commit`)
	if err != nil {
		t.Fatal(err)
	}
}

// TestBumpDropsTheHeads takes a tail away in place, which no identifier shows,
// and bumps, as an operator does who restored rows: the service must not go on
// from a link that is gone.
func TestBumpDropsTheHeads(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.writer()
	open(t, w, "A")
	for i := range 5 {
		must(t, w, credit("A", 1, keyN("k", i)))
	}
	owner := f.db.OwnerPool(t)
	if _, err := owner.Exec(t.Context(), "delete from entries where account_id = 'A' and seq > 3"); err != nil {
		t.Fatal(err)
	}
	conn, err := owner.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	bumped, err := BumpIncarnation(t.Context(), conn.Conn(), "rows were restored")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the writer has seen the bump", func() bool { return w.guard.current().incarnation == bumped.Number })
	if r := must(t, w, credit("A", 1, "after")); r.Entry.Seq != 4 {
		t.Fatalf("the next link has seq %d, want 4", r.Entry.Seq)
	}
}

// TestStandbyWaitIsNotCancelled freezes a synchronous standby: a commit that
// waits for it must stay invisible, however long its caller waits, and be found
// by its key once the standby goes on.
func TestStandbyWaitIsNotCancelled(t *testing.T) {
	t.Parallel()
	s := newWarmServer(t)
	standby := s.Standby(t)
	s.Set(t, "synchronous_standby_names", "standby")
	s.Restart(t)
	s.credit(t, "synchronous")

	standby.Freeze(t)
	w := openWriter(t, s.URL, func(_ *postgres.Config, c *WriterConfig) { c.Deadline = 1500 * time.Millisecond })
	r := refused(t, w, credit("A", 1, "waits"), CodeUnavailable)
	if r.Applied != AppliedUnknown {
		t.Fatalf("refusal %+v", r)
	}
	_, entries, err := s.r.Entries(t.Context(), "A", EntryQuery{Limit: 1})
	if err != nil || entries[0].Key == "waits" {
		t.Fatalf("a commit that is not on the standby is seen: %+v, %v", entries, err)
	}
	standby.Resume(t)
	if r := must(t, openWriter(t, s.URL), credit("A", 1, "waits")); r.Entry.Key != "waits" {
		t.Fatalf("receipt %+v", r.Entry)
	}
	auditAll(t, s.r)
}
