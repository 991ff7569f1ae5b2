package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ledgerd/ledgerd/client"
)

// grace is how long the requests that are under way may still take when the
// import is interrupted. What they are cut off from is replayed by the next run.
const grace = 5 * time.Second

// ErrInterrupted is returned when the context ended before the file did.
var ErrInterrupted = errors.New("interrupted")

// ServiceError means that the service could not be reached, or did not give a
// definitive answer in time. What was posted stays posted.
type ServiceError struct{ Err error }

// Error implements error.
func (e *ServiceError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ServiceError) Unwrap() error { return e.Err }

// Config says how a file is imported.
type Config struct {
	// Client calls the service. It repeats each request by its own rules.
	Client *client.Client
	// Concurrency is how many accounts are worked on at the same time, 1 or
	// more. Their rows go over one connection.
	Concurrency int
	// Open, when set, opens each account of the file before its first row; an
	// account that is open with the same attributes stays as it is. Without a
	// currency in it, the account gets the currency of its first row.
	Open *client.Opening
	// Begin is called when the file is known to be well formed, with the number
	// of its rows. Nothing is sent when it returns an error, which is taken for
	// one of the service.
	Begin func(ctx context.Context, rows int64) error
	// Row is called after each row that has an answer, from many goroutines.
	Row func()
	// Report is given one line for each row that did not end as the file says,
	// from many goroutines.
	Report func(line string)
}

// Summary says how the rows of a file ended.
type Summary struct {
	// Rows is how many the file has. The following five add up to it when the
	// import came to its end.
	Rows     int64
	Posted   int64
	Replayed int64
	Declined int64
	// Refused is how many rows were refused without a record (no such account,
	// key of another operation …); the account was left there.
	Refused int64
	// Skipped is how many rows stood behind a refused one.
	Skipped int64
	// Checked is how many answers were compared with the file's balance, and
	// Mismatches how many of them differed.
	Checked    int64
	Mismatches int64
	// Opened is how many accounts are new.
	Opened  int64
	Elapsed time.Duration
}

// Clean reports whether every row is in the ledger with the balance that the
// file has for it.
func (s *Summary) Clean() bool {
	return s.Declined == 0 && s.Refused == 0 && s.Skipped == 0 && s.Mismatches == 0
}

// Done is how many rows have an end.
func (s *Summary) Done() int64 {
	return s.Posted + s.Replayed + s.Declined + s.Refused + s.Skipped
}

// Run checks the file and then posts its rows. The errors are *FileError (nothing was
// sent), *ServiceError, ErrInterrupted, or those of reading the file. The
// summary is right in every case.
func Run(ctx context.Context, file io.ReadSeeker, cfg Config) (Summary, error) {
	rows, err := check(file, cfg.Open)
	if err != nil {
		return Summary{}, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return Summary{}, fmt.Errorf("read the file a second time: %w", err)
	}
	im := &importer{cfg: cfg, schedule: newSchedule()}
	im.sum.Rows = rows
	begin := time.Now()
	if cfg.Begin != nil {
		if err = cfg.Begin(ctx, rows); err != nil {
			err = &ServiceError{Err: err}
		}
	}
	if err == nil {
		err = im.run(ctx, file)
	}
	im.sum.Elapsed = time.Since(begin)
	if err != nil && ctx.Err() != nil {
		err = ErrInterrupted
	}
	return im.sum, err
}

type importer struct {
	cfg      Config
	schedule *schedule

	// sending is held while a row is put into items and then into posted, so
	// that both have the same order.
	sending sync.Mutex
	items   chan client.Item
	// posted are the rows under way, in the order of their items; slots has one
	// token for each, so there are at most Concurrency.
	posted chan underWay
	slots  chan struct{}

	mu  sync.Mutex
	sum Summary
}

// underWay is a row that was sent and has no result yet.
type underWay struct {
	lane *lane
	row  row
}

func (im *importer) run(ctx context.Context, file io.Reader) error {
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })()
	im.items = make(chan client.Item)
	im.posted = make(chan underWay, im.cfg.Concurrency)
	im.slots = make(chan struct{}, im.cfg.Concurrency)
	group.Go(func() error { return im.read(ctx, file) })
	var workers sync.WaitGroup
	for range im.cfg.Concurrency {
		workers.Add(1)
		group.Go(func() error {
			defer workers.Done()
			return im.work(ctx, calls)
		})
	}
	group.Go(func() error {
		workers.Wait()
		close(im.items)
		return nil
	})
	group.Go(func() error { return im.collect(calls) })
	return group.Wait()
}

// read feeds the schedule.
func (im *importer) read(ctx context.Context, file io.Reader) error {
	rd, err := newReader(file)
	if err != nil {
		return fmt.Errorf("read the file a second time: %w", err)
	}
	for {
		rw, err := rd.next()
		if errors.Is(err, io.EOF) {
			im.schedule.finish()
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the file a second time: %w", err)
		}
		if err := im.schedule.put(ctx, rw); err != nil {
			return err
		}
	}
}

