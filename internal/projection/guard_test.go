package projection

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// guards are the conditions of the two guarded statements, each with a
// situation in which it alone stands between a wrong write and the row.
var guards = []struct {
	name     string
	old, new string
	// wrong returns the write that must be refused.
	wrong func(f *fixture) write
}{
	{"an older token", "and b.last_token < d.token", "", func(f *fixture) write {
		f.damage(`update balances set last_token = $1`, int64(2<<24+1))
		return write{f.folded("A"), 1<<24 + 9}
	}},
	{"the same token again", "b.last_token < d.token", "b.last_token <= d.token", func(f *fixture) write {
		f.damage(`update balances set last_token = $1`, int64(1<<24+1))
		return write{f.folded("A"), 1<<24 + 1}
	}},
	{"entries that were skipped", "and b.applied_seq = d.from_seq", "and b.applied_seq <= d.from_seq", func(f *fixture) write {
		fd := f.folded("A") // 1 to 3
		fd.from = 2         // an honest fold of nothing but a decline would look so
		return write{fd, 1<<24 + 1}
	}},
	{"entries that are in the row", "and b.applied_seq = d.from_seq", "and b.applied_seq >= d.from_seq", func(f *fixture) write {
		fd := f.folded("A")
		f.damage(`update balances set applied_seq = 2`)
		return write{fd, 1<<24 + 1}
	}},
	{"another balance", "and b.balance + d.balance_delta = d.balance_after", "", func(f *fixture) write {
		f.damage(`update balances set balance = balance + 1`)
		return write{f.folded("A"), 1<<24 + 1}
	}},
	{"another held", "and b.held + d.held_delta = d.held_after", "", func(f *fixture) write {
		f.damage(`update balances set held = held + 1`)
		return write{f.folded("A"), 1<<24 + 1}
	}},
}

// TestGuardsOfApply sends the wrong write with the real statement, which must
// refuse it, and with the guard taken out, which must not: else the situation
// would prove nothing.
func TestGuardsOfApply(t *testing.T) {
	t.Parallel()
	for _, g := range guards {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.open("A")
			f.round2("A")
			f.credit("A", 30)
			f.debit("A", 10)
			wrong := g.wrong(f)
			s := newStore(f.pool)
			applied, err := s.apply(t.Context(), []write{wrong})
			if err != nil || len(applied) != 0 {
				t.Fatalf("the write took effect: %v %v", applied, err)
			}
			s.sql.apply = mutate(t, applyStatement, g.old, g.new)
			applied, err = s.apply(t.Context(), []write{wrong})
			if err != nil || len(applied) != 1 {
				t.Fatalf("without the guard the write is refused too: %v %v", applied, err)
			}
			f.damage(`update balances set balance = 0, held = 0, credits_total = 0, debits_total = 0, applied_seq = 0, last_token = 0`)
		})
	}
}

// round2 applies what there is for the account under generation 1.
func (f *fixture) round2(id ledger.AccountID) {
	f.t.Helper()
	w := f.stepper()
	owned(w, id, 1).want(id, 0, 0, 0)
	f.round(w)
	f.damage(`update balances set last_token = 1`)
}

func mutate(t *testing.T, statement, old, new string) string {
	t.Helper()
	if !strings.Contains(statement, old) {
		t.Fatalf("the statement has no %q", old)
	}
	return strings.Replace(statement, old, new, 1)
}

func TestGuardsOfRewrite(t *testing.T) {
	t.Parallel()
	for _, g := range []struct {
		name     string
		old, new string
		token    lease.ProjectionToken
		seen     ledger.Seq
	}{
		{"an older token", "and b.last_token < d.token", "", 1<<24 + 1, 1},
		{"the same token again", "b.last_token < d.token", "b.last_token <= d.token", 2<<24 + 1, 1},
		{"a row that moved on", "and b.applied_seq = d.seen_seq", "and b.applied_seq >= d.seen_seq", 3<<24 + 1, 0},
		{"a row that moved on, no guard", "and b.applied_seq = d.seen_seq", "", 3<<24 + 1, 0},
	} {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.open("A")
			f.round2("A")
			f.damage(`update balances set last_token = $1`, int64(2<<24+1))
			wrong := []absolute{{fold: &fold{accountID: "A", to: 1}, seen: g.seen, token: g.token}}
			s := newStore(f.pool)
			written, err := s.rewrite(t.Context(), wrong)
			if err != nil || len(written) != 0 {
				t.Fatalf("the write took effect: %v %v", written, err)
			}
			s.sql.rewrite = mutate(t, rewriteStatement, g.old, g.new)
			written, err = s.rewrite(t.Context(), wrong)
			if err != nil || len(written) != 1 {
				t.Fatalf("without the guard the write is refused too: %v %v", written, err)
			}
			f.damage(`update balances set last_token = 0`)
		})
	}
}
