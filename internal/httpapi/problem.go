package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// The refusals that belong to HTTP alone. Together with the codes of package
// ledger they are the values of ProblemCode in api.yaml.
const (
	codeInvalidRequest                   = ledger.CodeInvalid
	codeKeyMissing           ledger.Code = "idempotency_key_missing"
	codeKeyInvalid           ledger.Code = "idempotency_key_invalid"
	codeNotFound             ledger.Code = "not_found"
	codeRebuildNotFound      ledger.Code = "rebuild_not_found"
	codeVerificationNotFound ledger.Code = "verification_not_found"
	codeMethodNotAllowed     ledger.Code = "method_not_allowed"
	codeRequestTooLarge      ledger.Code = "request_too_large"
	codeUnsupportedMediaType ledger.Code = "unsupported_media_type"
	codeProjectionBehind     ledger.Code = "projection_behind"
	codeLeaseLost            ledger.Code = "lease_lost"
	codeLeaseNotFound        ledger.Code = "lease_not_found"
)

// kind is what all problems with one code have in common.
type kind struct {
	status int
	title  string
	// retryAfter is how many seconds a client waits before it repeats the
	// identical request; 0 means that no Retry-After is sent.
	retryAfter int
}

// kindOf is the one table from codes to statuses. A code that it does not know
// is a fault of the service: ok is false.
func kindOf(code ledger.Code) (k kind, ok bool) {
	switch code {
	case codeInvalidRequest:
		return kind{http.StatusBadRequest, "The request is malformed", 0}, true
	case codeKeyMissing:
		return kind{http.StatusBadRequest, "The Idempotency-Key is missing", 0}, true
	case codeKeyInvalid:
		return kind{http.StatusBadRequest, "The Idempotency-Key is malformed", 0}, true
	case codeNotFound:
		return kind{http.StatusNotFound, "There is no such path", 0}, true
	case ledger.CodeAccountNotFound:
		return kind{http.StatusNotFound, "There is no such account", 0}, true
	case ledger.CodeEntryNotFound:
		return kind{http.StatusNotFound, "There is no such entry", 0}, true
	case ledger.CodeTransactionNotFound:
		return kind{http.StatusNotFound, "There is no such transaction", 0}, true
	case codeRebuildNotFound:
		return kind{http.StatusNotFound, "There is no such rebuild", 0}, true
	case codeVerificationNotFound:
		return kind{http.StatusNotFound, "There is no such verification", 0}, true
	case codeLeaseNotFound:
		return kind{http.StatusNotFound, "There is no such lease", 0}, true
	case codeMethodNotAllowed:
		return kind{http.StatusMethodNotAllowed, "The path has no such method", 0}, true
	case ledger.CodeAccountExists:
		return kind{http.StatusConflict, "The account exists with other attributes", 0}, true
	case ledger.CodeAccountNotEmpty:
		return kind{http.StatusConflict, "The account is not empty", 0}, true
	case ledger.CodeStaleToken:
		return kind{http.StatusConflict, "The fencing token is stale", 0}, true
	case ledger.CodeTokenFromTheFuture:
		return kind{http.StatusConflict, "The fencing token was never given out", 0}, true
	case ledger.CodeFencingResetRefused:
		return kind{http.StatusConflict, "The fence cannot be reset so", 0}, true
	case ledger.CodeFencingExternal:
		return kind{http.StatusConflict, "The tokens of the account come from elsewhere", 0}, true
	case ledger.CodeLeaseHeld:
		return kind{http.StatusConflict, "Somebody else holds the lease", 0}, true
	case codeLeaseLost:
		return kind{http.StatusConflict, "The lease is over", 0}, true
	case ledger.CodeSeqMismatch:
		return kind{http.StatusPreconditionFailed, "The account has changed", 0}, true
	case codeRequestTooLarge:
		return kind{http.StatusRequestEntityTooLarge, "The body is too large", 0}, true
	case codeUnsupportedMediaType:
		return kind{http.StatusUnsupportedMediaType, "The body is not JSON", 0}, true
	case ledger.CodeKeyReused:
		return kind{http.StatusUnprocessableEntity, "The Idempotency-Key belongs to another operation", 0}, true
	case ledger.CodeInsufficientFunds:
		return kind{http.StatusUnprocessableEntity, "Insufficient funds", 0}, true
	case ledger.CodeAccountFrozen:
		return kind{http.StatusUnprocessableEntity, "The account is frozen", 0}, true
	case ledger.CodeAccountClosed:
		return kind{http.StatusUnprocessableEntity, "The account is closed", 0}, true
	case ledger.CodeBalanceLimit:
		return kind{http.StatusUnprocessableEntity, "A balance would leave its limits", 0}, true
	case ledger.CodeCurrencyMismatch:
		return kind{http.StatusUnprocessableEntity, "The account has another currency", 0}, true
	case ledger.CodeSameAccount:
		return kind{http.StatusUnprocessableEntity, "The account is the same one", 0}, true
	case ledger.CodeTokenRequired:
		return kind{http.StatusPreconditionRequired, "The account needs a Fencing-Token", 0}, true
	case ledger.CodeTooManyDeclines:
		return kind{http.StatusTooManyRequests, "Declined too often", 1}, true
	case ledger.CodeInternal:
		return kind{http.StatusInternalServerError, "A fault of the service", 0}, true
	case ledger.CodeOverloaded:
		return kind{http.StatusServiceUnavailable, "Too many requests are waiting", 1}, true
	case ledger.CodeUnavailable:
		return kind{http.StatusServiceUnavailable, "The service is not available now", 1}, true
	case ledger.CodeIncarnationMismatch:
		return kind{http.StatusServiceUnavailable, "The database is not the one it was", 10}, true
	case codeProjectionBehind:
		return kind{http.StatusServiceUnavailable, "The projection is behind", 1}, true
	}
	return kind{}, false
}

