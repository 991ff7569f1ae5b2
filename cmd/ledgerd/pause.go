package main

import "os"

// The two places where a test can stop a real process, each by the name of an
// environment variable that holds the path of a file. They exist for tests
// alone and do nothing when the variable is not set, as in every normal run.
const (
	pauseAppend     = "LEDGERD_TEST_PAUSE_APPEND"     // between a decision and its append
	pauseProjection = "LEDGERD_TEST_PAUSE_PROJECTION" // between a fold and its write
)

// pauseAt returns a hook that stops this process with SIGSTOP once the file
// exists, after it has removed the file: so it stops once, until SIGCONT. It
// returns nil when the variable is not set.
func pauseAt(variable string) func() {
	file := os.Getenv(variable)
	if file == "" {
		return nil
	}
	return func() {
		if os.Remove(file) == nil {
			stopSelf()
		}
	}
}
