package httpapi

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// The generic form of the answers that encode.go writes by hand.
type (
	genericState struct {
		Balance    int64          `json:"balance"`
		Held       int64          `json:"held"`
		Available  int64          `json:"available"`
		MinBalance int64          `json:"min_balance"`
		Status     string         `json:"status"`
		Fencing    genericFencing `json:"fencing"`
		Fence      int64          `json:"fence"`
	}
	genericFencing struct {
		Source   string `json:"source"`
		Required bool   `json:"required"`
	}
	genericEntry struct {
		TransactionID string `json:"transaction_id"`
		AccountID     string `json:"account_id"`
		Seq           int64  `json:"seq"`
		Kind          string `json:"kind"`
		Amount        int64  `json:"amount"`
		Currency      string `json:"currency"`
		genericState
		PostedAt     string          `json:"posted_at"`
		EffectiveAt  string          `json:"effective_at"`
		Description  string          `json:"description,omitzero"`
		Counterparty string          `json:"counterparty,omitzero"`
		Metadata     ledger.Metadata `json:"metadata,omitzero"`
		Key          string          `json:"idempotency_key,omitzero"`
		Reason       string          `json:"reason,omitzero"`
		Attempted    string          `json:"attempted,omitzero"`
		Hash         string          `json:"hash"`
	}
	genericAccount struct {
		AccountID string `json:"account_id"`
		Currency  string `json:"currency"`
		Exponent  int    `json:"exponent"`
		genericState
		Seq      int64           `json:"seq"`
		Metadata ledger.Metadata `json:"metadata"`
		OpenedAt string          `json:"opened_at"`
	}
)

func genericStateOf(s ledger.State) genericState {
	return genericState{
		Balance: int64(s.Balance), Held: int64(s.Held), Available: int64(s.Balance - s.Held - s.MinBalance),
		MinBalance: int64(s.MinBalance), Status: string(s.Status), Fence: int64(s.Fence),
		Fencing: genericFencing{string(s.Fencing.Source), s.Fencing.Required},
	}
}

func genericTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

func drawState(t *rapid.T) ledger.State {
	amount := rapid.Int64Range(-int64(ledger.MaxAmount), int64(ledger.MaxAmount))
	return ledger.State{
		Balance:    ledger.Amount(amount.Draw(t, "balance")),
		Held:       ledger.Amount(rapid.Int64Range(0, 1000).Draw(t, "held")),
		Fence:      ledger.Token(rapid.Int64Range(0, int64(ledger.MaxToken)).Draw(t, "fence")),
		MinBalance: ledger.Amount(rapid.Int64Range(int64(ledger.LowestMinBalance), 0).Draw(t, "min_balance")),
		Status:     rapid.SampledFrom([]ledger.Status{ledger.Active, ledger.Frozen, ledger.Closed}).Draw(t, "status"),
		Fencing: ledger.Fencing{
			Source:   rapid.SampledFrom([]ledger.FencingSource{ledger.SourceLease, ledger.SourceExternal}).Draw(t, "source"),
			Required: rapid.Bool().Draw(t, "required"),
		},
	}
}

func drawTime(t *rapid.T, name string) time.Time {
	// The years 1 to 9999.
	return time.UnixMicro(rapid.Int64Range(-62135596799999999, 253402300799999999).Draw(t, name))
}

func drawMetadata(t *rapid.T) ledger.Metadata {
	return ledger.Metadata(rapid.MapOfN(rapid.String(), rapid.String(), 0, 4).Draw(t, "metadata"))
}

// canonical returns the RFC 8785 form, in which equal values are equal bytes.
func canonical(t *rapid.T, b []byte) string {
	v := jsontext.Value(b)
	if err := v.Canonicalize(); err != nil {
		t.Fatalf("not JSON: %v: %s", err, b)
	}
	return string(v)
}

