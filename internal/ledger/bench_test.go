package ledger

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
)

// BenchmarkWriter applies credits from 256 goroutines; ns/op is the time an
// entry takes when the writer has all it can do.
func BenchmarkWriter(b *testing.B) {
	for _, accounts := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("accounts=%d", accounts), func(b *testing.B) {
			f := newFixture(b)
			w := f.writer()
			ids := make([]AccountID, accounts)
			for i := range ids {
				ids[i] = AccountID(fmt.Sprintf("account-%05d", i))
			}
			const callers = 256
			together(callers, func(c int) {
				for i := c; i < accounts; i += callers {
					open(b, w, ids[i])
				}
			})
			var n atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			together(callers, func(int) {
				for {
					i := n.Add(1)
					if i > int64(b.N) {
						return
					}
					op := credit(ids[int(i)*7919%accounts], 1, fmt.Sprintf("key-%d", i))
					if _, err := w.Apply(context.Background(), op); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}
