package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// healthcheckCmd asks a service on this machine. It exists for containers,
// whose image has no other program to ask with.
type healthcheckCmd struct {
	Listen  string        `env:"LEDGERD_LISTEN" default:"127.0.0.1:8080" help:"The address that the service listens on."`
	Timeout time.Duration `default:"3s" help:"How long to wait for the answer."`
}

// Run ends with 0 when /readyz answers 200, and with 3 otherwise.
func (c *healthcheckCmd) Run(ctx context.Context, s *streams) error {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return exit(exitUsage, fmt.Errorf("--listen must be HOST:PORT, not %q", c.Listen))
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1" // the service listens on all addresses
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	url := "http://" + net.JoinHostPort(host, port) + "/readyz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return exit(exitUsage, fmt.Errorf("ask %s: %w", url, err))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return exit(exitUnreachable, fmt.Errorf("ask for readiness: %w", err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return exit(exitUnreachable, fmt.Errorf("read the answer of %s: %w", url, err))
	}
	if _, err := fmt.Fprintf(s.out, "%s\n", body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return exit(exitUnreachable, errSilent)
	}
	return nil
}
