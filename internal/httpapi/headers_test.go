package httpapi

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

func TestWriteHeaders(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		header http.Header
		want   writeHeaders
		code   ledger.Code
	}{
		{"Bare", http.Header{headerKey: {"order-1"}}, writeHeaders{key: "order-1"}, ""},
		{"Quoted", http.Header{headerKey: {`"order-1"`}}, writeHeaders{key: "order-1"}, ""},
		{"QuotedEscapes", http.Header{headerKey: {`"a\"b\\c"`}}, writeHeaders{key: `a"b\c`}, ""},
		{"Longest", http.Header{headerKey: {strings.Repeat("k", 255)}}, writeHeaders{key: strings.Repeat("k", 255)}, ""},
		{"LongestQuoted", http.Header{headerKey: {`"` + strings.Repeat(`\"`, 255) + `"`}}, writeHeaders{key: strings.Repeat(`"`, 255)}, ""},
		{"TooLong", http.Header{headerKey: {strings.Repeat("k", 256)}}, writeHeaders{}, codeKeyInvalid},
		{"Missing", http.Header{}, writeHeaders{}, codeKeyMissing},
		{"Misspelt", http.Header{"X-Idempotency": {"a"}}, writeHeaders{}, codeKeyMissing},
		{"Empty", http.Header{headerKey: {""}}, writeHeaders{}, codeKeyInvalid},
		{"EmptyQuoted", http.Header{headerKey: {`""`}}, writeHeaders{}, codeKeyInvalid},
		{"Space", http.Header{headerKey: {"a b"}}, writeHeaders{}, codeKeyInvalid},
		{"NotASCII", http.Header{headerKey: {"é"}}, writeHeaders{}, codeKeyInvalid},
		{"Two", http.Header{headerKey: {"a", "b"}}, writeHeaders{}, codeKeyInvalid},
		{"Unclosed", http.Header{headerKey: {`"a`}}, writeHeaders{}, codeKeyInvalid},
		{"LoneQuote", http.Header{headerKey: {`"`}}, writeHeaders{}, codeKeyInvalid},
		{"Parameters", http.Header{headerKey: {`"a";x=1`}}, writeHeaders{}, codeKeyInvalid},
		{"ListOfStrings", http.Header{headerKey: {`"a","b"`}}, writeHeaders{}, codeKeyInvalid},
		{"WrongEscape", http.Header{headerKey: {`"a\n"`}}, writeHeaders{}, codeKeyInvalid},
		{"EscapeAtTheEnd", http.Header{headerKey: {`"a\"`}}, writeHeaders{}, codeKeyInvalid},
		{"IfMatch", http.Header{headerKey: {"k"}, headerIfMatch: {`"41"`}}, writeHeaders{key: "k", ifMatch: 41}, ""},
		{"WeakTag", http.Header{headerKey: {"k"}, headerIfMatch: {`W/"41"`}}, writeHeaders{}, codeInvalidRequest},
		{"AnyTag", http.Header{headerKey: {"k"}, headerIfMatch: {`*`}}, writeHeaders{}, codeInvalidRequest},
		{"TwoTags", http.Header{headerKey: {"k"}, headerIfMatch: {`"41", "42"`}}, writeHeaders{}, codeInvalidRequest},
		{"TwoHeaders", http.Header{headerKey: {"k"}, headerIfMatch: {`"41"`, `"41"`}}, writeHeaders{}, codeInvalidRequest},
		{"BareTag", http.Header{headerKey: {"k"}, headerIfMatch: {`41`}}, writeHeaders{}, codeInvalidRequest},
		{"ZeroTag", http.Header{headerKey: {"k"}, headerIfMatch: {`"0"`}}, writeHeaders{}, codeInvalidRequest},
		{"LeadingZero", http.Header{headerKey: {"k"}, headerIfMatch: {`"041"`}}, writeHeaders{}, codeInvalidRequest},
		{"EmptyTag", http.Header{headerKey: {"k"}, headerIfMatch: {``}}, writeHeaders{}, codeInvalidRequest},
		{"Token", http.Header{headerKey: {"k"}, headerToken: {"9007199254740991"}}, writeHeaders{key: "k", token: ledger.MaxToken}, ""},
		{"TokenTooLarge", http.Header{headerKey: {"k"}, headerToken: {"9007199254740992"}}, writeHeaders{}, codeInvalidRequest},
		{"ZeroToken", http.Header{headerKey: {"k"}, headerToken: {"0"}}, writeHeaders{}, codeInvalidRequest},
		{"SignedToken", http.Header{headerKey: {"k"}, headerToken: {"+1"}}, writeHeaders{}, codeInvalidRequest},
		{"TwoTokens", http.Header{headerKey: {"k"}, headerToken: {"1", "2"}}, writeHeaders{}, codeInvalidRequest},
		{"EmptyToken", http.Header{headerKey: {"k"}, headerToken: {""}}, writeHeaders{}, codeInvalidRequest},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parseWriteHeaders(tt.header, true)
			var p *problem
			switch {
			case tt.code == "" && (err != nil || got != tt.want):
				t.Errorf("%+v, %v; want %+v", got, err, tt.want)
			case tt.code != "" && (!errors.As(err, &p) || p.code != tt.code || len(p.errors) != 1 || p.errors[0].header == ""):
				t.Errorf("%v; want %s that names the header", err, tt.code)
			}
		})
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	for id, valid := range map[string]bool{
		"a": true, "A-b_c.d:e/f+g=": true, strings.Repeat("a", 128): true,
		"": false, strings.Repeat("a", 129): false, "a b": false, "a\n": false, `a"`: false, "é": false,
	} {
		if validRequestID(id) != valid {
			t.Errorf("%q: want %v", id, valid)
		}
	}
}
