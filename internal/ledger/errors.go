package ledger

import "fmt"

// Code names a reason for refusing an operation. Callers switch on it; it is
// part of the HTTP contract and never changes its meaning.
type Code string

// The refusals of the ledger. The first group is recorded in the chain as a
// declined entry under the operation's key; the second writes nothing, and its
// answer speaks of this request only.
const (
	CodeInsufficientFunds Code = "insufficient_funds"
	CodeAccountFrozen     Code = "account_frozen"
	CodeAccountClosed     Code = "account_closed"
	CodeBalanceLimit      Code = "balance_limit"
	CodeCurrencyMismatch  Code = "currency_mismatch"
	CodeSameAccount       Code = "same_account"

	CodeInvalid             Code = "invalid_request"
	CodeAccountNotFound     Code = "account_not_found"
	CodeEntryNotFound       Code = "entry_not_found"
	CodeTransactionNotFound Code = "transaction_not_found"
	CodeAccountExists       Code = "account_exists"
	CodeAccountNotEmpty     Code = "account_not_empty"
	CodeKeyReused           Code = "idempotency_key_reused"
	CodeStaleToken          Code = "stale_fencing_token"
	CodeTokenFromTheFuture  Code = "token_from_the_future"
	CodeFencingResetRefused Code = "fencing_reset_refused"
	CodeLeaseHeld           Code = "lease_held"
	CodeFencingExternal     Code = "fencing_external"
	CodeTokenRequired       Code = "fencing_token_required"
	CodeSeqMismatch         Code = "seq_mismatch"
	CodeTooManyDeclines     Code = "too_many_declines"
	CodeOverloaded          Code = "overloaded"
	CodeUnavailable         Code = "unavailable"
	CodeIncarnationMismatch Code = "incarnation_mismatch"
	CodeInternal            Code = "internal"
)

// Applied says what is known about the effect of a refused request.
type Applied string

const (
	// NotApplied means that this request changed nothing.
	NotApplied Applied = "false"
	// AppliedUnknown means that the outcome is not known: the client repeats
	// the identical request and learns it.
	AppliedUnknown Applied = "unknown"
)

// Refusal is the error of every operation that the ledger did not apply. It is
// always returned as *Refusal, so errors.As finds it.
type Refusal struct {
	Code Code
	// Detail is one sentence for a person. It names no SQL and no secret.
	Detail  string
	Applied Applied
	// Presented and Current are set for stale_fencing_token and
	// token_from_the_future (tokens) and for seq_mismatch (seqs).
	Presented int64
	Current   int64
	// AccountID is set with a refused token: the account whose fence it is.
	AccountID AccountID
	// Err is the cause, for the log; it is not shown to a client.
	Err error
}

// Error implements error.
func (r *Refusal) Error() string {
	if r.Err != nil {
		return fmt.Sprintf("%s: %s: %v", r.Code, r.Detail, r.Err)
	}
	return fmt.Sprintf("%s: %s", r.Code, r.Detail)
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }

func refuse(code Code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Detail: fmt.Sprintf(format, args...), Applied: NotApplied}
}
