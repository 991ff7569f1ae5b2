package httpapi

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// The request headers, in the spelling that net/http stores them under.
const (
	headerKey     = "Idempotency-Key"
	headerIfMatch = "If-Match"
	headerToken   = "Fencing-Token"
)

// writeHeaders are the headers that say how an operation is to be applied.
type writeHeaders struct {
	key     string
	ifMatch ledger.Seq
	token   ledger.Token
}

// parseWriteHeaders reads If-Match and Fencing-Token, and, when withKey is
// set, the Idempotency-Key, which is then required.
func parseWriteHeaders(h http.Header, withKey bool) (writeHeaders, error) {
	var w writeHeaders
	var err error
	if withKey {
		if w.key, err = idempotencyKey(h[headerKey]); err != nil {
			return w, err
		}
	}
	if w.ifMatch, err = ifMatch(h[headerIfMatch]); err != nil {
		return w, invalid(fieldError{header: headerIfMatch, detail: err.Error()})
	}
	if w.token, err = fencingToken(h[headerToken]); err != nil {
		return w, invalid(fieldError{header: headerToken, detail: err.Error()})
	}
	return w, nil
}

// idempotencyKey returns the key of a request: bare, or as a structured-field
// string (RFC 9651, section 3.3.3), which is the same key.
func idempotencyKey(values []string) (string, error) {
	if len(values) == 0 {
		return "", &problem{
			code:   codeKeyMissing,
			detail: "Send a new Idempotency-Key for each operation, and the same one when the operation is repeated.",
			errors: []fieldError{{header: headerKey, detail: "required"}},
		}
	}
	key, err := parseKey(values)
	if err != nil {
		return "", &problem{
			code: codeKeyInvalid, detail: err.Error(),
			errors: []fieldError{{header: headerKey, detail: err.Error()}},
		}
	}
	return key, nil
}

func parseKey(values []string) (string, error) {
	if len(values) > 1 {
		return "", fmt.Errorf("exactly one, not %d", len(values))
	}
	key := values[0]
	if strings.HasPrefix(key, `"`) {
		var err error
		if key, err = unquoteKey(key); err != nil {
			return "", err
		}
	}
	return key, ledger.ValidateKey(key)
}

// unquoteKey returns what the structured-field string s stands for.
func unquoteKey(s string) (string, error) {
	if len(s) < 2 || s[len(s)-1] != '"' {
		return "", fmt.Errorf("the quoted string does not end, or something follows it")
	}
	s = s[1 : len(s)-1]
	if !strings.ContainsAny(s, `"\`) {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return "", fmt.Errorf("something follows the quoted string")
		case '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", fmt.Errorf(`in a quoted string only \" and \\ are escapes`)
			}
		}
		b = append(b, s[i])
	}
	return string(b), nil
}

// ifMatch returns the seq of the one strong entity tag, 0 when there is none.
// A list, a weak tag or * is refused: each of them would make a write
// conditional on something else than one state of the account.
func ifMatch(values []string) (ledger.Seq, error) {
	if len(values) == 0 {
		return 0, nil
	}
	if len(values) > 1 {
		return 0, fmt.Errorf("exactly one entity tag, not %d", len(values))
	}
	v := values[0]
	if len(v) < 3 || v[0] != '"' || v[len(v)-1] != '"' {
		return 0, fmt.Errorf(`exactly one strong entity tag such as "41"`)
	}
	n, ok := positiveInteger(v[1 : len(v)-1])
	if !ok {
		return 0, fmt.Errorf("an entity tag holds the seq of an entry, 1 to %d", ledger.MaxAmount)
	}
	return ledger.Seq(n), nil
}

// fencingToken returns the token, 0 when there is none.
func fencingToken(values []string) (ledger.Token, error) {
	if len(values) == 0 {
		return 0, nil
	}
	if len(values) > 1 {
		return 0, fmt.Errorf("exactly one, not %d", len(values))
	}
	n, ok := positiveInteger(values[0])
	if !ok {
		return 0, fmt.Errorf("an integer from 1 to %d", ledger.MaxToken)
	}
	return ledger.Token(n), nil
}

// positiveInteger parses 1 … 2^53-1 in its only spelling: digits, without a
// sign or leading zeros.
func positiveInteger(s string) (int64, bool) {
	if len(s) < 1 || len(s) > 16 || s[0] < '1' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n <= int64(ledger.MaxAmount)
}
