package httpapi

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

const (
	// bodyBytesMax is the longest body that is read.
	bodyBytesMax = 1 << 20
	// fieldErrorsMax bounds how many places one answer names.
	fieldErrorsMax = 20
	// pooledBytesMax is the largest buffer that is kept for later requests.
	pooledBytesMax = 64 << 10
)

// decoder reads one JSON body strictly and collects what is wrong with it.
// jsontext refuses bad syntax, duplicate names, invalid UTF-8 and lone
// surrogates; the methods here refuse wrong types, unknown names, null, U+0000
// and what is out of range. A decoder is used again for later requests, which
// is why strings are copied out of its buffer.
type decoder struct {
	body    bytes.Buffer
	limited io.LimitedReader
	dec     jsontext.Decoder
	// scratch holds the last unquoted string.
	scratch []byte
	errs    []fieldError
	// syntax is the error that ended the reading; nothing can be read after it.
	syntax error
}

// fill reads the whole body of r.
func (d *decoder) fill(r *http.Request) error {
	if err := checkMediaType(r.Header); err != nil {
		return err
	}
	return d.fillAny(r)
}

func (d *decoder) fillAny(r *http.Request) error {
	d.body.Reset()
	d.errs = d.errs[:0]
	d.syntax = nil
	if r.ContentLength > bodyBytesMax {
		return errTooLarge()
	}
	d.limited = io.LimitedReader{R: r.Body, N: bodyBytesMax + 1}
	_, err := d.body.ReadFrom(&d.limited)
	d.limited.R = nil
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) || r.Context().Err() != nil {
			return &problem{code: ledger.CodeUnavailable, detail: "The body did not arrive in time.", cause: err}
		}
		p := invalid(fieldError{detail: "the body did not arrive completely"})
		p.cause = err
		return p
	}
	if d.body.Len() > bodyBytesMax {
		return errTooLarge()
	}
	return nil
}

// recyclable reports whether d is small enough to be kept.
func (d *decoder) recyclable() bool {
	return d.body.Cap() <= pooledBytesMax && cap(d.scratch) <= pooledBytesMax
}

func errTooLarge() error {
	return &problem{code: codeRequestTooLarge, detail: "A body has at most 1 MiB."}
}

func checkMediaType(h http.Header) error {
	if h.Get("Content-Encoding") != "" && !strings.EqualFold(h.Get("Content-Encoding"), "identity") {
		return &problem{code: codeUnsupportedMediaType, detail: "A body is not compressed."}
	}
	v := h.Get("Content-Type")
	if v == "application/json" {
		return nil
	}
	mediaType, params, err := mime.ParseMediaType(v)
	if err == nil && mediaType == "application/json" && (params["charset"] == "" || strings.EqualFold(params["charset"], "utf-8")) {
		return nil
	}
	return &problem{code: codeUnsupportedMediaType, detail: "Send the body as Content-Type: application/json."}
}

// document decodes the body as one object; member is called for each name and
// must consume its value.
func (d *decoder) document(member func(name []byte)) {
	if len(bytes.TrimLeft(d.body.Bytes(), " \t\r\n")) == 0 {
		d.fail("", "the body is empty; an object is expected")
		return
	}
	d.dec.Reset(&d.body)
	d.whole(member)
}

// whole decodes all of the input as one object.
func (d *decoder) whole(member func(name []byte)) {
	d.object("", member)
	if d.syntax != nil {
		return
	}
	if _, err := d.dec.ReadToken(); err == nil {
		d.fail("", "something follows the object")
	} else if !errors.Is(err, io.EOF) {
		d.syntax = err
	}
}

// err returns everything that is wrong with the body as one problem, or nil.
func (d *decoder) err() error {
	if d.syntax != nil {
		return invalid(syntaxError(d.syntax))
	}
	if len(d.errs) > 0 {
		return invalid(append([]fieldError(nil), d.errs...)...)
	}
	return nil
}

func syntaxError(err error) fieldError {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fieldError{detail: "the body ends in the middle of a value"}
	}
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		return fieldError{detail: "the body is not JSON"}
	}
	f := fieldError{pointer: clip(string(syntax.JSONPointer)), detail: "not JSON"}
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		f.detail = "given more than once"
	case syntax.Err != nil:
		f.detail = "not JSON: " + syntax.Err.Error() + ", at byte " + strconv.FormatInt(syntax.ByteOffset, 10)
	}
	return f
}

