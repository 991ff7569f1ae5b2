package ledger

import "context"

// Pending is an operation on its way.
type Pending struct {
	task    *task    // nil when the operation was refused at once
	refusal *Refusal // then this
}

// Wait returns what Apply returns. It is called once.
func (p Pending) Wait(ctx context.Context) (*Receipt, error) {
	if p.task == nil {
		return nil, p.refusal
	}
	t := p.task
	select {
	case o := <-t.done:
		return o.result()
	case <-ctx.Done():
	}
	if t.taken.CompareAndSwap(taskQueued, taskAbandoned) {
		r := refuse(CodeUnavailable, "The request ended before the operation's turn came. Repeat it as it is.")
		r.Err = ctx.Err()
		return nil, r
	}
	select {
	case o := <-t.done:
		return o.result()
	default:
		return nil, &Refusal{
			Code: CodeUnavailable, Applied: AppliedUnknown, Err: ctx.Err(),
			Detail: "The request ended while the operation was being committed. Repeat it as it is to learn the outcome.",
		}
	}
}

// NotStarted returns what Start returns for an operation that is refused before
// anything is done for it.
func NotStarted(r *Refusal) Pending { return Pending{refusal: r} }

// Refused returns the refusal of an operation that was not started, such as
// overloaded, and nil for one that is on its way.
func (p Pending) Refused() *Refusal { return p.refusal }

// Ready reports whether Wait returns at once.
func (p Pending) Ready() bool { return p.task == nil || len(p.task.done) > 0 }
