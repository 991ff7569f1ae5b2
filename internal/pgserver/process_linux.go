package pgserver

import "syscall"

// needsWatcher says that the death signal alone ends an orphaned server.
const needsWatcher = false

func setDeathSignal(attr *syscall.SysProcAttr, death syscall.Signal) { attr.Pdeathsig = death }
