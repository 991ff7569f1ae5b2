package ledger

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzParseDetails: what is read is written back so that it reads the same, and
// writing it again changes nothing.
func FuzzParseDetails(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `null`, `{"attempted":"credit"}`, `{"metadata":{"é":"\u00e9","e\u0301":"\ud83d\ude00"}}`, `{"exponent":0,"currency":"CZK"}`,
		`{"description":"\u0000\b\f\n\r\t\"\\\/"}`, `{"metadata":{}}`, `{"reset":true,"metadata":null}`, `{"exponent":-0}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDetails(s)
		if err != nil {
			return
		}
		once := d.String()
		again, err := ParseDetails(once)
		if err != nil {
			t.Fatalf("%q was read and written as %q, which is not readable: %v", s, once, err)
		}
		if twice := again.String(); twice != once {
			t.Fatalf("%q was written as %q and then as %q", s, once, twice)
		}
	})
}

// FuzzMetadata: what Validate accepts survives the way to the database and back.
func FuzzMetadata(f *testing.F) {
	f.Add("é", "e\u0301")
	f.Add("\"\\", "\x00\x1f\x7f")
	f.Add("\xed\xa0\x80", "😀")
	f.Fuzz(func(t *testing.T, key, value string) {
		m := Metadata{key: value}
		if m.Validate() != nil {
			if utf8.ValidString(key+value) && !strings.Contains(key+value, "\x00") && key != "" &&
				utf8.RuneCountInString(key) <= MetadataKeyRunesMax && len(key)+len(value) < MetadataBytesMax/6-16 {
				t.Fatalf("%q was refused: %v", m, m.Validate())
			}
			return
		}
		back, err := ParseMetadata(m.String())
		if err != nil || len(back) != 1 || back[key] != value {
			t.Fatalf("%q was read as %q, %v", m, back, err)
		}
	})
}

var (
	accountIDForm = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\z`)
	currencyForm  = regexp.MustCompile(`\A[A-Z][A-Z0-9_]{1,15}\z`)
	keyForm       = regexp.MustCompile(`\A[!-~]{1,255}\z`)
)

// FuzzNames holds the hand-written checks against the regular expressions of
// the contract; the database has the same ones as CHECKs.
func FuzzNames(f *testing.F) {
	for _, s := range []string{
		"", "A", "-A", "a.b:c_d-e", "a/b", "a%b", "a'b", "..", ".a", "é", "a\n", "CZK", "C", "2X", "X_2", "czk", "ABCDEFGHIJKLMNOP", "ABCDEFGHIJKLMNOPQ",
		strings.Repeat("a", 128), strings.Repeat("a", 129), strings.Repeat("!", 255), strings.Repeat("~", 256), " ", "\x7f",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseAccountID(s)
		if (err == nil) != accountIDForm.MatchString(s) || err == nil && string(id) != s {
			t.Errorf("account id %q: %q, %v", s, id, err)
		}
		if shard := AccountID(s).Shard(); shard < 0 || shard >= Shards {
			t.Errorf("account id %q: shard %d", s, shard)
		}
		currency, err := ParseCurrency(s)
		if (err == nil) != currencyForm.MatchString(s) || err == nil && string(currency) != s {
			t.Errorf("currency %q: %q, %v", s, currency, err)
		}
		if err := ValidateKey(s); (err == nil) != keyForm.MatchString(s) {
			t.Errorf("key %q: %v", s, err)
		}
		if fencing, err := ParseFencing(s); err == nil && fencing.String() != s {
			t.Errorf("fencing %q: %+v", s, fencing)
		}
	})
}

// TestShardIsFrozen: the shard of an account is stored and must be the same in
// every version. These are the first bytes of SHA-256, modulo 64, as computed
// with sha256sum.
func TestShardIsFrozen(t *testing.T) {
	t.Parallel()
	for id, want := range map[AccountID]int{"A": 21, "B": 31, "a": 10, "0": 31, "berka:1787": 29, "account-00001": 25, "hot": 63, AccountID(strings.Repeat("x", 128)): 36} {
		if got := id.Shard(); got != want {
			t.Errorf("shard of %q is %d, want %d", id, got, want)
		}
	}
}
