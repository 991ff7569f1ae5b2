//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// listing is every path below dir with its mode and its text.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	fatal(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := ""
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(b)
		}
		found = append(found, fmt.Sprint(path, info.Mode(), text))
		return nil
	}))
	return found
}

func TestFolderWithOtherThingsIsRefusedAndKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files []string // a folder when it ends with a slash
		says  string
	}{
		"other files":                  {[]string{"passwd", "hosts"}, "other files, such as hosts"},
		"a hidden file":                {[]string{".profile"}, ".profile"},
		"our names without our lock":   {[]string{"pgdata.init/money"}, "pgdata.init"},
		"other files beside our lock":  {[]string{"ledgerd.lock", "passwd"}, "passwd"},
		"an empty pgdata":              {[]string{"pgdata/"}, "not a PostgreSQL cluster"},
		"a foreign pgdata":             {[]string{"pgdata/money"}, "not a PostgreSQL cluster"},
		"a foreign pgdata and a lock":  {[]string{"ledgerd.lock", "pgdata/money"}, "not a PostgreSQL cluster"},
		"a file pgdata":                {[]string{"ledgerd.lock", "pgdata"}, "cannot be read"},
		"a version that is no version": {[]string{"ledgerd.lock", "pgdata/PG_VERSION"}, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := openDir(t)
			for _, file := range c.files {
				path := dir + "/" + file
				fatal(t, os.MkdirAll(filepath.Dir(path), 0o755))
				if !strings.HasSuffix(file, "/") {
					fatal(t, os.WriteFile(path, []byte("kept"), 0o644))
				}
			}
			refusedAndKept(t, dir, c.says)
		})
	}
	t.Run("a cluster of somebody else", func(t *testing.T) {
		t.Parallel()
		dir := clusterDir(t)
		fatal(t, os.Remove(filepath.Join(dir, "ledgerd.lock")))
		refusedAndKept(t, dir, "ledgerd did not make")
	})
}

func refusedAndKept(t *testing.T, dir, says string) {
	t.Helper()
	before := listing(t, dir)
	for name, begin := range map[string]func(context.Context, Config) (*Server, error){"Start": Start, "Attach": Attach} {
		cfg := config(dir)
		cfg.Starting = func() { t.Errorf("%s said that it starts", name) }
		if _, err := begin(t.Context(), cfg); !errors.Is(err, ErrNotUsable) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", name, err, says)
		}
	}
	if !slices.Equal(before, listing(t, dir)) {
		t.Error("the folder was changed")
	}
}

func TestFileAsDataFolderIsRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(openDir(t), "file")
	fatal(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		for name, begin := range map[string]func(context.Context, Config) (*Server, error){"Start": Start, "Attach": Attach} {
			if _, err := begin(t.Context(), config(dir)); !errors.Is(err, ErrNotUsable) || !strings.Contains(err.Error(), "not a directory") {
				t.Errorf("%s on %s: %v", name, dir, err)
			}
		}
	}
}

func TestEmptyFolderIsTaken(t *testing.T) {
	t.Parallel()
	for _, files := range [][]string{nil, {"lost+found"}, {"ledgerd.lock"}, {"ledgerd.lock", "postgres.log", "socket", "pgdata.init"}} {
		dir := openDir(t)
		for _, name := range files {
			fatal(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		}
		if err := folder(dir).check(); err != nil {
			t.Errorf("a folder with %q: %v", files, err)
		}
	}
}
