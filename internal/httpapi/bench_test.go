package httpapi

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// discard is a response writer that keeps nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// instantWriter answers every operation from one receipt.
func instantWriter() Writer {
	now := time.Now().UTC()
	receipt := &ledger.Receipt{
		Account: ledger.Account{ID: "wallet-81", Currency: "EUR", Exponent: 2},
		Entry: ledger.Entry{
			AccountID: "wallet-81", Seq: 4711, Kind: ledger.KindCredit, Amount: 12500, TransactionID: uuid.New(), Key: "order-1047",
			After:    ledger.State{Balance: 99500, Status: ledger.Active, Fencing: ledger.Fencing{Source: ledger.SourceLease}},
			PostedAt: now, EffectiveAt: now, Details: `{"description":"top-up"}`,
		},
	}
	return writerFunc(func(context.Context, *ledger.Operation) (*ledger.Receipt, error) { return receipt, nil })
}

// BenchmarkCredit is the whole of HTTP but the network: routing, decoding, the
// receipt, metrics.
func BenchmarkCredit(b *testing.B) {
	cfg := configOf(newJobs())
	reader := (*ledger.Reader)(nil)
	cfg.Writer, cfg.Accounts, cfg.Balances, cfg.Entries = instantWriter(), reader, reader, reader
	cfg.Logger = slog.New(slog.DiscardHandler)
	h, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	const body = `{"amount":12500,"currency":"EUR","description":"top-up"}`
	w := &discard{header: http.Header{}}
	source := strings.NewReader(body)
	r := httptest.NewRequest("POST", "/v1/accounts/wallet-81/credits", io.NopCloser(source))
	r.ContentLength = int64(len(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(headerKey, "order-1047")
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		source.Reset(body)
		h.ServeHTTP(w, r)
	}
}

func BenchmarkDecodeMovement(b *testing.B) {
	const body = `{"amount":12500,"currency":"EUR","description":"top-up","effective_at":"2026-11-30T08:00:00Z","metadata":{"order":"1047"}}`
	d := new(decoder)
	b.ReportAllocs()
	for b.Loop() {
		d.body.Reset()
		d.body.WriteString(body)
		d.errs, d.syntax = d.errs[:0], nil
		var op ledger.Operation
		if err := d.movement(&op); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeReceipt(b *testing.B) {
	receipt, err := instantWriter().Apply(context.Background(), nil)
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		if buf, err = appendEntry(buf[:0], &receipt.Entry, "EUR"); err != nil {
			b.Fatal(err)
		}
	}
}

// A credit costs about 16 allocations, most of them the context with its
// deadline and the operation itself. Many more would mean that a buffer or a
// header is no longer used again.
func TestCreditAllocatesLittle(t *testing.T) {
	cfg := configOf(newJobs())
	reader := (*ledger.Reader)(nil)
	cfg.Writer, cfg.Accounts, cfg.Balances, cfg.Entries = instantWriter(), reader, reader, reader
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	const body = `{"amount":12500,"currency":"EUR","description":"top-up"}`
	w := &discard{header: http.Header{}}
	source := strings.NewReader(body)
	r := httptest.NewRequest("POST", "/v1/accounts/wallet-81/credits", io.NopCloser(source))
	r.ContentLength = int64(len(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(headerKey, "order-1047")
	allocations := testing.AllocsPerRun(200, func() {
		clear(w.header)
		source.Reset(body)
		h.ServeHTTP(w, r)
	})
	if allocations > 24 {
		t.Errorf("%v allocations for one credit", allocations)
	}
}
