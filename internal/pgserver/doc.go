// Package pgserver runs a private PostgreSQL for `ledgerd dev` and for tests.
//
// A private server is a child process that listens on a Unix socket only, in a
// folder that nobody else can enter, so it needs neither a port nor a password.
// It works for root (PostgreSQL then runs as another user, because it refuses
// to run as root) and for an ordinary user, on Linux, macOS and the BSDs.
//
// A data folder looks like this:
//
//	DIR/pgdata        the cluster; appears by rename, so it is whole or absent
//	DIR/pgdata.init   a cluster in the making; left over only by a crash
//	DIR/socket        the Unix socket, mode 0700
//	DIR/postgres.log  the server's log
//	DIR/ledgerd.lock  locked (flock) by the process that owns the server
//
// Invariants, each with the test that proves it:
//
//   - A cluster is never deleted and never started with another major version:
//     OtherMajorVersionIsRefusedAndKept.
//   - At most one process owns a data folder: SecondInstanceIsRefused.
//   - The server does not outlive its owner, however that ends:
//     KilledOwnerLeavesNoOrphan.
//   - A folder with anything else in it is refused and left as it is:
//     FolderWithOtherThingsIsRefusedAndKept.
//   - A crash during the set-up leaves nothing that a later start takes for a
//     cluster: HalfMadeClusterIsMadeAgain.
package pgserver
