//go:build unix

package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// minMajor is the oldest PostgreSQL that the schema is written and tested for.
const minMajor = 15

// Binaries is one installation of PostgreSQL.
type Binaries struct {
	Dir   string // the folder that holds initdb and postgres
	Major int    // major version, 15 or higher
}

// FindBinaries returns the installation to run a cluster with. A non-empty
// explicit folder is the only one considered. Otherwise the candidates are the
// system's installations, newest first, and after them what `make setup`
// fetched; cluster is the major version that an existing cluster needs (a
// *MajorError when it is not there), or 0 for the first candidate. The error is
// ErrNoBinaries when there is none.
func FindBinaries(ctx context.Context, explicit string, cluster int) (Binaries, error) {
	groups := [][]string{{explicit}}
	if explicit == "" {
		groups = [][]string{systemDirs(), matches(filepath.Join(FetchedDir(), "*", "bin"))}
	}
	var found []Binaries
	var rejected []error
	for _, dirs := range groups {
		var group []Binaries
		for _, dir := range dirs {
			major, err := majorOf(ctx, dir)
			switch {
			case err != nil:
				rejected = append(rejected, err)
			case major < minMajor:
				rejected = append(rejected, fmt.Errorf("%s is PostgreSQL %d", dir, major))
			default:
				group = append(group, Binaries{Dir: dir, Major: major})
			}
		}
		slices.SortStableFunc(group, func(a, b Binaries) int { return cmp.Compare(b.Major, a.Major) })
		found = append(found, group...)
	}
	if len(found) == 0 {
		return Binaries{}, errors.Join(append([]error{ErrNoBinaries}, rejected...)...)
	}
	if cluster == 0 {
		return found[0], nil
	}
	majors := make([]int, len(found))
	for i, b := range found {
		if b.Major == cluster {
			return b, nil
		}
		majors[i] = b.Major
	}
	slices.Sort(majors)
	slices.Reverse(majors)
	return Binaries{}, &MajorError{Cluster: cluster, Available: slices.Compact(majors)}
}

// systemDirs lists the folders where operating systems and package managers
// put initdb and postgres, each once, sorted.
func systemDirs() []string {
	var dirs []string
	for _, name := range []string{"postgres", "initdb"} {
		if path, err := exec.LookPath(name); err == nil {
			dirs = append(dirs, matches(filepath.Dir(path))...)
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",         // Debian, Ubuntu
		"/usr/pgsql-*/bin",                  // packages for Fedora and RHEL
		"/usr/libexec/postgresql*",          // Alpine
		"/usr/lib/postgresql*/bin",          // openSUSE
		"/usr/local/pgsql/bin",              // built from source
		"/opt/homebrew/opt/postgresql*/bin", // Homebrew
		"/usr/local/opt/postgresql*/bin",    // Homebrew on Intel
		"/opt/local/lib/postgresql*/bin",    // MacPorts
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		dirs = append(dirs, matches(pattern)...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// matches lists the folders that match a pattern and hold both programs, by
// their real paths, so that a folder of links is not another installation.
func matches(pattern string) []string {
	paths, err := filepath.Glob(filepath.Join(pattern, "initdb"))
	if err != nil {
		return nil // a cache folder with a bracket in its name is no pattern
	}
	var dirs []string
	for _, path := range paths {
		real, err := filepath.EvalSymlinks(path)
		if err == nil && isExecutable(real) && isExecutable(filepath.Join(filepath.Dir(real), "postgres")) {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	return dirs
}

// FetchedDir is where `make setup` puts a PostgreSQL that it fetched itself,
// one folder a version. For root it is a folder that other users can enter,
// because PostgreSQL will not run as root.
func FetchedDir() string {
	if os.Geteuid() == 0 {
		return "/var/cache/ledgerd/postgresql"
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "/var/cache/ledgerd/postgresql"
	}
	return filepath.Join(cache, "ledgerd", "postgresql")
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// majorOf asks the binaries themselves, which also shows that they run here.
func majorOf(ctx context.Context, dir string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	major := 0
	for _, name := range []string{"initdb", "postgres"} {
		out, err := exec.CommandContext(ctx, filepath.Join(dir, name), "--version").Output()
		if err != nil {
			return 0, fmt.Errorf("ask %s for its version: %w", filepath.Join(dir, name), err)
		}
		m, err := parseMajor(string(out))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
		}
		if major != 0 && m != major {
			return 0, fmt.Errorf("%s: initdb is version %d and postgres is version %d", dir, major, m)
		}
		major = m
	}
	return major, nil
}

// parseMajor reads "postgres (PostgreSQL) 15.14 (Debian …)", "… 18beta1".
func parseMajor(version string) (int, error) {
	m := regexp.MustCompile(`\(PostgreSQL\) (\d+)`).FindStringSubmatch(version)
	if m == nil {
		return 0, fmt.Errorf("version %q not understood", version)
	}
	return strconv.Atoi(m[1])
}
