// Package ledger is the domain and the write path: accounts, their chains of
// entries, and the writer that adds links to them.
//
// An account changes only by adding the next link to its chain, and a link can
// be added once. The invariants, each with the test that proves it:
//
//   - A decision that was made from a head at seq n becomes link n+1 or nothing:
//     TestStaleHeadIsRefused.
//   - A key is used once per account, for ever, for a success or a decline:
//     TestKeyIsUsedOnce.
//   - Two writers on one database, also on one account, are correct and both go
//     on: TestTwoWritersShareOneAccount.
//   - Whatever is cut, stopped or killed at any wire step of an append, every
//     answer that was given is true and an unknown outcome is found out by
//     repeating the request: TestEveryWireStepOfAnAppend.
//   - Heads are never used across a restart, restore or promotion:
//     TestOtherLifeDropsTheHeads.
//   - One operation that PostgreSQL refuses fails alone: TestBadOperationFailsAlone.
//   - The chain that the writer makes passes the auditor, which shares no code
//     with the decision: TestModel.
package ledger
