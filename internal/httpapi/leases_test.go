package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// desk stands for the leases, which are a part of their own with tests of
// their own: here only what HTTP makes of them is of interest. It answers with
// lease or err, and keeps what it was asked.
type desk struct {
	mu    sync.Mutex
	asked []string
	lease Lease
	list  []Lease
	err   error
	noted []FencingRejection
}

func newDesk() *desk {
	at := time.Unix(1700000000, 0)
	return &desk{lease: Lease{
		AccountID: "a", Mode: "exclusive", State: "held", Holder: "w", Token: 7, TTL: 1000,
		AcquiredAt: at, ExpiresAt: at.Add(time.Second), FreeIn: 900,
	}}
}

func (d *desk) answer(format string, args ...any) (Lease, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, fmt.Sprintf(format, args...))
	return d.lease, d.err
}

func (d *desk) Acquire(_ context.Context, name string, a LeaseAcquisition) (Lease, error) {
	return d.answer("acquire %s %s %s %s", name, a.Holder, a.TTL, a.LockDelay)
}

func (d *desk) Renew(_ context.Context, name string, t LeaseTerm, ttl time.Duration) (Lease, error) {
	return d.answer("renew %s %s %d %s", name, t.Holder, t.Token, ttl)
}

func (d *desk) Release(_ context.Context, name string, t LeaseTerm) (Lease, error) {
	return d.answer("release %s %s %d", name, t.Holder, t.Token)
}

func (d *desk) Lease(_ context.Context, name string) (Lease, error) { return d.answer("get %s", name) }

func (d *desk) List(_ context.Context, after string, limit int) ([]Lease, error) {
	_, err := d.answer("list %s %d", after, limit)
	return d.list, err
}

func (d *desk) ForceRelease(_ context.Context, name, by, reason string) (Lease, error) {
	return d.answer("force %s %s %s", name, by, reason)
}

func (d *desk) CheckSequencer(_ context.Context, s string) (SequencerCheck, error) {
	_, err := d.answer("check %s", s)
	return SequencerCheck{Status: "unknown"}, err
}

func (d *desk) Note(r FencingRejection) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noted = append(d.noted, r)
}

func (d *desk) Rejections(_ context.Context, before int64, account ledger.AccountID, limit int) ([]FencingRejection, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, fmt.Sprintf("rejections %d %s %d", before, account, limit))
	return d.noted, d.err
}

func (d *desk) last() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.asked) == 0 {
		return ""
	}
	return d.asked[len(d.asked)-1]
}

func newDeskClient(t *testing.T) (*desk, *http.Client) {
	t.Helper()
	d := newDesk()
	client, _ := clientWith(t, writerFunc(nil), func(cfg *Config) {
		cfg.AccountLeases, cfg.NamedLeases, cfg.LeaseAdmin, cfg.Fencing = d, d, d, d
	})
	return d, client
}

func TestLeaseRequestsAreDecoded(t *testing.T) {
	t.Parallel()
	d, client := newDeskClient(t)
	for _, c := range []struct {
		method, path, body, asked string
		status                    int
	}{
		{"POST", "/v1/accounts/a/lease", `{"holder":"w","ttl_ms":100}`, "acquire a w 100ms 0s", 201},
		{"POST", "/v1/leases/n", `{"holder":"w","ttl_ms":600000,"lock_delay_ms":60000}`, "acquire n w 10m0s 1m0s", 201},
		{"PUT", "/v1/accounts/a/lease", `{"holder":"w","token":7,"ttl_ms":1000}`, "renew a w 7 1s", 200},
		{"DELETE", "/v1/leases/n", `{"holder":"w","token":7}`, "release n w 7", 200},
		{"GET", "/v1/leases/n", "", "get n", 200},
		{"POST", "/v1/leases/n/force-release", `{"by":"ana","reason":"gone"}`, "force n ana gone", 200},
		{"POST", "/v1/sequencers/check", `{"sequencer":"AQ"}`, "check AQ", 200},
	} {
		if c.path[:12] != "/v1/accounts" {
			d.lease.AccountID, d.lease.Name = "", "n"
		} else {
			d.lease.AccountID, d.lease.Name = "a", ""
		}
		if c.method == "POST" && c.path == "/v1/accounts/a/lease" {
			d.lease.Sequencer = "AQ"
			d.lease.Fenced, d.lease.Currency = &ledger.Entry{Seq: 9, After: ledger.State{Balance: 5}}, "EUR"
		}
		r := do(t, client, c.method, c.path, c.body).expect(c.status)
		if got := d.last(); got != c.asked {
			t.Errorf("%s %s asked %q, want %q", c.method, c.path, got, c.asked)
		}
		if d.lease.Fenced != nil {
			r.has("seq", 9, "balance", 5, "available", 5, "token", 7).headerIs("Etag", `"9"`)
		}
		d.lease.Fenced = nil
	}
}

