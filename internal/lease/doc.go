// Package lease hands out temporary ownership of names, and numbers that say
// who owned a name when.
//
// A lease is politeness, never the guarantee: a holder can be stopped for an
// hour and wake up in the middle of a write. What makes that harmless is the
// token, which the protected resource compares in the same place and at the
// same instant as the write. So the rules here are about tokens first:
//
//   - Every acquisition raises the generation by one: also by the same holder,
//     also after a release. Renewal never does (TestStoreAgreesWithModel).
//   - A row is never deleted, so a generation is never handed out twice.
//   - Tokens are ordered by incarnation, then generation, then write number
//     (TestTokensAreGolden, TestTokensGrowWithTheirTerm).
//   - The database's clock alone decides expiry, and it is read after the row
//     is locked (TestClockIsReadAfterTheLock).
//   - Renewal and release compare name, generation and nonce, and an expired
//     term is never revived (TestStoreAgreesWithModel).
//   - A holder trusts its lease from the moment before the request went out, on
//     its own monotonic clock, minus a margin; work runs under a context that
//     ends with it (TestHolderStopsByItsOwnClock).
//   - The lease of an account is answered only when the account's chain refuses
//     every older token (TestAccountLeasesAgreeWithTheModel; end to end
//     TestOlderTokenIsRefusedFromTheAcquisitionOn).
//   - Leases of workers are linearizable, also over connections that break
//     (TestHistoriesAreLinearizable, TestRenewalWithoutTheTermIsFound).
//   - A database that may have lost rows hands out nothing to workers (end to
//     end TestTokensAfterARestoredDump).
//   - Listing refused writes slows and fails nothing
//     (TestRejectionsAreNeverWaitedFor).
//   - Live processes share the names out evenly, and the names of a dead one
//     are taken within TTL + RenewEvery (TestNamesAreSharedOut,
//     TestNamesOfTheDeadAreTaken).
package lease
