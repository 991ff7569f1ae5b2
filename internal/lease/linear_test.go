package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/postgres"
)

// The operations of a history on one name.
type leaseOp int

const (
	opAcquire leaseOp = iota
	opRenew
	opRelease
	opExpire // the owner of the schema moves expires_at into the past
)

type leaseInput struct {
	op     leaseOp
	name   string
	client int
	token  Token // of renew and release
}

type leaseOutput struct {
	ok      bool
	token   Token // of an acquisition that is ok
	unknown bool
}

// leaseState is a name as the specification has it. TTLs are long: time passes
// by opExpire alone.
type leaseState struct {
	token    Token
	client   int
	held     bool
	released bool
}

// specification is what a lease is, one operation at a time. An operation
// without an answer happened or did not.
func specification() porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byName := map[string][]porcupine.Operation{}
			for _, op := range history {
				name := op.Input.(leaseInput).name
				byName[name] = append(byName[name], op)
			}
			var parts [][]porcupine.Operation
			for _, part := range byName {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() []any { return []any{leaseState{}} },
		Step: func(state, input, output any) []any {
			s, in, out := state.(leaseState), input.(leaseInput), output.(leaseOutput)
			after, ok := in.apply(s)
			switch {
			case out.unknown:
				return []any{s, after}
			case out.ok != ok, in.op == opAcquire && ok && out.token != after.token:
				return nil
			}
			return []any{after}
		},
		Equal: func(a, b any) bool { return a == b },
	}
	return nondeterministic.ToModel()
}

func (in leaseInput) apply(s leaseState) (leaseState, bool) {
	mine := s.token == in.token && s.client == in.client
	switch in.op {
	case opAcquire:
		if s.held {
			return s, false
		}
		return leaseState{token: s.token + 1, client: in.client, held: true}, true
	case opRenew:
		return s, mine && s.held
	case opRelease:
		if mine && s.held {
			s.held, s.released = false, true
			return s, true
		}
		return s, mine && s.released // a repetition succeeds
	default:
		s.held = false
		return s, true
	}
}

// cutter is a network that cuts connections at random, before a statement
// reached the server or after.
type cutter struct {
	mu     sync.Mutex
	random *rand.Rand
	cuts   int
}

func (c *cutter) cut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.random.IntN(60) > 0 {
		return false
	}
	c.cuts++
	return true
}

func (c *cutter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	return &cutConn{Conn: conn, cutter: c}, err
}

type cutConn struct {
	net.Conn
	cutter *cutter
	sent   atomic.Bool // the start of the connection is spared
}

func (c *cutConn) Read(b []byte) (int, error) {
	if c.sent.Load() && c.cutter.cut() {
		_ = c.Conn.Close()
	}
	return c.Conn.Read(b)
}

func (c *cutConn) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "leases") {
		c.sent.Store(true)
	}
	if c.sent.Load() && c.cutter.cut() {
		_ = c.Conn.Close()
	}
	return c.Conn.Write(b)
}

const (
	linearClients = 50
	linearOps     = 30 // of each client
	linearNames   = 10
)

// history lets clients at the leases, over connections that are cut, and
// returns what they saw.
func history(t *testing.T, seed uint64, mutate func(*Grants)) []porcupine.Operation {
	t.Helper()
	db := pgtest.Database(t)
	network := &cutter{random: rand.New(rand.NewPCG(seed, 0))}
	pool, err := postgres.Open(postgres.Config{URL: db.URL, Role: postgres.ServiceRole, MaxConns: 16, Dial: network.dial})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	owner := db.OwnerPool(t)
	grants := NewGrants(pool)
	mutate(grants)
	var mu sync.Mutex
	var all []porcupine.Operation
	begun := time.Now()
	var clients sync.WaitGroup
	for client := range linearClients {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(client)+1))
			var mine []leaseInput // every term that this client was given
			for range linearOps {
				in := leaseInput{name: fmt.Sprint("n", random.IntN(linearNames)), client: client}
				switch draw := random.IntN(10); {
				case draw < 4 || len(mine) == 0:
					in.op = opAcquire
				case draw == 4:
					in.op = opExpire
				default:
					in = mine[len(mine)-1-random.IntN(min(len(mine), 3))]
					if in.op = opRenew; draw > 7 {
						in.op = opRelease
					}
				}
				call := time.Since(begun)
				out := in.run(context.Background(), grants, func(name string) error {
					_, err := owner.Exec(context.Background(), `update leases set expires_at = clock_timestamp() - interval '1 hour'
						where name = $1 and released_at is null`, name)
					return err
				})
				returned := int64(time.Since(begun))
				if out.unknown {
					returned = math.MaxInt64 // it may still happen
				}
				if in.op == opAcquire && out.ok {
					mine = append(mine, leaseInput{name: in.name, client: client, token: out.token})
				}
				mu.Lock()
				all = append(all, porcupine.Operation{ClientId: client, Input: in, Call: int64(call), Output: out, Return: returned})
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	unknown := 0
	for _, op := range all {
		if op.Output.(leaseOutput).unknown {
			unknown++
		}
	}
	t.Logf("seed %d: %d operations, %d connections cut, %d outcomes unknown", seed, len(all), network.cuts, unknown)
	if network.cuts == 0 {
		t.Error("no connection was cut")
	}
	return all
}

func (in leaseInput) run(ctx context.Context, g *Grants, expire func(string) error) leaseOutput {
	holder := fmt.Sprint("client ", in.client)
	var err error
	out := leaseOutput{}
	switch in.op {
	case opAcquire:
		var got Grant
		got, err = g.Acquire(ctx, in.name, holder, TTLMax, 0)
		out.token = got.Token()
	case opRenew:
		_, err = g.Renew(ctx, in.name, holder, in.token, TTLMax)
	case opRelease:
		_, err = g.Release(ctx, in.name, holder, in.token)
	case opExpire:
		err = expire(in.name)
	}
	var held *Held
	switch {
	case err == nil:
		out.ok = true
	case errors.As(err, &held), errors.Is(err, ErrTermOver):
	default:
		out.unknown = true
	}
	return out
}

func TestHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	for range 3 {
		if got := porcupine.CheckOperationsTimeout(specification(), history(t, rand.Uint64(), func(*Grants) {}), time.Minute); got != porcupine.Ok {
			t.Errorf("the history is %s", got)
		}
	}
}

// A renewal that does not compare the term is found by the same check, so the
// check can fail.
func TestRenewalWithoutTheTermIsFound(t *testing.T) {
	t.Parallel()
	broken := strings.Replace(renewGrant, "l.generation = $3::bigint", "$3::bigint is not null", 1)
	broken = strings.Replace(broken, "l.holder = $4::text", "$4::text is not null", 1)
	if broken == renewGrant {
		t.Fatal("the statement has no term to remove")
	}
	for range 5 {
		operations := history(t, rand.Uint64(), func(g *Grants) { g.sql.renew = broken })
		if porcupine.CheckOperationsTimeout(specification(), operations, time.Minute) == porcupine.Illegal {
			return
		}
	}
	t.Error("no history shows that a renewal does not compare the term")
}
