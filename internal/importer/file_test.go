package importer

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

const header = "idempotency_key,account_id,effective_at,direction,amount,balance_after,description,currency,counterparty\n"

// TestRowsAreReadAsTheyAre reads every column in every form.
func TestRowsAreReadAsTheyAre(t *testing.T) {
	rd, err := newReader(strings.NewReader("\xef\xbb\xbf" + header +
		"k1,a-1,1993-01-31,credit,9007199254740991,-5,\"two\nlines, \"\"é\"\"\",CZK,c\n" +
		"k2,a-1,1993-01-31T08:00:00.000001+04:00,debit,1,,,,\n" +
		"k3,a-1,,debit,1,0,,,\n"))
	if err != nil {
		t.Fatal(err)
	}
	first, err := rd.next()
	if err != nil {
		t.Fatal(err)
	}
	if first.key != "k1" || first.accountID != "a-1" || first.debit || first.op.Amount != 1<<53-1 || *first.balanceAfter != -5 ||
		first.op.Description != "two\nlines, \"é\"" || first.op.Currency != "CZK" || first.op.Counterparty != "c" ||
		!first.op.EffectiveAt.Equal(time.Date(1993, 1, 31, 0, 0, 0, 0, time.UTC)) || first.line != 2 {
		t.Errorf("row %+v", first)
	}
	second, err := rd.next()
	if err != nil {
		t.Fatal(err)
	}
	if !second.debit || second.balanceAfter != nil || second.line != 4 ||
		!second.op.EffectiveAt.Equal(time.Date(1993, 1, 31, 4, 0, 0, 1000, time.UTC)) {
		t.Errorf("row %+v", second)
	}
	third, err := rd.next()
	if err != nil || !third.op.EffectiveAt.IsZero() || *third.balanceAfter != 0 {
		t.Errorf("row %+v, %v", third, err)
	}
	if _, err := rd.next(); err != io.EOF {
		t.Errorf("error %v at the end", err)
	}
}

// TestFaultsNameTheirLine is the table of what a file can get wrong.
func TestFaultsNameTheirLine(t *testing.T) {
	good := "k,a,1993-01-01,credit,1,1,,,\n"
	cases := []struct{ name, file, want string }{
		{"empty", "", "line 1: the file is empty"},
		{"no such column", "idempotency_key,account_id,effective_at,direction,amount,color\n", `line 1: unknown column "color"`},
		{"column missing", "idempotency_key,account_id,effective_at,direction\n", `line 1: column "amount" is missing`},
		{"column twice", "amount,amount\n", `line 1: column "amount" is there twice`},
		{"account", header + good + "k2,a b,1993-01-01,credit,1,1,,,\n", "line 3: account_id:"},
		{"no key", header + ",a,1993-01-01,credit,1,1,,,\n", "line 2: idempotency_key:"},
		{"direction", header + "k,a,1993-01-01,Credit,1,1,,,\n", `line 2: direction: "Credit"`},
		{"zero", header + "k,a,1993-01-01,credit,0,1,,,\n", "line 2: amount: 0 is not"},
		{"negative", header + "k,a,1993-01-01,credit,-1,1,,,\n", "line 2: amount: -1 is not"},
		{"decimals", header + "k,a,1993-01-01,credit,1.00,1,,,\n", `line 2: amount: "1.00" is not a whole number`},
		{"plus", header + "k,a,1993-01-01,credit,+1,1,,,\n", `line 2: amount: "+1" is not a whole number`},
		{"leading zero", header + "k,a,1993-01-01,credit,01,1,,,\n", `line 2: amount: "01" is not a whole number`},
		{"space", header + "k,a,1993-01-01,credit, 1,1,,,\n", `line 2: amount: " 1" is not a whole number`},
		{"too much", header + "k,a,1993-01-01,credit,9007199254740992,1,,,\n", "line 2: amount: 9007199254740992 is beyond"},
		{"balance", header + "k,a,1993-01-01,credit,1,-9007199254740992,,,\n", "line 2: balance_after: -9007199254740992 is beyond"},
		{"no such day", header + "k,a,1993-02-30,credit,1,1,,,\n", `line 2: effective_at: "1993-02-30" is neither`},
		{"no offset", header + "k,a,1993-02-20T08:00:00,credit,1,1,,,\n", "line 2: effective_at:"},
		{"year 0", header + "k,a,0000-02-20,credit,1,1,,,\n", "line 2: effective_at:"},
		{"currency", header + "k,a,1993-01-01,credit,1,1,,czk,\n", "line 2: currency:"},
		{"description", header + "k,a,1993-01-01,credit,1,1," + strings.Repeat("x", 501) + ",,\n", "line 2: description:"},
		{"counterparty", header + "k,a,1993-01-01,credit,1,1,,,\xff\n", "line 2: counterparty:"},
		{"fields", header + good + "k2,a\n", "line 3: wrong number of fields"},
		{"quote", header + "k,a,1993-01-01,credit,1,1,x\"y,,\n", "line 2: bare \""},
		{"key twice", header + good + "k,b,1993-01-01,credit,1,1,,,\n" + good, `line 4: idempotency_key "k" was used for a in line 2 already`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			_, err := check(strings.NewReader(tc.file), nil)
			var faults *FileError
			if !errors.As(err, &faults) {
				t.Fatalf("error %v, want a *FileError", err)
			}
			if len(faults.Faults) != 1 || !strings.HasPrefix(faults.Faults[0], tc.want) {
				t.Errorf("faults %q, want one that begins with %q", faults.Faults, tc.want)
			}
		})
	}
}

