package main

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// reads is a ledger.Reader for the HTTP interface that repeats a read whose
// connection broke, as after a restart of the database.
type reads struct{ reader *ledger.Reader }

// readAttempts is how often a read is tried. A restart leaves a pool full of
// dead connections, and each of them can cost one.
const readAttempts = 3

// readPause is the wait before a repetition.
const readPause = 50 * time.Millisecond

// repeat calls read until it answers, or until trying again is no use.
func repeat[T any](ctx context.Context, read func() (T, error)) (T, error) {
	for attempt := 1; ; attempt++ {
		v, err := read()
		if err == nil || attempt == readAttempts || ctx.Err() != nil || !unavailable(err) {
			return v, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(readPause):
		}
	}
}

// unavailable reports whether err says that the database cannot answer now,
// which is no fault of the request or of this program.
func unavailable(err error) bool {
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.As(err, &pg):
		class := postgres.Classify(err)
		return class != postgres.ClassData && class != postgres.ClassUnique
	case errors.As(err, &connect), errors.As(err, &network), pgconn.SafeToRetry(err), pgconn.Timeout(err):
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// Head implements httpapi.AccountReader.
func (r reads) Head(ctx context.Context, id ledger.AccountID) (ledger.Head, error) {
	return repeat(ctx, func() (ledger.Head, error) { return r.reader.Head(ctx, id) })
}

// Accounts implements httpapi.AccountReader.
func (r reads) Accounts(ctx context.Context, q ledger.AccountQuery) ([]ledger.Head, error) {
	return repeat(ctx, func() ([]ledger.Head, error) { return r.reader.Accounts(ctx, q) })
}

// Balance implements httpapi.BalanceReader.
func (r reads) Balance(ctx context.Context, id ledger.AccountID) (ledger.Balance, error) {
	return repeat(ctx, func() (ledger.Balance, error) { return r.reader.Balance(ctx, id) })
}

// Projected implements httpapi.BalanceReader.
func (r reads) Projected(ctx context.Context, id ledger.AccountID) (a ledger.Account, p ledger.Projected, err error) {
	p, err = repeat(ctx, func() (ledger.Projected, error) {
		var p ledger.Projected
		var err error
		a, p, err = r.reader.Projected(ctx, id)
		return p, err
	})
	return a, p, err
}

// BalanceAt implements httpapi.BalanceReader.
func (r reads) BalanceAt(ctx context.Context, id ledger.AccountID, t time.Time) (ledger.Head, error) {
	return repeat(ctx, func() (ledger.Head, error) { return r.reader.BalanceAt(ctx, id, t) })
}

// Entries implements httpapi.EntryReader.
func (r reads) Entries(ctx context.Context, id ledger.AccountID, q ledger.EntryQuery) (a ledger.Account, list []ledger.Entry, err error) {
	list, err = repeat(ctx, func() ([]ledger.Entry, error) {
		var list []ledger.Entry
		var err error
		a, list, err = r.reader.Entries(ctx, id, q)
		return list, err
	})
	return a, list, err
}

// FilteredEntries implements httpapi.EntryReader.
func (r reads) FilteredEntries(ctx context.Context, id ledger.AccountID, q ledger.EntryQuery, f ledger.EntryFilter) (a ledger.Account, page ledger.EntryPage, err error) {
	page, err = repeat(ctx, func() (ledger.EntryPage, error) {
		var page ledger.EntryPage
		var err error
		a, page, err = r.reader.FilteredEntries(ctx, id, q, f)
		return page, err
	})
	return a, page, err
}

// TrialBalance implements httpapi.ReportReader.
func (r reads) TrialBalance(ctx context.Context, currency ledger.Currency) (ledger.TrialBalance, error) {
	return repeat(ctx, func() (ledger.TrialBalance, error) { return r.reader.TrialBalance(ctx, currency) })
}

// Entry implements httpapi.EntryReader.
func (r reads) Entry(ctx context.Context, id ledger.AccountID, seq ledger.Seq) (a ledger.Account, e ledger.Entry, err error) {
	e, err = repeat(ctx, func() (ledger.Entry, error) {
		var e ledger.Entry
		var err error
		a, e, err = r.reader.Entry(ctx, id, seq)
		return e, err
	})
	return a, e, err
}

// Transaction implements httpapi.EntryReader.
func (r reads) Transaction(ctx context.Context, id uuid.UUID) ([]ledger.TransactionEntry, error) {
	return repeat(ctx, func() ([]ledger.TransactionEntry, error) { return r.reader.Transaction(ctx, id) })
}
