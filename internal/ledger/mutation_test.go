package ledger

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/mutation"
)

// TestGuardsAreReal takes one guard away at a time: a test must go red.
func TestGuardsAreReal(t *testing.T) {
	t.Parallel()
	const schema = "../../migrations/00001_ledger.sql"
	mutation.Run(t, []mutation.Mutant{
		{
			Name: "the primary key of the chain", File: schema,
			Old: "  constraint entries_pkey primary key (account_id, seq),\n", New: "",
			Test: "TestStaleHeadIsRefused",
		},
		{
			Name: "the unique key of an account's keys", File: schema,
			Old: "  constraint entries_idempotency_key unique (account_id, idempotency_key),\n", New: "",
			Test: "TestKeysOutliveTheProcess",
		},
		{
			Name: "the start of the server in the append", File: "store.go",
			Old: "where pg_postmaster_start_time() = $21::timestamptz", New: "where $21::timestamptz is not null",
			Test: "TestAppendOfAnotherLifeWritesNothing",
		},
		{
			Name: "the table in the append", File: "store.go",
			Old: "and 'entries'::regclass::oid = $22::oid", New: "and $22::oid is not null",
			Test: "TestAppendOfAnotherLifeWritesNothing",
		},
		{
			Name: "the life of a remembered head", File: "cache.go",
			Old: "if h.life != l || h.head.Seq == 0 {", New: "if h.head.Seq == 0 {",
			Test: "TestHeadsBelongToOneLife",
		},
		{
			Name: "a refusal needs a head that was read", File: "plan.go",
			Old: "case refusal != nil && fresh:", New: "case refusal != nil:",
			Test: "TestRefusalIsNeverFromMemory",
		},
		{
			Name: "the key comes first", File: "plan.go",
			Old: "if p.asked[t.op.AccountID] {", New: "if p.asked[t.op.AccountID] && p.r.w.laneOf(t.op.AccountID).keys.has(t.fingerprint) {",
			Test: "TestKeyComesFirstForAllOfABatch",
		},
		{
			Name: "a decline for another account needs a head that was read", File: "plan.go",
			Old: "blamed != t.op.AccountID && !w.fresh && w.added == 0", New: "!w.fresh && w.added == 0 && w == nil",
			Test: "TestDeclineForAnotherAccountIsFresh",
		},
		{
			Name: "stale tokens", File: "decide.go",
			Old: "case token < fence:", New: "case token < fence-1:",
			Test: "TestDecideToken",
		},
		{
			Name: "enough money", File: "decide.go",
			Old: "s.Available() < leg.Amount:", New: "s.Available() <= leg.Amount:",
			Test: "TestDecideMovement",
		},
	})
}
