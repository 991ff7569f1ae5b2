package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/console"
	"github.com/ledgerd/ledgerd/internal/projection"
)

type verifyCmd struct {
	databaseFlags
	roleFlag
	Parallel    int `default:"2" help:"How many shards are read at once, 1 to 64."`
	FindingsMax int `default:"1000" help:"How many findings are printed; all are counted."`
}

// Help is the long help text.
func (*verifyCmd) Help() string {
	return `Reads every entry and every balance row and computes again what they must be: no gaps and no forks, the running state,
the hashes, fences that never fall, balance rows that are the fold of their entries. It changes nothing and may run while
the service works. A row that is behind its account's last entry is no difference.

Who rewrites the whole tail of a chain together with its hashes is found only against a hash that was noted elsewhere.`
}

// Run prints each finding and ends with 1 when there is any.
func (c *verifyCmd) Run(ctx context.Context, s *streams) (err error) {
	if c.Parallel < 1 || c.Parallel > 64 || c.FindingsMax < 1 {
		return exit(exitUsage, errors.New("--parallel must be 1 to 64, and --findings-max above 0"))
	}
	url, release, err := c.attach(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	pool, err := openChecked(ctx, url, c.DatabaseRole, "verify", c.Parallel+1)
	if err != nil {
		return err
	}
	defer pool.Close()
	bar := console.NewProgress(s.err, "verify", "accounts", 0)
	report, err := projection.Verify(ctx, pool, projection.VerifyConfig{
		Parallel: c.Parallel, FindingsMax: c.FindingsMax,
		Progress: func(r projection.VerifyReport) { bar.Set(r.AccountsDone, r.AccountsTotal) },
	})
	bar.Stop()
	for _, f := range report.Findings {
		fmt.Fprintln(s.out, f)
	}
	if err != nil {
		return databaseError(err)
	}
	if more := report.Count - int64(len(report.Findings)); more > 0 {
		fmt.Fprintf(s.out, "and %d more\n", more)
	}
	fmt.Fprintf(s.out, "%d accounts, %d entries, %d differences", report.AccountsDone, report.EntriesDone, report.Count)
	if report.Lagging > 0 {
		fmt.Fprintf(s.out, " (%d balance rows are right and behind their last entry)", report.Lagging)
	}
	fmt.Fprintln(s.out)
	if !report.Clean() {
		return exit(exitDifferences, errSilent)
	}
	return nil
}