// problem is an RFC 9457 problem document, and the error that handlers return
// for it. Members that are zero are left out.
type problem struct {
	code   ledger.Code
	detail string
	errors []fieldError
	// applied is sent on routes that write; "" there means "false".
	applied     ledger.Applied
	seq         ledger.Seq
	transaction uuid.UUID
	// refusedBy is the account that declined, when it is not the one whose chain
	// records it.
	refusedBy ledger.AccountID
	// location and replayed are headers of a recorded decline.
	location string
	replayed bool
	// presented and current are tokens with a refused token, and current is
	// the seq with seq_mismatch.
	presented, current int64
	// fenced is the account whose fence refused a token.
	fenced ledger.AccountID
	// reason, holder and retryAfter say with lease_held why the name is not
	// free, whose term it is, and when it becomes free.
	reason, holder string
	retryAfter     time.Duration
	checks         []Check
	// allow is the Allow header of method_not_allowed.
	allow string
	// cause is logged and never shown.
	cause error
}

// fieldError says what is wrong at one place of a request; one of pointer,
// parameter and header is set, or none for the body as a whole.
type fieldError struct {
	pointer   string
	parameter string
	header    string
	detail    string
}

func (p *problem) Error() string { return string(p.code) + ": " + p.detail }
func (p *problem) Unwrap() error { return p.cause }

// invalid returns an invalid_request problem for one or more places.
func invalid(errs ...fieldError) *problem {
	detail := errs[0].detail
	switch e := errs[0]; {
	case e.pointer != "":
		detail = e.pointer + ": " + detail
	case e.parameter != "":
		detail = e.parameter + ": " + detail
	case e.header != "":
		detail = e.header + ": " + detail
	}
	return &problem{code: codeInvalidRequest, detail: detail, errors: errs}
}

// known returns p with its kind; a code that the table does not have is a fault
// of the service.
func known(p *problem) (*problem, kind) {
	k, ok := kindOf(p.code)
	if !ok {
		p = &problem{code: ledger.CodeInternal, detail: "The service met a fault of its own.", applied: ledger.AppliedUnknown, cause: p}
		k, _ = kindOf(p.code)
	}
	return p, k
}

