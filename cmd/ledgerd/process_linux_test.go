package main

import "syscall"

// childAttributes makes the kernel end a child when this process is gone,
// however that happens.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
