package policy

import (
	"math"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// DefaultDelay is how long a delay or pause of zero or less waits. Running the message again
// at once would make a handler that forgot its argument a busy loop.
const DefaultDelay = time.Second

// Decide says what becomes of a message after a run. rnd returns numbers in [0, 1) and is
// asked at most once; nil means no jitter.
//
// The answer's Tally already counts the run, whatever the verdict.
func Decide(end abi.End, m Message, p Policy, now time.Time, rnd func() float64) Decision {
	d := decider{end: end, m: m, p: p, now: now, rnd: rnd}
	d.tally = m.Tally
	d.tally.Unrouted = 0
	switch end.Cause {
	case abi.Returned:
		return d.returned()
	case abi.Interrupted:
		return d.interrupted()
	case abi.Stalled:
		return d.stalled()
	case abi.LeaseLost:
		// The message is somebody else's by now, and so are its counts.
		return Decision{Tally: m.Tally, Reason: hostSaid("lease lost", end.Text)}
	case abi.Cancelled:
		return Decision{Verdict: drivers.Ack, Tally: d.tally, Reason: hostSaid("cancelled", end.Text)}
	}
	return d.failed(d.backoff)
}

// Arrival says what must happen to a delivery before any run. The second result is true when
// the message must not run, and the Decision then says what to do instead.
func Arrival(m Message, p Policy, now time.Time) (Decision, bool) {
	if m.Tally.Stalls <= max(0, p.MaxStalls) {
		return Decision{}, false
	}
	return Decision{Verdict: drivers.Dead, Tally: m.Tally, Reason: stallsExhausted(m.Tally, p)}, true
}

// Suspect is true for a message that may be killing its workers. Suspects run one at a time
// on a host, so that the next one to fall takes no other suspect's count with it.
func Suspect(t drivers.Tally) bool { return t.Stalls >= 2 }

// Unrouted says what becomes of a message whose job has no handler here: it is put back for
// wait, tries times, and then dead-lettered. tries of 0 or less sets no cap.
func Unrouted(m Message, wait time.Duration, tries int, job string, now time.Time) Decision {
	wait = max(0, wait)
	reason := noHandler(job)
	if tries > 0 && m.Tally.Unrouted >= tries {
		return Decision{Verdict: drivers.Dead, Tally: m.Tally, Reason: triesExhausted(reason, m.Tally.Unrouted)}
	}
	if text, over := outlives(m, wait, now); over {
		return Decision{Verdict: drivers.Dead, Tally: m.Tally, Reason: text + ": " + reason}
	}
	tally := m.Tally
	tally.Unrouted = inc(tally.Unrouted)
	return Decision{Verdict: drivers.Requeue, Delay: wait, Tally: tally, Reason: reason}
}

// Budget is how many failures and delays a message may have: the smaller non-zero one of the
// policy's and the producer's numbers. 0: no cap.
func (p Policy) Budget(m Message) (attempts, delays int) {
	return smaller(p.MaxAttempts, m.MaxAttempts), smaller(p.MaxDelays, m.MaxDelays)
}

// maxSteps bounds the work of one Wait. With a factor so close to 1 that the curve has not
// met Max after this many failures, it stays where it is.
const maxSteps = 10_000

// Wait is the time between the n-th failure and the next run. failures below 1 count as 1.
// rnd returns numbers in [0, 1); nil means no jitter. The result is never negative and, for
// Exponential, never above Max.
func (p Policy) Wait(failures int, rnd func() float64) time.Duration {
	switch p.Backoff {
	case None:
		return 0
	case Fixed:
		return max(0, p.Delay)
	}
	wait := p.curve(failures)
	if !p.Jitter || rnd == nil || wait == 0 {
		return wait
	}
	return min(wait, time.Duration(unit(rnd())*float64(wait)))
}

// curve is min(Max, Base * Factor^(failures-1)). It multiplies step by step rather than by
// math.Pow, whose rounding could let a later wait come out shorter than an earlier one.
func (p Policy) curve(failures int) time.Duration {
	if p.Base <= 0 || p.Max <= 0 {
		return 0
	}
	wait, limit := float64(p.Base), float64(p.Max)
	if p.Factor > 1 { // false for NaN
		for range min(max(failures, 1)-1, maxSteps) {
			if wait >= limit {
				break
			}
			wait *= p.Factor
		}
	}
	if wait >= limit {
		return p.Max
	}
	return time.Duration(wait)
}

// decider is one call of Decide.
type decider struct {
	end   abi.End
	m     Message
	p     Policy
	now   time.Time
	rnd   func() float64
	tally drivers.Tally // the message's counts without this run, Unrouted reset
}

func (d *decider) returned() Decision {
	switch d.end.Outcome.Kind {
	case abi.Success:
		return Decision{Verdict: drivers.Ack, Tally: d.tally}
	case abi.RetryAfter:
		return d.failed(d.asked)
	case abi.Delay:
		return d.delayed()
	case abi.Pause:
		decision := d.delayed()
		decision.Pause, _ = d.lower()
		return decision
	case abi.Permanent:
		return d.ended(drivers.Dead)
	case abi.Reject:
		return d.ended(drivers.Reject)
	}
	return d.failed(d.backoff)
}

// interrupted puts the message back at once, whatever it has spent and however old it is:
// the host stopped, the message did nothing wrong.
func (d *decider) interrupted() Decision {
	d.tally.Interruptions = inc(d.tally.Interruptions)
	return Decision{Verdict: drivers.Requeue, Tally: d.tally, Reason: hostSaid("interrupted", d.end.Text)}
}

func (d *decider) stalled() Decision {
	d.tally.Stalls = inc(d.tally.Stalls)
	if d.tally.Stalls > max(0, d.p.MaxStalls) {
		return Decision{Verdict: drivers.Dead, Tally: d.tally, Reason: stallsExhausted(d.tally, d.p)}
	}
	return Decision{Verdict: drivers.Requeue, Tally: d.tally, Reason: hostSaid("stalled", d.end.Text)}
}

// ended is a failure that no further run follows.
func (d *decider) ended(v drivers.Verdict) Decision {
	d.tally.Failures = inc(d.tally.Failures)
	return Decision{Verdict: v, Tally: d.tally, Reason: describe(d.end), Failure: true}
}

// failed is a failure that another run follows while the budget lasts. wait is only asked
// when it does.
func (d *decider) failed(wait func() (time.Duration, bool)) Decision {
	d.tally.Failures = inc(d.tally.Failures)
	decision := Decision{Verdict: drivers.Dead, Tally: d.tally, Failure: true}
	what := describe(d.end)
	if attempts, _ := d.p.Budget(d.m); attempts > 0 && d.tally.Failures >= attempts {
		decision.Reason = attemptsExhausted(attempts, d.tally.Failures) + ": " + what
		return decision
	}
	return d.again(decision, wait, what)
}

// delayed is a run that ended without failing and wants another one.
func (d *decider) delayed() Decision {
	d.tally.Delays = inc(d.tally.Delays)
	decision := Decision{Verdict: drivers.Dead, Tally: d.tally}
	what := describe(d.end)
	if _, delays := d.p.Budget(d.m); delays > 0 && d.tally.Delays > delays {
		decision.Reason = delaysExhausted(delays) + ": " + what
		return decision
	}
	return d.again(decision, d.lower, what)
}

// again fills in a decision to run the message once more, or leaves it dead where the message
// is too old for that or would be lost at the broker meanwhile.
func (d *decider) again(decision Decision, wait func() (time.Duration, bool), what string) Decision {
	// The age counts now, not when the wait will be over: what a handler asked for while
	// the message was young enough is honoured.
	if age, known := d.m.age(d.now); known && d.p.MaxAge > 0 && age > d.p.MaxAge {
		decision.Reason = tooOld(age, d.p.MaxAge) + ": " + what
		return decision
	}
	delay, capped := wait()
	decision.Capped = capped
	if text, over := outlives(d.m, delay, d.now); over {
		decision.Reason = text + ": " + what
		return decision
	}
	decision.Verdict, decision.Delay, decision.Reason = drivers.Requeue, delay, what
	return decision
}

func (d *decider) backoff() (wait time.Duration, capped bool) {
	return d.p.Wait(d.tally.Failures, d.rnd), false
}

// asked is the wait of a retry-after.
func (d *decider) asked() (wait time.Duration, capped bool) {
	if d.end.Outcome.Delay <= 0 {
		return d.backoff()
	}
	return d.cap(d.end.Outcome.Delay)
}

// lower is the wait of a delay or pause.
func (d *decider) lower() (wait time.Duration, capped bool) {
	return d.cap(delayOf(d.end.Outcome))
}

func (d *decider) cap(wait time.Duration) (time.Duration, bool) {
	if d.p.MaxWait > 0 && wait > d.p.MaxWait {
		return d.p.MaxWait, true
	}
	return wait, false
}

func delayOf(o abi.Outcome) time.Duration {
	if o.Delay <= 0 {
		return DefaultDelay
	}
	return o.Delay
}

// age is how old the message is, never negative; not known without a time of enqueuing.
func (m Message) age(now time.Time) (age time.Duration, known bool) {
	if m.EnqueuedAt.IsZero() {
		return 0, false
	}
	return max(0, now.Sub(m.EnqueuedAt)), true
}

// outlives tells whether the broker would drop the message before the wait is over.
func outlives(m Message, wait time.Duration, now time.Time) (text string, over bool) {
	age, known := m.age(now)
	if !known || m.Retention <= 0 || wait <= m.Retention-age {
		return "", false
	}
	return retentionOver(wait, age, m.Retention), true
}

// inc adds one and saturates; a count that went wrong below zero starts again.
func inc(n int) int {
	if n == math.MaxInt {
		return n
	}
	return max(0, n) + 1
}

// smaller is the smaller positive one of two caps, of which 0 and less mean none.
func smaller(a, b int) int {
	a, b = max(0, a), max(0, b)
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// unit clamps to [0, 1); NaN is 0.
func unit(f float64) float64 {
	if !(f > 0) {
		return 0
	}
	return min(f, math.Nextafter(1, 0))
}
