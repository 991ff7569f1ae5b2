package httpapi

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

const (
	// batchItemsMax and batchBytesMax bound a batch in one JSON body. A stream
	// has no bound but that of a line.
	batchItemsMax = 10_000
	batchBytesMax = 8 << 20
	// batchReadTime is how long the body of a batch may take to arrive.
	batchReadTime = 30 * time.Second
)

// applyBatch carries out many operations, each for itself, in the order in
// which they come.
func (s *server) applyBatch(x *exchange, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	for _, name := range []string{headerIfMatch, headerToken} {
		if len(r.Header[name]) > 0 {
			return invalid(fieldError{header: name, detail: "not for a batch: each item has its own"})
		}
	}
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err == nil && mediaType == "application/x-ndjson" && r.Header.Get("Content-Encoding") == "" {
		return s.applyStream(x, r)
	}
	if err := checkMediaType(r.Header); err != nil {
		return &problem{code: codeUnsupportedMediaType, detail: "Send the body as Content-Type: application/json or application/x-ndjson, and not compressed."}
	}
	return s.applyItems(x, r)
}

// applyItems answers a batch in one JSON body. Nothing is started before the
// whole body is known to be JSON.
func (s *server) applyItems(x *exchange, r *http.Request) error {
	arriving := &streamBody{body: r.Body, controller: http.NewResponseController(x),
		stopping: stoppingOf(r.Context()), until: time.Now().Add(batchReadTime)}
	arriving.watch(r.Context())
	body, err := readBatch(r.ContentLength, arriving)
	arriving.close()
	if err != nil {
		return err
	}
	items, err := splitBatch(body)
	if err != nil {
		return err
	}
	x.set("Content-Type", "application/json")
	x.set("Cache-Control", "no-store")
	x.WriteHeader(http.StatusOK)
	next := 0
	p := newPipeline(s, x, func() ([]byte, error) {
		if next == len(items) {
			return nil, io.EOF
		}
		next++
		return items[next-1], nil
	})
	p.opening, p.separator, p.closing = `{"results":[`, `,`, `]}`
	p.run()
	return nil
}

// readBatch reads the body. What it takes in memory follows what has arrived,
// not what the client says will come.
func readBatch(length int64, r io.Reader) ([]byte, error) {
	tooLarge := &problem{code: codeRequestTooLarge, detail: "A batch has at most 8 MiB; send a longer one as application/x-ndjson."}
	if length > batchBytesMax {
		return nil, tooLarge
	}
	var body bytes.Buffer
	_, err := body.ReadFrom(io.LimitReader(r, batchBytesMax+1))
	switch {
	case errors.Is(err, errStopping):
		return nil, &problem{code: ledger.CodeUnavailable, detail: "The service shuts down. Repeat the request as it is.", cause: err}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &problem{code: ledger.CodeUnavailable, detail: "The body did not arrive in time.", cause: err}
	case err != nil:
		p := invalid(fieldError{detail: "the body did not arrive completely"})
		p.cause = err
		return nil, p
	case body.Len() > batchBytesMax:
		return nil, tooLarge
	}
	return body.Bytes(), nil
}

// splitBatch returns the items of a batch as they stand in the body. What
// strict decoding refuses in one of them is left to that one: duplicate names
// and broken characters must not fail its neighbours.
func splitBatch(body []byte) ([][]byte, error) {
	d := new(decoder)
	d.dec.Reset(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	var items [][]byte
	lists, n := 0, 0
	d.whole(func(name []byte) {
		if string(name) != "items" {
			d.unknown("", name)
			return
		}
		lists++
		n = d.array("/items", func(i int) {
			raw, err := d.dec.ReadValue()
			if err != nil {
				d.syntax = err
				return
			}
			if i < batchItemsMax {
				end := d.dec.InputOffset()
				items = append(items, body[end-int64(len(raw)):end])
			}
		})
	})
	switch {
	case len(d.errs) > 0 || d.syntax != nil:
	case lists == 0:
		d.fail("/items", "required")
	case lists > 1:
		d.fail("/items", "given more than once")
	case n > batchItemsMax:
		d.fail("/items", "must have at most "+strconv.Itoa(batchItemsMax)+" items, not "+strconv.Itoa(n))
	}
	return items, d.err()
}

// item decodes one item of a batch.
func (d *decoder) item(raw []byte) (*ledger.Operation, error) {
	d.body.Reset()
	d.body.Write(raw)
	d.errs, d.syntax = d.errs[:0], nil
	op := &ledger.Operation{Kind: d.itemKind(raw)}
	switch op.Kind {
	case ledger.KindCredit, ledger.KindDebit, ledger.KindTransfer, ledger.KindTransaction:
		return op, d.operation(op, true)
	}
	seen := false
	d.document(func(name []byte) {
		seen = seen || string(name) == "type"
		if string(name) == "idempotency_key" {
			op.Key, _ = d.rawText("/idempotency_key")
			return
		}
		d.skip()
	})
	switch {
	case len(d.errs) > 0 || d.syntax != nil:
	case !seen:
		d.fail("/type", "required")
	default:
		d.fail("/type", "must be credit, debit, transfer or transaction")
	}
	return op, d.err()
}

// itemKind returns the type of an item, "" when it cannot be told: it says what
// the other members are, and they can stand before it.
func (d *decoder) itemKind(raw []byte) ledger.Kind {
	d.dec.Reset(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if token, err := d.dec.ReadToken(); err != nil || token.Kind() != '{' {
		return ""
	}
	for d.dec.PeekKind() == '"' {
		name, err := d.dec.ReadToken()
		if err != nil {
			return ""
		}
		if name.String() != "type" {
			if d.dec.SkipValue() != nil {
				return ""
			}
			continue
		}
		value, err := d.dec.ReadToken()
		if err != nil || value.Kind() != '"' {
			return ""
		}
		return ledger.Kind(value.String())
	}
	return ""
}
