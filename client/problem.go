package client

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
)

// Code says what happened, for programs. One code has one meaning for ever.
type Code string

// The codes of the service. The recorded declines come first.
const (
	CodeInsufficientFunds Code = "insufficient_funds"
	CodeAccountFrozen     Code = "account_frozen"
	CodeAccountClosed     Code = "account_closed"
	CodeBalanceLimit      Code = "balance_limit"
	CodeCurrencyMismatch  Code = "currency_mismatch"
	CodeSameAccount       Code = "same_account"

	CodeInvalidRequest       Code = "invalid_request"
	CodeKeyMissing           Code = "idempotency_key_missing"
	CodeKeyInvalid           Code = "idempotency_key_invalid"
	CodeKeyReused            Code = "idempotency_key_reused"
	CodeNotFound             Code = "not_found"
	CodeAccountNotFound      Code = "account_not_found"
	CodeEntryNotFound        Code = "entry_not_found"
	CodeTransactionNotFound  Code = "transaction_not_found"
	CodeRebuildNotFound      Code = "rebuild_not_found"
	CodeVerificationNotFound Code = "verification_not_found"
	CodeMethodNotAllowed     Code = "method_not_allowed"
	CodeAccountExists        Code = "account_exists"
	CodeAccountNotEmpty      Code = "account_not_empty"
	CodeStaleFencingToken    Code = "stale_fencing_token"
	CodeTokenFromTheFuture   Code = "token_from_the_future"
	CodeFencingResetRefused  Code = "fencing_reset_refused"
	CodeFencingExternal      Code = "fencing_external"
	CodeLeaseHeld            Code = "lease_held"
	CodeFencingTokenRequired Code = "fencing_token_required"
	CodeLeaseLost            Code = "lease_lost"
	CodeLeaseNotFound        Code = "lease_not_found"
	CodeSeqMismatch          Code = "seq_mismatch"
	CodeRequestTooLarge      Code = "request_too_large"
	CodeUnsupportedMediaType Code = "unsupported_media_type"
	CodeTooManyDeclines      Code = "too_many_declines"
	CodeInternal             Code = "internal"
	CodeOverloaded           Code = "overloaded"
	CodeUnavailable          Code = "unavailable"
	CodeIncarnationMismatch  Code = "incarnation_mismatch"
	CodeProjectionBehind     Code = "projection_behind"
)

// Applied says what is known about the effect of a refused write.
type Applied string

const (
	// AppliedFalse means that this request changed nothing. It says nothing
	// about earlier requests with the same key.
	AppliedFalse Applied = "false"
	// AppliedUnknown means that it may have: repeat the identical request.
	AppliedUnknown Applied = "unknown"
)

// UnmarshalJSON accepts false and "unknown", as the service writes them.
func (a *Applied) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case `false`:
		*a = AppliedFalse
	case `"unknown"`:
		*a = AppliedUnknown
	default:
		return fmt.Errorf("applied is neither false nor \"unknown\": %s", b)
	}
	return nil
}

