// Package policy turns what a run came to into what becomes of its message: outcome, tally
// and retry policy in, settlement and new tally out. It is pure and total: no I/O, no clock,
// no randomness of its own, and an answer without a panic for every input.
//
// Every run adds one to exactly one of a message's four counts, also the run it dies of, so
// that its attempt numbers go up by one for each run. Only failures spend the attempt budget
// and only failures move along the backoff curve.
package policy

import (
	"fmt"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// Backoff names a retry curve.
type Backoff string

// The curves.
const (
	None        Backoff = "none"        // at once
	Fixed       Backoff = "fixed"       // always Delay
	Exponential Backoff = "exponential" // min(Max, Base * Factor^(n-1)) after the n-th failure
)

// Policy is a `retry = {...}` key, complete.
type Policy struct {
	MaxAttempts int // runs that may fail, the first included; 0: no cap
	Backoff     Backoff
	Delay       time.Duration // for Fixed
	Base        time.Duration
	Factor      float64
	Max         time.Duration
	Jitter      bool          // Exponential: uniform over [0, wait]
	MaxDelays   int           // 0: no ceiling
	MaxStalls   int           // more than this dead-letters; 0: the first one does
	MaxAge      time.Duration // 0: none
	MaxWait     time.Duration // the most a handler may ask for; 0: no cap
}

// Default is what `retry = {}` means.
func Default() Policy {
	return Policy{MaxAttempts: 3, Backoff: Exponential, Base: time.Second, Factor: 2,
		Max: 5 * time.Minute, Jitter: true, MaxStalls: 5}
}

// Unset is the policy of a queue and handler that name none: one failure dead-letters.
func Unset() Policy {
	p := Default()
	p.MaxAttempts = 1
	return p
}

// Message is what Decide needs to know of the message.
type Message struct {
	Tally      drivers.Tally
	EnqueuedAt time.Time
	// MaxAttempts and MaxDelays are the producer's own; 0: none given.
	MaxAttempts, MaxDelays int
	// Retention is how long the broker keeps the message; 0 for ever.
	Retention time.Duration
}

// Decision is what becomes of a message.
type Decision struct {
	// Verdict is zero where nothing may be settled: the lease was lost.
	Verdict drivers.Verdict
	Delay   time.Duration // for Requeue
	Tally   drivers.Tally // the message's counts from here on
	// Reason is why it died or was rejected, or the failure's text; empty for a success.
	Reason string
	// Failure is true when this end counted as one.
	Failure bool
	// Pause is how long the job takes no new message on this host.
	Pause time.Duration
	// Capped is true when MaxWait shortened what the handler asked for.
	Capped bool
}

// String is the policy in a few words for people: "5 attempts, backoff 1s to 2m0s".
func (p Policy) String() string {
	attempts := fmt.Sprintf("%d attempts", p.MaxAttempts)
	switch p.MaxAttempts {
	case 0:
		attempts = "attempts without cap"
	case 1:
		return "no retries: one failure dead-letters"
	}
	switch p.Backoff {
	case Exponential:
		return fmt.Sprintf("%s, backoff %s to %s", attempts, p.Base, p.Max)
	case Fixed:
		return fmt.Sprintf("%s, %s apart", attempts, p.Delay)
	}
	return attempts + ", at once"
}
