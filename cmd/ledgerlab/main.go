// Command ledgerlab measures ledgerd. It is a program of its own so that load
// and faults never link into the service. Run ledgerlab --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// The exit codes of every command.
const (
	exitOK     = 0
	exitFailed = 1 // a measurement failed, or the audit is not clean
	exitUsage  = 2
)

type cli struct {
	Bench benchCmd `cmd:"" help:"Load a service and print its rate beside the floor of its database."`
}

// streams is where a command writes: results to out, everything else to err.
type streams struct{ out, err io.Writer }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run carries out the command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	ended := -1 // the exit code that --help asked for
	parser, err := kong.New(&c, kong.Name("ledgerlab"), kong.Description("Measures ledgerd. Exit codes: 0 done; 1 a measurement failed or the audit is not clean; 2 wrong command line."),
		kong.Writers(stdout, stderr), kong.Exit(func(code int) { ended = code }))
	if err != nil {
		fmt.Fprintln(stderr, "ledgerlab:", err)
		return exitFailed
	}
	command, err := parser.Parse(args)
	if ended >= 0 {
		return ended
	}
	if err != nil {
		fmt.Fprintf(stderr, "ledgerlab: %v\nRun ledgerlab --help.\n", err)
		return exitUsage
	}
	command.BindTo(ctx, (*context.Context)(nil))
	switch err := command.Run(&streams{stdout, stderr}); {
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "ledgerlab: interrupted")
		return exitFailed
	case err != nil:
		fmt.Fprintln(stderr, "ledgerlab:", err)
		return exitFailed
	}
	return exitOK
}