func marshal(t *rapid.T, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReceiptEqualsGenericEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		details := ledger.Details{Description: rapid.String().Draw(t, "description")}
		kind := rapid.SampledFrom([]ledger.Kind{
			ledger.KindOpened, ledger.KindSettings, ledger.KindCredit, ledger.KindDebit, ledger.KindDeclined,
		}).Draw(t, "kind")
		switch kind {
		case ledger.KindDeclined:
			details.Attempted = ledger.KindDebit
		case ledger.KindOpened:
			details.Currency, details.Exponent = "EUR", new(2)
		case ledger.KindSettings:
			details.Reset = rapid.Bool().Draw(t, "reset")
		}
		if rapid.Bool().Draw(t, "with metadata") {
			details.Metadata = drawMetadata(t)
		}
		e := ledger.Entry{
			AccountID: "wallet:1.A_b-c", Seq: ledger.Seq(rapid.Int64Range(1, int64(ledger.MaxAmount)).Draw(t, "seq")), Kind: kind,
			Amount: ledger.Amount(rapid.Int64Range(0, int64(ledger.MaxAmount)).Draw(t, "amount")), After: drawState(t),
			TransactionID: uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "transaction")),
			Key:           rapid.StringMatching(`[!-~]{0,20}`).Draw(t, "key"),
			Counterparty:  rapid.String().Draw(t, "counterparty"), Reason: rapid.String().Draw(t, "reason"),
			EffectiveAt: drawTime(t, "effective_at"), PostedAt: drawTime(t, "posted_at"),
			Details: details.String(),
			Hash:    [32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "hash")),
		}
		got, err := appendEntry(nil, &e, "EUR")
		if err != nil {
			t.Fatal(err)
		}
		want := marshal(t, genericEntry{
			TransactionID: e.TransactionID.String(), AccountID: string(e.AccountID), Seq: int64(e.Seq), Kind: string(e.Kind),
			Amount: int64(e.Amount), Currency: "EUR", genericState: genericStateOf(e.After),
			PostedAt: genericTime(e.PostedAt), EffectiveAt: genericTime(e.EffectiveAt),
			Description: details.Description, Counterparty: e.Counterparty, Metadata: details.Metadata,
			Key: e.Key, Reason: e.Reason, Attempted: string(details.Attempted), Hash: hex.EncodeToString(e.Hash[:]),
		})
		if g, w := canonical(t, got), canonical(t, want); g != w {
			t.Fatalf("got  %s\nwant %s", g, w)
		}
	})
}

func TestAccountEqualsGenericEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := ledger.Account{
			ID: "a", Currency: "EUR", Exponent: rapid.IntRange(0, 18).Draw(t, "exponent"),
			Metadata: drawMetadata(t), OpenedAt: drawTime(t, "opened_at"),
		}
		s := drawState(t)
		got := appendAccount(nil, &a, &s, 7)
		want := marshal(t, genericAccount{
			AccountID: "a", Currency: "EUR", Exponent: a.Exponent, genericState: genericStateOf(s),
			Seq: 7, Metadata: a.Metadata, OpenedAt: genericTime(a.OpenedAt),
		})
		if g, w := canonical(t, got), canonical(t, want); g != w {
			t.Fatalf("got  %s\nwant %s", g, w)
		}
	})
}

func TestDamagedDetailsAreAnError(t *testing.T) {
	t.Parallel()
	for _, e := range []ledger.Entry{
		{Kind: ledger.KindCredit, Details: "x"}, {Kind: ledger.KindDebit, Details: "{"}, {Kind: ledger.KindOpened, Details: "{]"},
	} {
		if b, err := appendEntry(nil, &e, "EUR"); err == nil {
			t.Errorf("%s", b)
		}
	}
}

func TestProblemIsJSONWhateverItSays(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "text"))
		p := invalid(fieldError{pointer: text, detail: text}, fieldError{header: text, detail: text}, fieldError{parameter: text, detail: text})
		p.checks = []Check{{Name: text, Detail: text}}
		got := appendProblem(nil, p, kind{status: 400, title: "t"}, "id", rapid.Bool().Draw(t, "write"))
		if !jsontext.Value(got).IsValid() || strings.ContainsRune(string(got), 0) {
			t.Fatalf("not JSON: %s", got)
		}
	})
}
