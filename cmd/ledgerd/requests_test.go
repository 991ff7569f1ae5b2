package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// answer is a response with its body.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// receipt is what the tests read of answers, problem documents included.
type receipt struct {
	TransactionID string          `json:"transaction_id"`
	AccountID     string          `json:"account_id"`
	Seq           int64           `json:"seq"`
	ProjectedSeq  int64           `json:"projected_seq"`
	Kind          string          `json:"kind"`
	Amount        int64           `json:"amount"`
	Balance       int64           `json:"balance"`
	Available     int64           `json:"available"`
	Status        json.RawMessage `json:"status"` // a number in problem documents
	Code          string          `json:"code"`
	Applied       any             `json:"applied"`
	Errors        []struct {
		Pointer string `json:"pointer"`
		Header  string `json:"header"`
	} `json:"errors"`
}

// read decodes the body into a receipt; what is not there is zero.
func (a answer) read() receipt {
	var r receipt
	_ = json.Unmarshal(a.body, &r) // an answer of another form is judged by its status
	return r
}

func (a answer) String() string {
	return fmt.Sprintf("%d %s", a.status, bytes.TrimSpace(a.body))
}

func (a answer) replayed() bool { return a.header.Get("Idempotency-Replayed") == "true" }

// try sends a request; headers are names and values in turn. It may be called
// from any goroutine.
func (n *node) try(method, path, body string, headers ...string) (answer, error) {
	return n.tryContext(context.Background(), method, path, body, headers...)
}

func (n *node) tryContext(ctx context.Context, method, path, body string, headers ...string) (answer, error) {
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, n.url+path, content)
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := n.http.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, text}, err
}

// do is try for the goroutine of the test.
func (n *node) do(method, path, body string, headers ...string) answer {
	n.t.Helper()
	a, err := n.try(method, path, body, headers...)
	if err != nil {
		n.t.Fatal(err)
	}
	return a
}

// want is do for a request whose status is known.
func (n *node) want(status int, method, path, body string, headers ...string) receipt {
	n.t.Helper()
	a := n.do(method, path, body, headers...)
	if a.status != status {
		n.t.Fatalf("%s %s %s: the answer is %s, not %d", method, path, body, a, status)
	}
	return a.read()
}

// open opens an account in EUR.
func (n *node) open(account string) {
	n.t.Helper()
	n.want(http.StatusCreated, "PUT", "/v1/accounts/"+account, `{"currency":"EUR"}`)
}

// post sends a credit or a debit; kind is "credits" or "debits".
func (n *node) post(kind, account string, amount int64, key string) (answer, error) {
	return n.try("POST", "/v1/accounts/"+account+"/"+kind, fmt.Sprintf(`{"amount":%d}`, amount), "Idempotency-Key", key)
}

// credit posts a credit that is accepted.
func (n *node) credit(account string, amount int64, key string) receipt {
	n.t.Helper()
	a, err := n.post("credits", account, amount, key)
	if err != nil || a.status != http.StatusCreated {
		n.t.Fatalf("credit %d to %s: %s %v", amount, account, a, err)
	}
	return a.read()
}

// balance reads an account strongly.
func (n *node) balance(account string) receipt {
	n.t.Helper()
	return n.want(http.StatusOK, "GET", "/v1/accounts/"+account+"/balance", "")
}

// metric returns the sum of all samples of a metric, with the labels if any
// are given as `name="value"`.
func (n *node) metric(name string, labels ...string) float64 {
	n.t.Helper()
	var sum float64
	for line := range strings.Lines(string(n.do("GET", "/metrics", "").body)) {
		sample, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		family, _, _ := strings.Cut(sample, "{")
		if family != name {
			continue
		}
		has := true
		for _, l := range labels {
			has = has && strings.Contains(sample, l)
		}
		var v float64
		if _, err := fmt.Sscan(value, &v); has && err == nil {
			sum += v
		}
	}
	return sum
}
