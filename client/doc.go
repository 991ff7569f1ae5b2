// Package client calls a ledgerd service from Go.
//
// A Client is made once and shared: it keeps its connections and is safe for
// any number of goroutines.
//
//	c, err := client.New("http://127.0.0.1:8080")
//	receipt, err := c.Credit(ctx, "wallet-81", client.Operation{Amount: 12500},
//		client.Key("order-1047-top-up"))
//
// # Retries
//
// Every call repeats the identical request, with the same idempotency key,
// after a network error, a time-out, a 429 or a 503, and waits between the
// attempts: at least as long as Retry-After says, otherwise a random time that
// grows. It ends with the context, or when WithRetryFor is over. An operation
// is never applied twice by this, because the key is the same.
//
// # Three ways a call can end
//
// A call returns nil: it happened. It returns a *Problem: the service said what
// is wrong, and errors.As finds the code. A write returns an *UnknownOutcome
// when the retries end and the service may have applied the operation: repeat
// the call later with UnknownOutcome.Key, and the answer tells. Every other
// error means that the request never reached the service.
//
// # Declines
//
// A definitive refusal (insufficient_funds …) is a *Problem with Recorded true.
// The service keeps it under the key for ever; to try again after a top-up use
// another key.
//
// # Leases
//
// WithLease runs work that takes longer than one request, such as a settlement,
// as the only owner of an account. Its context ends with the lease, and every
// write under it carries the lease's token: whatever stops the process, the
// account refuses what comes too late.
package client