func (d *decoder) fail(pointer, detail string) {
	if len(d.errs) < fieldErrorsMax {
		d.errs = append(d.errs, fieldError{pointer: clip(pointer), detail: detail})
	}
}

// object decodes the value at pointer as an object.
func (d *decoder) object(pointer string, member func(name []byte)) {
	if !d.expect(pointer, '{', "an object") {
		return
	}
	if _, err := d.dec.ReadToken(); err != nil {
		d.syntax = err
		return
	}
	for d.syntax == nil && d.dec.PeekKind() != '}' {
		name := d.stringBytes()
		if d.syntax != nil {
			return
		}
		member(name)
	}
	if d.syntax == nil {
		_, d.syntax = d.dec.ReadToken()
	}
}

// unknown refuses the member that was just named, which the object at pointer
// does not have.
func (d *decoder) unknown(pointer string, name []byte) {
	d.fail(member(pointer, name), "unknown field")
	d.skip()
}

// expect reports whether the next value has the kind; otherwise it skips the
// value and says what was expected.
func (d *decoder) expect(pointer string, kind jsontext.Kind, what string) bool {
	got := d.dec.PeekKind()
	if got == kind {
		return true
	}
	d.skip()
	if d.syntax == nil {
		d.fail(pointer, "must be "+what+", not "+describe(got))
	}
	return false
}

func (d *decoder) skip() {
	if err := d.dec.SkipValue(); err != nil {
		d.syntax = err
	}
}

// integer decodes a whole number from least to most. 1.0 and 1e3 are refused:
// they are not the spelling of an integer.
func (d *decoder) integer(pointer string, least, most int64) int64 {
	if !d.expect(pointer, '0', "an integer") {
		return 0
	}
	raw, err := d.dec.ReadValue()
	if err != nil {
		d.syntax = err
		return 0
	}
	if bytes.ContainsAny(raw, ".eE") {
		d.fail(pointer, "must be an integer without a fraction or an exponent")
		return 0
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < least || n > most {
		d.fail(pointer, "must be from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10))
		return 0
	}
	return n
}

func (d *decoder) boolean(pointer string) bool {
	kind := d.dec.PeekKind()
	if kind != 't' && !d.expect(pointer, 'f', "true or false") {
		return false
	}
	d.skip()
	return kind == 't'
}

// text decodes a string of least to most characters; ok is false when it is
// refused.
func (d *decoder) text(pointer string, least, most int) (s string, ok bool) {
	s, ok = d.rawText(pointer)
	if !ok {
		return "", false
	}
	if n := len(s); n > most || n < least {
		if n = utf8.RuneCountInString(s); n > most || n < least {
			d.fail(pointer, "must have "+strconv.Itoa(least)+" to "+strconv.Itoa(most)+" characters, not "+strconv.Itoa(n))
			return "", false
		}
	}
	return s, true
}

func (d *decoder) rawText(pointer string) (string, bool) {
	if !d.expect(pointer, '"', "a string") {
		return "", false
	}
	b := d.stringBytes()
	if d.syntax != nil {
		return "", false
	}
	if bytes.IndexByte(b, 0) >= 0 {
		d.fail(pointer, "must not contain U+0000")
		return "", false
	}
	return string(b), true
}

// stringBytes reads the next value, which is known to be a string. The bytes
// are valid until the next call; they are nil when syntax has been set.
func (d *decoder) stringBytes() []byte {
	raw, err := d.dec.ReadValue()
	if err != nil {
		d.syntax = err
		return nil
	}
	return d.unquote(raw)
}

// unquote returns what the JSON string raw stands for, valid until the next
// call.
func (d *decoder) unquote(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		d.scratch = append(d.scratch[:0], raw[1:len(raw)-1]...)
		return d.scratch
	}
	var err error
	if d.scratch, err = jsontext.AppendUnquote(d.scratch[:0], raw); err != nil {
		d.syntax = err // the decoder has accepted raw, so this cannot be
	}
	return d.scratch
}

// member returns the pointer of the member name of the object at pointer.
func member(pointer string, name []byte) string {
	return string(jsontext.Pointer(pointer).AppendToken(clip(string(name))))
}

func describe(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "something else"
}