// asProblem turns what a handler returned into a problem document. It never
// shows the text of an error that was not made for clients.
func (s *server) asProblem(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	var lease *LeaseRefusal
	if errors.As(err, &lease) {
		return lease.asProblem()
	}
	var refusal *ledger.Refusal
	if errors.As(err, &refusal) {
		if _, known := kindOf(refusal.Code); known {
			return &problem{
				code: refusal.Code, detail: refusal.Detail, applied: refusal.Applied,
				presented: refusal.Presented, current: refusal.Current, fenced: refusal.AccountID, cause: refusal.Err,
			}
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &problem{code: ledger.CodeUnavailable, detail: "No answer within the deadline.", applied: ledger.AppliedUnknown, cause: err}
	case errors.Is(err, context.Canceled):
		return &problem{code: ledger.CodeUnavailable, detail: "The request was cancelled.", applied: ledger.AppliedUnknown, cause: err}
	case s.unavailable(err):
		return &problem{code: ledger.CodeUnavailable, detail: "The database does not answer.", applied: ledger.AppliedUnknown, cause: err}
	}
	return &problem{code: ledger.CodeInternal, detail: "The service met a fault of its own.", applied: ledger.AppliedUnknown, cause: err}
}

// appendProblem appends p as JSON. write says that the route changes things,
// so that the document says whether it did.
func appendProblem(b []byte, p *problem, k kind, requestID string, write bool) []byte {
	b = append(b, `{"type":"/docs#`...)
	b = append(b, p.code...)
	b = append(b, `","title":`...)
	b = appendString(b, k.title)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(k.status), 10)
	if p.detail != "" {
		b = append(b, `,"detail":`...)
		b = appendString(b, p.detail)
	}
	b = append(b, `,"code":"`...)
	b = append(b, p.code...)
	b = append(b, `","request_id":`...)
	b = appendString(b, requestID)
	if len(p.errors) > 0 {
		b = appendFieldErrors(b, p.errors)
	}
	if write {
		if p.applied == ledger.AppliedUnknown {
			b = append(b, `,"applied":"unknown"`...)
		} else {
			b = append(b, `,"applied":false`...)
		}
	}
	b = p.appendExtensions(b)
	return append(b, '}')
}

func (p *problem) appendExtensions(b []byte) []byte {
	if p.seq != 0 {
		b = append(b, `,"seq":`...)
		b = strconv.AppendInt(b, int64(p.seq), 10)
	}
	if p.transaction != uuid.Nil {
		b = append(b, `,"transaction_id":`...)
		b = appendUUID(b, p.transaction)
	}
	if p.refusedBy != "" {
		b = append(b, `,"refused_by":`...)
		b = appendString(b, string(p.refusedBy))
	}
	switch p.code {
	case ledger.CodeSeqMismatch:
		b = append(b, `,"current_seq":`...)
		b = strconv.AppendInt(b, p.current, 10)
	case ledger.CodeStaleToken, ledger.CodeTokenFromTheFuture:
		b = append(b, `,"presented_token":`...)
		b = strconv.AppendInt(b, p.presented, 10)
		b = append(b, `,"current_token":`...)
		b = strconv.AppendInt(b, p.current, 10)
	}
	if p.code == ledger.CodeLeaseHeld {
		b = append(b, `,"reason":`...)
		b = appendString(b, p.reason)
		b = append(b, `,"holder":`...)
		b = appendString(b, p.holder)
		b = append(b, `,"retry_after_ms":`...)
		b = strconv.AppendInt(b, p.retryAfter.Milliseconds(), 10)
	}
	if p.checks != nil {
		b = append(b, `,"checks":`...)
		b = appendChecks(b, p.checks)
	}
	return b
}

func appendFieldErrors(b []byte, errs []fieldError) []byte {
	b = append(b, `,"errors":[`...)
	for i, e := range errs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		for _, place := range [...]struct{ name, value string }{
			{"pointer", e.pointer}, {"parameter", e.parameter}, {"header", e.header},
		} {
			if place.value != "" {
				b = append(b, '"')
				b = append(b, place.name...)
				b = append(b, `":`...)
				b = appendString(b, place.value)
				b = append(b, ',')
			}
		}
		b = append(b, `"detail":`...)
		b = appendString(b, e.detail)
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendString appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD, so a document is valid whatever a client sent.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s) // the only error is invalid UTF-8, which it has replaced
	return b
}
