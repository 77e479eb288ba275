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
	Since                   time.Time
	Limit                   int // 0: 1000; newest first
}
