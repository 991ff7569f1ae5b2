package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

type incarnationCmd struct {
	Show incarnationShowCmd `cmd:"" help:"Compare the newest incarnation with the server; ends with 1 when writes are refused."`
	Bump incarnationBumpCmd `cmd:"" help:"Start the next incarnation: accept that rows may be missing, and allow writes again."`
}

type incarnationShowCmd struct {
	databaseFlags
	roleFlag
}

// Run prints the newest incarnation and what the server looks like now.
func (c *incarnationShowCmd) Run(ctx context.Context, s *streams) error {
	return c.withConn(ctx, c.DatabaseRole, "incarnation", func(conn *pgx.Conn) error {
		status, err := ledger.ReadIncarnation(ctx, conn)
		if err != nil {
			return databaseError(err)
		}
		printIncarnation(s.out, status.Current)
		fmt.Fprintf(s.out, "\n                   noted            now\n")
		for _, row := range []struct {
			name       string
			noted, now int64
		}{
			{"system identifier", status.Current.SystemIdentifier, status.Server.SystemIdentifier},
			{"timeline", status.Current.Timeline, status.Server.Timeline},
			{"table of entries", status.Current.EntriesOID, status.Server.EntriesOID},
		} {
			fmt.Fprintf(s.out, "%-18s %-20d %d\n", row.name, row.noted, row.now)
		}
		if !status.Matches {
			return exit(exitDifferences, errors.New("the database is not the one that the incarnation was started on: "+
				"committed rows may be missing, and writes are refused until: ledgerd incarnation bump --reason …"))
		}
		_, err = fmt.Fprintln(s.out, "\nThey fit.")
		return err
	})
}

type incarnationBumpCmd struct {
	databaseFlags
	roleFlag
	Reason string `required:"" help:"Why, for those who read the table later: 1 to 255 characters."`
}

// Run starts the next incarnation and prints it.
func (c *incarnationBumpCmd) Run(ctx context.Context, s *streams) error {
	reason := strings.TrimSpace(c.Reason)
	if err := ledger.ValidateText(reason, ledger.ReasonRunesMax); err != nil || reason == "" {
		return exit(exitUsage, fmt.Errorf("--reason needs 1 to %d characters", ledger.ReasonRunesMax))
	}
	return c.withConn(ctx, c.DatabaseRole, "incarnation", func(conn *pgx.Conn) error {
		i, err := ledger.BumpIncarnation(ctx, conn, reason)
		if errors.Is(err, ledger.ErrIncarnationLimit) {
			return exit(exitRefused, err)
		}
		if err != nil {
			return databaseError(err)
		}
		printIncarnation(s.out, i)
		return nil
	})
}

func printIncarnation(w io.Writer, i ledger.Incarnation) {
	fmt.Fprintf(w, "incarnation %d since %s: %s\n", i.Number, i.StartedAt.UTC().Format(time.RFC3339), i.Reason)
}
