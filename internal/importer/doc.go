// Package importer posts the operations of a CSV file through the API: in the
// order of the file within an account, at the same time for different accounts,
// all through one stream.
//
// Invariants:
//   - Nothing is sent before the whole file is known to be well formed
//     (TestBadFileSendsNothing).
//   - A row is sent after every earlier row of its account has a definitive
//     answer (TestOrderWithinAnAccount). When that cannot be had, the account
//     is left where it is, so that a later run posts its rows in order.
//   - Running a file again replays what is posted and posts the rest
//     (TestRunAgainReplays, TestInterruptedRunIsFinishedByTheNext).
//   - Every answer, also a replay, is compared with the balance that the file
//     has for it (TestMismatchIsReported).
package importer
