package ledger

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/postgres"
)

// TestModel drives two writers on one database through random operations,
// retries, bursts, lost connections and restarts. After every step each chain
// passes the auditor and is what the model says. Rapid prints the seed of a
// failure. An ordinary run ends after modelTime; -rapid.checks=1000 makes one
// that goes on to its end.
func TestModel(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m := &machine{f: f, owner: f.db.OwnerPool(t)}
	for i := range m.writers {
		m.openWriter(i)
	}
	t.Cleanup(func() {
		for _, w := range m.writers {
			if err := closeWriter(w); err != nil {
				t.Error(err)
			}
		}
	})
	checks := flag.Lookup("rapid.checks")
	end := time.Now().Add(modelTime)
	rapid.Check(t, func(t *rapid.T) {
		if checks.Value.String() == checks.DefValue && time.Now().After(end) {
			return
		}
		m.begin()
		t.Repeat(map[string]func(*rapid.T){
			"":                   m.check,
			"open":               m.open,
			"apply":              m.apply,
			"apply once more":    m.apply,
			"transfer":           m.transfer,
			"retry":              m.retry,
			"burst":              func(t *rapid.T) { m.burst(t, false) },
			"burst and cut":      func(t *rapid.T) { m.burst(t, true) },
			"cut all sessions":   m.cut,
			"restart one writer": m.restart,
		})
	})
	t.Logf("%d checks, %d operations", m.checks, m.operations)
}

// modelTime bounds an ordinary run of TestModel on a slow machine; on a fast one
// it ends earlier.
const modelTime = 12 * time.Second

// machine is the system under test beside the model of it.
type machine struct {
	f       *fixture
	owner   *pgxpool.Pool
	writers [2]*Writer

	checks, operations int

	// The rest belongs to one check: accounts of its own in the same database.
	model *model
	ids   []AccountID
	done  []*Operation // all operations with a key
}

func sessionName(i int) string { return fmt.Sprint("model-", i) }

func (m *machine) openWriter(i int) {
	w, err := OpenWriter(
		postgres.Config{URL: m.f.db.URL, Role: postgres.ServiceRole, ApplicationName: sessionName(i)},
		WriterConfig{
			Log: slog.New(slog.DiscardHandler), Deadline: time.Minute, HeadsMax: 8,
			Lanes:        1 + 2*i,               // legs meet in one lane, and in several
			ContendedFor: 10 * time.Millisecond, // so that both paths are taken
			Declines:     DeclineLimit{PerSecond: 1e9, Burst: 1e9},
		})
	if err != nil {
		m.f.t.Fatal(err)
	}
	m.writers[i] = w
}

func closeWriter(w *Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return w.Close(ctx)
}

func (m *machine) begin() {
	m.checks++
	m.model, m.ids, m.done = newModel(), nil, nil
	for _, name := range []string{"A", "B", "C"} {
		m.ids = append(m.ids, AccountID(fmt.Sprintf("check-%d-%s", m.checks, name)))
	}
}

// told is what a writer says, in the terms of the model.
func told(w *Writer, op *Operation) modelAnswer {
	r, err := w.Apply(context.Background(), op)
	if err != nil {
		return modelAnswer{refusal: err.(*Refusal).Code} //nolint:errorlint // the contract of Apply
	}
	a := modelAnswer{
		link:     modelLink{kind: r.Entry.Kind, reason: Code(r.Entry.Reason), seq: r.Entry.Seq, after: r.Entry.After},
		replayed: r.Replayed, unchanged: r.Unchanged,
	}
	for _, leg := range r.Legs {
		a.link.legs += legText(leg.Entry.AccountID, leg.Entry.Kind, leg.Entry.Seq, leg.Entry.After)
	}
	return a
}

// compare applies op to the model and expects the answer that was given.
func (m *machine) compare(t *rapid.T, op *Operation, got modelAnswer) {
	t.Helper()
	want := m.model.apply(op)
	want.link.meaning = ""
	if got != want {
		t.Fatalf("%s (key %q, token %d, if-match %d)\nwas answered with %v\nthe model says   %v", meaning(op), op.Key, op.Token, op.IfMatch, got, want)
	}
}

func (m *machine) writer(t *rapid.T) *Writer {
	return m.writers[rapid.IntRange(0, len(m.writers)-1).Draw(t, "writer")]
}

func (m *machine) account(t *rapid.T) AccountID { return rapid.SampledFrom(m.ids).Draw(t, "account") }