func TestWrongLeaseRequestsAreRefused(t *testing.T) {
	t.Parallel()
	d, client := newDeskClient(t)
	for _, c := range []struct{ method, path, body, pointer string }{
		{"POST", "/v1/accounts/a/lease", `{"ttl_ms":1000}`, "/holder"},
		{"POST", "/v1/accounts/a/lease", `{"holder":"","ttl_ms":1000}`, "/holder"},
		{"POST", "/v1/accounts/a/lease", `{"holder":"w"}`, "/ttl_ms"},
		{"POST", "/v1/accounts/a/lease", `{"holder":"w","ttl_ms":99}`, "/ttl_ms"},
		{"POST", "/v1/accounts/a/lease", `{"holder":"w","ttl_ms":600001}`, "/ttl_ms"},
		{"POST", "/v1/accounts/a/lease", `{"holder":"w","ttl_ms":1e3}`, "/ttl_ms"},
		{"POST", "/v1/accounts/a/lease", `{"holder":"w","ttl_ms":1000,"lock_delay_ms":60001}`, "/lock_delay_ms"},
		{"POST", "/v1/accounts/a/lease", `{"holder":"w","ttl_ms":1000,"lock_delay_ms":-1}`, "/lock_delay_ms"},
		{"POST", "/v1/accounts/a/lease", `{"holder":"w","ttl_ms":1000,"token":1}`, "/token"},
		{"POST", "/v1/accounts/a/lease", `{"holder":"w","holder":"v","ttl_ms":1000}`, "/holder"},
		{"PUT", "/v1/accounts/a/lease", `{"holder":"w","ttl_ms":1000}`, "/token"},
		{"PUT", "/v1/accounts/a/lease", `{"holder":"w","token":0,"ttl_ms":1000}`, "/token"},
		{"PUT", "/v1/accounts/a/lease", `{"holder":"w","token":"1","ttl_ms":1000}`, "/token"},
		{"PUT", "/v1/accounts/a/lease", `{"holder":"w","token":1,"ttl_ms":1000,"lock_delay_ms":5}`, "/lock_delay_ms"},
		{"DELETE", "/v1/leases/n", `{"holder":"w","token":9007199254740992}`, "/token"},
		{"POST", "/v1/leases/n/force-release", `{"by":"ana"}`, "/reason"},
		{"POST", "/v1/leases/n/force-release", `{"reason":"x"}`, "/by"},
		{"POST", "/v1/sequencers/check", `{}`, "/sequencer"},
		{"POST", "/v1/sequencers/check", `{"sequencer":1}`, "/sequencer"},
	} {
		r := do(t, client, c.method, c.path, c.body).refused(400, codeInvalidRequest)
		if want := `"pointer":"` + c.pointer + `"`; !strings.Contains(r.text, want) {
			t.Errorf("%s %s %s: no %s in %s", c.method, c.path, c.body, want, r.text)
		}
	}
	for _, path := range []string{"/v1/leases/-n", "/v1/leases/a%2Fb", "/v1/accounts/%20/lease"} {
		do(t, client, "GET", path, "").refused(400, codeInvalidRequest)
	}
	do(t, client, "GET", "/v1/leases?limit=0", "").refused(400, codeInvalidRequest)
	do(t, client, "GET", "/v1/leases?cursor=AQ", "").refused(400, codeInvalidRequest)
	do(t, client, "GET", "/v1/fencing/rejections?cursor=AQ", "").refused(400, codeInvalidRequest)
	do(t, client, "GET", "/v1/fencing/rejections?account_id=%20", "").refused(400, codeInvalidRequest)
	if got := d.last(); got != "" {
		t.Errorf("a wrong request got through: %s", got)
	}
}

