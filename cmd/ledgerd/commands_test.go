package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/migrations"
)

// program runs a command line and returns its exit code and its two outputs.
func program(ctx context.Context, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(ctx, args, &o, &e)
	return code, o.String(), e.String()
}

func TestWrongUseIsExplained(t *testing.T) {
	t.Parallel()
	const nowhere = "--database-url=postgres://user:hunter2@127.0.0.1:1/ledgerd?connect_timeout=2"
	folder := filepath.Join(t.TempDir(), "data")
	unmade := "--data=" + folder
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--help"}, exitOK, "Commands:"},
		{[]string{"serve", "--help"}, exitOK, "LEDGERD_DATABASE_URL"},
		{[]string{"version"}, exitOK, "schema "},
		{[]string{}, exitUsage, "ledgerd --help"},
		{[]string{"explode"}, exitUsage, "explode"},
		{[]string{"serve"}, exitUsage, "LEDGERD_DATABASE_URL is missing"},
		{[]string{"serve", "--database-url=http://user:hunter2@host"}, exitUsage, "not a PostgreSQL connection URL"},
		{[]string{"serve", nowhere, "--write-deadline=20s"}, exitUsage, "must be below LEDGERD_REQUEST_TIMEOUT"},
		{[]string{"serve", nowhere, "--database-pool=0", "--log-level=loud"}, exitUsage, "LEDGERD_LOG_LEVEL"},
		{[]string{"verify"}, exitUsage, "--data DIR"},
		{[]string{"verify", nowhere}, exitUnreachable, "does not answer"},
		{[]string{"replay", nowhere}, exitUnreachable, "does not answer"},
		{[]string{"migrate", "up", nowhere}, exitUnreachable, "does not answer"},
		{[]string{"migrate", "status", nowhere}, exitUnreachable, "does not answer"},
		{[]string{"incarnation", "show", nowhere}, exitUnreachable, "does not answer"},
		{[]string{"incarnation", "bump", nowhere}, exitUsage, "--reason"},
		{[]string{"incarnation", "bump", nowhere, "--reason= "}, exitUsage, "--reason"},
		{[]string{"replay", nowhere, "--lease-ttl=1ms"}, exitUsage, "lease TTL"},
		{[]string{"verify", "--data=" + t.TempDir()}, exitRefused, "no ledger database"},
		{[]string{"dev", unmade, "--listen=foo"}, exitUsage, "HOST:PORT"},
		{[]string{"dev", unmade, "--listen=127.0.0.1:99999"}, exitUsage, "HOST:PORT"},
		{[]string{"dev", unmade, "--log-level=loud"}, exitUsage, "LEDGERD_LOG_LEVEL"},
		{[]string{"import", sample, "--open", "--currency=czk"}, exitUsage, "--currency"},
		{[]string{"import", sample, "--open", "--currency=CZK", "--min-balance=5"}, exitUsage, "--min-balance"},
		{[]string{"import", sample, "--open", "--currency=CZK", "--exponent=19"}, exitUsage, "--exponent"},
		{[]string{"import", sample, "--currency=CZK"}, exitUsage, "--open"},
		{[]string{"import", "no-such.csv"}, exitUsage, "no-such.csv cannot be read: no such file"},
		{[]string{"import", t.TempDir()}, exitUsage, "cannot be read: is a directory"},
		{[]string{"healthcheck", "--listen=127.0.0.1:1"}, exitUnreachable, "refused"},
	} {
		code, out, errs := program(t.Context(), c.args...)
		if code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("ledgerd %s ended with %d, want %d and %q:\n%s%s", strings.Join(c.args, " "), code, c.code, c.says, out, errs)
		}
		if strings.Contains(out+errs, "hunter2") {
			t.Errorf("ledgerd %s prints the password:\n%s%s", strings.Join(c.args, " "), out, errs)
		}
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("dev made its data folder before it read its command line")
	}
}

