package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/ledgerd/ledgerd/internal/pgserver"
	"github.com/ledgerd/ledgerd/migrations"
)

// stackConfig says what is measured.
type stackConfig struct {
	// URL is the address of a running service, "" to start one.
	URL string
	// DatabaseURL is the database of the service at URL, as its owner. Without
	// it there is no floor, no lag and no audit. It is not used without URL.
	DatabaseURL string
	// Program is the ledgerd to run, also for the audit.
	Program string
	// DataDir is where the private PostgreSQL lives, "" for a folder that is
	// removed at the end.
	DataDir string
	// Settings are further settings of the private PostgreSQL.
	Settings map[string]string
	// Env are further environment variables of the service, NAME=VALUE.
	Env []string
}

// stack is a service with its database.
type stack struct {
	// address is host:port of the service.
	address string
	// databaseURL is "" when the database is not known.
	databaseURL string

	program string
	server  *pgserver.Server
	service *child
	logFile string
	remove  string
}

// startStack starts what cfg asks for. The database keeps its promises: fsync is
// on. stop ends everything that was started.
func startStack(ctx context.Context, cfg stackConfig) (s *stack, err error) {
	s = &stack{program: cfg.Program, databaseURL: cfg.DatabaseURL}
	if cfg.URL != "" {
		u, err := url.Parse(cfg.URL)
		if err != nil || u.Scheme != "http" || u.Port() == "" {
			return nil, fmt.Errorf("the address must look like http://host:port, not %q", cfg.URL)
		}
		s.address = u.Host
		if err := get(ctx, "http://"+s.address+"/readyz"); err != nil {
			return nil, fmt.Errorf("the service at %s is not ready: %w", cfg.URL, err)
		}
		return s, nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
			s = nil
		}
	}()
	if err := s.startDatabase(ctx, cfg); err != nil {
		return s, err
	}
	return s, s.startService(ctx, cfg)
}

func (s *stack) startDatabase(ctx context.Context, cfg stackConfig) error {
	dir := cfg.DataDir
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "ledgerlab-"); err != nil {
			return fmt.Errorf("make a data folder: %w", err)
		}
		s.remove = dir
		// As root, PostgreSQL runs as another user, who has to get in.
		if err := os.Chmod(dir, 0o755); err != nil {
			return fmt.Errorf("open the data folder: %w", err)
		}
		dir = filepath.Join(dir, "data")
	}
	// PostgreSQL's own default is for machines of long ago; whoever runs a ledger
	// sets this first.
	settings := map[string]string{"shared_buffers": "1GB"}
	maps.Copy(settings, cfg.Settings)
	server, err := pgserver.Start(ctx, pgserver.Config{DataDir: dir, Settings: settings})
	if err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	s.server, s.databaseURL = server, server.URL()
	s.logFile = filepath.Join(filepath.Dir(server.LogFile()), "ledgerd.log")
	if _, err := migrations.Up(ctx, s.databaseURL); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

func (s *stack) startService(ctx context.Context, cfg stackConfig) error {
	if s.address == "" {
		port, err := freePort(ctx)
		if err != nil {
			return err
		}
		s.address = port
	}
	log, err := os.Create(s.logFile)
	if err != nil {
		return fmt.Errorf("make the service's log: %w", err)
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(s.program, "serve")
	cmd.Env = append(s.env(), "LEDGERD_LISTEN="+s.address)
	cmd.Env = append(cmd.Env, cfg.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	if s.service, err = startChild(cmd); err != nil {
		return err
	}
	return s.ready(ctx)
}

// env is the environment of ledgerd: the database, and nothing of the caller's
// own settings of ledgerd.
func (s *stack) env() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LEDGERD_") {
			env = append(env, v)
		}
	}
	return append(env, "LEDGERD_DATABASE_URL="+s.databaseURL)
}

// freePort returns an address that nobody listens on at this moment.
func freePort(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// readyLimit is how long a service may take to become ready.
const readyLimit = 30 * time.Second

func (s *stack) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	var ended <-chan struct{}
	if s.service != nil {
		ended = s.service.done
	}
	for {
		err := get(ctx, "http://"+s.address+"/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("the service ended before it was ready: %w\n%s", s.service.err, s.logTail())
		case <-ctx.Done():
			return fmt.Errorf("the service did not become ready in %s: %w\n%s", readyLimit, err, s.logTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func get(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

// logTail is the end of the service's log, for a message.
func (s *stack) logTail() string {
	b, err := os.ReadFile(s.logFile)
	if err != nil {
		return ""
	}
	return string(b[max(0, len(b)-2000):])
}

// audit runs `ledgerd verify` and returns what it printed. The error is nil only
// when everything is right.
func (s *stack) audit(ctx context.Context) (string, error) {
	run, err := s.command(ctx, "verify")
	if err != nil {
		return run.Output, fmt.Errorf("the audit is not clean: %w", err)
	}
	return run.Output, nil
}

// commandRun is one run of a ledgerd command.
type commandRun struct {
	Output string
	Took   time.Duration
	// PeakBytes is the most memory that the command had resident.
	PeakBytes int64
}

// command runs a ledgerd command on the stack's database.
func (s *stack) command(ctx context.Context, args ...string) (commandRun, error) {
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Env = s.env()
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	run := commandRun{Output: string(out), Took: time.Since(begin)}
	if cmd.ProcessState != nil {
		run.PeakBytes = peakBytes(cmd.ProcessState)
	}
	if err != nil {
		return run, fmt.Errorf("%s %s: %w\n%s", filepath.Base(s.program), strings.Join(args, " "), err, out)
	}
	return run, nil
}

// peakBytes reads what the kernel counted: kilobytes, and bytes on macOS.
func peakBytes(p *os.ProcessState) int64 {
	u, ok := p.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return u.Maxrss
	}
	return u.Maxrss * 1024
}

// stop ends what was started, in order. Calling it again does nothing.
func (s *stack) stop() error {
	err := s.stopService()
	if s.server != nil {
		err = errors.Join(err, s.server.Stop())
		s.server = nil
	}
	if s.remove != "" {
		err = errors.Join(err, os.RemoveAll(s.remove))
		s.remove = ""
	}
	return err
}

// stopService ends the service and leaves the database.
func (s *stack) stopService() error {
	if s.service == nil {
		return nil
	}
	err := s.service.stop()
	s.service = nil
	return err
}
