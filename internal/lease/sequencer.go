package lease

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"

	"github.com/google/uuid"
)

// ModeExclusive is the only mode of a lease: one holder at a time.
const ModeExclusive = "exclusive"

const (
	sequencerVersion   = 1
	sequencerExclusive = 'x'
	// sequencerBytesMax bounds what is decoded: a name has at most 255 bytes.
	sequencerBytesMax = 512
)

// Sequencer describes one term, for somebody to whom its holder shows it, as in
// section 2.4 of the Chubby paper (Burrows, OSDI 2006).
type Sequencer struct {
	Name  string
	Mode  string
	Token Token
	Nonce uuid.UUID
}

// Sequencer returns what describes the term.
func (t Term) Sequencer() Sequencer {
	return Sequencer{Name: t.Name, Mode: ModeExclusive, Token: t.Token(), Nonce: t.Nonce}
}

// String returns the opaque form: base64url of a version, the mode, the token,
// the nonce and the name. The nonce is random, so nobody can make one up.
func (q Sequencer) String() string {
	b := []byte{sequencerVersion, sequencerExclusive}
	b = binary.BigEndian.AppendUint64(b, uint64(q.Token))
	b = append(b, q.Nonce[:]...)
	b = append(b, q.Name...)
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseSequencer is the inverse of Sequencer.String; ok is false for what is
// not a sequencer.
func ParseSequencer(s string) (q Sequencer, ok bool) {
	if len(s) > sequencerBytesMax {
		return Sequencer{}, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	const fixed = 2 + 8 + 16
	if err != nil || len(b) <= fixed || b[0] != sequencerVersion || b[1] != sequencerExclusive {
		return Sequencer{}, false
	}
	q = Sequencer{Mode: ModeExclusive, Token: Token(binary.BigEndian.Uint64(b[2:])), Name: string(b[fixed:])}
	copy(q.Nonce[:], b[10:fixed])
	if q.Token < 1 {
		return Sequencer{}, false
	}
	for i := range len(q.Name) {
		if c := q.Name[i]; c < 0x21 || c > 0x7e {
			return Sequencer{}, false
		}
	}
	return q, true
}

// Verdict says how the term of a sequencer stands.
type Verdict string

const (
	// Valid: the term stands.
	Valid Verdict = "valid"
	// Superseded: somebody acquired the name since.
	Superseded Verdict = "superseded"
	// Expired: the term is over, and nobody acquired the name since.
	Expired Verdict = "expired"
	// Unknown: this database handed out no such term.
	Unknown Verdict = "unknown"
)

// Check judges the term that q describes, and returns the last term of its name
// unless the verdict is Unknown.
func (s *Grants) Check(ctx context.Context, q Sequencer) (Verdict, Grant, error) {
	g, err := s.Look(ctx, q.Name)
	if errors.Is(err, ErrNotFound) {
		return Unknown, Grant{}, nil
	}
	if err != nil {
		return "", Grant{}, err
	}
	return q.judge(&g), g, nil
}

func (q Sequencer) judge(g *Grant) Verdict {
	switch {
	case q.Token < g.Token():
		return Superseded
	case q.Token > g.Token() || q.Nonce != g.Nonce:
		return Unknown
	case g.State == StateHeld:
		return Valid
	}
	return Expired
}
