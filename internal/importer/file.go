package importer

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Columns that a file can have. The first five are required.
const (
	colKey          = "idempotency_key"
	colAccount      = "account_id"
	colEffectiveAt  = "effective_at"
	colDirection    = "direction"
	colAmount       = "amount"
	colBalanceAfter = "balance_after"
	colDescription  = "description"
	colCurrency     = "currency"
	colCounterparty = "counterparty"
)

var (
	columnsRequired = []string{colKey, colAccount, colEffectiveAt, colDirection, colAmount}
	columnsOptional = []string{colBalanceAfter, colDescription, colCurrency, colCounterparty}
)

// row is one operation of the file.
type row struct {
	line      int
	accountID string
	key       string
	debit     bool
	op        client.Operation
	// balanceAfter is nil when the file does not say.
	balanceAfter *int64
}

// faultsMax is how many faults of a file are listed.
const faultsMax = 20

// FileError lists what is wrong with a file, by line. Nothing was sent.
type FileError struct {
	// Faults are the first ones, each beginning with its line.
	Faults []string
	// More is how many there are beyond those.
	More int
}

// Error implements error.
func (e *FileError) Error() string {
	s := strings.Join(e.Faults, "\n")
	if e.More > 0 {
		s += fmt.Sprintf("\nand %d more", e.More)
	}
	return s
}

func (e *FileError) add(line int, err error) {
	if len(e.Faults) == faultsMax {
		e.More++
		return
	}
	e.Faults = append(e.Faults, fmt.Sprintf("line %d: %v", line, err))
}

// check reads the whole file once before anything is sent, and returns how many
// rows it has, or a *FileError.
func check(r io.Reader, opening *client.Opening) (rows int64, err error) {
	var faults FileError
	rd, err := newReader(r)
	if err != nil {
		faults.add(1, err)
		return 0, &faults
	}
	seen := map[[16]byte]int{}
	var noCurrency, firstWithout int // rows without one, and the line of the first
	for {
		rw, err := rd.next()
		if errors.Is(err, io.EOF) {
			break
		}
		var bad *badRow
		if errors.As(err, &bad) {
			faults.add(bad.line, bad.err)
			rows++
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("read the file: %w", err)
		}
		rows++
		if first, again := seen[rw.identity()]; again {
			faults.add(rw.line, fmt.Errorf("idempotency_key %q was used for %s in line %d already", rw.key, rw.accountID, first))
		}
		seen[rw.identity()] = rw.line
		if opening != nil && opening.Currency == "" && rw.op.Currency == "" {
			if noCurrency++; noCurrency == 1 {
				firstWithout = rw.line
			}
		}
	}
	if noCurrency > 0 {
		faults.add(firstWithout, fmt.Errorf("there is no currency to open the account with (rows without one: %d); give --currency", noCurrency))
	}
	if len(faults.Faults) > 0 {
		return 0, &faults
	}
	return rows, nil
}

// identity is short, so that a long file can be checked in memory.
func (rw *row) identity() [16]byte {
	sum := sha256.Sum256([]byte(rw.accountID + "\x00" + rw.key))
	return [16]byte(sum[:16])
}

// badRow is a row that cannot be sent; the rows after it can still be read.
type badRow struct {
	line int
	err  error
}

func (e *badRow) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }

// reader reads rows of a file.
type reader struct {
	csv    *csv.Reader
	column map[string]int
}

func newReader(r io.Reader) (*reader, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	if bom, _ := br.Peek(3); bytes.Equal(bom, []byte("\xef\xbb\xbf")) {
		_, _ = br.Discard(3)
	}
	c := csv.NewReader(br)
	c.ReuseRecord = true
	head, err := c.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty")
	}
	if err != nil {
		return nil, csvReason(err)
	}
	rd := &reader{csv: c, column: map[string]int{}}
	for i, name := range head {
		if !slices.Contains(columnsRequired, name) && !slices.Contains(columnsOptional, name) {
			return nil, fmt.Errorf("unknown column %q; there are %s", name,
				strings.Join(append(slices.Clone(columnsRequired), columnsOptional...), ", "))
		}
		if _, twice := rd.column[name]; twice {
			return nil, fmt.Errorf("column %q is there twice", name)
		}
		rd.column[name] = i
	}
	for _, name := range columnsRequired {
		if _, ok := rd.column[name]; !ok {
			return nil, fmt.Errorf("column %q is missing", name)
		}
	}
	return rd, nil
}