func TestLeaseRefusalsAreProblems(t *testing.T) {
	t.Parallel()
	d, client := newDeskClient(t)
	const acquire = `{"holder":"w","ttl_ms":1000}`
	d.err = &LeaseRefusal{Code: ledger.CodeLeaseHeld, Reason: "lock_delay", Holder: "v", RetryAfter: 1200 * time.Millisecond}
	do(t, client, "POST", "/v1/accounts/a/lease", acquire).refused(409, ledger.CodeLeaseHeld).
		has("reason", "lock_delay", "holder", "v", "retry_after_ms", 1200, "applied", false).headerIs("Retry-After", "2")
	d.err = &LeaseRefusal{Code: CodeLeaseLost}
	do(t, client, "PUT", "/v1/accounts/a/lease", `{"holder":"w","token":7,"ttl_ms":1000}`).refused(409, CodeLeaseLost).has("applied", false)
	d.err = &LeaseRefusal{Code: CodeLeaseNotFound}
	do(t, client, "GET", "/v1/leases/n", "").refused(404, CodeLeaseNotFound)
	d.err = errors.New("torn")
	do(t, client, "POST", "/v1/leases/n", acquire).refused(500, ledger.CodeInternal).has("applied", "unknown")
	d.err = &ledger.Refusal{Code: ledger.CodeFencingExternal, Applied: ledger.NotApplied}
	do(t, client, "POST", "/v1/accounts/a/lease", acquire).refused(409, ledger.CodeFencingExternal).has("applied", false)
}

func TestLeasesAreListedInPages(t *testing.T) {
	t.Parallel()
	d, client := newDeskClient(t)
	for i := range 3 {
		l := d.lease
		l.AccountID, l.Name = "", fmt.Sprint("n", i)
		d.list = append(d.list, l)
	}
	r := do(t, client, "GET", "/v1/leases?limit=2", "").expect(200)
	cursor, _ := r.get("next_cursor").(string)
	d.list = d.list[2:]
	do(t, client, "GET", "/v1/leases?limit=2&cursor="+cursor, "").expect(200).has("next_cursor", nil)
	if got := d.last(); got != "list n1 3" {
		t.Errorf("the second page asked %q", got)
	}
}

func TestRejectionsAreNotedAndListed(t *testing.T) {
	t.Parallel()
	d := newDesk()
	client, _ := clientWith(t, writerFunc(func(_ context.Context, op *ledger.Operation) (*ledger.Receipt, error) {
		code := ledger.CodeStaleToken
		if op.Token == 9 {
			code = ledger.CodeTokenFromTheFuture
		}
		if op.Token == 1 {
			code = ledger.CodeOverloaded
		}
		return nil, &ledger.Refusal{Code: code, Presented: int64(op.Token), Current: 5, AccountID: "fenced"}
	}), func(cfg *Config) { cfg.Fencing = d })
	for _, token := range []string{"4", "9", "1"} {
		do(t, client, "POST", "/v1/accounts/a/credits", `{"amount":1}`, headerKey, "k", headerToken, token,
			"User-Agent", "worker\x7f 1", "X-Request-Id", "r-"+token)
	}
	if len(d.noted) != 2 {
		t.Fatalf("%d rejections were noted, want 2", len(d.noted))
	}
	got := d.noted[0]
	got.At, got.RemoteAddress = time.Time{}, ""
	want := FencingRejection{
		AccountID: "fenced", Code: ledger.CodeStaleToken, Presented: 4, Current: 5, Method: "POST",
		Route: "/v1/accounts/{account_id}/credits", RequestID: "r-4", UserAgent: "worker? 1",
	}
	if got != want {
		t.Errorf("noted %+v, want %+v", got, want)
	}
	d.noted[0].ID, d.noted[1].ID = 8, 6
	r := do(t, client, "GET", "/v1/fencing/rejections?account_id=fenced&limit=1", "").expect(200)
	cursor, _ := r.get("next_cursor").(string)
	d.noted = d.noted[1:]
	do(t, client, "GET", "/v1/fencing/rejections?limit=1&cursor="+cursor, "").expect(200).has("next_cursor", nil)
	if got := d.last(); got != "rejections 8 fenced 2" {
		t.Errorf("the second page asked %q", got)
	}
	do(t, client, "GET", "/v1/fencing/rejections?account_id=other&cursor="+cursor, "").refused(400, codeInvalidRequest)
}
