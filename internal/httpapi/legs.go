package httpapi

import (
	"net/http"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

func (s *server) applyTransfer(x *exchange, r *http.Request) error {
	return s.applyLegs(x, r, ledger.KindTransfer)
}

func (s *server) applyTransaction(x *exchange, r *http.Request) error {
	return s.applyLegs(x, r, ledger.KindTransaction)
}

func (s *server) applyLegs(x *exchange, r *http.Request, kind ledger.Kind) error {
	op, err := s.readLegs(r, kind)
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
	b, err := appendReceipt(x.buf, receipt)
	if err != nil {
		return err
	}
	if receipt.Replayed {
		x.set("Idempotency-Replayed", "true")
	}
	x.set("Location", "/v1/transactions/"+receipt.Entry.TransactionID.String())
	x.sendJSON(http.StatusCreated, b)
	return nil
}

// readLegs checks the whole request before anything is done about it.
func (s *server) readLegs(r *http.Request, kind ledger.Kind) (*ledger.Operation, error) {
	if err := noQuery(r); err != nil {
		return nil, err
	}
	h, err := parseWriteHeaders(r.Header, true)
	if err != nil {
		return nil, err
	}
	if h.ifMatch != 0 {
		return nil, invalid(fieldError{header: headerIfMatch, detail: "not for operations on several accounts: it would speak of one of them"})
	}
	op := &ledger.Operation{Kind: kind, Key: h.key}
	d := s.decoder()
	defer s.release(d)
	if err := d.fill(r); err != nil {
		return nil, err
	}
	if err := d.operation(op, false); err != nil {
		return nil, err
	}
	return op, presentToken(op, h.token, fieldError{header: headerToken})
}

// presentToken gives the token of a request, which speaks for the first
// account, to every leg of that account that has none of its own. place is
// where the token was given.
func presentToken(op *ledger.Operation, token ledger.Token, place fieldError) error {
	if token == 0 {
		return nil
	}
	for i := range op.Legs {
		leg := &op.Legs[i]
		switch {
		case leg.AccountID != op.AccountID:
		case leg.Token == 0:
			leg.Token = token
		case leg.Token != token:
			place.detail = "leg " + strconv.Itoa(i) + " of the same account has another token"
			return invalid(place)
		}
	}
	return nil
}

// appendReceipt appends the body that a call answers with 201: the entry of an
// operation on one account, all entries of one with several legs.
func appendReceipt(b []byte, receipt *ledger.Receipt) ([]byte, error) {
	if receipt.Legs == nil {
		return appendEntry(b, &receipt.Entry, receipt.Account.Currency)
	}
	return appendTransaction(b, receipt.Legs)
}

// appendTransaction appends the entries of one transaction, at least one.
func appendTransaction(b []byte, entries []ledger.TransactionEntry) ([]byte, error) {
	b = append(b, `{"transaction_id":`...)
	b = appendUUID(b, entries[0].Entry.TransactionID)
	b = append(b, `,"entries":[`...)
	for i := range entries {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendEntry(b, &entries[i].Entry, entries[i].Account.Currency); err != nil {
			return b, err
		}
	}
	return append(b, `]}`...), nil
}
