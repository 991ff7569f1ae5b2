package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestClassify: what is not known to be without effect is an unknown outcome.
func TestClassify(t *testing.T) {
	t.Parallel()
	states := map[string]Class{
		"23505": ClassUnique,
		"23514": ClassData, "22003": ClassData, "54000": ClassData,
		"55P03": ClassLock,
		"40001": ClassRetry, "40P01": ClassRetry, "53300": ClassRetry, "25P03": ClassRetry, "0A000": ClassRetry,
		"42501": ClassSchema, "3D000": ClassSchema,
		"25006": ClassReadOnly,
		"57P03": ClassUnsent,
		"40003": ClassUnknown, "57P01": ClassUnknown, "57014": ClassUnknown, "08006": ClassUnknown, "XX000": ClassUnknown, "P0001": ClassUnknown, "": ClassUnknown,
	}
	for state, want := range states {
		err := fmt.Errorf("append: %w", &pgconn.PgError{Code: state})
		if got := Classify(err); got != want {
			t.Errorf("SQLSTATE %q is class %d, want %d", state, got, want)
		}
	}
	for _, err := range []error{io.ErrUnexpectedEOF, context.DeadlineExceeded, errors.New("anything")} {
		if got := Classify(err); got != ClassUnknown {
			t.Errorf("%v is class %d, want unknown", err, got)
		}
	}
}

// TestUnsent: a server that is not there has got nothing.
func TestUnsent(t *testing.T) {
	t.Parallel()
	pool, err := Open(Config{URL: "host=" + t.TempDir() + " user=nobody", MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err = pool.Exec(t.Context(), "select 1"); err == nil || Classify(err) != ClassUnsent {
		t.Fatalf("%v is class %d, want unsent", err, Classify(err))
	}
}
