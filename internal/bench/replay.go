package bench

import (
	"context"
	"fmt"
	"io"
	"time"
)

// ReplayConfig says how much is replayed.
type ReplayConfig struct {
	Entries, Accounts int
	Seed              uint64
	Step              func(what string)
}

// ReplayResult is how fast a history is folded.
type ReplayResult struct {
	Entries  int `json:"entries"`
	Accounts int `json:"accounts"`
	// Replay and Verify are the two commands, from their start to their end.
	Replay CommandFigure `json:"replay"`
	Verify CommandFigure `json:"verify"`
}

// CommandFigure is one command over all entries.
type CommandFigure struct {
	Seconds float64 `json:"seconds"`
	// Rate is entries a second.
	Rate      float64 `json:"entries_per_second"`
	PeakBytes int64   `json:"peak_bytes"`
}

// Replay generates a history in the stack's database, which no service may use
// at the time, and runs `ledgerd replay` and `ledgerd verify` on it.
func Replay(ctx context.Context, s *Stack, cfg ReplayConfig) (ReplayResult, error) {
	r := ReplayResult{Entries: cfg.Entries, Accounts: cfg.Accounts}
	if err := s.StopService(); err != nil {
		return r, err
	}
	cfg.Step(fmt.Sprintf("generate %d entries of %d accounts", cfg.Entries, cfg.Accounts))
	if err := Generate(ctx, s.DatabaseURL, cfg.Entries, cfg.Accounts, cfg.Seed); err != nil {
		return r, err
	}
	for _, c := range []struct {
		name   string
		figure *CommandFigure
	}{{"replay", &r.Replay}, {"verify", &r.Verify}} {
		cfg.Step("ledgerd " + c.name)
		run, err := s.Command(ctx, c.name)
		if err != nil {
			return r, err
		}
		*c.figure = CommandFigure{run.Took.Seconds(), float64(cfg.Entries) / run.Took.Seconds(), run.PeakBytes}
	}
	return r, nil
}

// Print writes the result for people.
func (r *ReplayResult) Print(w io.Writer) {
	line := func(name string, f CommandFigure) {
		fmt.Fprintf(w, "%s: %d entries of %d accounts in %s, %.0f entries/s, at most %.0f MiB\n", name, r.Entries, r.Accounts,
			time.Duration(f.Seconds*float64(time.Second)).Round(time.Millisecond), f.Rate, float64(f.PeakBytes)/(1<<20))
	}
	line("replay", r.Replay)
	line("verify", r.Verify)
}
