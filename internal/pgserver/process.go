//go:build unix

package pgserver

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is a child that ends when this process ends.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed after the child was waited for
	err  error         // how the child ended; read after done
}

// startProcess starts cmd as the account, in a process group of its own so
// that Ctrl-C in a terminal reaches this program alone, which then stops its
// children in order. If this process dies, the child gets the death signal.
//
// The kernel sends that signal when the *thread* that started the child ends,
// so the child is started from a goroutine that keeps its thread until the
// child is gone.
func startProcess(cmd *exec.Cmd, as account, death syscall.Signal) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: as.credential}
	setDeathSignal(cmd.SysProcAttr, death)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// watchScript waits until its standard input ends. The word "done" before that
// end means that the owner took care of everything. Otherwise the owner was
// killed: the server is ended, and a temporary folder ($3) is removed.
const watchScript = `
read -r word
[ "$word" = done ] && exit 0
kill -s "$2" "$1" 2>/dev/null
n=0
while kill -0 "$1" 2>/dev/null && [ "$n" -lt 600 ]; do sleep 0.1; n=$((n+1)); done
[ -z "$3" ] || rm -rf -- "$3"
`

// watcher is a small shell process that outlives this one. It does what the
// death signal cannot: it works on systems without that signal, and it removes
// the folder of a temporary server.
type watcher struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// watch starts a watcher for the server pid. An empty removeDir removes nothing.
func watch(pid int, death syscall.Signal, removeDir string) (*watcher, error) {
	name := "INT"
	if death == syscall.SIGQUIT {
		name = "QUIT"
	}
	cmd := exec.Command("/bin/sh", "-c", watchScript, "sh", fmt.Sprint(pid), name, removeDir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	read, write, err := os.Pipe() // both ends close on exec: no other child keeps ours open
	if err != nil {
		return nil, fmt.Errorf("start the watcher: %w", err)
	}
	cmd.Stdin = read
	err = cmd.Start()
	_ = read.Close() // the child has its own copy
	if err != nil {
		_ = write.Close()
		return nil, fmt.Errorf("start the watcher: %w", err)
	}
	return &watcher{cmd: cmd, pipe: write}, nil
}

// dismiss ends the watcher without letting it act, and waits for it.
func (w *watcher) dismiss() error {
	_, err := io.WriteString(w.pipe, "done\n")
	_ = w.pipe.Close()
	if waitErr := w.cmd.Wait(); err == nil {
		err = waitErr
	}
	return err
}
