package lease

import (
	"testing"

	"github.com/google/uuid"
)

func TestSequencersAreGolden(t *testing.T) {
	t.Parallel()
	term := Term{Name: "named/n", Incarnation: 2, Generation: 3, Nonce: uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff")}
	const want = "AXgAAAEAAAAAAwARIjNEVWZ3iJmqu8zd7v9uYW1lZC9u"
	got := term.Sequencer().String()
	if got != want {
		t.Errorf("the sequencer is %s, want %s", got, want)
	}
	if back, ok := ParseSequencer(got); !ok || back != term.Sequencer() {
		t.Errorf("it parses as %+v %v", back, ok)
	}
	for _, wrong := range []string{"", "AQ", got[:len(got)-8], "A" + got[1:] + "!", "AngAAAEAAAAAAwARIjNEVWZ3iJmqu8zd7v9uYW1lZC9u"} {
		if q, ok := ParseSequencer(wrong); ok && q == term.Sequencer() {
			t.Errorf("%q parses as the same", wrong)
		}
	}
	if _, ok := ParseSequencer("AngAAAEAAAAAAwARIjNEVWZ3iJmqu8zd7v9uYW1lZC9u"); ok {
		t.Error("another version is accepted")
	}
}

func FuzzSequencer(f *testing.F) {
	f.Add("AXgAAAEAAAAAAwARIjNEVWZ3iJmqu8zd7v9uYW1lZC9u")
	f.Add("not one")
	f.Fuzz(func(t *testing.T, s string) {
		if q, ok := ParseSequencer(s); ok && q.String() != s {
			t.Errorf("%q is read as %+v, which is %q", s, q, q.String())
		}
	})
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	mine := Term{Name: "named/n", Incarnation: 1, Generation: 3, Nonce: uuid.New()}
	newer, forged, older := mine, mine, mine
	newer.Generation, forged.Nonce, older.Generation = 4, uuid.New(), 2
	for _, c := range []struct {
		name  string
		row   Term
		state State
		want  Verdict
	}{
		{"it stands", mine, StateHeld, Valid},
		{"it ran out", mine, StateFree, Expired},
		{"its lock delay runs", mine, StateLockDelay, Expired},
		{"somebody else holds", newer, StateHeld, Superseded},
		{"somebody else held", newer, StateFree, Superseded},
		{"another nonce", forged, StateHeld, Unknown},
		{"the row is older", older, StateHeld, Unknown},
	} {
		if got := mine.Sequencer().judge(&Grant{Term: c.row, State: c.state}); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
