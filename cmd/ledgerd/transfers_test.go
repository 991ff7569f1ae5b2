package main

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/client"
)

// TestOppositeTransfers is case 15: 1,000 transfers to and fro between two
// accounts, all at once through two processes. Only 201 is ever answered, and
// the sum of the two is the same in every snapshot.
func TestOppositeTransfers(t *testing.T) {
	t.Parallel()
	const count, clients, money = 1000, 50, 10_000
	b := newBooks(t)
	b.lossy() // the books know operations on one account
	nodes := []*node{serveProcess(t, b), serveProcess(t, b)}
	for _, id := range []string{"A", "B"} {
		nodes[0].open(id)
		nodes[0].credit(id, money, "in")
	}
	stop, watched := make(chan struct{}), make(chan error, 1)
	go func() { watched <- watchSum(t, b, 2*money, stop) }()
	services := []*client.Client{streamTo(t, nodes[0], client.WithRetryFor(0)), streamTo(t, nodes[1], client.WithRetryFor(0))}
	var group sync.WaitGroup
	for c := range clients {
		group.Go(func() {
			for i := c; i < count; i += clients {
				tr := client.Transfer{From: "A", To: "B", Amount: 7}
				if i%2 == 1 {
					tr.From, tr.To = "B", "A"
				}
				if _, err := services[i/2%2].Transfer(t.Context(), tr, client.Key(fmt.Sprint("k-", i))); err != nil {
					t.Errorf("transfer %d: %v", i, err)
				}
			}
		})
	}
	group.Wait()
	close(stop)
	if err := <-watched; err != nil {
		t.Error(err)
	}
	for _, id := range []string{"A", "B"} {
		if r := nodes[1].balance(id); r.Balance != money || r.Seq != count+2 {
			t.Errorf("%s has %d after %d entries", id, r.Balance, r.Seq)
		}
	}
}

// watchSum reads the heads of A and B in one snapshot again and again.
func watchSum(t *testing.T, b *books, want int64, stop <-chan struct{}) error {
	conn, err := pgx.Connect(t.Context(), b.url)
	if err != nil {
		return err
	}
	defer conn.Close(t.Context())
	for reads := 0; ; reads++ {
		select {
		case <-stop:
			if reads == 0 {
				return errors.New("the sum was never read")
			}
			return nil
		default:
		}
		var sum int64
		err := conn.QueryRow(t.Context(), `select sum(balance_after) from (
			select distinct on (account_id) balance_after from entries order by account_id, seq desc) as heads`).Scan(&sum)
		if err != nil {
			return err
		}
		if sum != want {
			return fmt.Errorf("A and B have %d together, not %d", sum, want)
		}
	}
}

// TestTransferSurvivesTheService is case 4 for an operation with several legs:
// killed and started again, the service gives the same answer to the same key.
func TestTransferSurvivesTheService(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.lossy()
	first := serveProcess(t, b)
	first.open("A")
	first.open("B")
	first.credit("A", 100, "in")
	post := func(n *node, body, key string) answer {
		return n.do("POST", "/v1/transfers", body, "Idempotency-Key", key)
	}
	const moves, declined = `{"from":"A","to":"B","amount":60}`, `{"from":"A","to":"B","amount":61}`
	done, refused := post(first, moves, "k1"), post(first, declined, "k2")
	first.kill()
	second := serveProcess(t, b)
	again, refusedAgain := post(second, moves, "k1"), post(second, declined, "k2")
	if done.status != http.StatusCreated || again.status != http.StatusCreated || !again.replayed() || string(again.body) != string(done.body) {
		t.Errorf("the answer was %v and is %v", done, again)
	}
	if refused.status != http.StatusUnprocessableEntity || refusedAgain.status != refused.status || !refusedAgain.replayed() {
		t.Errorf("the decline was %v and is %v", refused, refusedAgain)
	}
	if a, c := second.balance("A"), second.balance("B"); a.Balance != 40 || c.Balance != 60 || a.Seq != 4 || c.Seq != 2 {
		t.Errorf("the balances are %+v and %+v", a, c)
	}
}
