package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kong"
)

// The exit codes of every command. They are a contract with scripts.
const (
	exitOK          = 0   // done, and everything is right
	exitDifferences = 1   // done, but something differs or was not applied
	exitUsage       = 2   // the command line or the configuration is wrong
	exitUnreachable = 3   // the database or the service does not answer
	exitRefused     = 4   // refused: unknown or missing schema, unsafe or missing role, data folder or port in use, no data folder
	exitFault       = 5   // anything else
	exitInterrupted = 130 // ended by a signal before the work was done
)

const description = `A fenced ledger for wallet balances: append-only entries in PostgreSQL, balances as projections, and no writer that lost its turn can change anything.

Exit codes: 0 done; 1 differences were found or rows were not applied; 2 wrong command line or configuration; 3 the database or the service cannot be reached; 4 refused (schema missing or unknown, role unsafe or missing, data folder or port in use, a folder that is no data folder); 5 any other fault; 130 interrupted.`

// cli is the command line; each command is in the file of its name.
type cli struct {
	Dev         devCmd         `cmd:"" help:"Run a whole ledger on this machine, with a private PostgreSQL."`
	Serve       serveCmd       `cmd:"" help:"Run the service on a PostgreSQL database."`
	Migrate     migrateCmd     `cmd:"" help:"Apply the schema to a database, or show its version."`
	Replay      replayCmd      `cmd:"" help:"Rebuild all balance rows from the entries."`
	Verify      verifyCmd      `cmd:"" help:"Check every chain and every balance row; changes nothing."`
	Import      importCmd      `cmd:"" help:"Post the operations of a CSV file through the API."`
	Incarnation incarnationCmd `cmd:"" help:"Show or bump the incarnation of the database."`
	Healthcheck healthcheckCmd `cmd:"" help:"Ask a running service whether it is ready."`
	Version     versionCmd     `cmd:"" help:"Print the version of the program and of its schema."`
}

// streams is where a command writes: results to out, everything else to err.
type streams struct{ out, err io.Writer }

// exitError is an error that chooses the exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }
func (e *exitError) ExitCode() int { return e.code }

// exit returns err, when it is not nil, with the exit code that it leads to.
func exit(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code, err}
}

// errSilent ends a command whose output already says everything.
var errSilent = errors.New("see the output")

// run is the program: it carries out the command line, writes to stdout and
// stderr, and returns the exit code. It ends early, in good order, when ctx does.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	ended := -1 // the exit code that --help asked for
	parser, err := kong.New(&c,
		kong.Name("ledgerd"), kong.Description(description), kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { ended = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
	)
	if err != nil {
		fmt.Fprintf(stderr, "ledgerd: %v\n", err)
		return exitFault
	}
	command, err := parser.Parse(args)
	if ended >= 0 {
		return ended
	}
	if err != nil {
		fmt.Fprintf(stderr, "ledgerd: %v\nRun ledgerd --help, or ledgerd COMMAND --help.\n", err)
		return exitUsage
	}
	command.BindTo(ctx, (*context.Context)(nil))
	return exitCode(command.Run(&streams{stdout, stderr}), stderr)
}

// exitCode prints the error of a command and returns what it means.
func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return exitOK
	}
	if !errors.Is(err, errSilent) {
		fmt.Fprintf(stderr, "ledgerd: %v\n", err)
	}
	if chosen := kong.ExitCoder(nil); errors.As(err, &chosen) {
		return chosen.ExitCode()
	}
	if errors.Is(err, context.Canceled) {
		return exitInterrupted
	}
	return exitFault
}
