package httpapi

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// The decoders of the three bodies.
var (
	asMovement = (*decoder).movement
	asOpening  = (*decoder).opening
	asChange   = (*decoder).change
)

// decodeBody decodes body as a request does, with one of the decoder's methods.
func decodeBody(body string, decode func(*decoder, *ledger.Operation) error) (*ledger.Operation, error) {
	r := httptest.NewRequest("POST", "/", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	d := new(decoder)
	op := new(ledger.Operation)
	if err := d.fill(r); err != nil {
		return nil, err
	}
	if err := decode(d, op); err != nil {
		return nil, err
	}
	return op, nil
}

func TestBodiesAreDecodedStrictly(t *testing.T) {
	t.Parallel()
	type decode = func(*decoder, *ledger.Operation) error
	tests := []struct {
		decode  decode
		body    string
		pointer string
		detail  string
	}{
		// Numbers.
		{asMovement, `{"amount":-1}`, "/amount", "from 1 to 9007199254740991"},
		{asMovement, `{"amount":0}`, "/amount", "from 1"},
		{asMovement, `{"amount":-0}`, "/amount", "from 1"},
		{asMovement, `{"amount":1.0}`, "/amount", "without a fraction"},
		{asMovement, `{"amount":1e3}`, "/amount", "without a fraction or an exponent"},
		{asMovement, `{"amount":1E3}`, "/amount", "exponent"},
		{asMovement, `{"amount":"1"}`, "/amount", "must be an integer, not a string"},
		{asMovement, `{"amount":null}`, "/amount", "not null"},
		{asMovement, `{"amount":true}`, "/amount", "not a boolean"},
		{asMovement, `{"amount":[1]}`, "/amount", "not an array"},
		{asMovement, `{"amount":{}}`, "/amount", "not an object"},
		{asMovement, `{}`, "/amount", "required"},
		{asMovement, `{"amount":9007199254740992}`, "/amount", "to 9007199254740991"},
		{asMovement, `{"amount":9223372036854775808}`, "/amount", "to 9007199254740991"},
		{asMovement, `{"amount":` + strings.Repeat("9", 400) + `}`, "/amount", "to 9007199254740991"},
		{asMovement, `{"amount":01}`, "", "not JSON"},
		{asMovement, `{"amount":+1}`, "/amount", "not JSON"},
		{asMovement, `{"amount":0x1}`, "", "not JSON"},
		{asMovement, `{"amount":NaN}`, "/amount", "not JSON"},
		// The document.
		{asMovement, ``, "", "empty"},
		{asMovement, " \n", "", "empty"},
		{asMovement, `null`, "", "an object, not null"},
		{asMovement, `[]`, "", "an object, not an array"},
		{asMovement, `{"amount":1} x`, "", "not JSON"},
		{asMovement, `{"amount":1}{"amount":1}`, "", "something follows"},
		{asMovement, `{"amount":1`, "", "ends in the middle"},
		{asMovement, `{"amount":`, "", "ends in the middle"},
		{asMovement, `{"amount":1,}`, "", "not JSON"},
		{asMovement, `{'amount':1}`, "", "not JSON"},
		{asMovement, `{amount:1}`, "", "not JSON"},
		{asMovement, `{"amount":1,"amount":1}`, "/amount", "more than once"},
		{asMovement, `{"amount":1,"\u0061mount":2}`, "/amount", "more than once"},
		{asMovement, `{"amount":1,"Amount":1}`, "/Amount", "unknown field"},
		{asMovement, `{"amount":1,"colour":[{"a":1}]}`, "/colour", "unknown field"},
		{asMovement, `{"amount":1,"a/b~c":1}`, "/a~1b~0c", "unknown field"},
		{asMovement, "{\"amount\":1}\x00", "", "not JSON"},
		{asMovement, "\xef\xbb\xbf{\"amount\":1}", "", "not JSON"},
		// Text.
		{asMovement, `{"amount":1,"currency":"eur"}`, "/currency", "[A-Z0-9_]"},
		{asMovement, `{"amount":1,"currency":""}`, "/currency", "2 to 16"},
		{asMovement, `{"amount":1,"currency":null}`, "/currency", "not null"},
		{asMovement, `{"amount":1,"description":1}`, "/description", "must be a string, not a number"},
		{asMovement, `{"amount":1,"description":"` + strings.Repeat("é", 501) + `"}`, "/description", "not 501"},
		{asMovement, `{"amount":1,"description":"a\u0000b"}`, "/description", "U+0000"},
		{asMovement, `{"amount":1,"description":"\ud800"}`, "/description", "not JSON"},
		{asMovement, `{"amount":1,"description":"\udc00\ud800"}`, "/description", "not JSON"},
		{asMovement, "{\"amount\":1,\"description\":\"\xff\"}", "/description", "not JSON"},
		{asMovement, "{\"amount\":1,\"description\":\"a\nb\"}", "/description", "not JSON"},
		{asMovement, `{"amount":1,"counterparty":"` + strings.Repeat("a", 256) + `"}`, "/counterparty", "not 256"},
		// Times.
		{asMovement, `{"amount":1,"effective_at":"2026-11-30T12:00:00"}`, "/effective_at", "offset"},
		{asMovement, `{"amount":1,"effective_at":"2026-11-30"}`, "/effective_at", "RFC 3339"},
		{asMovement, `{"amount":1,"effective_at":"2026-11-30 12:00:00Z"}`, "/effective_at", "RFC 3339"},
		{asMovement, `{"amount":1,"effective_at":"2026-02-29T12:00:00Z"}`, "/effective_at", "RFC 3339"},
		{asMovement, `{"amount":1,"effective_at":"2026-11-30T1:00:00Z"}`, "/effective_at", "RFC 3339"},
		{asMovement, `{"amount":1,"effective_at":"2026-11-30T12:00:00,5Z"}`, "/effective_at", "RFC 3339"},
		{asMovement, `{"amount":1,"effective_at":"2026-11-30T12:00:00+24:00"}`, "/effective_at", "RFC 3339"},
		{asMovement, `{"amount":1,"effective_at":"2026-11-30T12:00:00.0000001Z"}`, "/effective_at", "microsecond"},
		{asMovement, `{"amount":1,"effective_at":"0000-12-31T23:59:59Z"}`, "/effective_at", "year 1"},
		{asMovement, `{"amount":1,"effective_at":"0001-01-01T00:00:00Z"}`, "/effective_at", "year 1"},
		{asMovement, `{"amount":1,"effective_at":"0001-01-01T00:00:00+01:00"}`, "/effective_at", "year 1"},
		{asMovement, `{"amount":1,"effective_at":"9999-12-31T23:59:59-01:00"}`, "/effective_at", "year 9999"},
		{asMovement, `{"amount":1,"effective_at":1700000000}`, "/effective_at", "must be a string"},
		// Metadata.
		{asMovement, `{"amount":1,"metadata":null}`, "/metadata", "not null"},
		{asMovement, `{"amount":1,"metadata":["a"]}`, "/metadata", "an object"},
		{asMovement, `{"amount":1,"metadata":{"a":1}}`, "/metadata/a", "must be a string"},
		{asMovement, `{"amount":1,"metadata":{"a":{"b":"c"}}}`, "/metadata/a", "must be a string"},
		{asMovement, `{"amount":1,"metadata":{"a":"1","a":"2"}}`, "/metadata/a", "more than once"},
		{asMovement, `{"amount":1,"metadata":{"":"1"}}`, "/metadata/", "1 to 64"},
		{asMovement, `{"amount":1,"metadata":{"a\u0000":"1"}}`, "/metadata/a\x00", "U+0000"},
		{asMovement, `{"amount":1,"metadata":{"a/b":"\u0000"}}`, "/metadata/a~1b", "U+0000"},
		{asMovement, `{"amount":1,"metadata":{"` + strings.Repeat("k", 65) + `":"1"}}`, "/metadata/" + strings.Repeat("k", 65), "1 to 64"},
		{asMovement, `{"amount":1,"metadata":` + manyKeys(51) + `}`, "/metadata", "at most 50 keys, not 51"},
		{asMovement, `{"amount":1,"metadata":{"a":"` + strings.Repeat("x", 16<<10) + `"}}`, "/metadata", "16384 bytes"},
		// Opening.
		{asOpening, `{}`, "/currency", "required"},
		{asOpening, `{"currency":"EUR","exponent":19}`, "/exponent", "from 0 to 18"},
		{asOpening, `{"currency":"EUR","exponent":2.0}`, "/exponent", "fraction"},
		{asOpening, `{"currency":"EUR","min_balance":1}`, "/min_balance", "to 0"},
		{asOpening, `{"currency":"EUR","min_balance":-4503599627370497}`, "/min_balance", "from -4503599627370496"},
		{asOpening, `{"currency":"EUR","fencing":{"source":"redis"}}`, "/fencing/source", "lease or external"},
		{asOpening, `{"currency":"EUR","fencing":{"required":1}}`, "/fencing/required", "true or false"},
		{asOpening, `{"currency":"EUR","fencing":{"required":null}}`, "/fencing/required", "not null"},
		{asOpening, `{"currency":"EUR","fencing":{"reset":1}}`, "/fencing/reset", "unknown field"},
		{asOpening, `{"currency":"EUR","status":"active"}`, "/status", "unknown field"},
		// Changes.
		{asChange, `{}`, "", "at least one"},
		{asChange, `{"status":"open"}`, "/status", "active, frozen or closed"},
		{asChange, `{"status":null}`, "/status", "not null"},
		{asChange, `{"fencing":{}}`, "/fencing", "at least one"},
		{asChange, `{"fencing":{"reset":1}}`, "/fencing/reason", "required"},
		{asChange, `{"fencing":{"reason":"x"}}`, "/fencing/reset", "required"},
		{asChange, `{"fencing":{"reset":-1,"reason":"x"}}`, "/fencing/reset", "from 0"},
		{asChange, `{"fencing":{"reset":1,"reason":""}}`, "/fencing/reason", "1 to 255"},
		{asChange, `{"currency":"EUR"}`, "/currency", "unknown field"},
	}
	for _, tt := range tests {
		t.Run(clip(tt.body), func(t *testing.T) {
			t.Parallel()
			_, err := decodeBody(tt.body, tt.decode)
			var p *problem
			if !errors.As(err, &p) {
				t.Fatalf("accepted, or another error: %v", err)
			}
			if p.code != codeInvalidRequest || len(p.errors) != 1 {
				t.Fatalf("%s with errors %+v", p.code, p.errors)
			}
			if got := p.errors[0]; got.pointer != tt.pointer || !strings.Contains(got.detail, tt.detail) {
				t.Errorf("%q: %q, want %q: …%s…", got.pointer, got.detail, tt.pointer, tt.detail)
			}
		})
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":"v"`, i)
	}
	return "{" + b.String()[1:] + "}"
}

func TestSeveralFieldsAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := decodeBody(`{"amount":0,"currency":1,"metadata":{"a":1,"b":"c","d":null},"x":{}}`, asMovement)
	var p *problem
	if !errors.As(err, &p) {
		t.Fatal(err)
	}
	var pointers []string
	for _, e := range p.errors {
		pointers = append(pointers, e.pointer)
	}
	if want := []string{"/amount", "/currency", "/metadata/a", "/metadata/d", "/x"}; !reflect.DeepEqual(pointers, want) {
		t.Errorf("%v, want %v", pointers, want)
	}
}

