package projection

import (
	"context"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// machine is a real writer and three workers that fight over one shard. Each
// believes that it owns it from the moment it took it until the database says
// otherwise, however late that is.
type machine struct {
	f       *fixture
	ids     []ledger.AccountID
	shard   int
	workers [3]*worker
	// generation is the last term that was handed out, newest who has it.
	generation int64
	newest     int
}

func (m *machine) acquire(t *rapid.T) {
	m.generation++
	m.newest = rapid.IntRange(0, len(m.workers)-1).Draw(t, "new owner")
	owned(m.workers[m.newest], m.ids[0], m.generation)
}

func (m *machine) round(t *rapid.T, i int) {
	if _, _, err := m.workers[i].round(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) post(t *rapid.T) {
	id := rapid.SampledFrom(m.ids).Draw(t, "account")
	kind := rapid.SampledFrom([]ledger.Kind{ledger.KindCredit, ledger.KindDebit}).Draw(t, "kind")
	amount := ledger.Amount(rapid.IntRange(1, 50).Draw(t, "amount"))
	_, err := m.f.writer.Apply(context.Background(), &ledger.Operation{Kind: kind, AccountID: id, Amount: amount, Key: m.f.key()})
	if err != nil {
		t.Fatal(err)
	}
}

// late is a round of one worker in which others act between its fold and its
// write.
func (m *machine) late(t *rapid.T) {
	i := rapid.IntRange(0, len(m.workers)-1).Draw(t, "late worker")
	w := m.workers[i]
	n := rapid.IntRange(1, 5).Draw(t, "things in between")
	w.cfg.BeforeWrite = func() {
		w.cfg.BeforeWrite = nil
		for range n {
			switch rapid.IntRange(0, 2).Draw(t, "in between") {
			case 0:
				m.post(t)
			case 1:
				if other := (i + 1) % len(m.workers); m.newest != i {
					m.round(t, m.newest)
				} else {
					m.generation++
					m.newest = other
					owned(m.workers[other], m.ids[0], m.generation)
				}
			default:
				if m.newest != i {
					m.rebuild(t, m.newest)
				}
			}
		}
	}
	m.round(t, i)
	w.cfg.BeforeWrite = nil
}

func (m *machine) rebuild(t *rapid.T, i int) {
	ctx := context.Background()
	if _, _, err := requestRebuild(ctx, m.f.pool, "test"); err != nil {
		t.Fatal(err)
	}
	if err := m.workers[i].rebuildOwned(ctx); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) sweep(t *rapid.T) {
	w := m.workers[rapid.IntRange(0, len(m.workers)-1).Draw(t, "sweeper")]
	if s := w.shards[m.shard]; s.usable() {
		if err := w.sweep(context.Background(), s); err != nil {
			t.Fatal(err)
		}
	}
}

// check says that every row is the fold of a prefix of its entries, whoever
// wrote it, and that no worker gave up an account.
func (m *machine) check(t *rapid.T) {
	var wrong []string
	rows, err := m.f.owner.Query(context.Background(), `
		select format('%s at %s: %s %s %s %s', b.account_id, b.applied_seq, b.balance, b.held, b.credits_total, b.debits_total)
		  from balances as b
		 cross join lateral (
		       select coalesce(sum(amount) filter (where kind = 'credit'), 0) as credits,
		              coalesce(sum(amount) filter (where kind = 'debit'), 0) as debits, count(*) as n
		         from entries as e
		        where e.account_id = b.account_id and e.seq <= b.applied_seq) as e
		 where b.account_id = any($1)
		   and (b.balance <> e.credits - e.debits or b.held <> 0 or b.credits_total <> e.credits or b.debits_total <> e.debits
		        or b.applied_seq <> e.n)`, m.ids)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		wrong = append(wrong, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if len(wrong) > 0 {
		t.Fatalf("wrong rows: %v", wrong)
	}
	for i, w := range m.workers {
		if s := w.shards[m.shard]; s != nil && len(s.parked) > 0 {
			t.Fatalf("worker %d parked %v: %s", i, s.parked, s.lastError)
		}
	}
}

// TestNoLateWriterHarmsARow runs the machine, lets the newest owner finish, and
// verifies everything.
func TestNoLateWriterHarmsARow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	run, fenced := 0, 0.0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		m := &machine{f: f}
		first := ledger.AccountID(fmt.Sprintf("run%d", run))
		m.shard = first.Shard()
		m.ids = []ledger.AccountID{first}
		for i := 0; len(m.ids) < 4; i++ {
			if id := ledger.AccountID(fmt.Sprintf("run%d-%d", run, i)); id.Shard() == m.shard {
				m.ids = append(m.ids, id)
			}
		}
		f.open(m.ids...)
		for i := range m.workers {
			m.workers[i] = f.stepper()
		}
		// Earlier runs used the shard: go on above their tokens.
		m.generation = int64(run) * 1000
		m.acquire(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"post":    m.post,
			"acquire": m.acquire,
			"round":   func(t *rapid.T) { m.round(t, rapid.IntRange(0, len(m.workers)-1).Draw(t, "worker")) },
			"late":    m.late,
			"sweep":   m.sweep,
			"rebuild": func(t *rapid.T) { m.rebuild(t, m.newest) },
		})
		m.acquire(rt)
		m.sweep(rt)
		if err := m.workers[m.newest].sweep(context.Background(), m.workers[m.newest].shards[m.shard]); err != nil {
			rt.Fatal(err)
		}
		for range 3 {
			m.round(rt, m.newest)
		}
		m.check(rt)
		if n := f.behind(); n != 0 {
			rt.Fatalf("%d rows are behind in the end", n)
		}
		for _, w := range m.workers {
			fenced += value(w.metrics.fenced)
		}
	})
	t.Logf("%v late writes were refused in %d runs", fenced, run)
	if fenced == 0 {
		t.Error("no late write was ever refused: the test proves nothing")
	}
}