func TestConfigurationPrintsNoSecret(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://app:hunter2@db.example:6432/ledger?sslmode=disable",
		"postgres://db.example/ledger?user=app&password=hunter2&sslpassword=hunter2",
		"host=db.example password=hunter2 user=app dbname=ledger",
		"postgres://app:hunter2@one:1,two:2/ledger",
		"postgres://app:hun#ter2@db/ledger", // does not parse
	} {
		s := secretURL(url)
		text, err := s.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		printed := fmt.Sprintf("%v %+v %#v %s %q %s %v", s, Config{DatabaseURL: s}, s, s, s, text, Config{DatabaseURL: s}.LogValue())
		if strings.Contains(printed, "hunter2") || strings.Contains(printed, "hun#") {
			t.Errorf("%s is printed as %s", url, printed)
		}
		if s.valid() && !strings.Contains(printed, "app@") {
			t.Errorf("%s is printed as %s, without what helps", url, printed)
		}
	}
}

var devURL = regexp.MustCompile(`API +(http://\S+)`)

// dev is started, written to, stopped and started again: the data is there.
// Commands reach its database while it runs and when it is stopped.
func TestDevKeepsItsData(t *testing.T) {
	t.Parallel()
	dir := devFolder(t)
	b := &books{receipts: map[string]booked{}, unsure: map[string]bool{}}
	args := []string{"dev", "--data=" + dir, "--listen=127.0.0.1:0"}
	n := b.start(t, args...)
	welcome := n.out.text()
	if m := devURL.FindStringSubmatch(welcome); m == nil || m[1] != n.url {
		t.Errorf("the welcome does not name %s:\n%s", n.url, welcome)
	}
	n.open("a")
	n.credit("a", 5, "k")
	if code, out, errs := program(t.Context(), "verify", "--data="+dir); code != exitOK || !strings.Contains(out, "1 accounts, 2 entries, 0 differences") {
		t.Errorf("verify beside a running dev ended with %d:\n%s%s", code, out, errs)
	}
	if code, _, errs := program(t.Context(), append(args, "--listen=127.0.0.1:0")...); code != exitRefused || !strings.Contains(errs, "in use") {
		t.Errorf("a second dev on the folder ended with %d: %s", code, errs)
	}
	if code := n.shutdown(); code != exitOK {
		t.Errorf("dev ended with %d:\n%s", code, n.log.tail(20))
	}
	for _, command := range [][]string{{"migrate", "status"}, {"verify"}, {"replay"}, {"incarnation", "show"}} {
		if code, out, errs := program(t.Context(), append(command, "--data="+dir)...); code != exitOK {
			t.Errorf("%s with a stopped dev ended with %d:\n%s%s", command, code, out, errs)
		}
	}
	again := b.start(t, args...)
	if r := again.credit("a", 5, "k"); r.Balance != 5 || r.Seq != 2 {
		t.Errorf("after the second start the credit is %+v", r)
	}
}

// --data goes before the URL, and the URL before LEDGERD_DATA.
func TestDataFolderFromTheEnvironment(t *testing.T) {
	t.Setenv("LEDGERD_DATA", t.TempDir())
	if code, _, errs := program(t.Context(), "verify"); code != exitRefused || !strings.Contains(errs, "no ledger database") {
		t.Errorf("with LEDGERD_DATA: %d, %s", code, errs)
	}
	t.Setenv("LEDGERD_DATABASE_URL", "postgres://127.0.0.1:1/ledgerd?connect_timeout=2")
	if code, _, errs := program(t.Context(), "verify"); code != exitUnreachable {
		t.Errorf("with LEDGERD_DATA and a URL: %d, %s", code, errs)
	}
	if code, _, errs := program(t.Context(), "verify", "--data="+t.TempDir()); code != exitRefused {
		t.Errorf("with --data and a URL: %d, %s", code, errs)
	}
	// What is set and empty is not set; for dev it is the default, not this folder.
	t.Setenv("LEDGERD_DATA", "")
	t.Setenv("LEDGERD_DATABASE_URL", "")
	if code, _, errs := program(t.Context(), "verify"); code != exitUsage {
		t.Errorf("with empty variables: %d, %s", code, errs)
	}
	var c cli
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"dev"}); err != nil || c.Dev.Data != "" {
		t.Errorf("dev with an empty LEDGERD_DATA takes %q, %v", c.Dev.Data, err)
	}
}

