package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/ledgerd/ledgerd/migrations"
)

type versionCmd struct{}

// Run prints one line.
func (*versionCmd) Run(s *streams) error {
	_, err := fmt.Fprintf(s.out, "ledgerd %s, schema %d, %s %s/%s\n",
		version(), migrations.Latest(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// version is what the build says about itself: a release, or a commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	version := info.Main.Version
	if version == "" {
		version = "(devel)"
	}
	set := make(map[string]string)
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	if revision := set["vcs.revision"]; version == "(devel)" && revision != "" {
		version += " " + revision[:min(12, len(revision))]
		if set["vcs.modified"] == "true" {
			version += " modified"
		}
	}
	return version
}
