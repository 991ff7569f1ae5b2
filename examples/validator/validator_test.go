package validator_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/examples/validator"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestStaleTokenIsRefusedInSQL(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).OwnerPool(t)
	if _, err := db.Exec(t.Context(), `create table documents (id text primary key, body text not null, token bigint not null)`); err != nil {
		t.Fatal(err)
	}
	for _, w := range []struct {
		token int64
		want  error
	}{{101, nil}, {101, nil}, {102, nil}, {101, validator.ErrStale}, {102, nil}, {1 << 40, nil}, {102, validator.ErrStale}} {
		if err := validator.Write(t.Context(), db, "d", fmt.Sprint(w.token), w.token); !errors.Is(err, w.want) {
			t.Errorf("token %d: %v, want %v", w.token, err, w.want)
		}
	}
	// Many at once: whatever the order, the highest token stays.
	var group sync.WaitGroup
	for token := range int64(50) {
		group.Go(func() {
			if err := validator.Write(t.Context(), db, "e", fmt.Sprint(token+1), token+1); err != nil && !errors.Is(err, validator.ErrStale) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	var body string
	if err := db.QueryRow(t.Context(), `select body from documents where id = 'e'`).Scan(&body); err != nil || body != "50" {
		t.Errorf("the document is %q %v, want that of token 50", body, err)
	}
}

func TestStaleTokenIsRefusedInRedis(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("no redis-server is installed")
	}
	socket := filepath.Join(t.TempDir(), "redis.sock")
	cmd := exec.Command(path, "--port", "0", "--unixsocket", socket, "--save", "")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // nothing in it is kept
		_ = cmd.Wait()
	})
	var conn net.Conn
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if conn, err = net.Dial("unix", socket); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	defer conn.Close()
	eval := func(token int64) string {
		args := []string{"EVAL", validator.RedisScript, "1", "doc", fmt.Sprint(token), "v"}
		var b strings.Builder
		fmt.Fprintf(&b, "*%d\r\n", len(args))
		for _, a := range args {
			fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
		}
		if _, err := conn.Write([]byte(b.String())); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 256)
		n, err := conn.Read(answer)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(answer[:n]))
	}
	for _, w := range []struct {
		token int64
		want  string
	}{{101, ":1"}, {101, ":1"}, {102, ":1"}, {101, ":0"}, {1 << 40, ":1"}, {1<<40 - 1, ":0"}, {1<<40 + 1, ":1"}} {
		if got := eval(w.token); got != w.want {
			t.Errorf("token %d: %s, want %s", w.token, got, w.want)
		}
	}
}
