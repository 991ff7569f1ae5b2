package postgres

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// Class says what an error means for the statement that returned it.
type Class int

const (
	// ClassUnknown: the connection was lost or timed out after the statement
	// may have been sent. It may have been applied, now or later.
	ClassUnknown Class = iota
	// ClassUnsent: the statement never reached the server.
	ClassUnsent
	// ClassUnique: a unique violation; nothing was applied.
	ClassUnique
	// ClassData: PostgreSQL refused the data (class 22, a CHECK, NOT NULL, a
	// program limit); nothing was applied and a repetition fails again.
	ClassData
	// ClassLock: a lock was not granted within lock_timeout; nothing was applied.
	ClassLock
	// ClassRetry: PostgreSQL gave up for a passing reason (serialization,
	// deadlock, cancelled, resources); nothing was applied.
	ClassRetry
	// ClassSchema: the statement does not fit the schema or the privileges;
	// nothing was applied, and only an operator can help.
	ClassSchema
	// ClassReadOnly: the server is a standby or read-only; nothing was applied.
	ClassReadOnly
)

// Classify returns the class of err, which must not be nil. It looks at
// SQLSTATE alone: constraint names differ between engines and texts between
// languages.
func Classify(err error) Class {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return classifyState(pg.Code)
	}
	if pgconn.SafeToRetry(err) {
		return ClassUnsent
	}
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return ClassUnsent
	}
	return ClassUnknown
}

func classifyState(code string) Class {
	switch code {
	case "23505":
		return ClassUnique
	case "55P03":
		return ClassLock
	case "25006":
		return ClassReadOnly
	case "25P03":
		// The session was ended while idle in its transaction: rolled back.
		return ClassRetry
	case "57P01", "57P02", "57P05":
		// The session was ended from outside. That can happen during the wait
		// for a synchronous standby, when the commit already stands.
		return ClassUnknown
	case "40003":
		return ClassUnknown // "statement completion unknown"
	case "57014":
		// Cancelled: like the above, the wait for a standby can be what ended.
		return ClassUnknown
	case "57P03":
		return ClassUnsent
	case "0A000":
		// "cached plan must not change result type": the next try plans anew.
		return ClassRetry
	}
	switch code[:min(2, len(code))] {
	case "22", "23", "54":
		return ClassData
	case "40", "53", "55", "25":
		return ClassRetry
	case "42", "3D", "3F", "28", "26":
		return ClassSchema
	}
	return ClassUnknown // what is not known here is not known to be without effect
}
