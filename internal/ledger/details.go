package ledger

import (
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
)

// Metadata is the caller's own notes on an account or an entry: at most
// MetadataKeysMax keys of 1–64 characters, at most MetadataBytesMax bytes as
// canonical JSON.
type Metadata map[string]string

// Limits of the free text that an operation can carry.
const (
	MetadataKeysMax      = 50
	MetadataKeyRunesMax  = 64
	MetadataBytesMax     = 16 << 10
	DescriptionRunesMax  = 500
	CounterpartyRunesMax = 255
	ReasonRunesMax       = 255
)

// Details is the part of an entry that only people read. Its canonical JSON is
// stored and hashed: an object with its keys in byte order, without spaces,
// strings escaped only where RFC 8259 demands it, absent members left out.
type Details struct {
	// Attempted is what a declined entry refused: credit, debit …
	Attempted Kind `json:"attempted,omitempty"`
	// Currency and Exponent are set on an opened entry alone.
	Currency    Currency `json:"currency,omitempty"`
	Description string   `json:"description,omitempty"`
	Exponent    *int     `json:"exponent,omitempty"`
	// Metadata is nil when absent. A settings entry that removed all metadata
	// has an empty one.
	Metadata Metadata `json:"metadata,omitzero"`
	// RefusedBy is the account that declined a leg, when it is not the account
	// of the entry.
	RefusedBy AccountID `json:"refused_by,omitempty"`
	// Reset is true when a settings entry lowered the fence.
	Reset bool `json:"reset,omitzero"`
}

// String returns the canonical JSON, "" when everything is absent.
func (d *Details) String() string {
	b := make([]byte, 0, 64)
	b = append(b, '{')
	if d.Attempted != "" {
		b = appendMember(b, "attempted", string(d.Attempted))
	}
	if d.Currency != "" {
		b = appendMember(b, "currency", string(d.Currency))
	}
	if d.Description != "" {
		b = appendMember(b, "description", d.Description)
	}
	if d.Exponent != nil {
		b = appendName(b, "exponent")
		b = fmt.Append(b, *d.Exponent)
	}
	if d.Metadata != nil {
		b = appendName(b, "metadata")
		b = d.Metadata.appendJSON(b)
	}
	if d.RefusedBy != "" {
		b = appendMember(b, "refused_by", string(d.RefusedBy))
	}
	if d.Reset {
		b = append(appendName(b, "reset"), "true"...)
	}
	if len(b) == 1 {
		return ""
	}
	return string(append(b, '}'))
}

// ParseDetails reads what Details.String wrote; "" gives the zero Details.
func ParseDetails(s string) (Details, error) {
	var d Details
	if s == "" {
		return d, nil
	}
	if err := json.Unmarshal([]byte(s), &d, json.RejectUnknownMembers(true)); err != nil {
		return Details{}, fmt.Errorf("parse details: %w", err)
	}
	return d, nil
}

// String returns the canonical JSON object of m, "{}" when it is empty.
func (m Metadata) String() string { return string(m.appendJSON(nil)) }

// ParseMetadata reads what Metadata.String wrote.
func ParseMetadata(s string) (Metadata, error) {
	var m Metadata
	if err := json.Unmarshal([]byte(s), &m); err != nil {
		return nil, fmt.Errorf("parse metadata: %w", err)
	}
	return m, nil
}

// Validate returns an error that names the first limit that m breaks.
func (m Metadata) Validate() error {
	if len(m) > MetadataKeysMax {
		return fmt.Errorf("metadata has at most %d keys, this has %d", MetadataKeysMax, len(m))
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if n := utf8.RuneCountInString(k); n < 1 || n > MetadataKeyRunesMax {
			return fmt.Errorf("a metadata key has 1 to %d characters, %q has %d", MetadataKeyRunesMax, k, n)
		}
		if err := validText(k); err != nil {
			return fmt.Errorf("metadata key %q: %w", k, err)
		}
		if err := validText(m[k]); err != nil {
			return fmt.Errorf("metadata value of %q: %w", k, err)
		}
	}
	if n := len(m.String()); n > MetadataBytesMax {
		return fmt.Errorf("metadata has at most %d bytes as JSON, this has %d", MetadataBytesMax, n)
	}
	return nil
}

// validText refuses what a PostgreSQL text cannot hold exactly.
func validText(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("not valid UTF-8")
	}
	for i := range len(s) {
		if s[i] == 0 {
			return fmt.Errorf("U+0000 is not allowed")
		}
	}
	return nil
}

// ValidateText returns an error when s is longer than runesMax characters, is
// not UTF-8 or contains U+0000.
func ValidateText(s string, runesMax int) error {
	if n := utf8.RuneCountInString(s); n > runesMax {
		return fmt.Errorf("at most %d characters, this has %d", runesMax, n)
	}
	return validText(s)
}

func (m Metadata) appendJSON(b []byte) []byte {
	b = append(b, '{')
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b = appendMember(b, k, m[k])
	}
	return append(b, '}')
}

func appendMember(b []byte, name, value string) []byte {
	return appendString(appendName(b, name), value)
}

func appendName(b []byte, name string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return append(appendString(b, name), ':')
}

// appendString appends s as a JSON string with the shortest escapes that RFC
// 8259, section 7, allows: only ", \ and the control characters are escaped.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= 0x20:
			b = append(b, c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		case c == '\b':
			b = append(b, '\\', 'b')
		case c == '\f':
			b = append(b, '\\', 'f')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(b, '"')
}