func (m *machine) one(t *rapid.T, op *Operation) {
	m.operations++
	if op.Key != "" {
		m.done = append(m.done, op)
	}
	m.compare(t, op, told(m.writer(t), op))
}

func (m *machine) open(t *rapid.T) {
	op := drawOperation(t, nil)
	op.AccountID = m.account(t)
	op.Opening.Exponent = 2
	if rapid.Bool().Draw(t, "plain") { // so that the same opening comes twice
		op.Opening.MinBalance, op.Opening.Fencing, op.Metadata = 0, Fencing{Source: SourceLease}, nil
	}
	m.one(t, op)
}

// head is the model's state of the account, in the form that drawOperation takes.
func (m *machine) head(id AccountID) *Head {
	if a := m.model.accounts[id]; a != nil {
		return &Head{Seq: a.seq, State: a.state}
	}
	return &Head{Seq: 1}
}

func (m *machine) apply(t *rapid.T) {
	id := m.account(t)
	op := drawOperation(t, m.head(id))
	op.AccountID = id
	if op.Key != "" {
		op.Key = keyN("k", len(m.done))
	}
	m.one(t, op)
}

// retry repeats an earlier operation, perhaps with another token or condition,
// which change nothing, or with another body, which does.
func (m *machine) retry(t *rapid.T) {
	if len(m.done) == 0 {
		t.Skip("nothing was done yet")
	}
	op := *rapid.SampledFrom(m.done).Draw(t, "operation")
	switch rapid.IntRange(0, 3).Draw(t, "changed") {
	case 0:
		op.Token, op.IfMatch = 1, 1
		if len(op.Legs) > 0 {
			op.Token, op.IfMatch, op.Legs = 0, 0, slices.Clone(op.Legs)
			op.Legs[len(op.Legs)-1].Token = 1
		}
	case 1:
		op.Description += "x"
	case 2:
		op.Kind, op.Legs, op.Token, op.Amount = KindCredit, nil, 0, 1
	}
	m.one(t, &op)
}

// drawLegs draws an operation on several of the accounts, which may be one and
// the same.
func (m *machine) drawLegs(t *rapid.T, amount Amount) *Operation {
	key := keyN("k", len(m.done))
	if rapid.Bool().Draw(t, "two legs") {
		return transfer(m.account(t), m.account(t), amount, key)
	}
	var legs []Leg
	for range rapid.IntRange(1, 2).Draw(t, "pairs of legs") {
		legs = append(legs, in(m.account(t), amount), out(m.account(t), amount))
	}
	return transaction(key, rapid.Permutation(legs).Draw(t, "legs")...)
}

func (m *machine) transfer(t *rapid.T) {
	op := m.drawLegs(t, drawAmount(t))
	for i := range op.Legs {
		if rapid.IntRange(0, 3).Draw(t, "with token") == 0 {
			op.Legs[i].Token = max(0, m.head(op.Legs[i].AccountID).State.Fence+Token(rapid.IntRange(-1, 1).Draw(t, "token")))
		}
	}
	m.one(t, op)
}

// burst applies movements at once through both writers, some with one key. There
// must be some order of them in which the model gives all their answers.
func (m *machine) burst(t *rapid.T, cut bool) {
	ops := make([]*Operation, rapid.IntRange(2, 12).Draw(t, "size"))
	for i := range ops {
		amount := Amount(rapid.IntRange(1, 30).Draw(t, "amount"))
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			ops[i] = debit(m.account(t), amount, keyN("k", len(m.done)))
		case 1:
			ops[i] = m.drawLegs(t, amount)
		default:
			ops[i] = credit(m.account(t), amount, keyN("k", len(m.done)))
		}
		if i > 0 && rapid.IntRange(0, 4).Draw(t, "the same again") == 0 {
			ops[i] = ptr(*ops[i-1])
		}
		m.done = append(m.done, ops[i])
	}
	m.operations += len(ops)
	answers := make([]modelAnswer, len(ops))
	var wg sync.WaitGroup
	for i := range ops {
		wg.Go(func() { answers[i] = told(m.writers[i%len(m.writers)], ops[i]) })
	}
	if cut {
		m.cut(t)
	}
	wg.Wait()

	var fresh []int
	for i, a := range answers {
		if !a.replayed && a.refusal == "" {
			fresh = append(fresh, i)
		}
	}
	after := explain(m.model, ops, answers, fresh)
	if after == nil {
		for i := range ops {
			t.Logf("%s (key %q)\n  was answered with %v", meaning(ops[i]), ops[i].Key, answers[i])
		}
		t.Fatal("no order of these operations gives these answers")
	}
	m.model = after
	for i, a := range answers { // what wrote nothing
		if a.replayed || a.refusal != "" {
			m.compare(t, ops[i], a)
		}
	}
}