// csvReason drops the position that the csv package puts in front; the caller
// has a line.
func csvReason(err error) error {
	var pe *csv.ParseError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// next returns the next row, io.EOF at the end, or a *badRow.
func (rd *reader) next() (row, error) {
	record, err := rd.csv.Read()
	var pe *csv.ParseError
	if errors.As(err, &pe) {
		return row{}, &badRow{line: pe.Line, err: pe.Err}
	}
	if err != nil {
		return row{}, err
	}
	line, _ := rd.csv.FieldPos(0)
	rw := row{line: line}
	for _, set := range []func(*row, []string) error{rd.setNames, rd.setMoney, rd.setText} {
		if err := set(&rw, record); err != nil {
			return row{}, &badRow{line: line, err: err}
		}
	}
	return rw, nil
}

// field returns a copy-free view of a column, "" when the file has no such one.
func (rd *reader) field(record []string, name string) string {
	if i, ok := rd.column[name]; ok {
		return record[i]
	}
	return ""
}

func (rd *reader) setNames(rw *row, record []string) error {
	id, err := ledger.ParseAccountID(rd.field(record, colAccount))
	if err != nil {
		return fmt.Errorf("account_id: %w", err)
	}
	key := rd.field(record, colKey)
	if err := ledger.ValidateKey(key); err != nil {
		return fmt.Errorf("idempotency_key: %w", err)
	}
	switch d := rd.field(record, colDirection); d {
	case "credit":
	case "debit":
		rw.debit = true
	default:
		return fmt.Errorf("direction: %q is neither credit nor debit", d)
	}
	rw.accountID, rw.key = string(id), key
	return nil
}

func (rd *reader) setMoney(rw *row, record []string) error {
	amount, err := parseInteger(rd.field(record, colAmount))
	if err != nil {
		return fmt.Errorf("amount: %w", err)
	}
	if amount < 1 {
		return fmt.Errorf("amount: %d is not 1 to %d minor units", amount, ledger.MaxAmount)
	}
	rw.op.Amount = amount
	if s := rd.field(record, colBalanceAfter); s != "" {
		after, err := parseInteger(s)
		if err != nil {
			return fmt.Errorf("balance_after: %w", err)
		}
		rw.balanceAfter = &after
	}
	if s := rd.field(record, colCurrency); s != "" {
		currency, err := ledger.ParseCurrency(s)
		if err != nil {
			return fmt.Errorf("currency: %w", err)
		}
		rw.op.Currency = string(currency)
	}
	return nil
}

func (rd *reader) setText(rw *row, record []string) error {
	var err error
	if rw.op.EffectiveAt, err = parseTime(rd.field(record, colEffectiveAt)); err != nil {
		return fmt.Errorf("effective_at: %w", err)
	}
	rw.op.Description = rd.field(record, colDescription)
	if err := ledger.ValidateText(rw.op.Description, ledger.DescriptionRunesMax); err != nil {
		return fmt.Errorf("description: %w", err)
	}
	rw.op.Counterparty = rd.field(record, colCounterparty)
	if err := ledger.ValidateText(rw.op.Counterparty, ledger.CounterpartyRunesMax); err != nil {
		return fmt.Errorf("counterparty: %w", err)
	}
	return nil
}

// parseInteger reads minor units: digits with a minus sign at most, nothing
// that a person could mean differently ("1,000", "1.00", "+5", " 5").
func parseInteger(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("%q is not a whole number of minor units", s)
	}
	if n > int64(ledger.MaxAmount) || n < -int64(ledger.MaxAmount) {
		return 0, fmt.Errorf("%s is beyond %d", s, ledger.MaxAmount)
	}
	return n, nil
}

// parseTime reads an RFC 3339 time, a date (midnight UTC), or nothing (the time
// of posting).
func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.DateOnly, s)
	if err != nil {
		t, err = time.Parse(time.RFC3339Nano, s)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is neither a date (1993-01-31) nor an RFC 3339 time with an offset (1993-01-31T08:00:00Z)", s)
	}
	if y := t.UTC().Year(); y < 1 || y > 9999 {
		return time.Time{}, fmt.Errorf("%q is not in the years 1 to 9999", s)
	}
	return t, nil
}
