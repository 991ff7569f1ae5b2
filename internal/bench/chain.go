package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Generate copies an honest history into the database, past the service: chains
// with right states, hashes and keys, and empty balance rows. It needs the
// owner's rights and accounts that do not exist yet.
func Generate(ctx context.Context, databaseURL string, entries, accounts int, seed uint64) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("connect to generate entries: %w", err)
	}
	defer conn.Close(ctx)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		g := newGenerator(entries, accounts, seed)
		if err := g.copyAccounts(ctx, tx); err != nil {
			return err
		}
		n, err := tx.CopyFrom(ctx, pgx.Identifier{"entries"}, entryColumns(), pgx.CopyFromFunc(g.next))
		if err != nil {
			return fmt.Errorf("copy entries: %w", err)
		}
		if n != int64(entries) {
			return fmt.Errorf("copy entries: %d of %d were copied", n, entries)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// A history that grew slowly was read and vacuumed long ago; without this the
	// first reader would write every page.
	if _, err := conn.Exec(ctx, "vacuum (analyze) accounts, balances, entries"); err != nil {
		return fmt.Errorf("vacuum the generated history: %w", err)
	}
	return nil
}

func entryColumns() []string {
	return []string{"account_id", "seq", "kind", "amount", "balance_after", "held_after", "fence_after", "min_balance_after",
		"status_after", "fencing_after", "transaction_id", "idempotency_key", "request_hash", "counterparty", "reason",
		"effective_at", "details", "posted_at", "hash", "hash_version"}
}

// generator makes the entries of all accounts, the newest of one after the other.
type generator struct {
	rng     *rand.Rand
	source  *rand.PCG
	heads   []ledger.Entry
	opened  int // accounts that have their entry 1
	left    int
	begin   time.Time
	at      time.Time // of the newest entry; each is a millisecond after the one before
	opening string    // details of entry 1
}

const (
	generatedName     = "history-%08d"
	generatedCurrency = ledger.Currency("EUR")
	generatedExponent = 2
)

func newGenerator(entries, accounts int, seed uint64) *generator {
	source := rand.NewPCG(seed, 1<<42)
	exponent := generatedExponent
	opening := ledger.Details{Currency: generatedCurrency, Exponent: &exponent}
	g := &generator{source: source, rng: rand.New(source), heads: make([]ledger.Entry, accounts), left: entries,
		begin: time.Now().UTC().Truncate(time.Microsecond).Add(-time.Duration(entries) * time.Millisecond), opening: opening.String()}
	g.at = g.begin
	for i := range g.heads {
		g.heads[i].AccountID = ledger.AccountID(fmt.Sprintf(generatedName, i))
	}
	return g
}

// openedAt is the time of entry 1 of account i: the openings come first.
func (g *generator) openedAt(i int) time.Time {
	return g.begin.Add(time.Duration(i+1) * time.Millisecond)
}

func (g *generator) copyAccounts(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"accounts"},
		[]string{"account_id", "currency", "exponent", "shard", "metadata", "opened_at"},
		pgx.CopyFromSlice(len(g.heads), func(i int) ([]any, error) {
			id := g.heads[i].AccountID
			return []any{string(id), string(generatedCurrency), generatedExponent, id.Shard(), "{}", g.openedAt(i)}, nil
		}))
	if err != nil {
		return fmt.Errorf("copy accounts: %w", err)
	}
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"balances"},
		[]string{"account_id", "balance", "held", "credits_total", "debits_total", "applied_seq", "last_token", "updated_at"},
		pgx.CopyFromSlice(len(g.heads), func(i int) ([]any, error) {
			return []any{string(g.heads[i].AccountID), 0, 0, 0, 0, 0, 0, g.at}, nil
		}))
	if err != nil {
		return fmt.Errorf("copy balance rows: %w", err)
	}
	return nil
}

// next returns the row of one more entry: the openings first, then credits and
// debits of accounts at random.
func (g *generator) next() ([]any, error) {
	if g.left == 0 {
		return nil, nil
	}
	account := g.opened
	if g.opened < len(g.heads) {
		g.opened++
	} else {
		account = g.rng.IntN(len(g.heads))
	}
	g.left--
	g.at = g.at.Add(time.Millisecond)
	head := &g.heads[account]
	e := g.link(head)
	e.Hash = ledger.ChainHash(head.Hash, &e)
	*head = e
	var key any
	if e.Key != "" {
		key = e.Key
	}
	var details any
	if e.Details != "" {
		details = e.Details
	}
	return []any{string(e.AccountID), int64(e.Seq), string(e.Kind), int64(e.Amount), int64(e.After.Balance), int64(0), int64(0), int64(0),
		string(e.After.Status), e.After.Fencing.String(), [16]byte(e.TransactionID), key, e.RequestHash[:], nil, nil,
		e.EffectiveAt, details, e.PostedAt, e.Hash[:], int16(e.HashVersion)}, nil
}

// link is the entry after head, without its hash.
func (g *generator) link(head *ledger.Entry) ledger.Entry {
	e := ledger.Entry{AccountID: head.AccountID, Seq: head.Seq + 1, After: head.After, TransactionID: uuid.Must(uuid.NewV7()),
		EffectiveAt: g.at, PostedAt: g.at, HashVersion: ledger.HashVersion}
	if head.Seq == 0 {
		e.Kind, e.Details = ledger.KindOpened, g.opening
		e.After = ledger.State{Status: ledger.Active, Fencing: ledger.Fencing{Source: ledger.SourceLease}}
		return e
	}
	var key [keyLen]byte
	putKey(key[:], g.source)
	e.Key = string(key[:])
	copy(e.RequestHash[:], key[:])
	e.Kind, e.Amount = ledger.KindCredit, ledger.Amount(1+g.rng.IntN(1000))
	if g.rng.IntN(3) == 0 && e.Amount <= head.After.Balance {
		e.Kind = ledger.KindDebit
		e.After.Balance -= e.Amount
		return e
	}
	e.After.Balance += e.Amount
	return e
}
