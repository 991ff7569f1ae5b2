package main

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// stopLimit is how long a service may take for an orderly end.
const stopLimit = 30 * time.Second

// child is a process that ends with this one.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; read after done
}

// startChild starts cmd in a process group of its own, so that Ctrl-C in a
// terminal reaches the bench alone, which then ends its child in order. The
// starting goroutine keeps its thread, because the kernel ties the death signal
// to the thread.
func startChild(cmd *exec.Cmd) (*child, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	c := &child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return c, nil
}

// stop asks the child to end, and ends it when it does not.
func (c *child) stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-c.done:
	case <-time.After(stopLimit):
		_ = c.cmd.Process.Kill()
		<-c.done
		return fmt.Errorf("%s did not end within %s", c.cmd.Path, stopLimit)
	}
	if c.err != nil {
		return fmt.Errorf("%s: %w", c.cmd.Path, c.err)
	}
	return nil
}