func TestMissingRoleIsNamed(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	for _, args := range [][]string{{"serve", "--listen=127.0.0.1:0"}, {"verify"}} {
		code, _, errs := program(t.Context(), append(args, "--database-url="+b.url, "--database-role=nosuch")...)
		if code != exitRefused || !strings.Contains(errs, "nosuch") || !strings.Contains(errs, "LEDGERD_DATABASE_ROLE") {
			t.Errorf("%s ended with %d: %s", args, code, errs)
		}
	}
}

// A folder with something else in it, a file, and a folder that may not be read
// are refused by dev and by the commands, and nothing in them is changed.
func TestDataFolderOfSomethingElseIsRefused(t *testing.T) {
	t.Parallel()
	dir := devFolder(t)
	other := filepath.Join(dir, "other")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(other, "passwd")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "foreign")
	if err := os.MkdirAll(filepath.Join(foreign, "pgdata"), 0o755); err != nil {
		t.Fatal(err)
	}
	for data, says := range map[string]string{other: "passwd", file: "not a directory", foreign: "not a PostgreSQL cluster"} {
		for _, args := range [][]string{{"dev", "--listen=127.0.0.1:0"}, {"verify"}, {"migrate", "up"}} {
			code, out, errs := program(t.Context(), append(args, "--data="+data)...)
			if code != exitRefused || !strings.Contains(errs, says) || !strings.Contains(errs, "nothing was changed") || out != "" {
				t.Errorf("ledgerd %s --data=%s ended with %d:\n%s%s", args, data, code, out, errs)
			}
		}
	}
	for folder, want := range map[string]int{other: 1, foreign: 1} {
		if entries, err := os.ReadDir(folder); err != nil || len(entries) != want {
			t.Errorf("%s has %v, %v", folder, entries, err)
		}
	}
}

// devFolder returns a folder that the server's user can reach.
func devFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ledgerd-dev-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "data")
}

func TestTakenPortIsSaid(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, args := range [][]string{
		{"dev", "--data=" + filepath.Join(t.TempDir(), "data"), "--listen=" + l.Addr().String()},
		{"serve", "--database-url=postgres://127.0.0.1:1/x", "--listen=" + l.Addr().String()},
	} {
		code, _, errs := program(t.Context(), args...)
		if code != exitRefused || !strings.Contains(errs, l.Addr().String()) || !strings.Contains(errs, "--listen") {
			t.Errorf("%s ended with %d: %s", args[0], code, errs)
		}
	}
}

func TestServeRefusesASchemaThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	serveOnce := func() (int, string) {
		code, _, errs := program(t.Context(), "serve", "--listen=127.0.0.1:0", "--database-url="+db.URL)
		return code, errs
	}
	if code, errs := serveOnce(); code != exitRefused || !strings.Contains(errs, "ledgerd migrate up") {
		t.Errorf("serve without a schema ended with %d: %s", code, errs)
	}
	if code, out, _ := program(t.Context(), "migrate", "status", "--database-url="+db.URL); code != exitDifferences || !strings.Contains(out, "pending") {
		t.Errorf("migrate status without a schema ended with %d: %s", code, out)
	}
	for _, says := range []string{"applied 1", "the schema is at version"} {
		if code, out, errs := program(t.Context(), "migrate", "up", "--database-url="+db.URL); code != exitOK || !strings.Contains(out, says) {
			t.Errorf("migrate up ended with %d, want %q: %s%s", code, says, out, errs)
		}
	}
	b := booksOf(t, db.URL)
	n := serve(t, b)
	n.open("a")
	n.credit("a", 5, "k")

	b.damage(t, `insert into goose_db_version (version_id, is_applied) values ($1, true)`, migrations.Latest()+1)
	if code, errs := serveOnce(); code != exitRefused || !strings.Contains(errs, "newer") {
		t.Errorf("serve on a newer schema ended with %d: %s", code, errs)
	}
	for _, command := range [][]string{{"verify"}, {"migrate", "up"}, {"migrate", "status"}} {
		if code, _, errs := program(t.Context(), append(command, "--database-url="+db.URL)...); code != exitRefused || !strings.Contains(errs, "newer") {
			t.Errorf("%s on a newer schema ended with %d: %s", command, code, errs)
		}
	}
	// A process of the old version goes on while a roll-out replaces it.
	n.credit("a", 5, "k2")
	n.awaitReady()
	b.damage(t, `delete from goose_db_version where version_id > $1`, migrations.Latest())
}

