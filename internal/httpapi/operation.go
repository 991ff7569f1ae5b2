package httpapi

import (
	"strconv"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// members is what a body says before it is an operation.
type members struct {
	account, from, to ledger.AccountID
	amount            ledger.Amount
	token, toToken    ledger.Token
	hasKey            bool
	hasAccount        bool
	hasFrom, hasTo    bool
	hasAmount         bool
	hasLegs           bool
}

// operation decodes the body of a transfer or transaction or, when it is an
// item of a batch, of any operation: there the key, the tokens and the
// condition, which single calls have in their headers, are members, and so is
// the account. op.Kind says what is expected.
func (d *decoder) operation(op *ledger.Operation, item bool) error {
	var m members
	d.document(func(name []byte) {
		if !d.commonMember(op, &m, string(name)) && !(item && d.itemMember(op, &m, string(name))) {
			d.unknown("", name)
		}
	})
	d.require(op.Kind, &m, item)
	if err := d.err(); err != nil {
		return err
	}
	switch op.Kind {
	case ledger.KindTransfer:
		op.Legs = []ledger.Leg{
			{AccountID: m.from, Kind: ledger.KindDebit, Amount: m.amount},
			{AccountID: m.to, Kind: ledger.KindCredit, Amount: m.amount, Token: m.toToken},
		}
		op.AccountID = m.from
	case ledger.KindTransaction:
		op.AccountID = op.Legs[0].AccountID
	default:
		op.AccountID, op.Amount, op.Token = m.account, m.amount, m.token
	}
	if !item {
		return nil
	}
	if err := itemKey(op.Key, m.hasKey); err != nil {
		return err
	}
	return presentToken(op, m.token, fieldError{pointer: "/fencing_token"})
}

// commonMember decodes a member that the single call has in its body too. It
// reports false when the kind has no such member.
func (d *decoder) commonMember(op *ledger.Operation, m *members, name string) bool {
	transfer, transaction := op.Kind == ledger.KindTransfer, op.Kind == ledger.KindTransaction
	switch {
	case name == "currency":
		op.Currency = d.currency("/currency")
	case name == "description":
		op.Description, _ = d.text("/description", 0, ledger.DescriptionRunesMax)
	case name == "effective_at":
		op.EffectiveAt = d.time("/effective_at")
	case name == "metadata":
		// {} and absent are the same operation.
		if md := d.metadata("/metadata"); len(md) > 0 {
			op.Metadata = md
		}
	case name == "amount" && !transaction:
		m.hasAmount = true
		m.amount = ledger.Amount(d.integer("/amount", 1, int64(ledger.MaxAmount)))
	case name == "counterparty" && !transfer && !transaction:
		op.Counterparty, _ = d.text("/counterparty", 0, ledger.CounterpartyRunesMax)
	case name == "from" && transfer:
		m.hasFrom = true
		m.from = d.account("/from")
	case name == "to" && transfer:
		m.hasTo = true
		m.to = d.account("/to")
	case name == "to_fencing_token" && transfer:
		m.toToken = d.token("/to_fencing_token")
	case name == "legs" && transaction:
		m.hasLegs = true
		d.legs(op)
	default:
		return false
	}
	return true
}

// itemMember decodes a member that only the item of a batch has.
func (d *decoder) itemMember(op *ledger.Operation, m *members, name string) bool {
	single := op.Kind == ledger.KindCredit || op.Kind == ledger.KindDebit
	switch {
	case name == "type":
		d.skip() // op.Kind was made from it
	case name == "idempotency_key":
		op.Key, m.hasKey = d.rawText("/idempotency_key")
	case name == "fencing_token":
		m.token = d.token("/fencing_token")
	case name == "account_id" && single:
		m.hasAccount = true
		m.account = d.account("/account_id")
	case name == "if_match" && single:
		op.IfMatch = ledger.Seq(d.integer("/if_match", 1, int64(ledger.MaxAmount)))
	default:
		return false
	}
	return true
}

// require refuses a body without the members that its kind needs.
func (d *decoder) require(kind ledger.Kind, m *members, item bool) {
	if len(d.errs) > 0 || d.syntax != nil {
		return
	}
	transfer, transaction := kind == ledger.KindTransfer, kind == ledger.KindTransaction
	for _, member := range [...]struct {
		name           string
		needed, hasOne bool
	}{
		{"account_id", item && !transfer && !transaction, m.hasAccount},
		{"from", transfer, m.hasFrom},
		{"to", transfer, m.hasTo},
		{"amount", !transaction, m.hasAmount},
		{"legs", transaction, m.hasLegs},
	} {
		if member.needed && !member.hasOne {
			d.fail("/"+member.name, "required")
		}
	}
}

// itemKey checks the key of an item as the header of a single call is checked.
func itemKey(key string, given bool) error {
	const place = "/idempotency_key"
	if !given {
		return &problem{
			code:   codeKeyMissing,
			detail: "Give each item an idempotency_key of its own, and the same one when the operation is repeated.",
			errors: []fieldError{{pointer: place, detail: "required"}},
		}
	}
	if err := ledger.ValidateKey(key); err != nil {
		return &problem{code: codeKeyInvalid, detail: err.Error(), errors: []fieldError{{pointer: place, detail: err.Error()}}}
	}
	return nil
}

// legs decodes the movements of a transaction.
func (d *decoder) legs(op *ledger.Operation) {
	before := len(d.errs)
	var sum ledger.Amount // 1,000 legs of 2^53 stay below 2^63
	n := d.array("/legs", func(i int) {
		if i >= ledger.LegsMax {
			d.skip()
			return
		}
		leg := d.leg("/legs/" + strconv.Itoa(i))
		op.Legs = append(op.Legs, leg)
		if leg.Kind == ledger.KindDebit {
			sum -= leg.Amount
		} else {
			sum += leg.Amount
		}
	})
	switch {
	case len(d.errs) > before || d.syntax != nil:
	case n < 2 || n > ledger.LegsMax:
		d.fail("/legs", "must have 2 to "+strconv.Itoa(ledger.LegsMax)+" legs, not "+strconv.Itoa(n))
	case sum != 0:
		d.fail("/legs", "the credits and the debits must be equal; credits less debits are "+strconv.FormatInt(int64(sum), 10))
	}
}

func (d *decoder) leg(pointer string) ledger.Leg {
	var leg ledger.Leg
	var account, direction, amount bool
	before := len(d.errs)
	d.object(pointer, func(name []byte) {
		switch string(name) {
		case "account_id":
			account = true
			leg.AccountID = d.account(pointer + "/account_id")
		case "direction":
			direction = true
			leg.Kind = d.direction(pointer + "/direction")
		case "amount":
			amount = true
			leg.Amount = ledger.Amount(d.integer(pointer+"/amount", 1, int64(ledger.MaxAmount)))
		case "fencing_token":
			leg.Token = d.token(pointer + "/fencing_token")
		default:
			d.unknown(pointer, name)
		}
	})
	if len(d.errs) > before || d.syntax != nil {
		return leg
	}
	if !account {
		d.fail(pointer+"/account_id", "required")
	}
	if !direction {
		d.fail(pointer+"/direction", "required")
	}
	if !amount {
		d.fail(pointer+"/amount", "required")
	}
	return leg
}

func (d *decoder) direction(pointer string) ledger.Kind {
	s, ok := d.rawText(pointer)
	kind := ledger.Kind(s)
	if ok && kind != ledger.KindCredit && kind != ledger.KindDebit {
		d.fail(pointer, "must be credit or debit")
	}
	return kind
}

func (d *decoder) account(pointer string) ledger.AccountID {
	s, ok := d.rawText(pointer)
	if !ok {
		return ""
	}
	id, err := ledger.ParseAccountID(s)
	if err != nil {
		d.fail(pointer, err.Error())
	}
	return id
}

func (d *decoder) token(pointer string) ledger.Token {
	return ledger.Token(d.integer(pointer, 1, int64(ledger.MaxToken)))
}

// array decodes the value at pointer as an array; item is called for each of
// its items and must consume it. It returns how many there were.
func (d *decoder) array(pointer string, item func(i int)) int {
	if !d.expect(pointer, '[', "an array") {
		return 0
	}
	if _, err := d.dec.ReadToken(); err != nil {
		d.syntax = err
		return 0
	}
	n := 0
	for ; d.syntax == nil && d.dec.PeekKind() != ']'; n++ {
		before := d.dec.InputOffset()
		item(n)
		if d.syntax == nil && d.dec.InputOffset() == before {
			_, d.syntax = d.dec.ReadToken() // the input has ended or is broken here
		}
	}
	if d.syntax == nil {
		_, d.syntax = d.dec.ReadToken()
	}
	return n
}
