package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Writer adds operations to the chains. *ledger.Writer is one.
type Writer interface {
	// Apply carries out op once, however often it is called with the same
	// key, and returns its receipt; a recorded decline is a receipt too. Every
	// other outcome is a *ledger.Refusal that says what is known about it.
	Apply(ctx context.Context, op *ledger.Operation) (*ledger.Receipt, error)
	// Start begins what Apply does and returns at once. Operations on one
	// account are decided in the order in which they were started.
	Start(ctx context.Context, op *ledger.Operation) ledger.Pending
}

func (s *server) applyCredit(x *exchange, r *http.Request) error {
	return s.applyMovement(x, r, ledger.KindCredit)
}

func (s *server) applyDebit(x *exchange, r *http.Request) error {
	return s.applyMovement(x, r, ledger.KindDebit)
}

func (s *server) applyMovement(x *exchange, r *http.Request, kind ledger.Kind) error {
	op, err := s.readMovement(r, kind)
	if err != nil {
		return err
	}
	receipt, err := s.writer.Apply(r.Context(), op)
	if err != nil {
		return err
	}
	if receipt.Declined() {
		return declined(receipt)
	}
	e := &receipt.Entry
	b, err := appendEntry(x.buf, e, receipt.Account.Currency)
	if err != nil {
		return err
	}
	if receipt.Replayed {
		x.set("Idempotency-Replayed", "true")
	}
	x.set("Location", entryPath(e))
	x.set("Etag", etag(e.Seq))
	x.sendJSON(http.StatusCreated, b)
	return nil
}

// readMovement checks the whole request before anything is done about it.
func (s *server) readMovement(r *http.Request, kind ledger.Kind) (*ledger.Operation, error) {
	if err := noQuery(r); err != nil {
		return nil, err
	}
	id, err := accountID(r)
	if err != nil {
		return nil, err
	}
	h, err := parseWriteHeaders(r.Header, true)
	if err != nil {
		return nil, err
	}
	op := &ledger.Operation{Kind: kind, AccountID: id, Key: h.key, IfMatch: h.ifMatch, Token: h.token}
	d := s.decoder()
	defer s.release(d)
	if err := d.fill(r); err != nil {
		return nil, err
	}
	return op, d.movement(op)
}

// declined returns the problem document of a recorded decline. Everything in it
// comes from the entry, so that a replay gives the same again.
func declined(receipt *ledger.Receipt) *problem {
	e := &receipt.Entry
	// Details that cannot be read leave out what they say; the audit reports them.
	details, _ := ledger.ParseDetails(e.Details)
	detail := declineDetail(e, receipt.Account.Currency)
	if details.Attempted == ledger.KindTransfer || details.Attempted == ledger.KindTransaction {
		detail = declineTogether(e, &details)
	}
	return &problem{
		code:        ledger.Code(e.Reason),
		detail:      detail,
		seq:         e.Seq,
		transaction: e.TransactionID,
		refusedBy:   details.RefusedBy,
		location:    entryPath(e),
		replayed:    receipt.Replayed,
	}
}

func declineDetail(e *ledger.Entry, currency ledger.Currency) string {
	switch ledger.Code(e.Reason) {
	case ledger.CodeInsufficientFunds:
		return fmt.Sprintf("%d were asked for, %d were available.", e.Amount, e.After.Available())
	case ledger.CodeAccountFrozen:
		return "The account was frozen: no money goes out."
	case ledger.CodeAccountClosed:
		return "The account was closed."
	case ledger.CodeBalanceLimit:
		return fmt.Sprintf("With %d more or less than the balance of %d, a number would have left ±%d.", e.Amount, e.After.Balance, ledger.MaxAmount)
	case ledger.CodeCurrencyMismatch:
		return fmt.Sprintf("The account is in %s.", currency)
	}
	return "The account declined the operation."
}

// declineTogether says why an operation with several legs was declined. The
// state of the account that declined is not known here: it may be another one,
// and earlier legs may have changed it.
func declineTogether(e *ledger.Entry, d *ledger.Details) string {
	id := cmp.Or(d.RefusedBy, e.AccountID)
	switch ledger.Code(e.Reason) {
	case ledger.CodeInsufficientFunds:
		return fmt.Sprintf("Not enough was available on %s.", id)
	case ledger.CodeAccountFrozen:
		return fmt.Sprintf("The account %s was frozen: no money goes out.", id)
	case ledger.CodeAccountClosed:
		return fmt.Sprintf("The account %s was closed.", id)
	case ledger.CodeBalanceLimit:
		return fmt.Sprintf("A number of %s would have left ±%d.", id, ledger.MaxAmount)
	case ledger.CodeCurrencyMismatch:
		return fmt.Sprintf("The account %s has another currency.", id)
	case ledger.CodeSameAccount:
		return "Money cannot move from an account to itself."
	}
	return fmt.Sprintf("The account %s declined the operation.", id)
}

func entryPath(e *ledger.Entry) string {
	b := make([]byte, 0, 160)
	b = append(b, "/v1/accounts/"...)
	b = append(b, e.AccountID...)
	b = append(b, "/entries/"...)
	return string(strconv.AppendInt(b, int64(e.Seq), 10))
}

func etag(seq ledger.Seq) string {
	b := make([]byte, 0, 18)
	b = append(b, '"')
	b = strconv.AppendInt(b, int64(seq), 10)
	return string(append(b, '"'))
}
