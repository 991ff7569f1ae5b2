package ledger

import (
	stdjson "encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCanonicalJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		details Details
		want    string
	}{
		{Details{}, ""},
		{Details{Attempted: KindDebit}, `{"attempted":"debit"}`},
		{Details{Currency: "JPY", Exponent: ptr(0)}, `{"currency":"JPY","exponent":0}`},
		{Details{Metadata: Metadata{}}, `{"metadata":{}}`},
		{Details{Reset: true}, `{"reset":true}`},
		{
			Details{Attempted: KindCredit, Currency: "CZK", Description: "d", Exponent: ptr(18), Metadata: Metadata{"b": "2", "a": "1"}, Reset: true},
			`{"attempted":"credit","currency":"CZK","description":"d","exponent":18,"metadata":{"a":"1","b":"2"},"reset":true}`,
		},
		{Details{Attempted: KindTransfer, Metadata: Metadata{}, RefusedBy: "B", Reset: true}, `{"attempted":"transfer","metadata":{},"refused_by":"B","reset":true}`},
		{Details{Description: "\u00e9"}, "{\"description\":\"\u00e9\"}"},
		{Details{Description: "e\u0301"}, "{\"description\":\"e\u0301\"}"},
		{Details{Description: "😀 </script> & \u2028 \u007f"}, "{\"description\":\"😀 </script> & \u2028 \u007f\"}"},
		{Details{Description: `"\/`}, `{"description":"\"\\/"}`},
		{Details{Description: "\b\f\n\r\t\x01\x0b\x1f"}, `{"description":"\b\f\n\r\t\u0001\u000b\u001f"}`},
		{Details{Metadata: Metadata{"z": "", "é": "", "e\u0301": "", "Z": "", "😀": "", "\ufb01": ""}}, "{\"metadata\":{\"Z\":\"\",\"e\u0301\":\"\",\"z\":\"\",\"é\":\"\",\"\ufb01\":\"\",\"😀\":\"\"}}"},
	} {
		got := c.details.String()
		if got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
		back, err := ParseDetails(got)
		if err != nil || back.String() != got {
			t.Errorf("%s was read as %+v, %v", got, back, err)
		}
	}
}

func TestParseDetailsIsStrict(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"{", "null x", "[]", `{"unknown":1}`, `{"attempted":"credit","attempted":"debit"}`, `{"exponent":"2"}`, `{"exponent":1.5}`,
		`{"metadata":{"a":1}}`, `{"metadata":{"a":"1","a":"2"}}`, `{"reset":1}`, `{} {}`, "{\"description\":\"\xff\"}", `{"description":"\ud800"}`,
	} {
		if d, err := ParseDetails(s); err == nil {
			t.Errorf("%q was read as %+v", s, d)
		}
	}
}

func TestMetadataRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := Metadata(rapid.MapOfN(rapid.StringN(1, MetadataKeyRunesMax, -1), rapid.String(), 0, MetadataKeysMax).Draw(t, "metadata"))
		if m.Validate() != nil { // only U+0000 is left to refuse
			for k, v := range m {
				if strings.ContainsRune(k+v, 0) {
					t.Skip("with U+0000")
				}
			}
			t.Fatalf("refused: %v", m.Validate())
		}
		back, err := ParseMetadata(m.String())
		if err != nil || !maps.Equal(back, m) {
			t.Fatalf("%q was read as %q, %v", m, back, err)
		}
		// A reader that knows nothing of the canonical form finds the same.
		var std map[string]string
		if err := stdjson.Unmarshal([]byte(m.String()), &std); err != nil || !maps.Equal(std, m) {
			t.Fatalf("%q was read by encoding/json as %q, %v", m, std, err)
		}
	})
}

func TestMetadataLimits(t *testing.T) {
	t.Parallel()
	many := func(n int) Metadata {
		m := Metadata{}
		for i := range n {
			m[fmt.Sprint("k", i)] = "v"
		}
		return m
	}
	const around = len(`{"k":""}`)
	for name, c := range map[string]struct {
		m     Metadata
		valid bool
	}{
		"none":                        {nil, true},
		"empty":                       {Metadata{}, true},
		"the most members":            {many(MetadataKeysMax), true},
		"one too many":                {many(MetadataKeysMax + 1), false},
		"a name of no characters":     {Metadata{"": "v"}, false},
		"the longest name":            {Metadata{strings.Repeat("é", MetadataKeyRunesMax): "v"}, true},
		"a longer one":                {Metadata{strings.Repeat("é", MetadataKeyRunesMax+1): "v"}, false},
		"16 KiB":                      {Metadata{"k": strings.Repeat("x", MetadataBytesMax-around)}, true},
		"a byte more":                 {Metadata{"k": strings.Repeat("x", MetadataBytesMax-around+1)}, false},
		"16 KiB by escapes":           {Metadata{"k": strings.Repeat(`"`, (MetadataBytesMax-around)/2)}, true},
		"a byte more by escapes":      {Metadata{"k": "x" + strings.Repeat(`"`, (MetadataBytesMax-around)/2)}, false},
		"U+0000 in a value":           {Metadata{"k": "a\x00b"}, false},
		"U+0000 in a name":            {Metadata{"a\x00b": "v"}, false},
		"bytes that are not UTF-8":    {Metadata{"k": "\xff"}, false},
		"a surrogate as UTF-8 bytes":  {Metadata{"k": "\xed\xa0\x80"}, false},
		"é in both normal forms":      {Metadata{"\u00e9": "e\u0301", "e\u0301": "\u00e9"}, true},
		"emoji, quotes, back slashes": {Metadata{"😀\"": "\\\"\n\r\t\x01"}, true},
	} {
		if err := c.m.Validate(); (err == nil) != c.valid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateText(t *testing.T) {
	t.Parallel()
	for s, valid := range map[string]bool{
		"": true, "ééé": true, "éééé": false, "a\x00b": false, "a\xffb": false, "\U0010ffff": true, "e\u0301e": true,
	} {
		if err := ValidateText(s, 3); (err == nil) != valid {
			t.Errorf("%q: %v", s, err)
		}
	}
}
