package httpapi

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// The size of a page.
const (
	limitDefault = 50
	limitMax     = 200
)

// query holds the query parameters of a request and collects what is wrong
// with them.
type query struct {
	values url.Values
	errs   []fieldError
}

// parseQuery returns the parameters of r. One that is not in allowed, or that
// comes twice, is refused: a misspelt filter must not widen a list.
func parseQuery(r *http.Request, allowed ...string) query {
	var q query
	if r.URL.RawQuery == "" {
		return q
	}
	var err error
	if q.values, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		q.errs = append(q.errs, fieldError{detail: "the query is not well-formed"})
		return q
	}
	names := make([]string, 0, len(q.values))
	for name := range q.values {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch {
		case len(q.errs) == fieldErrorsMax:
			return q
		case !slices.Contains(allowed, name):
			q.fail(clip(name), "unknown parameter")
		case len(q.values[name]) > 1:
			q.fail(name, "given more than once")
		}
	}
	return q
}

// noQuery refuses all query parameters.
func noQuery(r *http.Request) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	q := parseQuery(r)
	return q.err()
}

func (q *query) fail(name, detail string) {
	q.errs = append(q.errs, fieldError{parameter: name, detail: detail})
}

// err returns everything that is wrong as one problem, or nil.
func (q *query) err() error {
	if len(q.errs) == 0 {
		return nil
	}
	return invalid(q.errs...)
}

func (q *query) has(name string) bool { return q.values.Has(name) }

// limit returns the size of the page.
func (q *query) limit() int { return int(q.integer("limit", limitDefault, 1, limitMax)) }

func (q *query) seq(name string) ledger.Seq {
	return ledger.Seq(q.integer(name, 0, 1, int64(ledger.MaxAmount)))
}

func (q *query) integer(name string, absent, least, most int64) int64 {
	if !q.has(name) {
		return absent
	}
	s := q.values.Get(name)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < least || n > most || strconv.FormatInt(n, 10) != s {
		q.fail(name, "an integer from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10))
		return absent
	}
	return n
}

// choice returns the value of a parameter that has a few, absent when it is
// not given.
func (q *query) choice(name, absent string, options ...string) string {
	if !q.has(name) {
		return absent
	}
	s := q.values.Get(name)
	if !slices.Contains(options, s) {
		detail := "one of"
		for _, o := range options {
			detail += " " + o
		}
		q.fail(name, detail)
		return absent
	}
	return s
}

func (q *query) time(name string) time.Time {
	if !q.has(name) {
		return time.Time{}
	}
	t, err := parseTime(q.values.Get(name))
	if err != nil {
		q.fail(name, err.Error())
	}
	return t
}

// text returns a text of 1 to runesMax characters, "" when it is not given.
func (q *query) text(name string, runesMax int) string {
	if !q.has(name) {
		return ""
	}
	s := q.values.Get(name)
	if s == "" {
		q.fail(name, "must not be empty")
	} else if err := ledger.ValidateText(s, runesMax); err != nil {
		q.fail(name, err.Error())
	}
	return s
}

// clip shortens what a client sent before it is shown in an answer.
func clip(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
