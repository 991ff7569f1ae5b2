package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// books are what the clients of a test know about the money: every receipt that
// they got. At the end the ledger must have it all, and nothing else.
type books struct {
	url string // of the database, as its owner

	mu sync.Mutex
	// receipts holds the signed amount of each transaction.
	receipts map[string]booked
	// unsure are the accounts where an outcome is not known, and "*" when the
	// database lost rows on purpose.
	unsure map[string]bool
	// damaged says that the test left differences behind on purpose.
	damaged bool
}

type booked struct {
	account string
	amount  int64
}

// newBooks returns the books of a database of the test's own on the shared
// server. When the test ends, after its nodes, the books are closed.
func newBooks(t testing.TB) *books {
	t.Helper()
	return booksOf(t, pgtest.Database(t).URL)
}

// booksOf returns the books of the database at the URL.
func booksOf(t testing.TB, url string) *books {
	b := &books{url: url, receipts: make(map[string]booked), unsure: make(map[string]bool)}
	t.Cleanup(func() { b.close(t) })
	return b
}

// lossy says that the database lost committed rows on purpose, or that entries
// came in past the nodes: only the audit closes these books.
func (b *books) lossy() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unsure["*"] = true
}

// close audits the ledger with the program's own command, and compares it with
// the receipts.
func (b *books) close(t testing.TB) {
	t.Helper()
	if t.Failed() {
		return
	}
	if !b.damaged {
		var out, errs bytes.Buffer
		if code := run(context.Background(), []string{"verify", "--database-url=" + b.url}, &out, &errs); code != exitOK {
			t.Errorf("the audit at the end of the test ended with %d:\n%s%s", code, &out, &errs)
		}
	}
	b.compare(t)
}

const selectMoney = `
select account_id,
       (array_agg(balance_after order by seq desc))[1],
       count(*) filter (where kind in ('credit', 'debit')),
       count(*) - max(seq)
  from entries
 group by account_id`

// compare proves that the entries are exactly what the receipts say.
func (b *books) compare(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unsure["*"] {
		return
	}
	want, count := make(map[string]int64), make(map[string]int64)
	for _, r := range b.receipts {
		want[r.account] += r.amount
		count[r.account]++
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		t.Fatalf("close the books: %v", err)
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, selectMoney)
	if err != nil {
		t.Fatalf("close the books: %v", err)
	}
	var account string
	var balance, movements, gaps int64
	_, err = pgx.ForEachRow(rows, []any{&account, &balance, &movements, &gaps}, func() error {
		if gaps != 0 {
			t.Errorf("%s has gaps in its chain", account)
		}
		if b.unsure[account] {
			return nil
		}
		if balance != want[account] || movements != count[account] {
			t.Errorf("%s has the balance %d after %d movements; the receipts say %d after %d",
				account, balance, movements, want[account], count[account])
		}
		return nil
	})
	if err != nil {
		t.Fatalf("close the books: %v", err)
	}
}

// recorder is the transport that books every receipt.
type recorder struct {
	books *books
	base  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	account, kind, movement := movementPath(request)
	response, err := r.base.RoundTrip(request)
	if !movement {
		return response, err
	}
	if err != nil {
		r.books.doubt(account)
		return nil, err
	}
	text, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(text))
	if err != nil {
		r.books.doubt(account)
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	r.books.enter(account, kind, response.StatusCode, text)
	return response, nil
}

func movementPath(r *http.Request) (account, kind string, ok bool) {
	rest, ok := strings.CutPrefix(r.URL.Path, "/v1/accounts/")
	if !ok || r.Method != http.MethodPost {
		return "", "", false
	}
	account, kind, _ = strings.Cut(rest, "/")
	return account, kind, kind == "credits" || kind == "debits"
}

// doubt notes that an outcome on the account is not known to the client. A
// later receipt of the same operation is booked like any other.
func (b *books) doubt(account string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unsure[account] = true
}

// enter books the answer to a movement.
func (b *books) enter(account, kind string, status int, body []byte) {
	var r receipt
	if json.Unmarshal(body, &r) != nil {
		b.doubt(account)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case status == http.StatusCreated && kind == "credits":
		b.receipts[r.TransactionID] = booked{account, r.Amount}
	case status == http.StatusCreated:
		b.receipts[r.TransactionID] = booked{account, -r.Amount}
	case r.Applied == "unknown":
		b.unsure[account] = true
	}
}

// settled takes back the doubts about an account: the test has repeated every
// operation on it until it had the receipt.
func (b *books) settled(account string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.unsure, account)
}