// Problem is the service's answer to a request that it refused (RFC 9457). It
// is always returned as *Problem, so errors.As finds it.
type Problem struct {
	// Status is the HTTP status.
	Status int `json:"status"`
	// Code is "" when the answer was not a problem document of the service,
	// for example one that a proxy made.
	Code   Code   `json:"code"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	// RequestID names the request in the service's log.
	RequestID string `json:"request_id"`
	// Errors lists the places of the request that are wrong.
	Errors []FieldError `json:"errors"`
	// Applied is "" on reads.
	Applied Applied `json:"applied"`
	// Seq and TransactionID name the entry that records a decline, otherwise
	// they are 0 and "".
	Seq           int64  `json:"seq"`
	TransactionID string `json:"transaction_id"`
	// RefusedBy is the account that declined an operation on several accounts,
	// "" when it is the one whose chain records it.
	RefusedBy string `json:"refused_by"`
	// CurrentSeq is set for seq_mismatch: the account's last entry.
	CurrentSeq int64 `json:"current_seq"`
	// PresentedToken and CurrentToken are set for a refused fencing token.
	PresentedToken int64 `json:"presented_token"`
	CurrentToken   int64 `json:"current_token"`
	// Reason ("held" or "lock_delay"), Holder and RetryAfterMs are set for
	// lease_held: why, whose term it is, and when it becomes free if that holder
	// does nothing more.
	Reason       string `json:"reason"`
	Holder       string `json:"holder"`
	RetryAfterMs int64  `json:"retry_after_ms"`
	// Replayed is true when a recorded decline was there before this call.
	Replayed bool `json:"-"`
}

// FieldError is one place of a request that is wrong; Pointer (into the body,
// RFC 6901), Parameter and Header say which, the others are "".
type FieldError struct {
	Pointer   string `json:"pointer"`
	Parameter string `json:"parameter"`
	Header    string `json:"header"`
	Detail    string `json:"detail"`
}

// Error implements error.
func (p *Problem) Error() string {
	s := fmt.Sprintf("%d %s", p.Status, p.Title)
	if p.Code != "" {
		s = fmt.Sprintf("%d %s", p.Status, p.Code)
	}
	if p.Detail != "" {
		s += ": " + p.Detail
	}
	for _, e := range p.Errors {
		// The detail of the document repeats the first of them.
		if text := fmt.Sprintf("%s%s%s: %s", e.Pointer, e.Parameter, e.Header, e.Detail); !strings.Contains(s, text) {
			s += "; " + text
		}
	}
	return s
}

// Recorded reports whether the refusal is an entry of the account's chain: the
// same key gets the same answer for ever.
func (p *Problem) Recorded() bool { return p.Seq > 0 }

// UnknownOutcome is the error of a write that the service may or may not have
// applied when the retries ended. It is always returned as *UnknownOutcome.
type UnknownOutcome struct {
	// Key is the idempotency key of the operation, also when the client made
	// it; "" for a call that has none, such as UpdateAccount. Repeat the same
	// operation with this key to learn the outcome.
	Key string
	// Attempts says how often the request was sent.
	Attempts int
	// Err is the last thing that went wrong; errors.As finds a *Problem in it.
	Err error
}

// Error implements error.
func (u *UnknownOutcome) Error() string {
	return fmt.Sprintf("the outcome is unknown after %d attempts: %v", u.Attempts, u.Err)
}

// Unwrap returns the last error.
func (u *UnknownOutcome) Unwrap() error { return u.Err }

// problemOf reads a refused answer; a body that is no problem document leaves
// only the status.
func problemOf(status int, header http.Header, body []byte) *Problem {
	p := &Problem{}
	media, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || media != "application/problem+json" || json.Unmarshal(body, p) != nil {
		p = &Problem{Title: http.StatusText(status), RequestID: header.Get("X-Request-Id")}
	}
	p.Status = status
	p.Replayed = header.Get("Idempotency-Replayed") == "true"
	return p
}

// mayRepeat reports whether the identical request can end differently.
func (p *Problem) mayRepeat() bool {
	switch p.Status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return p.Applied == AppliedUnknown
}

// mayHaveApplied reports whether a write with this answer could have changed
// something: "unknown" says so, and an answer that is not the service's own
// does not deny it.
func (p *Problem) mayHaveApplied() bool {
	if p.Applied != "" {
		return p.Applied == AppliedUnknown
	}
	return p.Status >= 500 || p.Status == http.StatusRequestTimeout
}

// settles reports whether p also decides about earlier attempts of the same
// write whose outcome is not known. With a key, the service looks the key up
// before anything else, so p says that no entry has it; what matters is whether
// a straggler could still succeed. It cannot when the reason never goes away:
// the request is malformed, the decline is recorded under the key, the account's
// seq has moved on, or its fence has. Without a key a refusal only speaks of the
// last attempt.
func (p *Problem) settles(keyed bool) bool {
	if p.Status == http.StatusBadRequest {
		return true
	}
	return keyed && (p.Status == http.StatusUnprocessableEntity || p.Code == CodeStaleFencingToken || p.Code == CodeSeqMismatch)
}
