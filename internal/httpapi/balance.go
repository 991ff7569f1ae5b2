package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// BalanceReader reads balances, now and in the past. *ledger.Reader is one.
// The errors for what does not exist are *ledger.Refusal.
type BalanceReader interface {
	// Balance returns the last entry and the balance row in one snapshot.
	Balance(ctx context.Context, id ledger.AccountID) (ledger.Balance, error)
	// Projected returns the balance row alone.
	Projected(ctx context.Context, id ledger.AccountID) (ledger.Account, ledger.Projected, error)
	// BalanceAt returns the state after the last entry posted at or before at.
	BalanceAt(ctx context.Context, id ledger.AccountID, at time.Time) (ledger.Head, error)
}

const (
	waitDefault = 2 * time.Second
	waitMax     = 10 * time.Second
	// waitMargin is what is left of a request's deadline for the answer.
	waitMargin = 500 * time.Millisecond
	// The balance row is looked at again after pollFirst, and then ever more
	// slowly up to pollLast.
	pollFirst = 5 * time.Millisecond
	pollLast  = 100 * time.Millisecond
)

// balanceView is the answer, whatever way it was read.
type balanceView struct {
	account ledger.Account
	seq     ledger.Seq
	// state has only Balance and Held when the view is projected.
	state       ledger.State
	projected   ledger.Seq
	consistency string
	asOf        time.Time
}

// The consistencies of a balance.
const (
	strong      = "strong"
	projected   = "projected"
	pointInTime = "point_in_time"
)

func (s *server) getBalance(x *exchange, r *http.Request) error {
	q := parseQuery(r, "consistency", "min_seq", "wait_ms", "at")
	consistency := q.choice("consistency", strong, strong, projected)
	minSeq := q.seq("min_seq")
	wait := time.Duration(q.integer("wait_ms", waitDefault.Milliseconds(), 0, waitMax.Milliseconds())) * time.Millisecond
	at := q.time("at")
	if q.has("at") {
		for _, other := range []string{"consistency", "min_seq", "wait_ms"} {
			if q.has(other) {
				q.fail(other, "not together with at")
			}
		}
	}
	id, err := accountID(r)
	if err != nil {
		return err
	}
	if err := q.err(); err != nil {
		return err
	}
	var v balanceView
	switch {
	case !at.IsZero():
		v, err = s.balanceAt(r.Context(), id, at)
	case minSeq > 0:
		v, err = s.awaitBalance(r.Context(), id, consistency, minSeq, wait)
	default:
		v, err = s.readBalance(r.Context(), id, consistency)
	}
	if err != nil {
		return err
	}
	if v.consistency == strong {
		x.set("Etag", etag(v.seq))
	}
	x.sendJSON(http.StatusOK, v.append(x.buf))
	return nil
}

func (s *server) readBalance(ctx context.Context, id ledger.AccountID, consistency string) (balanceView, error) {
	if consistency == projected {
		account, row, err := s.balances.Projected(ctx, id)
		return balanceView{
			account: account, seq: row.AppliedSeq, projected: row.AppliedSeq,
			state:       ledger.State{Balance: row.Balance, Held: row.Held},
			consistency: projected, asOf: row.UpdatedAt,
		}, err
	}
	b, err := s.balances.Balance(ctx, id)
	v := balanceView{
		account: b.Head.Account, seq: b.Head.Seq, state: b.Head.State,
		consistency: strong, asOf: time.Now(),
	}
	if b.Row != nil {
		v.projected = b.Row.AppliedSeq
	}
	return v, err
}

func (s *server) balanceAt(ctx context.Context, id ledger.AccountID, at time.Time) (balanceView, error) {
	head, err := s.balances.BalanceAt(ctx, id, at)
	return balanceView{account: head.Account, seq: head.Seq, state: head.State, consistency: pointInTime, asOf: at}, err
}

// awaitBalance reads until the balance row has applied entry minSeq, at most
// for wait and never so long that no time is left to answer.
func (s *server) awaitBalance(ctx context.Context, id ledger.AccountID, consistency string, minSeq ledger.Seq, wait time.Duration) (balanceView, error) {
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)-waitMargin)
	}
	end := time.Now().Add(wait)
	for pause := pollFirst; ; pause = min(2*pause, pollLast) {
		v, err := s.readBalance(ctx, id, consistency)
		if err != nil || v.projected >= minSeq {
			return v, err
		}
		left := time.Until(end)
		if left <= 0 {
			return v, &problem{
				code:   codeProjectionBehind,
				detail: fmt.Sprintf("The balance row has applied entry %d, not yet %d.", v.projected, minSeq),
			}
		}
		timer := time.NewTimer(min(pause, left))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return v, ctx.Err()
		}
	}
}

func (v *balanceView) append(b []byte) []byte {
	b = append(b, `{"account_id":"`...)
	b = append(b, v.account.ID...)
	b = append(b, `","currency":"`...)
	b = append(b, v.account.Currency...)
	b = append(b, `","exponent":`...)
	b = strconv.AppendInt(b, int64(v.account.Exponent), 10)
	b = append(b, `,"balance":`...)
	b = strconv.AppendInt(b, int64(v.state.Balance), 10)
	b = append(b, `,"held":`...)
	b = strconv.AppendInt(b, int64(v.state.Held), 10)
	if v.consistency != projected {
		b = append(b, `,"available":`...)
		b = strconv.AppendInt(b, int64(v.state.Available()), 10)
		b = append(b, `,"min_balance":`...)
		b = strconv.AppendInt(b, int64(v.state.MinBalance), 10)
		b = append(b, `,"status":"`...)
		b = append(b, v.state.Status...)
		b = append(b, '"')
	}
	b = append(b, `,"seq":`...)
	b = strconv.AppendInt(b, int64(v.seq), 10)
	if v.consistency != pointInTime {
		b = append(b, `,"projected_seq":`...)
		b = strconv.AppendInt(b, int64(v.projected), 10)
	}
	b = append(b, `,"consistency":"`...)
	b = append(b, v.consistency...)
	b = append(b, `","as_of":`...)
	b = appendTime(b, v.asOf)
	return append(b, '}')
}
