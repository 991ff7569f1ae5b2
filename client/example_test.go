package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/ledgerd/ledgerd/client"
)

// demo answers one example as the service would.
func demo(h http.HandlerFunc) (address string, stop func()) {
	s := httptest.NewServer(h)
	return s.URL, s.Close
}

func ExampleClient_Credit() {
	address, stop := demo(answer(201, `{"account_id":"wallet-81","seq":2,"kind":"credit","amount":12500,"currency":"EUR","balance":12500}`))
	defer stop()

	c, err := client.New(address)
	if err != nil {
		log.Fatal(err)
	}
	receipt, err := c.Credit(context.Background(), "wallet-81",
		client.Operation{Amount: 12500, Description: "top-up"},
		client.Key("order-1047-top-up"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(receipt.Seq, receipt.Balance, receipt.Currency)
	// Output: 2 12500 EUR
}

// Three refusals ask for three reactions.
func ExampleClient_Debit() {
	address, stop := demo(answer(422, `{"status":422,"code":"insufficient_funds","title":"insufficient funds","applied":false,"seq":3,
		"transaction_id":"019ad3f5-7c1e-7d3a-9b1f-0b8a5c2d4e6f","request_id":"r1"}`))
	defer stop()

	c, err := client.New(address)
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Debit(context.Background(), "wallet-81", client.Operation{Amount: 99900}, client.Key("order-1048"))
	var unknown *client.UnknownOutcome
	var problem *client.Problem
	switch {
	case err == nil:
		fmt.Println("paid")
	case errors.As(err, &unknown):
		fmt.Println("ask again later with the key", unknown.Key)
	case errors.As(err, &problem) && problem.Code == client.CodeStaleFencingToken:
		fmt.Println("somebody else owns the account now, stop")
	case errors.As(err, &problem) && problem.Recorded():
		fmt.Println("declined for good:", problem.Code)
	default:
		fmt.Println("not applied:", err)
	}
	// Output: declined for good: insufficient_funds
}

func ExampleClient_Entries() {
	address, stop := demo(answer(200, `{"data":[{"seq":2,"kind":"credit","amount":12500},{"seq":1,"kind":"opened","amount":0}],"next_cursor":null}`))
	defer stop()

	c, err := client.New(address)
	if err != nil {
		log.Fatal(err)
	}
	for entry, err := range c.Entries(context.Background(), "wallet-81", client.EntryQuery{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(entry.Seq, entry.Kind, entry.Amount)
	}
	// Output:
	// 2 credit 12500
	// 1 opened 0
}
