package client_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

const accountBody = `{"account_id":"a","currency":"JPY","exponent":0,"status":"frozen","balance":-5,"held":0,"available":95,"min_balance":-100,
	"fencing":{"source":"external","required":true},"fence":12,"seq":4,"metadata":{"owner":"c-81"},"opened_at":"2026-11-30T09:30:00.000000Z"}`

func TestOpenAndUpdate(t *testing.T) {
	s := newService(t, answer(201, accountBody), answer(200, accountBody), answer(200, accountBody))
	c := s.client(t)
	zero := 0
	opening := client.Opening{Currency: "JPY", Exponent: &zero, MinBalance: -100, Fencing: &client.Fencing{Source: client.SourceExternal, Required: true}}
	a, opened, err := c.OpenAccount(t.Context(), "a", opening)
	if err != nil || !opened {
		t.Fatalf("opened %t, %v", opened, err)
	}
	if a.ID != "a" || a.Balance != -5 || a.Status != client.Frozen || !a.Fencing.Required || a.Fence != 12 || a.Metadata["owner"] != "c-81" {
		t.Errorf("account %+v", a)
	}
	if _, opened, err = c.OpenAccount(t.Context(), "a", opening); err != nil || opened {
		t.Errorf("opened %t, %v; want the same account again", opened, err)
	}
	frozen, reset := client.Frozen, int64(7)
	change := client.Change{Status: &frozen, Fencing: &client.FencingChange{Reset: &reset, Reason: "lost"}, Metadata: map[string]string{}}
	if _, err := c.UpdateAccount(t.Context(), "a", change, client.IfMatch(4)); err != nil {
		t.Fatal(err)
	}
	seen := s.requests()
	want := []string{
		`PUT /v1/accounts/a {"currency":"JPY","exponent":0,"min_balance":-100,"fencing":{"source":"external","required":true}}`,
		`PUT /v1/accounts/a {"currency":"JPY","exponent":0,"min_balance":-100,"fencing":{"source":"external","required":true}}`,
		`PATCH /v1/accounts/a {"status":"frozen","fencing":{"reset":7,"reason":"lost"},"metadata":{}}`,
	}
	for i, r := range seen {
		if got := r.method + " " + r.uri + " " + r.body; got != want[i] {
			t.Errorf("request %d\n got %s\nwant %s", i, got, want[i])
		}
	}
	if _, err := c.UpdateAccount(t.Context(), "a", change, client.Key("k")); err == nil {
		t.Error("a change took an idempotency key")
	}
}

// TestPagesFollowTheCursor ends a list early, by an error, and at its end.
func TestPagesFollowTheCursor(t *testing.T) {
	page := func(next string, seqs ...int) http.HandlerFunc {
		var items []string
		for _, q := range seqs {
			items = append(items, fmt.Sprintf(`{"account_id":"a","seq":%d}`, q))
		}
		return answer(200, fmt.Sprintf(`{"data":[%s],"next_cursor":%s}`, strings.Join(items, ","), next))
	}
	s := newService(t, page(`"c1"`, 1, 2), page(`"c2"`, 3, 4), page(`null`, 5))
	list := s.client(t).Entries(t.Context(), "a", client.EntryQuery{Ascending: true, PageSize: 2})
	var got []int64
	for e, err := range list {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Seq)
	}
	if !slices.Equal(got, []int64{1, 2, 3, 4, 5}) {
		t.Errorf("entries %v", got)
	}
	var uris []string
	for _, r := range s.requests() {
		uris = append(uris, strings.TrimPrefix(r.uri, "/v1/accounts/a/entries"))
	}
	if want := []string{"?limit=2&order=asc", "?cursor=c1&limit=2", "?cursor=c2&limit=2"}; !slices.Equal(uris, want) {
		t.Errorf("requests %v, want %v", uris, want)
	}

	s = newService(t, page(`"c1"`, 1, 2), answer(404, notFound))
	for e, err := range s.client(t).Accounts(t.Context(), client.AccountQuery{Currency: "EUR", Status: client.Active}) {
		if err != nil {
			var p *client.Problem
			if !errors.As(err, &p) {
				t.Errorf("error %v", err)
			}
			break
		}
		if e.Seq > 2 {
			t.Errorf("entry %d after the error", e.Seq)
		}
	}
	if uri := s.requests()[0].uri; uri != "/v1/accounts?currency=EUR&limit=200&status=active" {
		t.Errorf("request %s", uri)
	}
}