func TestNamedPlacesAreBounded(t *testing.T) {
	t.Parallel()
	body := `{"amount":1`
	for i := range 1000 {
		body += fmt.Sprintf(`,"%s%d":1`, strings.Repeat("long", 100), i)
	}
	_, err := decodeBody(body+`}`, asMovement)
	var p *problem
	if !errors.As(err, &p) {
		t.Fatal(err)
	}
	if len(p.errors) != fieldErrorsMax {
		t.Errorf("%d places are named", len(p.errors))
	}
	if n := len(appendProblem(nil, p, kind{status: 400}, "id", true)); n > 8<<10 {
		t.Errorf("the problem document has %d bytes", n)
	}
}

func TestBodiesBecomeOperations(t *testing.T) {
	t.Parallel()
	utc := func(s string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return at.UTC()
	}
	longest := strings.Repeat("€", 500)
	tests := []struct {
		name   string
		decode func(*decoder, *ledger.Operation) error
		body   string
		want   ledger.Operation
	}{
		{"Least", asMovement, `{"amount":1}`, ledger.Operation{Amount: 1}},
		{"Most", asMovement, ` { "amount" : 9007199254740991 } `, ledger.Operation{Amount: ledger.MaxAmount}},
		{"EmptyIsAbsent", asMovement, `{"amount":1,"description":"","counterparty":"","metadata":{}}`, ledger.Operation{Amount: 1}},
		{"EverythingInAnyOrder", asMovement,
			`{"metadata":{"b":"2","a":"1"},"counterparty":"shop","effective_at":"2026-11-30T12:00:00+04:00","description":"` + longest + `","currency":"EUR","amount":7}`,
			ledger.Operation{
				Amount: 7, Currency: "EUR", Description: longest, Counterparty: "shop",
				EffectiveAt: utc("2026-11-30T08:00:00Z"), Metadata: ledger.Metadata{"a": "1", "b": "2"},
			}},
		{"Escapes", asMovement, `{"amount":1,"description":"\u00e9\n\"\\\/\ud83d\ude00","metadata":{"\u00e9":"e\u0301"}}`,
			ledger.Operation{Amount: 1, Description: "é\n\"\\/😀", Metadata: ledger.Metadata{"é": "e\u0301"}}},
		{"FirstYear", asMovement, `{"amount":1,"effective_at":"0001-01-01T00:00:00.000001Z"}`, ledger.Operation{Amount: 1, EffectiveAt: utc("0001-01-01T00:00:00.000001Z")}},
		{"LastYear", asMovement, `{"amount":1,"effective_at":"9999-12-31T23:59:59.999999Z"}`, ledger.Operation{Amount: 1, EffectiveAt: utc("9999-12-31T23:59:59.999999Z")}},
		{"BeforeTheEpoch", asMovement, `{"amount":1,"effective_at":"1969-07-20T20:17:40.100000000Z"}`, ledger.Operation{Amount: 1, EffectiveAt: utc("1969-07-20T20:17:40.1Z")}},
		{"OpeningDefaults", asOpening, `{"currency":"JPY"}`, ledger.Operation{
			Opening: &ledger.Opening{Currency: "JPY", Exponent: 0, Fencing: ledger.Fencing{Source: ledger.SourceLease}}}},
		{"OpeningExplicit", asOpening, `{"currency":"JPY","exponent":2,"min_balance":-4503599627370496,"fencing":{"source":"external","required":true},"metadata":{"a":"b"}}`,
			ledger.Operation{Metadata: ledger.Metadata{"a": "b"}, Opening: &ledger.Opening{
				Currency: "JPY", Exponent: 2, MinBalance: ledger.LowestMinBalance,
				Fencing: ledger.Fencing{Source: ledger.SourceExternal, Required: true}}}},
		{"Change", asChange, `{"status":"frozen","min_balance":0,"fencing":{"source":"external","required":false,"reset":0,"reason":"moved"},"metadata":{}}`,
			ledger.Operation{Change: &ledger.Change{
				Status: new(ledger.Frozen), MinBalance: new(ledger.Amount(0)), FencingSource: new(ledger.SourceExternal), Required: new(false),
				ResetFence: new(ledger.Token(0)), Reason: "moved", Metadata: ledger.Metadata{}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := decodeBody(tt.body, tt.decode)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(*got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", *got, tt.want)
			}
		})
	}
}

// A decoder that is used again must not carry anything over.
func TestDecoderIsReusable(t *testing.T) {
	t.Parallel()
	d := new(decoder)
	for _, step := range []struct {
		body string
		ok   bool
	}{
		{`{"amount":1,"description":"first"}`, true}, {`{"amount":`, false}, {`{"amount":2}`, true}, {`{"x":1}`, false}, {`{"amount":3}`, true},
	} {
		r := httptest.NewRequest("POST", "/", strings.NewReader(step.body))
		r.Header.Set("Content-Type", "application/json")
		op := new(ledger.Operation)
		if err := d.fill(r); err != nil {
			t.Fatal(err)
		}
		if err := d.movement(op); (err == nil) != step.ok {
			t.Fatalf("%s: %v", step.body, err)
		}
		if step.ok && op.Description != "" && op.Amount != 1 {
			t.Fatalf("%s: %+v", step.body, op)
		}
	}
}

func TestBodySizeAndMediaType(t *testing.T) {
	t.Parallel()
	largest := `{"amount":1}` + strings.Repeat(" ", bodyBytesMax-len(`{"amount":1}`))
	tests := []struct {
		name, body, contentType, encoding string
		code                              ledger.Code
	}{
		{"Largest", largest, "application/json", "", ""},
		{"OneMore", largest + " ", "application/json", "", codeRequestTooLarge},
		{"Parameters", `{"amount":1}`, "Application/JSON; charset=UTF-8", "", ""},
		{"OtherCharset", `{"amount":1}`, "application/json; charset=latin1", "", codeUnsupportedMediaType},
		{"Form", `{"amount":1}`, "application/x-www-form-urlencoded", "", codeUnsupportedMediaType},
		{"None", `{"amount":1}`, "", "", codeUnsupportedMediaType},
		{"Compressed", `{"amount":1}`, "application/json", "gzip", codeUnsupportedMediaType},
		{"Identity", `{"amount":1}`, "application/json", "identity", ""},
	}
	for _, tt := range tests {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/chunked=%v", tt.name, chunked), func(t *testing.T) {
				t.Parallel()
				r := httptest.NewRequest("POST", "/", strings.NewReader(tt.body))
				if chunked {
					r.ContentLength = -1
				}
				r.Header.Set("Content-Type", tt.contentType)
				if tt.encoding != "" {
					r.Header.Set("Content-Encoding", tt.encoding)
				}
				d := new(decoder)
				err := d.fill(r)
				if err == nil {
					err = d.movement(new(ledger.Operation))
				}
				var p *problem
				errors.As(err, &p)
				if tt.code == "" && err != nil || tt.code != "" && (p == nil || p.code != tt.code) {
					t.Errorf("%v, want %q", err, tt.code)
				}
			})
		}
	}
}