// The migrations run again and again while traffic goes on: they change nothing
// and disturb nobody.
func TestMigrateAgainUnderTraffic(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	n := serve(t, b)
	n.open("a")
	stop := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if a, err := n.post("credits", "a", 1, fmt.Sprint("k", i)); err != nil || a.status != http.StatusCreated {
				t.Errorf("a request during migrate up: %s %v", a, err)
				return
			}
		}
	})
	var migrators sync.WaitGroup
	for range 3 {
		migrators.Go(func() {
			if code, out, errs := program(t.Context(), "migrate", "up", "--database-url="+b.url); code != exitOK || strings.Contains(out, "applied") {
				t.Errorf("migrate up ended with %d: %s%s", code, out, errs)
			}
		})
	}
	migrators.Wait()
	close(stop)
	load.Wait()
}

func TestServeRefusesARoleThatCouldChangeEntries(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	code, _, errs := program(t.Context(), "serve", "--listen=127.0.0.1:0", "--database-url="+b.url, "--database-role=")
	if code != exitRefused || !strings.Contains(errs, "may change or delete entries") {
		t.Errorf("serve as the owner ended with %d: %s", code, errs)
	}
	// Somebody gives the role too much while the service runs.
	n := serve(t, b)
	n.open("a")
	b.damageAll(t, `grant update on entries to ledgerd_service`)
	if code := n.wait(); code != exitRefused || !strings.Contains(n.log.text(), "may change or delete entries") {
		t.Errorf("the service ended with %d:\n%s", code, n.log.tail(10))
	}
	b.damageAll(t, `revoke update on entries from ledgerd_service`)
}

// damageAll is damage for statements that count no rows.
func (b *books) damageAll(t testing.TB, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// The role of the login, as behind a pooler: no start-up parameter.
func TestServeWithTheRoleOfTheLogin(t *testing.T) {
	t.Parallel()
	pg := pgtest.Server(t)
	b := booksOf(t, pg.URL)
	b.damageAll(t, `create role app login in role ledgerd_service`)
	b.damageAll(t, `alter role app set role = 'ledgerd_service'`)
	n := serve(t, b, "--database-url="+strings.Replace(pg.URL, "postgres://postgres@", "postgres://app@", 1), "--database-role=")
	n.open("a")
	n.credit("a", 5, "k")
}

// A request that is under way when the service is asked to end gets its answer,
// and the shards are free for the next process at once.
func TestShutdownFinishesWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	p := newProxy(t, b.url)
	n := serve(t, b, "--database-url="+p.url)
	n.open("a")
	awaitProjected(t, n, "a", 1)
	p.delay.Store(int64(200 * time.Millisecond))
	answers := make(chan answer, 20)
	for i := range cap(answers) {
		go func() {
			a, err := n.post("credits", "a", 1, fmt.Sprint("k", i))
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	eventually(t, "all requests are under way", func() error {
		if got := n.metric("ledgerd_http_requests_in_flight"); got < 21 { // this one too
			return fmt.Errorf("%v are", got)
		}
		return nil
	})
	n.end(nil)
	for range cap(answers) {
		if a := <-answers; a.status != http.StatusCreated {
			t.Errorf("a request that was under way: %s", a)
		}
	}
	if code := n.wait(); code != exitOK {
		t.Errorf("serve ended with %d:\n%s", code, n.log.tail(10))
	}
	conn, err := pgx.Connect(t.Context(), b.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var held int
	if err := conn.QueryRow(t.Context(), `select count(*) from leases where released_at is null and expires_at > clock_timestamp()`).Scan(&held); err != nil {
		t.Fatal(err)
	}
	if held != 0 {
		t.Errorf("%d leases are still held", held)
	}
}
