package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// EntryFilter selects entries of one account; members that are zero select all.
type EntryFilter struct {
	Kind Kind
	// PostedFrom and EffectiveFrom are inclusive, PostedTo and EffectiveTo are not.
	PostedFrom, PostedTo       time.Time
	EffectiveFrom, EffectiveTo time.Time
	// Counterparty is compared with the whole text.
	Counterparty string
	// MetadataKey is a key that the entry's metadata has.
	MetadataKey string
}

// EntryPage is one page of the entries that a filter selects.
type EntryPage struct {
	Entries []Entry
	// Next is the seq that the next page starts after, 0 when this is the last.
	// A page that is not the last may have fewer entries than were asked for,
	// or none.
	Next Seq
}

// FilterScanMax is how many entries of a chain one page looks at.
const FilterScanMax = 10_000

const readFilteredUpStatement = `
select ` + EntryColumns + `
  from entries as e` + filterConditions + `
 order by e.seq
 limit $9`

const readFilteredDownStatement = `
select ` + EntryColumns + `
  from entries as e` + filterConditions + `
 order by e.seq desc
 limit $9`

const filterConditions = `
 where e.account_id = $1
   and e.seq between $2 and $3
   and ($4::text = '' or e.kind = $4)
   and ($5::timestamptz is null or e.effective_at >= $5)
   and ($6::timestamptz is null or e.effective_at < $6)
   and ($7::text = '' or e.counterparty = $7)
   and ($8::text = '' or (e.details::jsonb -> 'metadata') ? $8)`

// FilteredEntries returns one page of the entries that f selects. The posting
// times never fall along a chain, so they are turned into a range of seqs by
// halving; every other filter is applied to at most FilterScanMax entries of
// that range a page, so the work of a page is bounded whatever it selects. The
// error is account_not_found when the account was never opened.
func (r *Reader) FilteredEntries(ctx context.Context, id AccountID, q EntryQuery, f EntryFilter) (Account, EntryPage, error) {
	account, err := r.account(ctx, id)
	if err != nil {
		return Account{}, EntryPage{}, err
	}
	low, high, err := r.postedRange(ctx, id, f)
	if err != nil {
		return Account{}, EntryPage{}, err
	}
	statement, first, last := readFilteredDownStatement, low, high
	if q.Ascending {
		statement = readFilteredUpStatement
		first = max(first, q.After+1)
		last = min(last, first+FilterScanMax-1)
	} else {
		if q.After > 0 {
			last = min(last, q.After-1)
		}
		first = max(first, last-FilterScanMax+1)
	}
	if first > last {
		return account, EntryPage{}, nil
	}
	rows, err := r.pool.Query(ctx, statement, string(id), int64(first), int64(last), string(f.Kind),
		orNull(f.EffectiveFrom), orNull(f.EffectiveTo), f.Counterparty, f.MetadataKey, q.Limit)
	if err != nil {
		return Account{}, EntryPage{}, fmt.Errorf("filter entries: %w", err)
	}
	entries, err := pgx.CollectRows(rows, ScanEntry)
	if err != nil {
		return Account{}, EntryPage{}, fmt.Errorf("filter entries: %w", err)
	}
	reached, end := last, high
	if !q.Ascending {
		reached, end = first, low
	}
	if len(entries) == q.Limit {
		reached = entries[len(entries)-1].Seq
	}
	page := EntryPage{Entries: entries, Next: reached}
	if reached == end {
		page.Next = 0
	}
	return account, page, nil
}

// readSeqAtStatement finds the seq of the last entry that was posted at or before
// $2, as readAtStatement does, 0 when there is none.
const readSeqAtStatement = `
with recursive range (low, high) as (
       select 0::bigint, (select max(seq) from entries where account_id = $1)
        union all
       select case when m.posted_at <= $2 then m.seq else range.low end,
              case when m.posted_at <= $2 then range.high else m.seq - 1 end
         from range
         join entries as m
           on m.account_id = $1
          and m.seq = (range.low + range.high + 1) / 2
        where range.low < range.high)
select range.low
  from range
 where range.low = range.high`

// postedRange returns the seqs of the entries that were posted in the filter's
// time, low above high when there is none.
func (r *Reader) postedRange(ctx context.Context, id AccountID, f EntryFilter) (low, high Seq, err error) {
	low = 1
	if !f.PostedFrom.IsZero() {
		if low, err = r.seqAt(ctx, id, f.PostedFrom.Add(-time.Microsecond)); err != nil {
			return 0, 0, err
		}
		low++
	}
	to := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) // behind every posting time
	if !f.PostedTo.IsZero() {
		to = f.PostedTo.Add(-time.Microsecond)
	}
	high, err = r.seqAt(ctx, id, to)
	return low, high, err
}

func (r *Reader) seqAt(ctx context.Context, id AccountID, t time.Time) (seq Seq, err error) {
	err = r.pool.QueryRow(ctx, readSeqAtStatement, string(id), t).Scan((*int64)(&seq))
	if err != nil {
		return 0, fmt.Errorf("read the seq at a time: %w", err)
	}
	return seq, nil
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
