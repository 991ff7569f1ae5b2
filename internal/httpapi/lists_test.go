package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// page is a list as a client sees it.
type page struct {
	Data []struct {
		AccountID string    `json:"account_id"`
		Seq       int       `json:"seq"`
		PostedAt  time.Time `json:"posted_at"`
		Balance   int       `json:"balance"`
	} `json:"data"`
	NextCursor *string `json:"next_cursor"`
}

func (s *service) page(path string) page {
	s.t.Helper()
	var p page
	if err := json.Unmarshal([]byte(s.do("GET", path, "").expect(200).text), &p); err != nil {
		s.t.Fatal(err)
	}
	return p
}

// Case 40: pages of 7 over 100 entries, while a writer adds.
func TestEntriesComeInPages(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	for i := 2; i <= 100; i++ {
		s.credit("A", `{"amount":1}`, fmt.Sprint(i)).expect(201)
	}
	for _, order := range []string{"desc", "asc"} {
		var seqs []int
		path := "/v1/accounts/A/entries?limit=7&order=" + order
		for n := 0; ; n++ {
			p := s.page(path)
			if len(p.Data) > 7 || len(p.Data) < 7 && p.NextCursor != nil {
				t.Fatalf("a page of %d", len(p.Data))
			}
			for _, e := range p.Data {
				seqs = append(seqs, e.Seq)
			}
			if p.NextCursor == nil || len(seqs) >= 100 {
				break
			}
			path = "/v1/accounts/A/entries?limit=7&cursor=" + *p.NextCursor // the order is in the cursor
			s.credit("A", `{"amount":1}`, fmt.Sprintf("%s-%d", order, n)).expect(201)
		}
		want := make([]int, 100)
		for i := range want {
			want[i] = i + 1
		}
		if order == "desc" {
			first := seqs[0]
			for i := range want {
				want[i] = first - i
			}
		}
		if !slices.Equal(seqs[:100], want) {
			t.Errorf("%s: %v", order, seqs)
		}
	}
}

func TestCursorKeepsItsFilters(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i := range 9 {
		id := fmt.Sprintf("w%d", i)
		s.do("PUT", "/v1/accounts/"+id, fmt.Sprintf(`{"currency":%q}`, []string{"EUR", "CZK", "JPY"}[i%3])).expect(201)
		if i >= 3 {
			s.do("PATCH", "/v1/accounts/"+id, `{"status":"frozen"}`).expect(200)
		}
	}
	all := s.page("/v1/accounts")
	if len(all.Data) != 9 || all.NextCursor != nil || all.Data[0].AccountID != "w0" || all.Data[8].AccountID != "w8" {
		t.Fatalf("all: %+v", all)
	}
	first := s.page("/v1/accounts?limit=1&currency=CZK&status=frozen")
	if len(first.Data) != 1 || first.Data[0].AccountID != "w4" || first.NextCursor == nil {
		t.Fatalf("first page: %+v", first)
	}
	cursor := "&cursor=" + *first.NextCursor
	second := s.page("/v1/accounts?limit=1" + cursor)
	if len(second.Data) != 1 || second.Data[0].AccountID != "w7" || second.NextCursor != nil {
		t.Fatalf("second page: %+v", second)
	}
	s.page("/v1/accounts?limit=200&currency=CZK&status=frozen" + cursor) // repeated filters are fine
	for _, other := range []string{"currency=EUR", "status=active", "currency=CZK&status=closed"} {
		s.do("GET", "/v1/accounts?"+other+cursor, "").refused(400, codeInvalidRequest)
	}
	s.do("GET", "/v1/accounts/w0/entries?limit=1"+cursor, "").refused(400, codeInvalidRequest)
	entries := s.page("/v1/accounts/w4/entries?limit=1")
	if entries.NextCursor == nil {
		t.Fatalf("entries: %+v", entries)
	}
	cursor = "&cursor=" + *entries.NextCursor
	s.do("GET", "/v1/accounts/w4/entries?order=desc"+cursor, "").expect(200)
	s.do("GET", "/v1/accounts/w4/entries?order=asc"+cursor, "").refused(400, codeInvalidRequest)
	s.do("GET", "/v1/accounts/w5/entries?limit=1"+cursor, "").refused(400, codeInvalidRequest)
	s.do("GET", "/v1/accounts?limit=1"+cursor, "").refused(400, codeInvalidRequest)
}

