package lease

import (
	"fmt"

	"github.com/google/uuid"
)

// The limits of the parts of a token. The schema checks the first two.
const (
	// IncarnationMax is the highest incarnation of the database.
	IncarnationMax = 255
	// GenerationMax is the highest number of acquisitions of one name.
	GenerationMax = 1<<31 - 1
	// WriteNumberMax is the highest number of writes under one term. A holder
	// that comes near it gives the lease up and acquires it again.
	WriteNumberMax = 1<<24 - 1
)

const (
	generationBits  = 40 // of a lease token, below the incarnation
	rankBits        = 31 // of a projection token's generation
	writeNumberBits = 24 // of a projection token
)

// Term is one acquisition of a name: what a holder presents to renew or
// release, compared exactly.
type Term struct {
	Name string
	// Incarnation of the database in which it was acquired, 1 … IncarnationMax.
	Incarnation int
	// Generation counts the acquisitions of the name, 1 … GenerationMax.
	Generation int64
	// Nonce was chosen by the acquirer for this acquisition alone.
	Nonce uuid.UUID
}

// Token is the fencing token of a term: incarnation·2^40 + generation, where
// the first incarnation counts as 0. It is below 2^53, and 1, 2, 3 … as long as
// the database never lost anything.
type Token int64

// Rank orders the terms of one name: incarnation·2^31 + generation, where the
// first incarnation counts as 0.
type Rank int64

// ProjectionToken says which write of which term a row was written by:
// incarnation·2^55 + generation·2^24 + write number, where the first
// incarnation counts as 0. It is strictly greater for every write, so that a
// delayed or repeated write of the same holder is refused too.
type ProjectionToken int64

// Token returns the fencing token of the term.
func (t Term) Token() Token {
	return Token(int64(t.Incarnation-1)<<generationBits + t.Generation)
}

// Rank returns the place of the term among all terms of its name.
func (t Term) Rank() Rank {
	return Rank(int64(t.Incarnation-1)<<rankBits + t.Generation)
}

// ProjectionToken returns the token of the write with the given number,
// 1 … WriteNumberMax, under this term.
func (t Term) ProjectionToken(number int64) (ProjectionToken, error) {
	if err := t.validate(); err != nil {
		return 0, err
	}
	if number < 1 || number > WriteNumberMax {
		return 0, fmt.Errorf("write number %d is outside 1 to %d", number, WriteNumberMax)
	}
	return ProjectionToken(int64(t.Rank())<<writeNumberBits + number), nil
}

// Rank returns the rank of the term that the token belongs to.
func (p ProjectionToken) Rank() Rank { return Rank(p >> writeNumberBits) }

// validate keeps the parts of a token from running into each other.
func (t Term) validate() error {
	if t.Incarnation < 1 || t.Incarnation > IncarnationMax {
		return fmt.Errorf("incarnation %d of lease %q is outside 1 to %d", t.Incarnation, t.Name, IncarnationMax)
	}
	if t.Generation < 1 || t.Generation > GenerationMax {
		return fmt.Errorf("generation %d of lease %q is outside 1 to %d", t.Generation, t.Name, int64(GenerationMax))
	}
	return nil
}
