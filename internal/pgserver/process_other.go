//go:build unix && !linux

package pgserver

import "syscall"

// needsWatcher says that this system has no death signal, so that a watcher
// has to end an orphaned server.
const needsWatcher = true

func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}
