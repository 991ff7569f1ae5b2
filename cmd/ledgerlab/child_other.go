//go:build unix && !linux

package main

import "syscall"

// dieWithParent does nothing where the kernel has no such signal: after a kill
// -9 of the bench its service has to be ended by hand.
func dieWithParent(*syscall.SysProcAttr) {}
