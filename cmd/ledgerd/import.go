package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/console"
	"github.com/ledgerd/ledgerd/internal/importer"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// reportsMax is how many rows are reported one by one.
const reportsMax = 20

// importCmd posts the operations of a CSV file through the API.
type importCmd struct {
	File        string        `arg:"" help:"The CSV file."`
	URL         string        `help:"Address of the service." default:"http://127.0.0.1:8080" env:"LEDGERD_URL"`
	Concurrency int           `help:"How many accounts are worked on at the same time, 1 to 1024." default:"256"`
	Open        bool          `help:"Open each account before its first row. Accounts that are open with the same attributes stay as they are."`
	Currency    string        `help:"Currency of opened accounts; without it the currency column of the first row."`
	Exponent    *int          `help:"Decimal places of opened accounts, 0 to 18; without it those of ISO 4217, otherwise 2."`
	MinBalance  int64         `help:"How far opened accounts may go below zero, in minor units, as a number at or below 0: --min-balance=-60000."`
	RetryFor    time.Duration `help:"How long one request is repeated before the import gives up." default:"1m"`
}

// Help is the long help text.
func (*importCmd) Help() string {
	return `The file begins with the names of its columns, in any order: idempotency_key, account_id, effective_at, direction
(credit or debit) and amount (minor units) are required; balance_after, description, currency and counterparty are
optional. effective_at is a date (midnight UTC), an RFC 3339 time with an offset, or empty.

Nothing is sent before the whole file is known to be well formed. The rows of an account are posted in the order of the
file, different accounts at the same time. With balance_after every answer is compared with it.

The import can be interrupted and run again: rows that are posted already are replayed, and compared again.

Exit codes: 0 every row is in the ledger and every balance agrees; 1 a row was declined or refused, or a balance differs;
2 wrong command line or a bad file, nothing was sent; 3 the service could not be reached or gave no definitive answer;
5 any other fault; 130 interrupted.`
}

// Validate is called by the command line parser.
func (c *importCmd) Validate() error {
	if c.Concurrency < 1 || c.Concurrency > 1024 {
		return fmt.Errorf("--concurrency must be 1 to 1024")
	}
	if !c.Open && (c.Currency != "" || c.Exponent != nil || c.MinBalance != 0) {
		return fmt.Errorf("--currency, --exponent and --min-balance describe the accounts that --open opens; give --open too")
	}
	if c.Currency != "" {
		if _, err := ledger.ParseCurrency(c.Currency); err != nil {
			return fmt.Errorf("--currency: %w", err)
		}
	}
	if c.Exponent != nil && (*c.Exponent < 0 || *c.Exponent > ledger.MaxExponent) {
		return fmt.Errorf("--exponent must be 0 to %d", ledger.MaxExponent)
	}
	if least := int64(ledger.LowestMinBalance); c.MinBalance > 0 || c.MinBalance < least {
		return fmt.Errorf("--min-balance must be %d to 0", least)
	}
	return nil
}

// open opens the file. A folder is told here: it can be opened, and not read.
func (c *importCmd) open() (*os.File, error) {
	file, err := os.Open(c.File)
	var info os.FileInfo
	if err == nil {
		info, err = file.Stat()
	}
	if err == nil && info.IsDir() {
		err = syscall.EISDIR
	}
	if err == nil {
		return file, nil
	}
	if file != nil {
		_ = file.Close()
	}
	if path := (*os.PathError)(nil); errors.As(err, &path) {
		err = path.Err // the message names the file
	}
	return nil, exit(exitUsage, fmt.Errorf("%s cannot be read: %w", c.File, err))
}

// Run imports the file. When ctx ends it stops cleanly: what is under way gets
// its answer, and the message says how to go on.
func (c *importCmd) Run(ctx context.Context, s *streams) error {
	file, err := c.open()
	if err != nil {
		return err
	}
	defer file.Close()
	service, err := client.New(c.URL, client.WithRetryFor(c.RetryFor))
	if err != nil {
		return exit(exitUsage, err)
	}
	defer service.Close()
	show := &importScreen{w: s.err}
	begin := func(ctx context.Context, rows int64) error {
		if err := c.reach(ctx); err != nil {
			return err
		}
		show.begin(rows)
		return nil
	}
	sum, err := importer.Run(ctx, file, importer.Config{
		Client:      service,
		Concurrency: c.Concurrency,
		Open:        c.opening(),
		Begin:       begin,
		Row:         show.row,
		Report:      show.report,
	})
	show.end()
	if sum.Done() > 0 {
		printSummary(s.out, &sum)
	}
	return c.verdict(&sum, err)
}

