//go:build unix

package pgserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Stop ends the server: SIGINT (a fast shutdown, which cuts sessions and
// writes a checkpoint), after 30 s SIGQUIT, after 10 s more SIGKILL; committed
// data survives all three. It returns when the server is gone and the folder
// is free. A server that belongs to another process is left alone. Later calls
// return what the first returned.
func (s *Server) Stop() error {
	if s.process == nil {
		return nil
	}
	s.stopOnce.Do(func() {
		s.stopErr = s.end()
		if err := unlock(s.lock); s.stopErr == nil && err != nil {
			s.stopErr = fmt.Errorf("unlock the data folder: %w", err)
		}
	})
	return s.stopErr
}

// end is Stop without the lock.
func (s *Server) end() error {
	err := s.signalUntilGone()
	if s.watcher != nil {
		err = errors.Join(err, s.watcher.dismiss())
	}
	if s.temporary {
		err = errors.Join(err, os.RemoveAll(string(s.folder)))
	}
	if filepath.Dir(s.socketDir) != string(s.folder) {
		_ = os.Remove(s.socketDir) // empty by now; a left-over is used again
	}
	if err != nil {
		return fmt.Errorf("stop PostgreSQL on %s: %w", s.folder, err)
	}
	return nil
}

func (s *Server) signalUntilGone() error {
	steps := []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{s.death, stopTimeout}, {syscall.SIGQUIT, 10 * time.Second}, {syscall.SIGKILL, 10 * time.Second}}
	for _, step := range steps {
		// Signalled through os.Process, which knows whether it was waited for:
		// a process id that the system gave to somebody else is never hit.
		err := s.process.cmd.Process.Signal(step.signal)
		if err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("signal process %d: %w", s.pid, err)
		}
		timer := time.NewTimer(step.wait)
		select {
		case <-s.process.done:
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
	return fmt.Errorf("process %d does not end", s.pid)
}

// openLog opens the server's log for appending and returns its present size. A
// log that grew large is put aside first, one generation.
func openLog(path string) (log *os.File, size int64, err error) {
	if info, err := os.Stat(path); err == nil && info.Size() > logSizeMax {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, 0, fmt.Errorf("put the server's log aside: %w", err)
		}
	}
	log, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the server's log: %w", err)
	}
	info, err := log.Stat()
	if err != nil {
		_ = log.Close()
		return nil, 0, fmt.Errorf("open the server's log: %w", err)
	}
	return log, info.Size(), nil
}

// tail returns the end of what the server logged since start, for a message.
func tail(path string, start int64) string {
	log, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer log.Close()
	if info, err := log.Stat(); err == nil {
		start = max(start, info.Size()-logTailSize)
	}
	text, err := io.ReadAll(io.NewSectionReader(log, start, logTailSize))
	if err != nil || len(text) == 0 {
		return ""
	}
	return "\nThe end of " + path + ":\n" + string(text)
}
