package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench"
)

// replayConfig says how much is replayed.
type replayConfig struct {
	Entries, Accounts int
	Seed              uint64
	Step              func(what string)
}

// replayResult is how fast a history is folded.
type replayResult struct {
	Entries  int `json:"entries"`
	Accounts int `json:"accounts"`
	// Replay and Verify are the two commands, from their start to their end.
	Replay commandFigure `json:"replay"`
	Verify commandFigure `json:"verify"`
}

// commandFigure is one command over all entries.
type commandFigure struct {
	Seconds float64 `json:"seconds"`
	// Rate is entries a second.
	Rate      float64 `json:"entries_per_second"`
	PeakBytes int64   `json:"peak_bytes"`
}

// replay generates a history in the stack's database, which no service may use
// at the time, and runs `ledgerd replay` and `ledgerd verify` on it.
func replay(ctx context.Context, s *stack, cfg replayConfig) (replayResult, error) {
	r := replayResult{Entries: cfg.Entries, Accounts: cfg.Accounts}
	if err := s.stopService(); err != nil {
		return r, err
	}
	cfg.Step(fmt.Sprintf("generate %d entries of %d accounts", cfg.Entries, cfg.Accounts))
	if err := bench.Generate(ctx, s.databaseURL, cfg.Entries, cfg.Accounts, cfg.Seed); err != nil {
		return r, err
	}
	for _, c := range []struct {
		name   string
		figure *commandFigure
	}{{"replay", &r.Replay}, {"verify", &r.Verify}} {
		cfg.Step("ledgerd " + c.name)
		run, err := s.command(ctx, c.name)
		if err != nil {
			return r, err
		}
		// A command that did nothing must not have a rate.
		if n, err := bench.Behind(ctx, s.databaseURL); err != nil || n > 0 {
			return r, errors.Join(err, fmt.Errorf("%d balance rows are behind after ledgerd replay", n))
		}
		*c.figure = commandFigure{run.Took.Seconds(), float64(cfg.Entries) / run.Took.Seconds(), run.PeakBytes}
	}
	return r, nil
}

// print writes the result for people.
func (r *replayResult) print(w io.Writer) {
	line := func(name string, f commandFigure) {
		fmt.Fprintf(w, "%s: %d entries of %d accounts in %s, %.0f entries/s, at most %.0f MiB\n", name, r.Entries, r.Accounts,
			time.Duration(f.Seconds*float64(time.Second)).Round(time.Millisecond), f.Rate, float64(f.PeakBytes)/(1<<20))
	}
	line("replay", r.Replay)
	line("verify", r.Verify)
}