func TestFaultsAreListedUpToALimit(t *testing.T) {
	file := header + strings.Repeat("k,a,1993-01-01,credit,0,1,,,\n", 100)
	_, err := check(strings.NewReader(file), nil)
	var faults *FileError
	if !errors.As(err, &faults) || len(faults.Faults) != faultsMax || faults.More != 100-faultsMax {
		t.Fatalf("error %v", err)
	}
	if !strings.HasSuffix(err.Error(), "\nand 80 more") {
		t.Errorf("message %q", err)
	}
}

func TestOpeningNeedsACurrency(t *testing.T) {
	file := header + "k,a,1993-01-01,credit,1,1,,CZK,\n" + "k,b,1993-01-01,credit,1,1,,,\n"
	if rows, err := check(strings.NewReader(file), &client.Opening{Currency: "CZK"}); err != nil || rows != 2 {
		t.Errorf("%d rows, %v", rows, err)
	}
	_, err := check(strings.NewReader(file), &client.Opening{})
	if err == nil || !strings.HasPrefix(err.Error(), "line 3: there is no currency") {
		t.Errorf("error %v", err)
	}
	// A file without that column has one thing wrong with it, not one a row.
	file = "idempotency_key,account_id,effective_at,direction,amount\n" + strings.Repeat("k,a,,credit,1\n", 30)
	for i := range 30 {
		file = strings.Replace(file, "k,", fmt.Sprintf("key-%d,", i), 1)
	}
	_, err = check(strings.NewReader(file), &client.Opening{})
	if want := "line 2: there is no currency to open the account with (rows without one: 30); give --currency"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// FuzzReader feeds anything to the reader: it must end, and what it accepts must
// be sendable.
func FuzzReader(f *testing.F) {
	f.Add(header + "k1,a-1,1993-01-31,credit,9007199254740991,-5,\"x\"\"y\",CZK,c\n")
	f.Add("idempotency_key,account_id,effective_at,direction,amount\nk,a,,debit,1\n")
	f.Fuzz(func(t *testing.T, file string) {
		rd, err := newReader(strings.NewReader(file))
		if err != nil {
			return
		}
		for {
			rw, err := rd.next()
			var bad *badRow
			if errors.As(err, &bad) {
				continue
			}
			if err != nil {
				return
			}
			if rw.op.Amount < 1 || rw.op.Amount > 1<<53-1 || rw.accountID == "" || rw.key == "" || rw.line < 2 {
				t.Fatalf("row %+v was accepted", rw)
			}
		}
	})
}
