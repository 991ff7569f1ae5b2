package httpapi

import (
	"errors"
	"strings"
	"time"
)

var (
	errTimeForm  = errors.New("must be a time as in RFC 3339 with an offset, such as 2026-11-30T09:30:00Z")
	errTimeRange = errors.New("must be after the beginning of year 1 and before the end of year 9999, in UTC")
	errTimeFine  = errors.New("must not be finer than a microsecond")
)

// parseTime parses an RFC 3339 time with an offset, in the years 1 to 9999 and
// with no more than microseconds, and returns it in UTC. The very first
// instant of year 1 is refused because it stands for "no time" in this program.
func parseTime(s string) (time.Time, error) {
	if !timeForm(s) {
		return time.Time{}, errTimeForm
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, errTimeForm
	}
	t = t.UTC()
	switch {
	case t.Year() < 1 || t.Year() > 9999 || t.IsZero():
		return time.Time{}, errTimeRange
	case t.Nanosecond()%1000 != 0:
		return time.Time{}, errTimeFine
	}
	return t, nil
}

// timeForm reports whether s has the form of RFC 3339, section 5.6, with
// capital letters. time.Parse is more lenient: it takes a single digit for the
// hour, a comma before the fraction and offsets of more than a day.
func timeForm(s string) bool {
	const form = "0000-00-00T00:00:00"
	if len(s) < len(form)+1 || !like(s[:len(form)], form) {
		return false
	}
	rest := s[len(form):]
	if rest[0] == '.' {
		digits := len(rest) - 1 - len(strings.TrimLeft(rest[1:], "0123456789"))
		if digits < 1 || digits > 9 {
			return false
		}
		rest = rest[1+digits:]
	}
	if rest == "Z" {
		return true
	}
	return (like(rest, "+00:00") || like(rest, "-00:00")) && rest[1:3] < "24" && rest[4:6] < "60"
}

// like reports whether s has a digit wherever form has one, and is form
// elsewhere.
func like(s, form string) bool {
	if len(s) != len(form) {
		return false
	}
	for i := range len(s) {
		digit := '0' <= s[i] && s[i] <= '9'
		if form[i] == '0' && !digit || form[i] != '0' && s[i] != form[i] {
			return false
		}
	}
	return true
}
