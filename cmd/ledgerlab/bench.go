package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench"
)

// benchCmd loads a service.
type benchCmd struct {
	Workload    []string      `help:"What is posted: uniform (credits, all accounts evenly), hot (credits, one account), transfers (between two at random), transfers-house (from one at random to one and the same), batches (1,000 credits a request). Several are measured in turn." default:"uniform,hot"`
	Connections []int         `help:"How many connections post at the same time; several numbers are measured one after the other." default:"256"`
	Duration    time.Duration `help:"How long each load takes." default:"10s"`
	WarmUp      time.Duration `help:"How long the service is warmed up before each load." default:"3s"`
	Floor       time.Duration `help:"How long each floor is measured, before and after each load; 0 for none." default:"3s"`
	Accounts    int           `help:"How many accounts the uniform workload has." default:"10000"`
	Alternate   int           `help:"Run the whole series so many times, the workloads in turn, and print the medians." default:"1"`
	Seed        uint64        `help:"Seed of accounts and keys; 0 takes one from the clock."`
	JSON        bool          `name:"json" help:"Print everything as one JSON document."`

	URL         string            `name:"url" help:"A running service, http://host:port. Without it a PostgreSQL and a ledgerd are started."`
	DatabaseURL string            `name:"database-url" env:"LEDGERD_DATABASE_URL" help:"With --url, the database of that service, as its owner: for floor, lag and audit."`
	Ledgerd     string            `help:"The ledgerd program; without it the one beside ledgerlab." type:"path"`
	Data        string            `help:"Folder of the PostgreSQL that is started; without it a folder that is removed at the end." type:"path"`
	PgSetting   map[string]string `help:"A setting of the PostgreSQL that is started, name=value."`
	Env         []string          `help:"An environment variable of the ledgerd that is started, NAME=VALUE." sep:"none"`

	ReplayEntries  int `help:"Generate so many entries and time ledgerd replay and ledgerd verify on them, instead of a load."`
	ReplayAccounts int `help:"How many accounts those entries belong to." default:"1000"`
}

// Help is the long help text.
func (*benchCmd) Help() string {
	return `Each connection posts one request after the other, each operation with a key of its own; what was answered with 201 inside
the time is counted. The floor is a bare loop of the service's own INSERT into a copy of its table with the same indexes, with as many
entries at once as the service had on average. The lag is the age of the oldest entry that a balance row lacks, of accounts at random.

At the end ledgerd verify checks everything; when it is not clean the exit code is 1.`
}

// Validate is called by the command line parser.
func (c *benchCmd) Validate() error {
	for _, w := range c.Workload {
		if !slices.Contains(bench.Workloads(), bench.Workload(w)) {
			return fmt.Errorf("--workload must be of %v, not %q", bench.Workloads(), w)
		}
		if strings.HasPrefix(w, "transfers") && c.Accounts < 2 {
			return errors.New("--accounts must be 2 or more for transfers")
		}
	}
	for _, n := range c.Connections {
		if n < 1 || n > 10000 {
			return fmt.Errorf("--connections must be 1 to 10000, not %d", n)
		}
	}
	if c.Accounts < 1 || c.Accounts > 10_000_000 {
		return errors.New("--accounts must be 1 to 10000000")
	}
	if c.Alternate < 1 || c.Duration <= 0 || c.WarmUp <= 0 || c.Floor < 0 {
		return errors.New("--alternate, --duration and --warm-up must be above 0")
	}
	if c.ReplayEntries < 0 || c.ReplayAccounts < 1 || c.ReplayEntries > 0 && c.ReplayEntries < c.ReplayAccounts {
		return errors.New("--replay-entries must be at least --replay-accounts")
	}
	if c.ReplayEntries > 0 && c.URL != "" {
		return errors.New("--replay-entries needs a database of its own, so it does not go with --url")
	}
	return nil
}

