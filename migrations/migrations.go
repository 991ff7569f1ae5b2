// Package migrations holds the schema of the ledger as numbered SQL files and
// applies them.
//
// Migrations run as the owner of the schema and create the role that the
// service works in. The service only asks, with Check, whether the schema is
// the one that it was built for.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver "pgx", which goose works through
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

const (
	undefinedTable        = "42P01" // SQLSTATE
	insufficientPrivilege = "42501" // SQLSTATE

	// lockWaitSeconds limits how long Up waits for another process that is
	// migrating the same database.
	lockWaitSeconds = 300
)

var (
	// ErrMissing says that migrations of this program are not applied yet, or
	// that there is no schema at all: `ledgerd migrate up` applies them.
	ErrMissing = errors.New("the database schema is missing or too old; run: ledgerd migrate up")

	// ErrUnknown says that the database has migrations that this program does
	// not know: it belongs to a newer ledgerd.
	ErrUnknown = errors.New("the database schema is newer than this ledgerd; use the newer program")
)

// Status is one migration of this program, or one that only the database knows.
type Status struct {
	Version   int64
	Name      string    // file name; empty when this program does not know it
	Applied   bool      // in the database
	AppliedAt time.Time // zero unless Applied
}

// Querier is what Check needs: a pool, a connection or a transaction of pgx.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Latest is the version of the newest migration, the one a database has after Up.
func Latest() int64 {
	versions := known()
	return versions[len(versions)-1]
}

// Up applies what is pending to the database behind the connection string, as
// the owner of the schema, and returns the versions that it applied. Several
// processes may do so at once: one works while the others wait, up to five
// minutes. It returns ErrUnknown, and changes nothing, when the database is
// newer than this program.
func Up(ctx context.Context, databaseURL string) ([]int64, error) {
	db, err := open(databaseURL)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := appliedSQL(ctx, db)
	if err != nil {
		return nil, err
	}
	if err := compare(rows); errors.Is(err, ErrUnknown) {
		return nil, err
	}
	provider, err := newProvider(db)
	if err != nil {
		return nil, err
	}
	results, err := provider.Up(ctx)
	applied := make([]int64, 0, len(results))
	for _, r := range results {
		applied = append(applied, r.Source.Version)
	}
	if err != nil {
		return applied, fmt.Errorf("apply migrations: %w", err)
	}
	// The service checks the version at start. goose makes its table before the
	// first migration makes the role, so the right is given here. It is given
	// again each time, which repairs a run that was killed before this line.
	_, err = db.ExecContext(ctx, `GRANT SELECT ON goose_db_version TO ledgerd_service`)
	if err != nil {
		return applied, fmt.Errorf("let the service read the schema version: %w", err)
	}
	return applied, nil
}

// List returns the state of every migration in order of version, those that
// only the database knows included.
func List(ctx context.Context, databaseURL string) ([]Status, error) {
	db, err := open(databaseURL)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := appliedSQL(ctx, db)
	if err != nil {
		return nil, err
	}
	return merge(rows), nil
}

// Check compares the schema with this program. It returns nil when they are
// the same, or an error that wraps ErrMissing or ErrUnknown and names the
// versions. It needs no more than the rights of the service.
func Check(ctx context.Context, q Querier) error {
	rows, err := q.Query(ctx, selectApplied)
	if err != nil {
		return absent(err)
	}
	applied, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return absent(err)
	}
	return compare(applied)
}

// selectApplied takes the last word on each version: a migration that was
// rolled back and applied again has several rows.
const selectApplied = `
	SELECT version_id, tstamp
	  FROM (SELECT DISTINCT ON (version_id) version_id, tstamp, is_applied
	          FROM goose_db_version
	         WHERE version_id > 0
	         ORDER BY version_id, id DESC) AS last
	 WHERE is_applied
	 ORDER BY version_id`

// row is one applied migration as the database has it.
type row struct {
	Version int64
	At      time.Time
}

// absent turns "no such table" into ErrMissing, and so it does with a table
// that was made by a run of Up that did not come to its end.
func absent(err error) error {
	refused := (*pgconn.PgError)(nil)
	if errors.As(err, &refused) && (refused.Code == undefinedTable || refused.Code == insufficientPrivilege) {
		return fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	return fmt.Errorf("read the schema version: %w", err)
}

// appliedSQL reads the same rows through database/sql; no table means none.
func appliedSQL(ctx context.Context, db *sql.DB) (applied []row, err error) {
	rows, err := db.QueryContext(ctx, selectApplied)
	if err != nil {
		if err := absent(err); !errors.Is(err, ErrMissing) {
			return nil, err
		}
		return nil, nil
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.Version, &r.At); err != nil {
			return nil, fmt.Errorf("read the schema version: %w", err)
		}
		applied = append(applied, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the schema version: %w", err)
	}
	return applied, nil
}

// compare is the judgement of Check. Newer wins over older: a database that is
// both belongs to another branch, and migrating it would be wrong.
func compare(applied []row) error {
	var unknown, missing []string
	for _, s := range merge(applied) {
		switch {
		case s.Name == "":
			unknown = append(unknown, strconv.FormatInt(s.Version, 10))
		case !s.Applied:
			missing = append(missing, s.Name)
		}
	}
	switch {
	case unknown != nil:
		return fmt.Errorf("%w (versions %s)", ErrUnknown, strings.Join(unknown, ", "))
	case missing != nil:
		return fmt.Errorf("%w (pending: %s)", ErrMissing, strings.Join(missing, ", "))
	}
	return nil
}

// merge puts what this program knows and what the database has into one list.
func merge(applied []row) []Status {
	var list []Status
	for _, name := range names() {
		list = append(list, Status{Version: version(name), Name: name})
	}
	for _, r := range applied {
		i := slices.IndexFunc(list, func(s Status) bool { return s.Version == r.Version })
		if i < 0 {
			list = append(list, Status{Version: r.Version})
			i = len(list) - 1
		}
		list[i].Applied, list[i].AppliedAt = true, r.At.UTC()
	}
	slices.SortFunc(list, func(a, b Status) int { return int(a.Version - b.Version) })
	return list
}

func open(databaseURL string) (*sql.DB, error) {
	db, err := sql.Open("pgx", databaseURL)
	if err != nil {
		return nil, fmt.Errorf("open the database for migrations: %w", err)
	}
	return db, nil
}

func newProvider(db *sql.DB) (*goose.Provider, error) {
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, lockWaitSeconds))
	if err != nil {
		return nil, fmt.Errorf("prepare the migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	return provider, nil
}

// names lists the embedded files in order. They are part of the program, so
// what cannot be read in them is a mistake in the build that a test finds.
func names() []string {
	list, err := fs.Glob(files, "*.sql")
	if err != nil {
		panic("migrations: " + err.Error())
	}
	slices.SortFunc(list, func(a, b string) int { return int(version(a) - version(b)) })
	return list
}

func known() []int64 {
	var versions []int64
	for _, name := range names() {
		versions = append(versions, version(name))
	}
	return versions
}

// version is the number in front of a migration's name.
func version(name string) int64 {
	number, _, _ := strings.Cut(name, "_")
	v, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		panic("migrations: file name without a version: " + name)
	}
	return v
}
