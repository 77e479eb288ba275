package policy_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/policy"
)

const day = 24 * time.Hour

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func half() float64 { return 0.5 }

// plain is a policy whose waits are easy to read: 1s, 2s, 4s, without jitter.
func plain(change ...func(*policy.Policy)) policy.Policy {
	p := policy.Default()
	p.Jitter = false
	for _, c := range change {
		c(&p)
	}
	return p
}

func returned(k abi.Kind, delay time.Duration, text string) abi.End {
	return abi.End{Cause: abi.Returned, Outcome: abi.DecodeNative(abi.EncodeNative(k, delay)), Text: text}
}

func number(v int64, text string) abi.End {
	return abi.End{Cause: abi.Returned, Outcome: abi.DecodeNative(v), Text: text}
}

func ended(c abi.Cause, text string) abi.End { return abi.End{Cause: c, Text: text} }

func tally(change func(*drivers.Tally)) drivers.Tally {
	var t drivers.Tally
	change(&t)
	return t
}

func failures(n int) drivers.Tally { return drivers.Tally{Failures: n} }
func delays(n int) drivers.Tally   { return drivers.Tally{Delays: n} }

// TestDecide has a row for each case of the specification's sections 1 and 2.
func TestDecide(t *testing.T) {
	type message = policy.Message
	type decision = policy.Decision
	retrying := func(n int, wait time.Duration, reason string) decision {
		return decision{Verdict: drivers.Requeue, Delay: wait, Tally: failures(n), Reason: reason, Failure: true}
	}
	dead := func(t drivers.Tally, failure bool, reason string) decision {
		return decision{Verdict: drivers.Dead, Tally: t, Reason: reason, Failure: failure}
	}
	aged := func(age time.Duration) message { return message{EnqueuedAt: start.Add(-age)} }
	maxAge := plain(func(p *policy.Policy) { p.MaxAge = time.Hour })
	maxWait := plain(func(p *policy.Policy) { p.MaxWait = time.Minute })
	maxDelays := plain(func(p *policy.Policy) { p.MaxDelays = 3 })
	one := policy.Unset()

	tests := []struct {
		name string
		end  abi.End
		m    message
		p    policy.Policy
		want decision
	}{
		// The outcome table.
		{"success", returned(abi.Success, 0, ""), message{}, plain(),
			decision{Verdict: drivers.Ack}},
		{"success after trouble", returned(abi.Success, 0, ""),
			message{Tally: drivers.Tally{Failures: 2, Delays: 3, Stalls: 1, Interruptions: 1, Unrouted: 4, Prior: 7}}, plain(),
			decision{Verdict: drivers.Ack, Tally: drivers.Tally{Failures: 2, Delays: 3, Stalls: 1, Interruptions: 1, Prior: 7}}},
		{"retry", returned(abi.Retry, 0, "upstream said 503"), message{}, plain(),
			retrying(1, time.Second, "retry: upstream said 503")},
		{"retry, its text beginning with the word", returned(abi.Retry, 0, "retry me"), message{}, plain(),
			retrying(1, time.Second, "retry: retry me")},
		{"retry, its text naming the outcome", returned(abi.Retry, 0, "retry: me"), message{}, plain(),
			retrying(1, time.Second, "retry: me")},
		{"retry without a text", returned(abi.Retry, 0, ""), message{}, plain(),
			retrying(1, time.Second, "retry")},
		{"second retry", returned(abi.Retry, 0, "x"), message{Tally: failures(1)}, plain(),
			retrying(2, 2*time.Second, "retry: x")},
		{"retry, attempts spent", returned(abi.Retry, 0, "upstream said 503"), message{Tally: failures(2)}, plain(),
			dead(failures(3), true, "max attempts (3) exhausted after failure 3: retry: upstream said 503")},
		{"retry, attempts overspent", returned(abi.Retry, 0, ""), message{Tally: failures(9)}, plain(),
			dead(failures(10), true, "max attempts (3) exhausted after failure 10: retry")},
		{"retry-after", returned(abi.RetryAfter, 90*time.Second, "busy"), message{}, plain(),
			retrying(1, 90*time.Second, "retry-after: busy")},
		{"retry-after 0", returned(abi.RetryAfter, 0, ""), message{Tally: failures(1)}, plain(),
			retrying(2, 2*time.Second, "retry-after")},
		{"retry-after negative", number(-256|10, ""), message{}, plain(),
			retrying(1, time.Second, "retry-after")},
		{"retry-after, attempts spent", returned(abi.RetryAfter, time.Minute, "busy"), message{Tally: failures(2)}, plain(),
			dead(failures(3), true, "max attempts (3) exhausted after failure 3: retry-after: busy")},
		{"delay", returned(abi.Delay, 6*time.Hour, "waiting for settlement"), message{}, plain(),
			decision{Verdict: drivers.Requeue, Delay: 6 * time.Hour, Tally: delays(1), Reason: "delay 6h0m0s: waiting for settlement"}},
		{"delay 0", returned(abi.Delay, 0, ""), message{}, plain(),
			decision{Verdict: drivers.Requeue, Delay: time.Second, Tally: delays(1), Reason: "delay 1s"}},
		{"delay negative", number(math.MinInt64|11, ""), message{}, plain(),
			decision{Verdict: drivers.Requeue, Delay: time.Second, Tally: delays(1), Reason: "delay 1s"}},
		{"delay with one attempt only", returned(abi.Delay, time.Minute, ""), message{}, one,
			decision{Verdict: drivers.Requeue, Delay: time.Minute, Tally: delays(1), Reason: "delay 1m0s"}},
		{"delay beside spent attempts", returned(abi.Delay, time.Minute, ""), message{Tally: failures(2)}, plain(),
			decision{Verdict: drivers.Requeue, Delay: time.Minute, Tally: drivers.Tally{Failures: 2, Delays: 1}, Reason: "delay 1m0s"}},
		{"delay 1000 without a ceiling", returned(abi.Delay, time.Minute, ""), message{Tally: delays(999)}, plain(),
			decision{Verdict: drivers.Requeue, Delay: time.Minute, Tally: delays(1000), Reason: "delay 1m0s"}},
		{"permanent", returned(abi.Permanent, 0, "no such order"), message{}, plain(),
			dead(failures(1), true, "permanent: no such order")},
		{"permanent without a text", returned(abi.Permanent, 0, ""), message{}, plain(),
			dead(failures(1), true, "permanent")},
		{"reject", returned(abi.Reject, 0, "not ours"), message{}, plain(),
			decision{Verdict: drivers.Reject, Tally: failures(1), Reason: "reject: not ours", Failure: true}},
		{"pause", returned(abi.Pause, time.Minute, "down"), message{}, plain(),
			decision{Verdict: drivers.Requeue, Delay: time.Minute, Pause: time.Minute, Tally: delays(1), Reason: "pause 1m0s: down"}},
		{"pause 0", returned(abi.Pause, 0, ""), message{}, plain(),
			decision{Verdict: drivers.Requeue, Delay: time.Second, Pause: time.Second, Tally: delays(1), Reason: "pause 1s"}},

		// Malformed numbers are retries with their own text.
		{"unknown code", number(77, ""), message{}, plain(),
			retrying(1, time.Second, "retry: unknown outcome code 77")},
		{"unknown code with an error text", number(2, "panic: nil map"), message{}, plain(),
			retrying(1, time.Second, "retry: unknown outcome code 2: panic: nil map")},
		{"unknown code told by the run too", number(2, "unknown outcome code 2"), message{}, plain(),
			retrying(1, time.Second, "retry: unknown outcome code 2")},
		{"-1", number(-1, ""), message{}, plain(),
			retrying(1, time.Second, "retry: unknown outcome code 255")},
		{"256 is no success", number(256, ""), message{}, plain(),
			retrying(1, time.Second, "retry: outcome 0 with delay bits")},
		{"permanent with delay bits", number(256|12, ""), message{}, plain(),
			retrying(1, time.Second, "retry: outcome 12 with delay bits")},
		{"delay of 2^55 ms", number(math.MaxInt64&^0xff|11, ""), message{}, plain(),
			retrying(1, time.Second, "retry: delay of 36028797018963967 ms is over the limit of 365 days")},
		{"malformed, attempts spent", number(77, ""), message{}, one,
			dead(failures(1), true, "max attempts (1) exhausted after failure 1: retry: unknown outcome code 77")},
		{"no outcome at all", abi.End{Cause: abi.Returned}, message{}, plain(),
			retrying(1, time.Second, "retry")},

		// Runs that end without a return code.
		{"trap", ended(abi.Trap, "unreachable"), message{}, plain(), retrying(1, time.Second, "trap: unreachable")},
		{"trap, its text naming it", ended(abi.Trap, "trap: unreachable"), message{}, plain(), retrying(1, time.Second, "trap: unreachable")},
		{"trap, attempts spent", ended(abi.Trap, "unreachable"), message{}, one,
			dead(failures(1), true, "max attempts (1) exhausted after failure 1: trap: unreachable")},
		{"memory", ended(abi.Memory, "limit of 64 MiB"), message{}, plain(), retrying(1, time.Second, "memory: limit of 64 MiB")},
		{"limit", ended(abi.Limit, "result over 1 MiB"), message{}, plain(), retrying(1, time.Second, "limit: result over 1 MiB")},
		{"timeout", ended(abi.Timeout, "timeout: 30s"), message{}, plain(), retrying(1, time.Second, "timeout: 30s")},
		{"load", ended(abi.Load, "_initialize trapped"), message{}, plain(), retrying(1, time.Second, "load: _initialize trapped")},
		{"exit", ended(abi.Exit, "proc_exit(0)"), message{}, plain(), retrying(1, time.Second, "exit: proc_exit(0)")},
		{"a cause that carries a success", abi.End{Cause: abi.Trap, Outcome: abi.Outcome{Kind: abi.Success}}, message{}, plain(),
			retrying(1, time.Second, "trap")},
		{"a cause nobody knows", ended("meteor", ""), message{}, plain(), retrying(1, time.Second, "meteor")},
		{"no cause", abi.End{}, message{}, plain(), retrying(1, time.Second, "retry")},

		// Ends that are no failures.
		{"interrupted", ended(abi.Interrupted, ""), message{}, plain(),
			decision{Verdict: drivers.Requeue, Tally: tally(func(t *drivers.Tally) { t.Interruptions = 1 }), Reason: "interrupted"}},
		{"interrupted past every cap", ended(abi.Interrupted, "drain over"),
			message{Tally: drivers.Tally{Failures: 9, Delays: 9, Interruptions: 99}, EnqueuedAt: start.Add(-day), Retention: time.Hour},
			plain(func(p *policy.Policy) { p.MaxAge, p.MaxDelays, p.MaxAttempts = time.Hour, 1, 1 }),
			decision{Verdict: drivers.Requeue, Tally: drivers.Tally{Failures: 9, Delays: 9, Interruptions: 100}, Reason: "interrupted: drain over"}},
		{"stalled", ended(abi.Stalled, ""), message{Tally: drivers.Tally{Failures: 2}}, plain(),
			decision{Verdict: drivers.Requeue, Tally: drivers.Tally{Failures: 2, Stalls: 1}, Reason: "stalled"}},
		{"stalled too often", ended(abi.Stalled, ""), message{Tally: drivers.Tally{Stalls: 5}}, plain(),
			dead(drivers.Tally{Stalls: 6}, false, "max stalls (5) exhausted after stall 6")},
		{"lease lost", ended(abi.LeaseLost, ""), message{Tally: drivers.Tally{Failures: 1, Unrouted: 2}}, plain(),
			decision{Tally: drivers.Tally{Failures: 1, Unrouted: 2}, Reason: "lease lost"}},
		{"lease lost by a run that succeeded", abi.End{Cause: abi.LeaseLost, Outcome: abi.Outcome{Kind: abi.Success}}, message{}, plain(),
			decision{Reason: "lease lost"}},
		{"cancelled", ended(abi.Cancelled, "by admin"), message{Tally: failures(1)}, plain(),
			decision{Verdict: drivers.Ack, Tally: failures(1), Reason: "cancelled: by admin"}},

		{"cancelled, its text naming it", ended(abi.Cancelled, "cancelled by an operator"), message{}, plain(),
			decision{Verdict: drivers.Ack, Reason: "cancelled by an operator"}},

		// The curve and the budget.
		{"jitter", returned(abi.Retry, 0, ""), message{Tally: failures(1)}, policy.Default(),
			retrying(2, time.Second, "retry")},
		{"ten delays do not inflate the wait", returned(abi.Retry, 0, ""), message{Tally: delays(10)}, plain(),
			decision{Verdict: drivers.Requeue, Delay: time.Second, Tally: drivers.Tally{Failures: 1, Delays: 10}, Reason: "retry", Failure: true}},
		{"nor spend an attempt", returned(abi.Retry, 0, ""), message{Tally: drivers.Tally{Failures: 1, Delays: 10}},
			plain(func(p *policy.Policy) { p.MaxAttempts = 2 }),
			dead(drivers.Tally{Failures: 2, Delays: 10}, true, "max attempts (2) exhausted after failure 2: retry")},
		{"stalls, interruptions and replays spend none either", returned(abi.Retry, 0, ""),
			message{Tally: drivers.Tally{Failures: 1, Stalls: 4, Interruptions: 50, Prior: 30}}, plain(),
			decision{Verdict: drivers.Requeue, Delay: 2 * time.Second, Failure: true, Reason: "retry",
				Tally: drivers.Tally{Failures: 2, Stalls: 4, Interruptions: 50, Prior: 30}}},
		{"no cap", returned(abi.Retry, 0, ""), message{Tally: failures(999)}, plain(func(p *policy.Policy) { p.MaxAttempts = 0 }),
			retrying(1000, 5*time.Minute, "retry")},
		{"backoff none", returned(abi.Retry, 0, ""), message{}, plain(func(p *policy.Policy) { p.Backoff = policy.None }),
			retrying(1, 0, "retry")},
		{"backoff fixed, over max and without jitter", returned(abi.Retry, 0, ""), message{},
			plain(func(p *policy.Policy) { p.Backoff, p.Delay, p.Jitter = policy.Fixed, 10*time.Minute, true }),
			retrying(1, 10*time.Minute, "retry")},
		{"no policy given", returned(abi.Retry, 0, "x"), message{}, one,
			dead(failures(1), true, "max attempts (1) exhausted after failure 1: retry: x")},
		{"a run resets unrouted", returned(abi.Retry, 0, ""), message{Tally: drivers.Tally{Unrouted: 9}}, plain(),
			retrying(1, time.Second, "retry")},

		// The delays' ceiling.
		{"the last delay", returned(abi.Delay, time.Hour, ""), message{Tally: delays(2)}, maxDelays,
			decision{Verdict: drivers.Requeue, Delay: time.Hour, Tally: delays(3), Reason: "delay 1h0m0s"}},
		{"one delay too many", returned(abi.Delay, 6*time.Hour, "waiting for settlement"), message{Tally: delays(3)}, maxDelays,
			dead(delays(4), false, "max delays (3) exhausted: delay 6h0m0s: waiting for settlement")},
		{"one pause too many", returned(abi.Pause, time.Minute, ""), message{Tally: delays(3)}, maxDelays,
			decision{Verdict: drivers.Dead, Tally: delays(4), Pause: time.Minute, Reason: "max delays (3) exhausted: pause 1m0s"}},

		// The producer's own budget.
		{"a smaller budget", returned(abi.Retry, 0, ""), message{MaxAttempts: 1}, plain(),
			dead(failures(1), true, "max attempts (1) exhausted after failure 1: retry")},
		{"a larger budget", returned(abi.Retry, 0, ""), message{MaxAttempts: 9, Tally: failures(2)}, plain(),
			dead(failures(3), true, "max attempts (3) exhausted after failure 3: retry")},
		{"a budget beside no cap", returned(abi.Retry, 0, ""), message{MaxAttempts: 2, Tally: failures(1)}, plain(func(p *policy.Policy) { p.MaxAttempts = 0 }),
			dead(failures(2), true, "max attempts (2) exhausted after failure 2: retry")},
		{"a negative budget is none", returned(abi.Retry, 0, ""), message{MaxAttempts: -5}, plain(),
			retrying(1, time.Second, "retry")},
		{"a delay budget", returned(abi.Delay, time.Minute, ""), message{MaxDelays: 1, Tally: delays(1)}, plain(),
			dead(delays(2), false, "max delays (1) exhausted: delay 1m0s")},
		{"a smaller delay budget", returned(abi.Delay, time.Minute, ""), message{MaxDelays: 2, Tally: delays(2)}, maxDelays,
			dead(delays(3), false, "max delays (2) exhausted: delay 1m0s")},

		// Age.
		{"retry at the age", returned(abi.Retry, 0, ""), aged(time.Hour), maxAge, retrying(1, time.Second, "retry")},
		{"retry over the age", returned(abi.Retry, 0, "x"), aged(time.Hour + 90*time.Second + 7), maxAge,
			dead(failures(1), true, "max age (1h0m0s) exceeded at age 1h1m30s: retry: x")},
		{"delay over the age", returned(abi.Delay, time.Minute, ""), aged(2 * time.Hour), maxAge,
			dead(delays(1), false, "max age (1h0m0s) exceeded at age 2h0m0s: delay 1m0s")},
		{"trap over the age", ended(abi.Trap, "unreachable"), aged(2 * time.Hour), maxAge,
			dead(failures(1), true, "max age (1h0m0s) exceeded at age 2h0m0s: trap: unreachable")},
		{"a delay asked for in time runs over the age", returned(abi.Delay, 6*time.Hour, ""), aged(time.Minute), maxAge,
			decision{Verdict: drivers.Requeue, Delay: 6 * time.Hour, Tally: delays(1), Reason: "delay 6h0m0s"}},
		{"success over the age", returned(abi.Success, 0, ""), aged(2 * time.Hour), maxAge, decision{Verdict: drivers.Ack}},
		{"age not known", returned(abi.Retry, 0, ""), message{}, maxAge, retrying(1, time.Second, "retry")},
		{"a clock that is behind", returned(abi.Retry, 0, ""), aged(-time.Hour), maxAge, retrying(1, time.Second, "retry")},

		// What a handler may ask for.
		{"delay over max_wait", returned(abi.Delay, time.Hour, ""), message{}, maxWait,
			decision{Verdict: drivers.Requeue, Delay: time.Minute, Tally: delays(1), Reason: "delay 1h0m0s", Capped: true}},
		{"delay at max_wait", returned(abi.Delay, time.Minute, ""), message{}, maxWait,
			decision{Verdict: drivers.Requeue, Delay: time.Minute, Tally: delays(1), Reason: "delay 1m0s"}},
		{"retry-after over max_wait", returned(abi.RetryAfter, time.Hour, ""), message{}, maxWait,
			decision{Verdict: drivers.Requeue, Delay: time.Minute, Tally: failures(1), Reason: "retry-after", Failure: true, Capped: true}},
		{"pause over max_wait", returned(abi.Pause, time.Hour, ""), message{}, maxWait,
			decision{Verdict: drivers.Requeue, Delay: time.Minute, Pause: time.Minute, Tally: delays(1), Reason: "pause 1h0m0s", Capped: true}},
		{"the backoff is no wish", returned(abi.Retry, 0, ""), message{Tally: failures(20)},
			plain(func(p *policy.Policy) { p.MaxWait, p.MaxAttempts = time.Second, 0 }), retrying(21, 5*time.Minute, "retry")},

		// The broker's retention.
		{"delay within the retention", returned(abi.Delay, 3*day, ""), message{EnqueuedAt: start.Add(-day), Retention: 4 * day}, plain(),
			decision{Verdict: drivers.Requeue, Delay: 3 * day, Tally: delays(1), Reason: "delay 72h0m0s"}},
		{"delay beyond the retention", returned(abi.Delay, 4*day, "patience"), message{EnqueuedAt: start.Add(-day), Retention: 4 * day}, plain(),
			dead(delays(1), false, "a wait of 96h0m0s at age 24h0m0s would outlive the broker's retention (96h0m0s): delay 96h0m0s: patience")},
		{"retry-after beyond the retention", returned(abi.RetryAfter, time.Hour, ""), message{EnqueuedAt: start, Retention: time.Minute}, plain(),
			dead(failures(1), true, "a wait of 1h0m0s at age 0s would outlive the broker's retention (1m0s): retry-after")},
		{"a delay capped to within the retention", returned(abi.Delay, 4*day, ""), message{EnqueuedAt: start, Retention: day}, maxWait,
			decision{Verdict: drivers.Requeue, Delay: time.Minute, Tally: delays(1), Reason: "delay 96h0m0s", Capped: true}},

		// Counts at their end.
		{"failures at their end", returned(abi.Retry, 0, ""), message{Tally: failures(math.MaxInt)}, plain(func(p *policy.Policy) { p.MaxAttempts = 0 }),
			retrying(math.MaxInt, 5*time.Minute, "retry")},
		{"failures below zero", returned(abi.Retry, 0, ""), message{Tally: failures(math.MinInt)}, plain(),
			retrying(1, time.Second, "retry")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := policy.Decide(tt.end, tt.m, tt.p, start, half)
			if got != tt.want {
				t.Errorf("Decide:\n got %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestArrival(t *testing.T) {
	p := policy.Default()
	none := plain(func(p *policy.Policy) { p.MaxStalls = 0 })
	tests := []struct {
		name   string
		stalls int
		p      policy.Policy
		reason string // "" when the message may run
	}{
		{"never stalled", 0, p, ""},
		{"as often as allowed", 5, p, ""},
		{"once more", 6, p, "max stalls (5) exhausted after stall 6"},
		{"far more", 70, p, "max stalls (5) exhausted after stall 70"},
		{"none allowed, none met", 0, none, ""},
		{"none allowed", 1, none, "max stalls (0) exhausted after stall 1"},
		{"nonsense", math.MinInt, plain(func(p *policy.Policy) { p.MaxStalls = -4 }), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := policy.Message{Tally: drivers.Tally{Stalls: tt.stalls, Failures: 1}}
			got, must := policy.Arrival(m, tt.p, start)
			if must != (tt.reason != "") {
				t.Fatalf("Arrival must be decided: %v", must)
			}
			if !must {
				return
			}
			want := policy.Decision{Verdict: drivers.Dead, Tally: m.Tally, Reason: tt.reason}
			if got != want {
				t.Errorf("Arrival:\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestSuspect(t *testing.T) {
	for stalls, want := range []bool{false, false, true, true} {
		if got := policy.Suspect(drivers.Tally{Stalls: stalls, Failures: 9, Interruptions: 9}); got != want {
			t.Errorf("Suspect with %d stalls: %v", stalls, got)
		}
	}
}

func TestUnrouted(t *testing.T) {
	old := drivers.Tally{Failures: 2, Delays: 1}
	with := func(unrouted int) drivers.Tally {
		o := old
		o.Unrouted = unrouted
		return o
	}
	tests := []struct {
		name     string
		unrouted int
		tries    int
		job      string
		want     policy.Decision
	}{
		{"first", 0, 10, "resize", policy.Decision{Verdict: drivers.Requeue, Delay: 30 * time.Second, Tally: with(1), Reason: `no handler for job "resize"`}},
		{"last", 9, 10, "resize", policy.Decision{Verdict: drivers.Requeue, Delay: 30 * time.Second, Tally: with(10), Reason: `no handler for job "resize"`}},
		{"too many", 10, 10, "resize", policy.Decision{Verdict: drivers.Dead, Tally: with(10), Reason: `no handler for job "resize" after 10 tries`}},
		{"no cap", 5000, 0, "resize", policy.Decision{Verdict: drivers.Requeue, Delay: 30 * time.Second, Tally: with(5001), Reason: `no handler for job "resize"`}},
		{"no job", 0, 10, "", policy.Decision{Verdict: drivers.Requeue, Delay: 30 * time.Second, Tally: with(1), Reason: "no handler: the message names no job"}},
		{"control characters", 0, 10, "a\x1b[2J/../b", policy.Decision{Verdict: drivers.Requeue, Delay: 30 * time.Second, Tally: with(1), Reason: `no handler for job "a\x1b[2J/../b"`}},
		{"a long name", 0, 10, strings.Repeat("x", 5000), policy.Decision{Verdict: drivers.Requeue, Delay: 30 * time.Second, Tally: with(1), Reason: `no handler for job "` + strings.Repeat("x", 100) + `..."`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := policy.Unrouted(policy.Message{Tally: with(tt.unrouted)}, 30*time.Second, tt.tries, tt.job, start)
			if got != tt.want {
				t.Errorf("Unrouted:\n got %+v\nwant %+v", got, tt.want)
			}
		})
	}
	m := policy.Message{EnqueuedAt: start.Add(-time.Hour), Retention: time.Hour}
	got := policy.Unrouted(m, time.Minute, 0, "resize", start)
	want := `a wait of 1m0s at age 1h0m0s would outlive the broker's retention (1h0m0s): no handler for job "resize"`
	if got.Verdict != drivers.Dead || got.Reason != want {
		t.Errorf("Unrouted beyond the retention: %+v", got)
	}
}

func TestWait(t *testing.T) {
	tests := []struct {
		name     string
		p        policy.Policy
		failures int
		rnd      func() float64
		want     time.Duration
	}{
		{"first", plain(), 1, nil, time.Second},
		{"fourth", plain(), 4, nil, 8 * time.Second},
		{"at max", plain(), 10, nil, 5 * time.Minute},
		{"overflow", plain(), math.MaxInt, nil, 5 * time.Minute},
		{"zeroth", plain(), 0, nil, time.Second},
		{"negative", plain(), math.MinInt, nil, time.Second},
		{"factor 1", plain(func(p *policy.Policy) { p.Factor = 1 }), math.MaxInt, nil, time.Second},
		{"factor below 1", plain(func(p *policy.Policy) { p.Factor = 0.1 }), 5, nil, time.Second},
		{"factor negative", plain(func(p *policy.Policy) { p.Factor = -2 }), 5, nil, time.Second},
		{"factor NaN", plain(func(p *policy.Policy) { p.Factor = math.NaN() }), 5, nil, time.Second},
		{"factor infinite", plain(func(p *policy.Policy) { p.Factor = math.Inf(1) }), 2, nil, 5 * time.Minute},
		{"factor infinite, first", plain(func(p *policy.Policy) { p.Factor = math.Inf(1) }), 1, nil, time.Second},
		{"factor 1.5", plain(func(p *policy.Policy) { p.Factor = 1.5 }), 3, nil, 2250 * time.Millisecond},
		{"base 0", plain(func(p *policy.Policy) { p.Base = 0 }), 5, nil, 0},
		{"max 0", plain(func(p *policy.Policy) { p.Max = 0 }), 5, nil, 0},
		{"base over max", plain(func(p *policy.Policy) { p.Base = time.Hour }), 1, nil, 5 * time.Minute},
		{"base and max at their end", plain(func(p *policy.Policy) { p.Base, p.Max = math.MaxInt64, math.MaxInt64 }), 2, nil, math.MaxInt64},
		{"zero policy", policy.Policy{}, 3, half, 0},
		{"none", plain(func(p *policy.Policy) { p.Backoff = policy.None }), 3, nil, 0},
		{"fixed", plain(func(p *policy.Policy) { p.Backoff, p.Delay = policy.Fixed, 7*time.Second }), 3, half, 7 * time.Second},
		{"fixed negative", plain(func(p *policy.Policy) { p.Backoff, p.Delay = policy.Fixed, -7 }), 3, half, 0},
		{"jitter low", policy.Default(), 3, func() float64 { return 0 }, 0},
		{"jitter middle", policy.Default(), 3, half, 2 * time.Second},
		{"jitter below 0", policy.Default(), 3, func() float64 { return -9 }, 0},
		{"jitter NaN", policy.Default(), 3, math.NaN, 0},
		{"jitter above 1", policy.Default(), 3, func() float64 { return 9 }, 4*time.Second - 1},
		{"jitter at the end", plain(func(p *policy.Policy) { p.Base, p.Max, p.Jitter = math.MaxInt64, math.MaxInt64, true }), 1,
			func() float64 { return 2 }, math.MaxInt64 - 1023},
		{"jitter without a source", policy.Default(), 3, nil, 4 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.p.Wait(tt.failures, tt.rnd); got != tt.want {
				t.Errorf("Wait(%d) = %v, want %v", tt.failures, got, tt.want)
			}
		})
	}
}

// What the issue tells as a story: ten delays, then two failures with max_attempts = 2.
func TestTenDelaysThenFailures(t *testing.T) {
	p := plain(func(p *policy.Policy) { p.MaxAttempts = 2 })
	m := policy.Message{EnqueuedAt: start}
	for range 10 {
		d := policy.Decide(returned(abi.Delay, time.Hour, ""), m, p, start, half)
		if d.Verdict != drivers.Requeue {
			t.Fatalf("delay %d: %v", d.Tally.Delays, d.Verdict)
		}
		m.Tally = d.Tally
	}
	d := policy.Decide(returned(abi.Retry, 0, "x"), m, p, start, half)
	if d.Verdict != drivers.Requeue || d.Delay != time.Second {
		t.Fatalf("first failure: %v after %v", d.Verdict, d.Delay)
	}
	m.Tally = d.Tally
	d = policy.Decide(returned(abi.Retry, 0, "x"), m, p, start, half)
	if d.Verdict != drivers.Dead || d.Reason != "max attempts (2) exhausted after failure 2: retry: x" {
		t.Fatalf("second failure: %v, %s", d.Verdict, d.Reason)
	}
	if d.Tally.Attempt()-1 != 12 {
		t.Errorf("died of attempt %d, want 12", d.Tally.Attempt()-1)
	}
}
