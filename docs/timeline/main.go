// Timeline runs the story of docs/fencing.md against a running service and
// draws what happened: the times in the picture are those of the run.
//
//	make run
//	go build -o bin/settlement ./examples/settlement
//	go run ./docs/timeline -worker bin/settlement -out docs/fencing.svg
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

func main() {
	url := flag.String("url", "http://127.0.0.1:8080", "address of the service")
	path := flag.String("worker", "bin/settlement", "the program examples/settlement")
	out := flag.String("out", "docs/fencing.svg", "picture to write")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := &story{begun: time.Now(), ttl: 600 * time.Millisecond}
	err := s.run(ctx, *url, *path)
	if err == nil {
		err = os.WriteFile(*out, []byte(s.draw()), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// event is something that a lane shows at its time.
type event struct {
	at   time.Duration
	lane string // A or B
	kind string // acquired, paid, refused, stopped, continued, released
	text string
}

type story struct {
	begun  time.Time
	ttl    time.Duration
	events []event
}

func (s *story) note(lane, kind, text string) {
	s.events = append(s.events, event{time.Since(s.begun), lane, kind, text})
}

// run plays the story: A is a process of its own, B is this one.
func (s *story) run(ctx context.Context, url, path string) error {
	c, err := client.New(url)
	if err != nil {
		return err
	}
	defer c.Close()
	account := fmt.Sprintf("story-%d", time.Now().UnixNano())
	if _, _, err := c.OpenAccount(ctx, account, client.Opening{Currency: "EUR"}); err != nil {
		return err
	}
	if _, err := c.Credit(ctx, account, client.Operation{Amount: 1000}); err != nil {
		return err
	}
	worker := exec.CommandContext(ctx, path, "-url="+url, "-account="+account, "-ttl="+s.ttl.String(), "-every=150ms")
	worker.Stderr = os.Stderr
	output, err := worker.StdoutPipe()
	if err != nil {
		return err
	}
	s.begun = time.Now()
	if err := worker.Start(); err != nil {
		return fmt.Errorf("start the worker (go build -o bin/settlement ./examples/settlement): %w", err)
	}
	defer func() {
		_ = worker.Process.Kill() // the story is over
		_ = worker.Wait()
	}()
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	if err := s.hear(lines, "paid", 3); err != nil {
		return err
	}
	if err := worker.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	s.note("A", "stopped", "SIGSTOP")
	err = c.WithLease(ctx, account, func(ctx context.Context, lease *client.HeldLease) error {
		s.note("B", "acquired", fmt.Sprint("token ", lease.Token))
		if err := worker.Process.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		s.note("A", "continued", "SIGCONT")
		if err := s.hear(lines, "refused", 1); err != nil {
			return err
		}
		for range 4 {
			if _, err := lease.Debit(ctx, client.Operation{Amount: 1}); err != nil {
				return err
			}
			s.note("B", "paid", "")
			time.Sleep(100 * time.Millisecond) // so that the picture can be read
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.note("B", "released", "")
	return s.hear(lines, "paid", 2)
}

// hear notes what A says until it said the word so many times.
func (s *story) hear(lines <-chan string, word string, times int) error {
	for line := range lines {
		kind, rest, _ := strings.Cut(line, " ")
		switch kind {
		case "acquired":
			token, _, _ := strings.Cut(rest, " ")
			s.note("A", kind, "token "+token)
		case "refused":
			token, _, _ := strings.Cut(rest, " ")
			s.note("A", kind, "409: token "+token+" is stale")
		default:
			s.note("A", kind, "")
		}
		if kind == word {
			if times--; times == 0 {
				return nil
			}
		}
	}
	return errors.New("the worker ended too soon")
}
