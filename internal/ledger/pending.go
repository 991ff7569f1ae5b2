package ledger

// NotStarted returns what Start returns for an operation that is refused before
// anything is done for it.
func NotStarted(r *Refusal) Pending { return Pending{refusal: r} }

// Refused returns the refusal of an operation that was not started, such as
// overloaded, and nil for one that is on its way.
func (p Pending) Refused() *Refusal { return p.refusal }

// Ready reports whether Wait returns at once.
func (p Pending) Ready() bool { return p.task == nil || len(p.task.done) > 0 }
