// Settlement is a worker that pays out of one account, one payout after the
// other, while it holds the account's lease. Several may run: one works at a
// time. It shows that a worker can be stopped anywhere, for any time, and that
// the account refuses what it sends too late.
//
//	go run ./examples/settlement -account wallet-81
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

func main() {
	url := flag.String("url", "http://127.0.0.1:8080", "address of the service")
	account := flag.String("account", "wallet-81", "account to pay out of")
	ttl := flag.Duration("ttl", 15*time.Second, "how long the lease lives without renewal")
	every := flag.Duration("every", time.Second, "time between payouts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *url, *account, *ttl, *every); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run settles until ctx ends. Whoever loses the lease asks for it again.
func run(ctx context.Context, url, account string, ttl, every time.Duration) error {
	c, err := client.New(url)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		err := c.WithLease(ctx, account, func(ctx context.Context, lease *client.HeldLease) error {
			fmt.Println("acquired", lease.Token, "balance", lease.Balance)
			return settle(ctx, lease, every)
		}, client.LeaseTTL(ttl))
		var p *client.Problem
		switch {
		case errors.As(err, &p) && p.Code == client.CodeStaleFencingToken:
			fmt.Println("refused", p.PresentedToken, "current", p.CurrentToken)
		case errors.Is(err, client.ErrLeaseExpired), errors.Is(err, client.ErrLeaseLost):
			fmt.Println("lost", err)
		default:
			return err
		}
	}
}

// settle makes one payout after the other. A payout that was begun is sent
// whatever this process believes about its lease: the account decides.
func settle(ctx context.Context, lease *client.HeldLease, every time.Duration) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for n := 1; ; n++ {
		key := fmt.Sprintf("payout-%d-%d", lease.Token, n)
		_, err := lease.Debit(context.WithoutCancel(ctx), client.Operation{Amount: 1, Description: "payout"}, client.Key(key))
		if err != nil {
			return err
		}
		fmt.Println("paid", lease.Token, n)
		select {
		case <-ctx.Done():
			// Stopped at this place for longer than the lease, a careful worker
			// gives up here. This one pays once more to show that care is not
			// needed: the payout is refused if somebody else owns the account.
			_, err := lease.Debit(context.WithoutCancel(ctx), client.Operation{Amount: 1, Description: "payout"}, client.Key(key+"-late"))
			return errors.Join(err, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}