func (c *importCmd) opening() *client.Opening {
	if !c.Open {
		return nil
	}
	return &client.Opening{Currency: c.Currency, Exponent: c.Exponent, MinBalance: c.MinBalance}
}

// reach asks something cheap first: a wrong address is said at once, not after
// a minute of retries.
func (c *importCmd) reach(ctx context.Context) error {
	probe, err := client.New(c.URL, client.WithRetryFor(2*time.Second))
	if err != nil {
		return err
	}
	defer probe.Close()
	_, err = probe.Account(ctx, "ledgerd-import-probe")
	var p *client.Problem
	switch {
	case err == nil || errors.As(err, &p) && p.Code == client.CodeAccountNotFound:
		return nil
	case p != nil && p.Code == "":
		return fmt.Errorf("what answers at %s is not ledgerd: %w", c.URL, err)
	case p != nil:
		return fmt.Errorf("the service at %s is not ready: %w", c.URL, err)
	default:
		return fmt.Errorf("no service answers at %s: %w", c.URL, err)
	}
}

// verdict turns the end of the import into a message and an exit code.
func (c *importCmd) verdict(sum *importer.Summary, err error) error {
	const again = "run the same command again to go on: what is posted is replayed, not added twice"
	var faults *importer.FileError
	var service *importer.ServiceError
	switch {
	case err == nil && sum.Clean():
		return nil
	case err == nil:
		return exit(exitDifferences, errors.New("not every row is in the ledger as the file says"))
	case errors.As(err, &faults):
		return exit(exitUsage, fmt.Errorf("%s cannot be imported, nothing was sent:\n%w", c.File, err))
	case errors.Is(err, importer.ErrInterrupted):
		return exit(exitInterrupted, fmt.Errorf("interrupted after %d of %d rows; %s", sum.Done(), sum.Rows, again))
	case errors.As(err, &service) && sum.Done() == 0:
		return exit(exitUnreachable, err)
	case errors.As(err, &service):
		return exit(exitUnreachable, fmt.Errorf("stopped after %d of %d rows: %w\n%s", sum.Done(), sum.Rows, err, again))
	default:
		return exit(exitFault, err)
	}
}

func printSummary(w io.Writer, s *importer.Summary) {
	fmt.Fprintf(w, "rows            %d\n", s.Rows)
	fmt.Fprintf(w, "posted          %d\n", s.Posted)
	fmt.Fprintf(w, "replayed        %d\n", s.Replayed)
	fmt.Fprintf(w, "declined        %d\n", s.Declined)
	if s.Refused+s.Skipped > 0 {
		fmt.Fprintf(w, "refused         %d, and %d rows behind them skipped\n", s.Refused, s.Skipped)
	}
	fmt.Fprintf(w, "accounts opened %d\n", s.Opened)
	fmt.Fprintf(w, "balances        %d compared, %d differ\n", s.Checked, s.Mismatches)
	if seconds := s.Elapsed.Seconds(); seconds > 0 {
		fmt.Fprintf(w, "time            %.1f s, %.0f rows/s\n", seconds, float64(s.Done())/seconds)
	}
}

// importScreen is the bar and the lines beside it.
type importScreen struct {
	w   io.Writer
	bar *console.Progress

	mu    sync.Mutex
	lines int
}

func (s *importScreen) begin(rows int64) {
	s.bar = console.NewProgress(s.w, "import", "rows", rows)
}

func (s *importScreen) row() { s.bar.Add(1) }

func (s *importScreen) report(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines++; s.lines <= reportsMax {
		s.bar.Println(line)
	}
}

func (s *importScreen) end() {
	if s.bar == nil {
		return
	}
	s.bar.Stop()
	if more := s.lines - reportsMax; more > 0 {
		s.bar.Println(fmt.Sprintf("and %d rows more that did not end as the file says", more))
	}
}
