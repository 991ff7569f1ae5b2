package httpapi

import (
	"context"
	stdjson "encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Whatever is accepted is an operation that the ledger accepts, is JSON for the
// standard library too, and means the same there; whatever is refused is
// refused with a problem document that is JSON itself.
func FuzzMovementBody(f *testing.F) {
	for _, seed := range []string{
		`{"amount":1}`, `{"amount":9007199254740991,"currency":"EUR","description":"é\ud83d\ude00"}`,
		`{"amount":1,"metadata":{"a":"b\u0000"}}`, `{"amount":1.0}`, `{"amount":1,"effective_at":"2026-11-30T12:00:00+04:00"}`,
		`{"amount":1,"amount":2}`, `{"a~/b":{"c":[1,2,{}]}}`, "\xff", `{"amount":1}{}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		op, err := decodeBody(body, asMovement)
		if err != nil {
			p := (&server{unavailable: func(error) bool { return false }}).asProblem(err)
			k, _ := kindOf(p.code)
			if k.status != 400 && k.status != 413 {
				t.Fatalf("refused with %s", p.code)
			}
			if text := appendProblem(nil, p, k, "id", true); !stdjson.Valid(text) {
				t.Fatalf("the problem document is not JSON: %s", text)
			}
			return
		}
		op.Kind, op.AccountID, op.Key = ledger.KindCredit, "a", "k"
		if err := op.Validate(); err != nil {
			t.Fatalf("accepted, but the ledger refuses it: %v", err)
		}
		var generic struct {
			Amount       int64             `json:"amount"`
			Currency     string            `json:"currency"`
			Description  string            `json:"description"`
			Counterparty string            `json:"counterparty"`
			Metadata     map[string]string `json:"metadata"`
		}
		if err := stdjson.Unmarshal([]byte(body), &generic); err != nil {
			t.Fatalf("accepted, but not JSON: %v", err)
		}
		same := int64(op.Amount) == generic.Amount && string(op.Currency) == generic.Currency &&
			op.Description == generic.Description && op.Counterparty == generic.Counterparty &&
			(len(op.Metadata) == 0 && len(generic.Metadata) == 0 || reflect.DeepEqual(map[string]string(op.Metadata), generic.Metadata))
		if !same {
			t.Fatalf("got %+v, the standard library reads %+v", op, generic)
		}
	})
}

func FuzzSettingsBodies(f *testing.F) {
	f.Add(`{"currency":"EUR","fencing":{"source":"external","required":true}}`)
	f.Add(`{"status":"closed","fencing":{"reset":1,"reason":"x"},"metadata":{}}`)
	f.Fuzz(func(t *testing.T, body string) {
		if op, err := decodeBody(body, asOpening); err == nil {
			op.Kind, op.AccountID = ledger.KindOpened, "a"
			if err := op.Validate(); err != nil {
				t.Fatalf("opening accepted, but the ledger refuses it: %v", err)
			}
		}
		if op, err := decodeBody(body, asChange); err == nil {
			op.Kind, op.AccountID = ledger.KindSettings, "a"
			if err := op.Validate(); err != nil {
				t.Fatalf("change accepted, but the ledger refuses it: %v", err)
			}
		}
	})
}

// A cursor that is accepted has exactly one spelling, and what it holds is
// valid like any other input.
func FuzzCursor(f *testing.F) {
	f.Add(accountsCursor{after: "wallet-81", currency: "EUR", status: ledger.Frozen}.String())
	f.Add(entriesCursor{account: "a", after: 7, ascending: true}.String())
	f.Add("")
	f.Add("AWEBYQAA")
	f.Fuzz(func(t *testing.T, s string) {
		if c, err := parseAccountsCursor(s); err == nil {
			if c.String() != s {
				t.Fatalf("%q is also %q", s, c.String())
			}
			if _, err := ledger.ParseAccountID(string(c.after)); err != nil {
				t.Fatal(err)
			}
		}
		if c, err := parseEntriesCursor(s); err == nil {
			if c.String() != s {
				t.Fatalf("%q is also %q", s, c.String())
			}
			if c.after < 1 {
				t.Fatalf("after %d", c.after)
			}
		}
	})
}

func FuzzIdempotencyKey(f *testing.F) {
	for _, seed := range []string{"", "a", `"a"`, `"a\"b"`, `"`, `""`, `a"b`, `"a";x=1`, "a b", strings.Repeat("k", 255), strings.Repeat("k", 256), "é"} {
		f.Add(seed)
	}
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	f.Fuzz(func(t *testing.T, s string) {
		key, err := idempotencyKey([]string{s})
		if err != nil {
			return
		}
		if err := ledger.ValidateKey(key); err != nil {
			t.Fatalf("accepted, but the ledger refuses it: %v", err)
		}
		again, err := idempotencyKey([]string{`"` + quote.Replace(key) + `"`})
		if err != nil || again != key {
			t.Fatalf("quoted, the key %q is %q: %v", key, again, err)
		}
	})
}

func FuzzIfMatch(f *testing.F) {
	for _, seed := range []string{`"1"`, `"9007199254740991"`, `"9007199254740992"`, `W/"1"`, `*`, `"1","2"`, `"01"`, `1`, `""`} {
		f.Add(seed)
	}
	tag := regexp.MustCompile(`^"([1-9][0-9]{0,15})"$`)
	f.Fuzz(func(t *testing.T, s string) {
		seq, err := ifMatch([]string{s})
		want := int64(0)
		if m := tag.FindStringSubmatch(s); m != nil {
			if n, err := strconv.ParseInt(m[1], 10, 64); err == nil && n <= int64(ledger.MaxAmount) {
				want = n
			}
		}
		if (err == nil) != (want != 0) || err == nil && int64(seq) != want {
			t.Fatalf("%q is %d (%v), want %d", s, seq, err, want)
		}
	})
}

// headOf is an account reader that knows every account.
type headOf struct{ AccountReader }

func (headOf) Head(_ context.Context, id ledger.AccountID) (ledger.Head, error) {
	return ledger.Head{Account: ledger.Account{ID: id, Currency: "EUR"}, Seq: 1, State: ledger.State{Status: ledger.Active, Fencing: ledger.Fencing{Source: ledger.SourceLease}}}, nil
}

// Whatever stands in the path, only an account id reaches the ledger.
func FuzzAccountIDInThePath(f *testing.F) {
	for _, seed := range []string{"a", "..", "a%b", `a'"`, "a/b", "é", "", ".", strings.Repeat("a", 128), strings.Repeat("a", 129), "a?b", "a\x00"} {
		f.Add(seed)
	}
	cfg := configOf(newJobs())
	reader := (*ledger.Reader)(nil)
	cfg.Writer, cfg.Accounts, cfg.Balances, cfg.Entries = writerFunc(nil), headOf{}, reader, reader
	h, err := New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	valid := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)
	f.Fuzz(func(t *testing.T, id string) {
		if strings.ContainsRune(id, '/') || id == "" {
			return // another path
		}
		r := httptest.NewRequest(http.MethodGet, "/v1/accounts/"+url.PathEscape(id), nil)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		want := http.StatusBadRequest
		if valid.MatchString(id) {
			want = http.StatusOK
		}
		if w.Code != want {
			t.Fatalf("%q is answered with %d, want %d: %s", id, w.Code, want, w.Body)
		}
		if !stdjson.Valid(w.Body.Bytes()) {
			t.Fatalf("not JSON: %s", w.Body)
		}
	})
}
