package projection

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// PauseVariable names a file. While it does not exist, which is always so but in
// tests, the signal does nothing.
const PauseVariable = "LEDGERD_TEST_PROJECTION_PAUSE"

// PauseFromEnvironment returns the BeforeWrite of a test that stops a process
// between a fold and its write, nil when PauseVariable is not set. When the
// named file exists, the next write renames it to the name with ".reached" and
// waits until that is removed.
func PauseFromEnvironment() func() {
	path := os.Getenv(PauseVariable)
	if path == "" {
		return nil
	}
	return func() {
		reached := path + ".reached"
		if os.Rename(path, reached) != nil {
			return
		}
		for {
			if _, err := os.Stat(reached); errors.Is(err, fs.ErrNotExist) {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}