func TestReadsAskForWhatTheyAreTold(t *testing.T) {
	s := newService(t, answer(200, `{}`))
	c := s.client(t)
	ctx := t.Context()
	at := time.Date(2026, 11, 30, 12, 0, 0, 1999, time.FixedZone("", 4*3600))
	_, e1 := c.Balance(ctx, "a")
	_, e2 := c.Balance(ctx, "a", client.Projected(), client.MinSeq(7, 1500*time.Millisecond))
	_, e3 := c.Balance(ctx, "a", client.At(at))
	_, e4 := c.Entry(ctx, "a/b", 3)
	_, e5 := c.Transaction(ctx, "019ad3f5-7c1e-7d3a-9b1f-0b8a5c2d4e6f")
	_, e6 := c.Projection(ctx)
	_, e7 := c.StartRebuild(ctx)
	_, e8 := c.Rebuild(ctx, "r1")
	_, e9 := c.StartVerification(ctx)
	_, e10 := c.Verification(ctx, "v1")
	if err := errors.Join(e1, e2, e3, e4, e5, e6, e7, e8, e9, e10); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range s.requests() {
		got = append(got, r.method+" "+r.uri)
	}
	want := []string{
		"GET /v1/accounts/a/balance",
		"GET /v1/accounts/a/balance?consistency=projected&min_seq=7&wait_ms=1500",
		"GET /v1/accounts/a/balance?at=2026-11-30T08%3A00%3A00.000001Z",
		"GET /v1/accounts/a%2Fb/entries/3",
		"GET /v1/transactions/019ad3f5-7c1e-7d3a-9b1f-0b8a5c2d4e6f",
		"GET /v1/projections/balances",
		"POST /v1/projections/balances/rebuild",
		"GET /v1/projections/balances/rebuilds/r1",
		"POST /v1/projections/balances/verify",
		"GET /v1/projections/balances/verifications/v1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("requests\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
	for _, id := range []string{"", ".", ".."} {
		if _, err := c.Account(ctx, id); err == nil {
			t.Errorf("account id %q was sent", id)
		}
	}
}

// TestCodesAreThoseOfTheContract compares the constants with api.yaml.
func TestCodesAreThoseOfTheContract(t *testing.T) {
	inContract := contractCodes(t)
	if len(inContract) < 25 {
		t.Fatalf("only %d codes found in api.yaml", len(inContract))
	}
	source, err := os.ReadFile("problem.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range inContract {
		if !strings.Contains(string(source), fmt.Sprintf("Code = %q", code)) {
			t.Errorf("no constant for %s", code)
		}
	}
	if got := strings.Count(string(source), " Code = \""); got != len(inContract) {
		t.Errorf("%d constants, %d codes in api.yaml", got, len(inContract))
	}
}

func contractCodes(t *testing.T) []string {
	f, err := os.Open("../api.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var codes []string
	inSchema, inEnum := false, false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		switch item, isItem := strings.CutPrefix(strings.TrimSpace(line), "- "); {
		case line == "    ProblemCode:":
			inSchema = true
		case inSchema && line == "      enum:":
			inEnum = true
		case inEnum && isItem:
			codes = append(codes, item)
		case inEnum:
			return codes
		}
	}
	return codes
}

func TestAddressIsChecked(t *testing.T) {
	for _, bad := range []string{"", "127.0.0.1:8080", "ftp://x", "http://", "http://x?y=1", "http://x#y", "http://%zz"} {
		if _, err := client.New(bad); err == nil {
			t.Errorf("address %q was accepted", bad)
		}
	}
	s := newService(t, answer(200, accountBody))
	c, err := client.New(s.URL + "/prefix/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Account(t.Context(), "a"); err != nil || s.requests()[0].uri != "/prefix/v1/accounts/a" {
		t.Errorf("request %v, %v", s.requests(), err)
	}
}