// work sends rows until there are none. It stops between two rows when ctx ends;
// calls lives a little longer, for what is under way.
func (im *importer) work(ctx, calls context.Context) error {
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l, more := <-im.schedule.ready:
			if !more {
				return nil
			}
			rw := im.schedule.take(l)
			sent, err := im.send(ctx, calls, l, &rw)
			if err != nil {
				return err
			}
			if !sent {
				im.end(l)
			}
		}
	}
}

// send gives one row to the stream, or ends it at once: then sent is false.
func (im *importer) send(ctx, calls context.Context, l *lane, rw *row) (sent bool, err error) {
	if l.stopped {
		im.count(func(s *Summary) { s.Skipped++ })
		return false, nil
	}
	if err := im.open(calls, l, rw); err != nil {
		return false, im.refused(l, rw, err)
	}
	item := client.CreditItem(rw.key, rw.accountID, rw.op)
	if rw.debit {
		item.Type = client.KindDebit
	}
	select {
	case im.slots <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	im.sending.Lock()
	defer im.sending.Unlock()
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	select {
	case im.items <- item:
		im.posted <- underWay{l, *rw} // has room for every slot
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// collect takes the results of the stream, which come in the order of posted. It
// returns an error only when the service did not decide.
func (im *importer) collect(calls context.Context) error {
	for result, err := range im.cfg.Client.Stream(calls, im.items) {
		if err != nil {
			return &ServiceError{Err: im.at(err)}
		}
		u := <-im.posted
		if err := im.settle(&u, &result); err != nil {
			return err
		}
		<-im.slots
		im.end(u.lane)
	}
	return nil
}

// at says at which line an error of the stream is, when it is at one.
func (im *importer) at(err error) error {
	select {
	case u := <-im.posted:
		return fmt.Errorf("line %d: %w", u.row.line, err)
	default:
		return err
	}
}

// end lets the next row of the account go.
func (im *importer) end(l *lane) {
	im.schedule.done(l)
	if im.cfg.Row != nil {
		im.cfg.Row()
	}
}

// settle counts the result of one row.
func (im *importer) settle(u *underWay, result *client.Result) error {
	rw := &u.row
	if result.Err != nil {
		return im.refused(u.lane, rw, result.Err)
	}
	entry := result.Entry()
	mismatch := rw.balanceAfter != nil && *rw.balanceAfter != entry.Balance
	im.count(func(s *Summary) {
		if result.Replayed {
			s.Replayed++
		} else {
			s.Posted++
		}
		if rw.balanceAfter != nil {
			s.Checked++
		}
		if mismatch {
			s.Mismatches++
		}
	})
	if mismatch {
		im.report(rw, fmt.Sprintf("the balance is %d after entry %d, the file has %d", entry.Balance, entry.Seq, *rw.balanceAfter))
	}
	return nil
}

// open opens the account of a lane when the import was asked to.
func (im *importer) open(ctx context.Context, l *lane, rw *row) error {
	if im.cfg.Open == nil || l.opened {
		return nil
	}
	opening := *im.cfg.Open
	if opening.Currency == "" {
		opening.Currency = rw.op.Currency
	}
	_, isNew, err := im.cfg.Client.OpenAccount(ctx, l.accountID, opening)
	if p := (*client.Problem)(nil); errors.As(err, &p) && p.Code == client.CodeAccountExists {
		return im.compare(ctx, l.accountID, &opening, p)
	}
	if err != nil {
		return err
	}
	l.opened = true
	if isNew {
		im.count(func(s *Summary) { s.Opened++ })
	}
	return nil
}

// refused sorts an error: a recorded decline is an end like any other, a refusal
// without a record stops the account, everything else stops the import.
func (im *importer) refused(l *lane, rw *row, err error) error {
	var unknown *client.UnknownOutcome
	var p *client.Problem
	if errors.As(err, &unknown) || !errors.As(err, &p) || p.Status >= 500 || p.Status == 429 || p.Code == "" {
		return &ServiceError{Err: fmt.Errorf("line %d: %w", rw.line, err)}
	}
	if p.Recorded() {
		im.count(func(s *Summary) { s.Declined++ })
		im.report(rw, "declined: "+string(p.Code))
		return nil
	}
	l.stopped = true
	im.count(func(s *Summary) { s.Refused++ })
	im.report(rw, fmt.Sprintf("refused, the account is left here: %v", p))
	return nil
}

func (im *importer) count(change func(*Summary)) {
	im.mu.Lock()
	defer im.mu.Unlock()
	change(&im.sum)
}

func (im *importer) report(rw *row, what string) {
	if im.cfg.Report != nil {
		im.cfg.Report(fmt.Sprintf("line %d: account %s, key %s: %s", rw.line, rw.accountID, rw.key, what))
	}
}
