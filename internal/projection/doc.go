// Package projection keeps the balance rows: for each account one row that is
// the fold of its entries. Rows can be lost and made again; no decision about
// money reads them.
//
// The accounts are split into 64 shards, which the live processes share out by
// leases. A process works in rounds: it finds new entries, folds them by
// account, and moves the rows of many accounts with one statement. Each row is
// written under a token that is strictly greater for every write, and from the
// seq that the fold begins at; PostgreSQL judges both on the locked row.
//
// Invariants, each with the test that proves it:
//
//   - A worker that lost its turn changes nothing, however late its write
//     arrives, and learns that it lost it: TestLateWriteIsRefusedByTheDatabase,
//     TestNoLateWriterHarmsARow, TestStoppedProcessIsRefused.
//   - No entry is applied twice, and none is skipped: TestGuardsOfApply,
//     TestRowSetBackIsNotAppliedTwice, TestDatabaseRestartsUnderLoad.
//   - A lost connection may have had its effect or not; the rows are right
//     either way: TestEveryWireStepOfAWrite, TestEveryWireStepOfARebuild.
//   - Two independent computations of the same money are compared at every
//     write; a difference stops that account alone, is counted and alarms:
//     TestBadAccountParksAlone, TestChangedRowIsFoundBySweep.
//   - Nobody else's lock or open transaction stops other accounts:
//     TestLockedRowDoesNotStopItsNeighbours, TestLockedRowDoesNotStopARebuild,
//     TestIdleTransactionDoesNotStallOthers.
//   - Whatever the discovery of new entries misses is found by the sweep:
//     TestLostHintsAndLostPositionsAreSwept, TestTailAsksForWhatItMissed.
//   - What waits is bounded, and nothing is forgotten for it: TestSweepWaitsForRoom,
//     TestTailWaitsForRoom, TestTailRemembersNoMoreOfAGapThanItKeeps.
//   - A rebuild goes on beside traffic, never takes a row back behind a live
//     write, and never changes an entry: TestRebuildUnderLoad,
//     TestReplayLeavesDamagedChainsAlone, TestGuardsOfRewrite.
//   - A verification names every damage and writes nothing:
//     TestVerifyFindsEveryDamage.
package projection
