package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// BenchmarkLeaseRounds measures rounds of acquire, renew and release over HTTP
// against `ledgerd dev` with its own durable PostgreSQL: many workers, each with
// a name of its own.
func BenchmarkLeaseRounds(b *testing.B) {
	for _, kind := range []string{"account", "named"} {
		b.Run(kind, func(b *testing.B) {
			n := benchNode(b)
			const names = 1000
			if kind == "account" {
				for i := range names {
					n.open(fmt.Sprint("w", i))
				}
			}
			transport := &http.Transport{MaxIdleConnsPerHost: 256}
			defer transport.CloseIdleConnections()
			c := &http.Client{Transport: transport}
			var next atomic.Int64
			b.SetParallelism(16) // times GOMAXPROCS
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					name := fmt.Sprint("w", next.Add(1)%names)
					path := "/v1/leases/" + name
					if kind == "account" {
						path = fmt.Sprintf(accountLease, name)
					}
					if err := leaseRound(c, n.url+path); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rounds/s")
		})
	}
}

func benchNode(b *testing.B) *node {
	dir, err := os.MkdirTemp("", "ledgerd-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // the server runs as another user
		b.Fatal(err)
	}
	books := &books{receipts: make(map[string]booked), unsure: make(map[string]bool)}
	return books.startProcess(b, nil, "dev", "--data="+dir+"/data", "--listen=127.0.0.1:0")
}

func leaseRound(c *http.Client, url string) error {
	send := func(method, body string) (string, error) {
		r, err := http.NewRequest(method, url, strings.NewReader(body))
		if err != nil {
			return "", err
		}
		r.Header.Set("Content-Type", "application/json")
		response, err := c.Do(r)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode >= 300 {
			err = fmt.Errorf("%s %s: %d %s", method, url, response.StatusCode, text)
		}
		return string(text), err
	}
	got, err := send("POST", `{"holder":"w","ttl_ms":60000}`)
	if err != nil {
		return err
	}
	_, after, _ := strings.Cut(got, `"token":`)
	token, _, _ := strings.Cut(after, ",")
	if _, err := send("PUT", `{"holder":"w","ttl_ms":60000,"token":`+token+`}`); err != nil {
		return err
	}
	_, err = send("DELETE", `{"holder":"w","token":`+token+`}`)
	return err
}