// project does to the balance row what the projection would do.
func (s *service) project(id string, balance, seq int) {
	s.t.Helper()
	tag, err := s.db.OwnerPool(s.t).Exec(context.Background(),
		"update balances set balance = $2, applied_seq = $3, updated_at = now() where account_id = $1", id, balance, seq)
	if err != nil || tag.RowsAffected() != 1 {
		s.t.Fatalf("%v, %d rows", err, tag.RowsAffected())
	}
}

func TestBalanceReads(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.do("PUT", "/v1/accounts/A", `{"currency":"EUR","min_balance":-10}`).expect(201)
	s.credit("A", `{"amount":100}`, "k1").expect(201)
	s.project("A", 100, 2)
	s.debit("A", `{"amount":30}`, "k2").expect(201)
	s.do("GET", "/v1/accounts/A/balance", "").expect(200).headerIs("ETag", `"3"`).
		has("balance", 70, "held", 0, "available", 80, "min_balance", -10, "status", "active", "seq", 3, "projected_seq", 2,
			"consistency", "strong", "currency", "EUR", "exponent", 2)
	s.do("GET", "/v1/accounts/A/balance?consistency=projected", "").expect(200).headerIs("ETag", "").
		has("balance", 100, "seq", 2, "projected_seq", 2, "consistency", "projected", "available", nil)
	// The row is behind: the wait is bounded, and its end is not a stale answer.
	for _, consistency := range []string{"strong", "projected"} {
		s.do("GET", "/v1/accounts/A/balance?min_seq=3&wait_ms=20&consistency="+consistency, "").
			refused(503, codeProjectionBehind).headerIs("Retry-After", "1")
		s.do("GET", "/v1/accounts/A/balance?min_seq=2&wait_ms=0&consistency="+consistency, "").expect(200)
	}
	waiting := make(chan reply)
	go func() {
		waiting <- s.do("GET", "/v1/accounts/A/balance?consistency=projected&min_seq=3&wait_ms=9000", "")
	}()
	s.project("A", 70, 3)
	r := <-waiting
	r.expect(200).has("balance", 70, "projected_seq", 3)
	for _, query := range []string{
		"consistency=eventual", "min_seq=0", "min_seq=x", "wait_ms=10001", "wait_ms=-1", "at=yesterday", "at=2026-11-30T12:00:00",
		"at=2026-11-30T12:00:00Z&min_seq=1", "at=2026-11-30T12:00:00Z&consistency=strong", "when=now",
	} {
		s.do("GET", "/v1/accounts/A/balance?"+query, "").refused(400, codeInvalidRequest)
	}
	for _, query := range []string{"", "?consistency=projected", "?min_seq=1", "?at=2026-11-30T12:00:00Z"} {
		s.do("GET", "/v1/accounts/B/balance"+query, "").refused(404, ledger.CodeAccountNotFound)
	}
}

// Case 42: the past by posted time.
func TestBalanceAtAPointInTime(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.open("A")
	for i := range 20 {
		s.credit("A", `{"amount":1,"effective_at":"1999-01-01T00:00:00Z"}`, fmt.Sprint(i)).expect(201)
	}
	entries := s.page("/v1/accounts/A/entries?order=asc&limit=200")
	last := map[time.Time]int{}
	for _, e := range entries.Data {
		last[e.PostedAt] = e.Balance // entries of one batch share their time: the last one counts
	}
	for at, balance := range last {
		s.do("GET", "/v1/accounts/A/balance?at="+at.Format(time.RFC3339Nano), "").expect(200).
			has("balance", balance, "consistency", "point_in_time", "as_of", at.Format(timeLayout), "projected_seq", nil).headerIs("ETag", "")
	}
	before := entries.Data[0].PostedAt.Add(-time.Microsecond)
	s.do("GET", "/v1/accounts/A/balance?at="+before.Format(time.RFC3339Nano), "").refused(404, ledger.CodeEntryNotFound)
	s.do("GET", "/v1/accounts/A/balance?at=9999-12-31T23:59:59Z", "").expect(200).has("balance", 20)
	s.do("GET", "/v1/accounts/A/balance?at=2999-12-31T23:59:59%2B04:00", "").expect(200).has("as_of", "2999-12-31T19:59:59.000000Z")
}
