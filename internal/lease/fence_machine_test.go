package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// ledgerOf is the Ledger of a test: a real writer that can crash.
type ledgerOf struct {
	*ledger.Reader
	*ledger.Writer
}

func openLedger(t testing.TB, db *pgtest.DB, reader *ledger.Reader) ledgerOf {
	t.Helper()
	w, err := ledger.OpenWriter(postgres.Config{URL: db.URL, Role: postgres.ServiceRole},
		ledger.WriterConfig{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return ledgerOf{reader, w}
}

func (l ledgerOf) close(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := l.Writer.Close(ctx); err != nil {
		t.Errorf("close the writer: %v", err)
	}
}

// fenceMachine drives account leases and writes through the same steps as a
// model of one account.
type fenceMachine struct {
	t        *testing.T
	db       *pgtest.DB
	owner    *pgxpool.Pool
	reader   *ledger.Reader
	ledger   ledgerOf
	grants   *Grants
	accounts *Accounts
	id       ledger.AccountID

	token   Token // of the last term, which is the fence
	holder  string
	held    bool
	balance ledger.Amount
	keys    int
}

func (m *fenceMachine) Acquire(t *rapid.T) {
	holder := rapid.SampledFrom([]string{"A", "B"}).Draw(t, "holder")
	got, err := m.accounts.Acquire(context.Background(), m.id, holder, TTLMax, 0)
	var held *Held
	switch {
	case m.held && errors.As(err, &held) && held.Holder == m.holder && held.State == StateHeld && held.FreeIn > 0:
	case !m.held && err == nil && got.Token() == m.token+1 && got.Fenced.After.Balance == m.balance &&
		got.Fenced.Kind == ledger.KindFenced && got.Fenced.After.Fence == ledger.Token(got.Token()):
		m.token, m.holder, m.held = got.Token(), holder, true
	default:
		t.Fatalf("acquire with held %v and token %d: %+v %v", m.held, m.token, got, err)
	}
}

// term draws a term that is the present one, or not.
func (m *fenceMachine) term(t *rapid.T) (holder string, token Token, stands bool) {
	holder = rapid.SampledFrom([]string{"A", "B"}).Draw(t, "holder")
	token = max(1, m.token+Token(rapid.IntRange(-2, 1).Draw(t, "token")))
	return holder, token, m.held && token == m.token && holder == m.holder
}

func (m *fenceMachine) Renew(t *rapid.T) {
	holder, token, stands := m.term(t)
	_, err := m.accounts.Renew(context.Background(), m.id, holder, token, TTLMax)
	over := errors.Is(err, ErrTermOver) || m.token == 0 && errors.Is(err, ErrNotFound)
	if stands && err != nil || !stands && !over {
		t.Fatalf("renew %s %d (stands: %v): %v", holder, token, stands, err)
	}
}

func (m *fenceMachine) Release(t *rapid.T) {
	holder, token, stands := m.term(t)
	_, err := m.accounts.Release(context.Background(), m.id, holder, token)
	if stands && err != nil {
		t.Fatalf("release %s %d: %v", holder, token, err)
	}
	m.held = m.held && !stands
}

func (m *fenceMachine) Expire(t *rapid.T) {
	if _, err := m.owner.Exec(context.Background(), `update leases set expires_at = clock_timestamp() - interval '1 hour'
		where name = $1 and released_at is null`, AccountName(m.id)); err != nil {
		t.Fatal(err)
	}
	m.held = false
}

func (m *fenceMachine) Write(t *rapid.T) {
	m.keys++
	op := &ledger.Operation{Kind: ledger.KindCredit, AccountID: m.id, Amount: 1, Key: fmt.Sprint("k", m.keys)}
	if rapid.Bool().Draw(t, "with a token") {
		op.Token = ledger.Token(max(1, m.token+Token(rapid.IntRange(-2, 1).Draw(t, "token"))))
	}
	receipt, err := m.ledger.Apply(context.Background(), op)
	want := ledger.Code("")
	switch token := Token(op.Token); {
	case token == 0 || token == m.token:
	case token < m.token:
		want = ledger.CodeStaleToken
	default:
		want = ledger.CodeTokenFromTheFuture
	}
	var refusal *ledger.Refusal
	switch {
	case want == "" && err == nil && receipt.Entry.After.Balance == m.balance+1:
		m.balance++
	case want != "" && errors.As(err, &refusal) && refusal.Code == want && refusal.Current == int64(m.token):
	default:
		t.Fatalf("a write with token %d at fence %d: %+v %v, want %q", op.Token, m.token, receipt, err, want)
	}
}

// Restart loses everything that the process remembers.
func (m *fenceMachine) Restart(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "one in four") > 0 {
		t.Skip("it takes long")
	}
	m.ledger.close(m.t)
	m.open()
}

func (m *fenceMachine) open() {
	m.ledger = openLedger(m.t, m.db, m.reader)
	m.accounts = NewAccounts(m.grants, m.ledger)
}

// Check compares the state after each step.
func (m *fenceMachine) Check(t *rapid.T) {
	head, err := m.ledger.Head(context.Background(), m.id)
	if err != nil {
		t.Fatal(err)
	}
	if head.State.Fence != ledger.Token(m.token) || head.State.Balance != m.balance {
		t.Fatalf("the account has fence %d and balance %d, want %d and %d", head.State.Fence, head.State.Balance, m.token, m.balance)
	}
	seen, err := m.accounts.Look(context.Background(), m.id)
	if m.token == 0 && errors.Is(err, ErrNotFound) {
		return
	}
	if err != nil || seen.Token() != m.token || (seen.State == StateHeld) != m.held {
		t.Fatalf("the lease is %+v %v, want token %d, held %v", seen, err, m.token, m.held)
	}
}

func TestAccountLeasesAgreeWithTheModel(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	pool := db.Pool(t)
	m := &fenceMachine{t: t, db: db, owner: db.OwnerPool(t), reader: ledger.NewReader(pool), grants: NewGrants(pool)}
	m.open()
	defer func() { m.ledger.close(t) }()
	rapid.Check(t, func(rt *rapid.T) {
		m.id = ledger.AccountID(uuid.NewString())
		m.token, m.holder, m.held, m.balance, m.keys = 0, "", false, 0, 0
		if _, err := m.ledger.Apply(context.Background(), &ledger.Operation{
			Kind: ledger.KindOpened, AccountID: m.id,
			Opening: &ledger.Opening{Currency: "EUR", Fencing: ledger.Fencing{Source: ledger.SourceLease}},
		}); err != nil {
			rt.Fatal(err)
		}
		rt.Repeat(rapid.StateMachineActions(m))
	})
}
