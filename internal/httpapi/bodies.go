package httpapi

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// The bodies of the requests, each decoded into the operation it stands for.
// They are checked here completely, so the ledger never meets one that breaks
// a rule of its own.

// movement decodes the body of a credit or debit.
func (d *decoder) movement(op *ledger.Operation) error {
	seen := false
	d.document(func(name []byte) {
		switch string(name) {
		case "amount":
			seen = true
			op.Amount = ledger.Amount(d.integer("/amount", 1, int64(ledger.MaxAmount)))
		case "currency":
			op.Currency = d.currency("/currency")
		case "description":
			op.Description, _ = d.text("/description", 0, ledger.DescriptionRunesMax)
		case "counterparty":
			op.Counterparty, _ = d.text("/counterparty", 0, ledger.CounterpartyRunesMax)
		case "effective_at":
			op.EffectiveAt = d.time("/effective_at")
		case "metadata":
			// {} and absent are the same operation.
			if m := d.metadata("/metadata"); len(m) > 0 {
				op.Metadata = m
			}
		default:
			d.unknown("", name)
		}
	})
	if !seen && len(d.errs) == 0 {
		d.fail("/amount", "required")
	}
	return d.err()
}

// opening decodes the body of PUT /v1/accounts/{id}.
func (d *decoder) opening(op *ledger.Operation) error {
	o := &ledger.Opening{Exponent: -1, Fencing: ledger.Fencing{Source: ledger.SourceLease}}
	op.Opening = o
	seen := false
	d.document(func(name []byte) {
		switch string(name) {
		case "currency":
			seen = true
			o.Currency = d.currency("/currency")
		case "exponent":
			o.Exponent = int(d.integer("/exponent", 0, ledger.MaxExponent))
		case "min_balance":
			o.MinBalance = d.minBalance("/min_balance")
		case "fencing":
			d.object("/fencing", func(name []byte) {
				switch string(name) {
				case "source":
					o.Fencing.Source = d.source("/fencing/source")
				case "required":
					o.Fencing.Required = d.boolean("/fencing/required")
				default:
					d.unknown("/fencing", name)
				}
			})
		case "metadata":
			op.Metadata = d.metadata("/metadata")
		default:
			d.unknown("", name)
		}
	})
	if !seen && len(d.errs) == 0 {
		d.fail("/currency", "required")
	}
	if o.Exponent < 0 {
		o.Exponent = o.Currency.DefaultExponent()
	}
	return d.err()
}

// change decodes the body of PATCH /v1/accounts/{id}.
func (d *decoder) change(op *ledger.Operation) error {
	c := &ledger.Change{}
	op.Change = c
	members := 0
	d.document(func(name []byte) {
		members++
		switch string(name) {
		case "status":
			c.Status = new(d.status("/status"))
		case "min_balance":
			c.MinBalance = new(d.minBalance("/min_balance"))
		case "fencing":
			d.changeFencing(c)
		case "metadata":
			c.Metadata = d.metadata("/metadata")
		default:
			d.unknown("", name)
		}
	})
	if members == 0 && len(d.errs) == 0 {
		d.fail("", "at least one of status, min_balance, fencing and metadata is expected")
	}
	return d.err()
}

func (d *decoder) changeFencing(c *ledger.Change) {
	members := 0
	hasReason := false
	d.object("/fencing", func(name []byte) {
		members++
		switch string(name) {
		case "source":
			c.FencingSource = new(d.source("/fencing/source"))
		case "required":
			c.Required = new(d.boolean("/fencing/required"))
		case "reset":
			c.ResetFence = new(ledger.Token(d.integer("/fencing/reset", 0, int64(ledger.MaxToken))))
		case "reason":
			hasReason = true
			c.Reason, _ = d.text("/fencing/reason", 1, ledger.ReasonRunesMax)
		default:
			d.unknown("/fencing", name)
		}
	})
	switch {
	case len(d.errs) > 0 || d.syntax != nil:
	case members == 0:
		d.fail("/fencing", "at least one of source, required and reset is expected")
	case c.ResetFence != nil && !hasReason:
		d.fail("/fencing/reason", "required with reset")
	case c.ResetFence == nil && hasReason:
		d.fail("/fencing/reset", "required with reason")
	}
}

// nothing accepts no body, or an empty object.
func (d *decoder) nothing() error {
	if d.body.Len() == 0 {
		return nil
	}
	d.document(func(name []byte) { d.unknown("", name) })
	return d.err()
}

func (d *decoder) currency(pointer string) ledger.Currency {
	s, ok := d.rawText(pointer)
	if !ok {
		return ""
	}
	c, err := ledger.ParseCurrency(s)
	if err != nil {
		d.fail(pointer, err.Error())
	}
	return c
}

func (d *decoder) minBalance(pointer string) ledger.Amount {
	return ledger.Amount(d.integer(pointer, int64(ledger.LowestMinBalance), 0))
}

func (d *decoder) source(pointer string) ledger.FencingSource {
	s, ok := d.rawText(pointer)
	source := ledger.FencingSource(s)
	if ok && source != ledger.SourceLease && source != ledger.SourceExternal {
		d.fail(pointer, "must be lease or external")
	}
	return source
}

func (d *decoder) status(pointer string) ledger.Status {
	s, ok := d.rawText(pointer)
	if ok && !validStatus(ledger.Status(s)) {
		d.fail(pointer, "must be active, frozen or closed")
	}
	return ledger.Status(s)
}

func (d *decoder) time(pointer string) time.Time {
	s, ok := d.rawText(pointer)
	if !ok {
		return time.Time{}
	}
	t, err := parseTime(s)
	if err != nil {
		d.fail(pointer, err.Error())
	}
	return t
}

// metadata decodes an object of strings; the result is never nil.
func (d *decoder) metadata(pointer string) ledger.Metadata {
	m := ledger.Metadata{}
	keys, size := 0, 2
	before := len(d.errs)
	d.object(pointer, func(name []byte) {
		keys++
		if keys > ledger.MetadataKeysMax {
			d.skip()
			return
		}
		key := string(name)
		switch n := utf8.RuneCountInString(key); {
		case n < 1 || n > ledger.MetadataKeyRunesMax:
			d.fail(member(pointer, name), "a key has 1 to "+strconv.Itoa(ledger.MetadataKeyRunesMax)+" characters")
		case containsNUL(key):
			d.fail(member(pointer, name), "must not contain U+0000")
		}
		if d.dec.PeekKind() != '"' {
			d.expect(member(pointer, []byte(key)), '"', "a string")
			return
		}
		value := string(d.stringBytes())
		switch {
		case d.syntax != nil:
		case containsNUL(value):
			d.fail(member(pointer, []byte(key)), "must not contain U+0000")
		default:
			m[key] = value
			size += 6*(len(key)+len(value)) + 6 // an upper bound: the longest escape has six bytes
		}
	})
	if keys > ledger.MetadataKeysMax {
		d.fail(pointer, "must have at most "+strconv.Itoa(ledger.MetadataKeysMax)+" keys, not "+strconv.Itoa(keys))
	}
	if size > ledger.MetadataBytesMax && len(d.errs) == before && d.syntax == nil {
		if err := m.Validate(); err != nil {
			d.fail(pointer, err.Error())
		}
	}
	return m
}

func containsNUL(s string) bool {
	for i := range len(s) {
		if s[i] == 0 {
			return true
		}
	}
	return false
}