// explain returns the model after the operations left were applied in some order
// in which it gives the answers that were given, nil when there is none.
func explain(before *model, ops []*Operation, answers []modelAnswer, left []int) *model {
	if len(left) == 0 {
		return before
	}
	for n, i := range left {
		if a := before.accounts[ops[i].AccountID]; a == nil || answers[i].link.seq != a.seq+1 {
			continue // not its turn
		}
		m := before.clone()
		got := m.apply(ops[i])
		got.link.meaning = ""
		if got != answers[i] {
			continue
		}
		rest := append(slices.Clone(left[:n]), left[n+1:]...)
		if after := explain(m, ops, answers, rest); after != nil {
			return after
		}
	}
	return nil
}

// cut ends all sessions of both writers on the server.
func (m *machine) cut(t *rapid.T) {
	_, err := m.owner.Exec(context.Background(), "select pg_terminate_backend(pid) from pg_stat_activity where application_name = any($1)",
		[]string{sessionName(0), sessionName(1)})
	if err != nil {
		t.Fatal(err)
	}
}

func (m *machine) restart(t *rapid.T) {
	i := rapid.IntRange(0, len(m.writers)-1).Draw(t, "restarted")
	if err := closeWriter(m.writers[i]); err != nil {
		t.Fatal(err)
	}
	m.openWriter(i)
}

// check audits the chains of this check and holds them, and the rows of the
// accounts, against the model.
func (m *machine) check(t *rapid.T) {
	rows, err := m.f.r.pool.Query(context.Background(),
		"select "+EntryColumns+" from entries as e where e.account_id = any($1) order by e.account_id, e.seq", m.ids)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := pgx.CollectRows(rows, ScanEntry)
	if err != nil {
		t.Fatal(err)
	}
	conserved(t, entries)
	auditors := map[AccountID]*Auditor{}
	for i := range entries {
		e := &entries[i]
		if auditors[e.AccountID] == nil {
			auditors[e.AccountID] = NewAuditor(e.AccountID)
		}
		for _, finding := range auditors[e.AccountID].Add(e) {
			t.Fatalf("audit: %v", finding)
		}
	}
	heads, err := m.f.r.Accounts(context.Background(), AccountQuery{After: AccountID(fmt.Sprintf("check-%d-", m.checks)), Limit: len(m.ids)})
	if err != nil {
		t.Fatal(err)
	}
	listed := map[AccountID]Head{}
	for _, h := range heads {
		if slices.Contains(m.ids, h.Account.ID) {
			listed[h.Account.ID] = h
		}
	}
	if got, want := slices.Sorted(maps.Keys(auditors)), slices.Sorted(maps.Keys(m.model.accounts)); !slices.Equal(got, want) || len(listed) != len(want) {
		t.Fatalf("chains of %v and %d rows, the model has %v", got, len(listed), want)
	}
	for id, a := range m.model.accounts {
		chain, head := auditors[id], listed[id]
		if chain.Seq() != a.seq || chain.State() != a.state || head.Seq != a.seq || head.State != a.state {
			t.Fatalf("%s: the chain ends at %d with %+v, the model at %d with %+v", id, chain.Seq(), chain.State(), a.seq, a.state)
		}
		if describe(chain.Account()) != describe(head.Account) || head.Account.Metadata.String() != a.metadata.String() {
			t.Fatalf("%s: the chain says %s, the row %s, the model has metadata %s", id, describe(chain.Account()), describe(head.Account), a.metadata)
		}
	}
}

// conserved holds entries against the law that money moves and is not made: what
// a transaction of several entries adds to some accounts it takes from others.
// All accounts of its operations are among those that were read.
func conserved(t *rapid.T, entries []Entry) {
	type sum struct {
		entries int
		money   Amount
	}
	sums := map[uuid.UUID]sum{}
	for i := range entries {
		e := &entries[i]
		s := sums[e.TransactionID]
		s.entries++
		switch e.Kind {
		case KindCredit:
			s.money += e.Amount
		case KindDebit:
			s.money -= e.Amount
		}
		sums[e.TransactionID] = s
	}
	for id, s := range sums {
		if s.entries > 1 && s.money != 0 {
			t.Fatalf("the %d entries of transaction %s come to %d", s.entries, id, s.money)
		}
	}
}