// document is the output with --json.
type document struct {
	CPUs         int                 `json:"cpus"`
	Seed         uint64              `json:"seed"`
	Measurements []bench.Measurement `json:"measurements,omitempty"`
	Medians      []bench.Summary     `json:"medians,omitempty"`
	Replay       *replayResult       `json:"replay,omitempty"`
	// Audit is "clean", or "not run" when the database is not known.
	Audit string `json:"audit"`
	// AuditOutput is what the audit counted, in its own words.
	AuditOutput string `json:"audit_output,omitempty"`
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// Run measures, audits and prints.
func (c *benchCmd) Run(ctx context.Context, s *streams) (err error) {
	if c.Seed == 0 {
		c.Seed = uint64(time.Now().UnixNano())
	}
	program, err := c.program()
	if err != nil {
		return err
	}
	fmt.Fprintf(s.err, "seed %d, %d CPUs\n", c.Seed, runtime.NumCPU())
	st, err := startStack(ctx, stackConfig{
		URL: c.URL, DatabaseURL: c.DatabaseURL, Program: program, DataDir: c.Data, Settings: c.PgSetting, Env: c.Env,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.stop()) }()
	doc := document{CPUs: runtime.NumCPU(), Seed: c.Seed, Audit: "not run"}
	if c.ReplayEntries > 0 {
		err = c.replay(ctx, s, st, &doc)
	} else {
		err = c.load(ctx, s, st, &doc)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		e := json.NewEncoder(s.out)
		e.SetIndent("", "  ")
		return e.Encode(doc)
	}
	fmt.Fprintf(s.out, "audit: %s", doc.Audit)
	if doc.AuditOutput != "" {
		fmt.Fprintf(s.out, " (%s)", doc.AuditOutput)
	}
	fmt.Fprintln(s.out)
	return nil
}

// program is the ledgerd to run.
func (c *benchCmd) program() (string, error) {
	if c.Ledgerd != "" {
		return c.Ledgerd, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	program := filepath.Join(filepath.Dir(self), "ledgerd")
	if _, err := os.Stat(program); err != nil && (c.URL == "" || c.DatabaseURL != "") {
		return "", fmt.Errorf("there is no ledgerd beside this program (make build); give --ledgerd: %w", err)
	}
	return program, nil
}

func (c *benchCmd) load(ctx context.Context, s *streams, st *stack, doc *document) error {
	cfg := bench.Config{
		Connections: c.Connections, Repeat: c.Alternate, Accounts: c.Accounts,
		WarmUp: c.WarmUp, Duration: c.Duration, Floor: c.Floor, Seed: c.Seed,
		Step: func(what string) { fmt.Fprintln(s.err, what) },
		Done: func(m bench.Measurement) {
			if !c.JSON {
				m.Print(s.out)
			}
		},
	}
	for _, w := range c.Workload {
		cfg.Workloads = append(cfg.Workloads, bench.Workload(w))
	}
	all, err := bench.Run(ctx, bench.Target{Address: st.address, DatabaseURL: st.databaseURL}, cfg)
	if err != nil {
		return err
	}
	doc.Measurements, doc.Medians = all, bench.Summarize(all)
	if !c.JSON && len(all) > 1 {
		bench.PrintSummaries(s.out, doc.Medians)
	}
	if st.databaseURL == "" {
		return nil
	}
	fmt.Fprintln(s.err, "audit")
	output, err := st.audit(ctx)
	if err != nil {
		return err
	}
	doc.Audit = "clean"
	doc.AuditOutput = lastLine(output)
	return nil
}

func (c *benchCmd) replay(ctx context.Context, s *streams, st *stack, doc *document) error {
	result, err := replay(ctx, st, replayConfig{
		Entries: c.ReplayEntries, Accounts: c.ReplayAccounts, Seed: c.Seed,
		Step: func(what string) { fmt.Fprintln(s.err, what) },
	})
	if err != nil {
		return err
	}
	doc.Replay, doc.Audit = &result, "clean"
	if !c.JSON {
		result.print(s.out)
	}
	return nil
}
