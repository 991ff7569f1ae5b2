package migrations_test

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/migrations"
)

func up(t *testing.T, url string) []int64 {
	t.Helper()
	applied, err := migrations.Up(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return applied
}

func execute(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func TestUpBringsAnEmptyDatabaseToLatestOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.OwnerPool(t)
	if err := migrations.Check(t.Context(), pool); !errors.Is(err, migrations.ErrMissing) {
		t.Errorf("empty database: %v", err)
	}
	before, err := migrations.List(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	applied := up(t, db.URL)
	if len(applied) != len(before) || applied[len(applied)-1] != migrations.Latest() {
		t.Errorf("applied %v of %v", applied, before)
	}
	if err := migrations.Check(t.Context(), pool); err != nil {
		t.Errorf("after Up: %v", err)
	}
	if applied := up(t, db.URL); len(applied) != 0 {
		t.Errorf("a second Up applied %v", applied)
	}
	after, err := migrations.List(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	for n, s := range after {
		if before[n].Applied || !s.Applied || s.AppliedAt.IsZero() || s.Name == "" {
			t.Errorf("migration %d: before %+v, after %+v", n, before[n], s)
		}
	}
}

func TestManyProcessesMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	type result struct {
		applied []int64
		err     error
	}
	results := make(chan result)
	for range 5 {
		go func() {
			applied, err := migrations.Up(t.Context(), db.URL)
			results <- result{applied, err}
		}()
	}
	times := map[int64]int{}
	for range 5 {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
		}
		for _, version := range r.applied {
			times[version]++
		}
	}
	for version := int64(1); version <= migrations.Latest(); version++ {
		if times[version] != 1 {
			t.Errorf("version %d was applied %d times", version, times[version])
		}
	}
}

func TestOlderSchemaIsMissing(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	pool := db.OwnerPool(t)
	execute(t, pool, `
		DELETE FROM goose_db_version
		 WHERE version_id = (SELECT max(version_id) FROM goose_db_version)`)
	err := migrations.Check(t.Context(), db.Pool(t))
	if !errors.Is(err, migrations.ErrMissing) || errors.Is(err, migrations.ErrUnknown) ||
		!strings.Contains(err.Error(), ".sql") {
		t.Errorf("got %v, want ErrMissing with the pending file", err)
	}
}

func TestNewerSchemaIsUnknownAndLeftAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	pool := db.OwnerPool(t)
	execute(t, pool, `
		DELETE FROM goose_db_version
		 WHERE version_id = (SELECT max(version_id) FROM goose_db_version)`)
	execute(t, pool, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99998, true), (99999, true)`)
	execute(t, pool, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, false)`)
	err := migrations.Check(t.Context(), db.Pool(t))
	if !errors.Is(err, migrations.ErrUnknown) || !strings.Contains(err.Error(), "99998") ||
		strings.Contains(err.Error(), "99999") {
		t.Errorf("got %v, want ErrUnknown with version 99998 alone", err)
	}
	if applied, err := migrations.Up(t.Context(), db.URL); !errors.Is(err, migrations.ErrUnknown) || len(applied) != 0 {
		t.Errorf("Up: %v, %v; want ErrUnknown and nothing applied", applied, err)
	}
	list, err := migrations.List(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	if last := list[len(list)-1]; last.Version != 99998 || last.Name != "" || !last.Applied {
		t.Errorf("the last in the list is %+v", last)
	}
}

func TestUnreachableDatabaseIsNeitherMissingNorUnknown(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	url := strings.Replace(db.URL, db.Name, db.Name+"_absent", 1)
	for name, call := range map[string]func() error{
		"Up":   func() error { _, err := migrations.Up(t.Context(), url); return err },
		"List": func() error { _, err := migrations.List(t.Context(), url); return err },
	} {
		err := call()
		if err == nil || errors.Is(err, migrations.ErrMissing) || errors.Is(err, migrations.ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFilesAreNumberedWithoutGaps(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	n := int64(0)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".sql") {
			continue
		}
		n++
		if !regexp.MustCompile(`^\d{5}_[a-z_]+\.sql$`).MatchString(e.Name()) {
			t.Errorf("%s is not named 00000_words.sql", e.Name())
		}
	}
	if n != migrations.Latest() {
		t.Errorf("%d files, but the latest version is %d", n, migrations.Latest())
	}
}
