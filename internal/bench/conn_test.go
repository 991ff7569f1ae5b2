package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestAnswersAreReadToTheirEnd reads two answers from one stream: the second can
// only be found when the first was skipped exactly.
func TestAnswersAreReadToTheirEnd(t *testing.T) {
	cases := []struct {
		name, answer string
		status       int
		keep         bool
	}{
		{"length", "HTTP/1.1 201 Created\r\nContent-Length: 5\r\nETag: \"2\"\r\n\r\nhello", 201, true},
		{"lower case", "HTTP/1.1 422 x\r\ncontent-length:  3\r\n\r\nabc", 422, true},
		{"no body", "HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n", 503, true},
		{"closes", "HTTP/1.1 400 x\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", 400, false},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1A;x=y\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n", 200, true},
	}
	const next = "HTTP/1.1 204 next\r\n\r\n"
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			in := bufio.NewReaderSize(strings.NewReader(tc.answer+next), answerBuffer)
			status, keep, err := readAnswer(in)
			if err != nil || status != tc.status || keep != tc.keep {
				t.Errorf("status %d, keep %t, %v", status, keep, err)
			}
			if status, _, err := readAnswer(in); err != nil || status != 204 {
				t.Errorf("the answer after it: status %d, %v", status, err)
			}
			cut := bufio.NewReaderSize(strings.NewReader(tc.answer[:len(tc.answer)-1]), answerBuffer)
			if _, _, err := readAnswer(cut); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("an answer that is cut: %v", err)
			}
		})
	}
	for _, bad := range []string{"HTTP/2 200\r\n\r\n", "nonsense\r\n"} {
		if _, _, err := readAnswer(bufio.NewReader(strings.NewReader(bad))); !errors.Is(err, errAnswer) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestRequestsAreWhatTheServiceExpects lets the HTTP server of the standard
// library judge the bytes.
func TestRequestsAreWhatTheServiceExpects(t *testing.T) {
	var mu sync.Mutex
	keys := map[string]bool{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		keys[r.Header.Get("Idempotency-Key")] = true
		n := len(keys)
		mu.Unlock()
		want := fmt.Sprintf("POST /v1/accounts/bench-%08d/credits", 12345+n-1)
		if got := r.Method + " " + r.URL.Path; got != want || string(body) != `{"amount":100}` || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("request %s %s, want %s", got, body, want)
		}
		if n == 3 {
			w.Header().Set("Connection", "close")
		}
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, strings.Repeat("x", 3000)) // long enough to come in chunks
	}))
	defer s.Close()
	c := newHTTPConn(s.Listener.Addr().String(), time.Now().Add(time.Minute), rand.NewPCG(1, 2))
	defer c.close()
	for i := range 5 {
		if status, err := c.post(12345 + i); err != nil || status != 201 {
			t.Fatalf("request %d: status %d, %v", i, status, err)
		}
	}
	if len(keys) != 5 {
		t.Errorf("%d keys in 5 requests", len(keys))
	}
	for key := range keys {
		if len(key) != keyLen || strings.Trim(key, "0123456789abcdef") != "" {
			t.Errorf("key %q", key)
		}
	}
}

func TestRequestCostsNoAllocation(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		in := make([]byte, 4096)
		out := []byte("HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}")
		for {
			if _, err := nc.Read(in); err != nil {
				return
			}
			if _, err := nc.Write(out); err != nil {
				return
			}
		}
	}()
	c := newHTTPConn(l.Addr().String(), time.Now().Add(time.Minute), rand.NewPCG(1, 2))
	defer c.close()
	if err := c.dial(); err != nil {
		t.Fatal(err)
	}
	n := testing.AllocsPerRun(500, func() {
		if status, err := c.post(7); err != nil || status != 201 {
			t.Errorf("status %d, %v", status, err)
		}
	})
	if n >= 1 {
		t.Errorf("%.1f allocations a request", n)
	}
}
