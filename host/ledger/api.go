// Package ledger keeps a record of every run in a SQLite file. It is for people and tools to
// look at: nothing the host decides depends on it, so it never makes a run wait and never
// stops the host.
//
// Record only appends to a bounded buffer; one goroutine writes it in batches. When that
// cannot keep up, plain successes are dropped first; every drop is counted and logged.
//
// Runs are plain rows of the table runs, readable with any SQLite tool. When many end at once
// they are packed instead, about a thousand to a row of the table blocks: a row each, with its
// indexes, would cost the host more than the runs themselves. Runs reads both.
// Other processes may read the file while the host writes.
package ledger

import "time"

// Row is one run as this host saw it. The worker that notices a stall writes the stalled
// run's row, without a start time.
type Row struct {
	ID         string
	Queue      string
	Job        string
	Attempt    int
	Outcome    string // the table's word, or interrupted, stalled, lease-lost, cancelled
	Cause      string // returned, exit, trap, memory, limit, timeout, load; "" for the last four
	Code       int    // -1: none
	Delay      time.Duration
	Error      string
	Result     []byte
	Started    time.Time // zero: not known
	Finished   time.Time
	Settlement string // one of the constants below
	Digest     string
	Worker     string
}

// What was asked of the broker, and whether it agreed.
const (
	Acked    = "acked"
	Retried  = "retried"
	Delayed  = "delayed"
	DeadLtr  = "dead"
	Rejected = "rejected"
	None     = "none"   // nothing may be settled: the lease was lost
	Failed   = "failed" // the broker did not confirm
)

// Filter selects rows. Zero fields do not filter.
type Filter struct {
	Queue, Job, Outcome, ID string
	Since                   time.Time // finished then or later
	Before                  time.Time // finished earlier than this
	Limit                   int       // 0: 1000; newest first
}

func (f Filter) limit() int {
	if f.Limit <= 0 {
		return 1000
	}
	return f.Limit
}

func (f Filter) matches(r *Row) bool {
	return (f.Queue == "" || f.Queue == r.Queue) && (f.Job == "" || f.Job == r.Job) &&
		(f.Outcome == "" || f.Outcome == r.Outcome) && (f.ID == "" || f.ID == r.ID) &&
		!r.Finished.Before(f.Since) && (f.Before.IsZero() || r.Finished.Before(f.Before))
}
