package ledgerd_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/ledgerd/ledgerd"

// arrows lists, for every package, which packages of this module it may import.
// Adapters never import each other, and only cmd sees everything.
func arrows() map[string][]string {
	return map[string][]string{
		".":                           {},
		"client":                      {},
		"migrations":                  {},
		"internal/postgres":           {},
		"internal/pgserver":           {},
		"internal/console":            {},
		"internal/ledger":             {"internal/postgres"},
		"internal/lease":              {"internal/ledger", "internal/postgres"},
		"internal/projection":         {"internal/ledger", "internal/lease", "internal/postgres"},
		"internal/httpapi":            {".", "internal/ledger"},
		"internal/httpapi/apidoc":     {},
		"internal/httpapi/apidoc/gen": {"internal/httpapi/apidoc"},
		"internal/importer":           {"client", "internal/ledger"},
		"internal/bench":              {"client", "internal/console", "internal/ledger", "internal/postgres", "internal/projection"},
		"cmd/ledgerd": {
			"client", "migrations", "internal/console", "internal/httpapi", "internal/importer", "internal/lease", "internal/ledger",
			"internal/pgserver", "internal/postgres", "internal/projection",
		},
		"scripts/pgbin":       {"internal/pgserver"},
		"cmd/ledgerlab":       {"client", "migrations", "internal/bench", "internal/console", "internal/pgserver"},
		"docs/timeline":       {"client"},
		"examples/settlement": {"client"},
		"examples/validator":  {},
		// These serve tests alone: no package of the program may import them.
		"internal/mutation":        {},
		"internal/pgtest":          {"internal/pgserver", "internal/postgres", "migrations"},
		"internal/httpapi/apitest": {"."},
	}
}

// fenced lists the foreign packages that only some packages may import.
func fenced() map[string][]string {
	return map[string][]string{
		"github.com/jackc/pgx/v5": {
			"migrations", "internal/postgres", "internal/pgserver", "internal/pgtest", "internal/ledger", "internal/lease",
			"internal/projection", "internal/bench", "cmd/ledgerd", "examples/validator",
		},
		"database/sql": {"migrations"},
		"net/http": {
			"client", "internal/httpapi", "internal/httpapi/apitest", "internal/importer", "internal/bench", "cmd/ledgerd", "cmd/ledgerlab",
		},
		"github.com/go-chi/chi/v5":        {"internal/httpapi"},
		"github.com/pressly/goose/v3":     {"migrations"},
		"github.com/alecthomas/kong":      {"cmd/ledgerd", "cmd/ledgerlab"},
		"testing":                         {"internal/mutation", "internal/pgtest", "internal/httpapi/apitest"},
		"github.com/pb33f/libopenapi":     {"internal/httpapi/apitest", "internal/httpapi/apidoc"},
		"github.com/schollz/progressbar/": {"internal/console"},
	}
}

func TestImportsFollowTheTable(t *testing.T) {
	table, seen := arrows(), make(map[string]bool)
	for file, imports := range sources(t) {
		dir := filepath.ToSlash(filepath.Dir(file))
		seen[dir] = true
		allowed, known := table[dir]
		if !known {
			t.Errorf("%s: the package %s has no row in the table of arrows", file, dir)
			continue
		}
		for _, path := range imports {
			if rest, ours := strings.CutPrefix(path, module); ours {
				if to := strings.TrimPrefix(rest, "/"); !slices.Contains(allowed, orRoot(to)) {
					t.Errorf("%s imports %s, which the table of arrows does not allow", file, orRoot(to))
				}
				continue
			}
			for prefix, inside := range fenced() {
				if strings.HasPrefix(path, prefix) && !slices.Contains(inside, dir) {
					t.Errorf("%s imports %s, which only %s may", file, path, strings.Join(inside, ", "))
				}
			}
		}
	}
	for dir := range table {
		if !seen[dir] && dir != "internal/bench" && dir != "cmd/ledgerlab" {
			t.Errorf("the table of arrows has a row for %s, which has no source", dir)
		}
	}
}

func orRoot(path string) string {
	if path == "" {
		return "."
	}
	return path
}

// sources returns the imports of every Go file that is no test, by its path.
func sources(t *testing.T) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		found[path] = nil
		for _, spec := range f.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			found[path] = append(found[path], name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatal("no source was found")
	}
	return found
}
