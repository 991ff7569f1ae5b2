//go:build unix && !linux

package main

import (
	"os"
	"syscall"
)

// stopSelf stops this process.
func stopSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }
