package lease

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestTokensAreGolden(t *testing.T) {
	t.Parallel()
	cases := []struct {
		incarnation int
		generation  int64
		number      int64
		token       Token
		projection  ProjectionToken
	}{
		{1, 1, 1, 1, 16_777_217},
		{1, 2, 1, 2, 33_554_433},
		{1, 3, 16_777_215, 3, 67_108_863},
		{1, GenerationMax, WriteNumberMax, 2_147_483_647, 36_028_797_018_963_967},
		{2, 1, 1, 1_099_511_627_777, 36_028_797_035_741_185},
		{IncarnationMax, GenerationMax, WriteNumberMax, 279_278_100_938_751, 9_187_343_239_835_811_839},
	}
	for _, c := range cases {
		term := Term{Name: "x", Incarnation: c.incarnation, Generation: c.generation}
		if got := term.Token(); got != c.token {
			t.Errorf("token of %d/%d is %d, want %d", c.incarnation, c.generation, got, c.token)
		}
		got, err := term.ProjectionToken(c.number)
		if err != nil || got != c.projection {
			t.Errorf("projection token of %d/%d/%d is %d (%v), want %d", c.incarnation, c.generation, c.number, got, err, c.projection)
		}
		if got.Rank() != term.Rank() {
			t.Errorf("the rank of token %d is %d, want %d", got, got.Rank(), term.Rank())
		}
		if c.token < 1 || c.token >= 1<<53 {
			t.Errorf("token %d is outside 1 to 2^53-1", c.token)
		}
	}
}

func TestPartsOutsideTheirLimitsMakeNoToken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ incarnation, generation, number int64 }{
		{0, 1, 1}, {256, 1, 1}, {1, 0, 1}, {1, GenerationMax + 1, 1}, {1, 1, 0}, {1, 1, WriteNumberMax + 1},
		{1, math.MaxInt64, 1}, {1, 1, math.MaxInt64}, {1, -1, 1}, {1, 1, -1},
	} {
		term := Term{Name: "x", Incarnation: int(c.incarnation), Generation: c.generation}
		if token, err := term.ProjectionToken(c.number); err == nil {
			t.Errorf("%d/%d/%d gave the token %d", c.incarnation, c.generation, c.number, token)
		}
	}
}

// TestTokensGrowWithTheirTerm compares tokens with the plain order of their
// parts.
func TestTokensGrowWithTheirTerm(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) (Term, int64) {
			return Term{
				Incarnation: rapid.IntRange(1, IncarnationMax).Draw(t, label+" incarnation"),
				Generation:  rapid.Int64Range(1, GenerationMax).Draw(t, label+" generation"),
			}, rapid.Int64Range(1, WriteNumberMax).Draw(t, label+" number")
		}
		a, an := draw("a")
		b, bn := draw("b")
		if rapid.Bool().Draw(t, "same incarnation") {
			b.Incarnation = a.Incarnation
		}
		if rapid.Bool().Draw(t, "same generation") {
			b.Generation = a.Generation
		}
		termLess := a.Incarnation < b.Incarnation || a.Incarnation == b.Incarnation && a.Generation < b.Generation
		sameTerm := a.Incarnation == b.Incarnation && a.Generation == b.Generation
		if (a.Token() < b.Token()) != termLess || (a.Rank() < b.Rank()) != termLess {
			t.Fatalf("terms %+v and %+v: tokens %d and %d", a, b, a.Token(), b.Token())
		}
		at, err := a.ProjectionToken(an)
		if err != nil {
			t.Fatal(err)
		}
		bt, err := b.ProjectionToken(bn)
		if err != nil {
			t.Fatal(err)
		}
		if (at < bt) != (termLess || sameTerm && an < bn) {
			t.Fatalf("writes %+v/%d and %+v/%d: tokens %d and %d", a, an, b, bn, at, bt)
		}
	})
}
