package main

import (
	"context"
	"log/slog"
)

type serveCmd struct {
	Config Config `embed:""`
}

// Help is what ledgerd serve --help says beside the flags.
func (*serveCmd) Help() string {
	return `The service is configured with environment variables; each has a flag of the same name. It starts also while the
database is away, answers 503 until that is back, and needs no restart then. It refuses to run on a schema that it does
not know (ledgerd migrate up applies it) and in a role that could change an entry.

The first SIGTERM or SIGINT ends it in order: no new requests, the ones under way get their answers, the projection hands
its shards on. A second one ends it at once, which loses nothing that was answered.`
}

// Run serves until ctx ends.
func (c *serveCmd) Run(ctx context.Context, s *streams) error {
	if err := c.Config.Validate(); err != nil {
		return exit(exitUsage, err)
	}
	log := slog.New(slog.NewJSONHandler(s.err, &slog.HandlerOptions{Level: c.Config.level(), ReplaceAttr: readableDuration}))
	log.Info("starting", "version", version(), "config", c.Config)
	l, err := listen(ctx, c.Config.Listen)
	if err != nil {
		return err
	}
	service, err := newService(c.Config, log)
	if err != nil {
		_ = l.Close()
		return err
	}
	return service.run(ctx, l)
}

// readableDuration writes durations as 1.5ms, not as a number of nanoseconds.
func readableDuration(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}
