package policy_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/policy"
)

var (
	causes = []abi.Cause{abi.Returned, abi.Exit, abi.Trap, abi.Memory, abi.Limit, abi.Timeout, abi.Load,
		abi.Interrupted, abi.Stalled, abi.LeaseLost, abi.Cancelled, "", "meteor"}
	guestCauses = causes[:7]
	backoffs    = []policy.Backoff{policy.None, policy.Fixed, policy.Exponential, "", "nonsense"}
)

func genInt() *rapid.Generator[int] {
	return rapid.OneOf(rapid.IntRange(0, 20), rapid.Int(), rapid.SampledFrom([]int{math.MinInt, math.MaxInt, math.MaxInt - 1, -1}))
}

func genDuration() *rapid.Generator[time.Duration] {
	return rapid.Map(rapid.OneOf(
		rapid.Int64Range(0, int64(time.Hour)), rapid.Int64(),
		rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, -1, 0, 1})),
		func(v int64) time.Duration { return time.Duration(v) })
}

func genFloat() *rapid.Generator[float64] {
	return rapid.OneOf(rapid.Float64Range(1, 10), rapid.Float64(), rapid.SampledFrom([]float64{
		math.NaN(), math.Inf(1), math.Inf(-1), 0, 1, math.Nextafter(1, 2), math.MaxFloat64}))
}

func genTime() *rapid.Generator[time.Time] {
	return rapid.OneOf(
		rapid.Just(time.Time{}),
		rapid.Map(rapid.Int64(), func(v int64) time.Time { return time.Unix(v, 0) }),
		rapid.Map(genDuration(), func(d time.Duration) time.Time { return start.Add(d) }))
}

func genTally() *rapid.Generator[drivers.Tally] {
	return rapid.Custom(func(t *rapid.T) drivers.Tally {
		n := func(name string) int { return genInt().Draw(t, name) }
		return drivers.Tally{Failures: n("failures"), Delays: n("delays"), Stalls: n("stalls"),
			Interruptions: n("interruptions"), Unrouted: n("unrouted"), Prior: n("prior")}
	})
}

func genPolicy() *rapid.Generator[policy.Policy] {
	return rapid.Custom(func(t *rapid.T) policy.Policy {
		return policy.Policy{
			MaxAttempts: genInt().Draw(t, "max attempts"), Backoff: rapid.SampledFrom(backoffs).Draw(t, "backoff"),
			Delay: genDuration().Draw(t, "delay"), Base: genDuration().Draw(t, "base"),
			Factor: genFloat().Draw(t, "factor"), Max: genDuration().Draw(t, "max"), Jitter: rapid.Bool().Draw(t, "jitter"),
			MaxDelays: genInt().Draw(t, "max delays"), MaxStalls: genInt().Draw(t, "max stalls"),
			MaxAge: genDuration().Draw(t, "max age"), MaxWait: genDuration().Draw(t, "max wait")}
	})
}

func genMessage() *rapid.Generator[policy.Message] {
	return rapid.Custom(func(t *rapid.T) policy.Message {
		return policy.Message{Tally: genTally().Draw(t, "tally"), EnqueuedAt: genTime().Draw(t, "enqueued"),
			MaxAttempts: genInt().Draw(t, "own attempts"), MaxDelays: genInt().Draw(t, "own delays"),
			Retention: genDuration().Draw(t, "retention")}
	})
}

// genEnd makes any end with one of these causes, impossible ones included.
func genEnd(causes []abi.Cause) *rapid.Generator[abi.End] {
	return rapid.Custom(func(t *rapid.T) abi.End {
		o := rapid.OneOf(
			rapid.Map(rapid.Int64(), abi.DecodeNative),
			rapid.Map(rapid.Uint32(), abi.DecodeExit),
			rapid.Map(rapid.SampledFrom([]int64{0, 1, 10, 11, 12, 13, 14, 10 | 500<<8, 11 | 500<<8, 14 | 500<<8}), abi.DecodeNative),
			rapid.Custom(func(t *rapid.T) abi.Outcome {
				return abi.Outcome{Kind: abi.Kind(rapid.Byte().Draw(t, "kind")), Code: abi.Code(rapid.Byte().Draw(t, "code")),
					Delay: genDuration().Draw(t, "asked"), Text: rapid.String().Draw(t, "number text")}
			}))
		return abi.End{Cause: rapid.SampledFrom(causes).Draw(t, "cause"), Outcome: o.Draw(t, "outcome"),
			Text: rapid.String().Draw(t, "text")}
	})
}

func decide(t *rapid.T, end abi.End, m policy.Message, p policy.Policy) policy.Decision {
	rnd := genFloat().Draw(t, "rnd")
	return policy.Decide(end, m, p, genTime().Draw(t, "now"), func() float64 { return rnd })
}

func TestDecideIsTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		end, m, p := genEnd(causes).Draw(t, "end"), genMessage().Draw(t, "message"), genPolicy().Draw(t, "policy")
		d := decide(t, end, m, p)
		if d.Delay < 0 || d.Pause < 0 {
			t.Fatalf("negative wait: %+v", d)
		}
		if d.Delay != 0 && d.Verdict != drivers.Requeue {
			t.Fatalf("a wait without another run: %+v", d)
		}
		success := end.Cause == abi.Returned && end.Outcome.Kind == abi.Success
		if (d.Reason == "") != success {
			t.Fatalf("reason %q", d.Reason)
		}
		if (d.Verdict == 0) != (end.Cause == abi.LeaseLost) {
			t.Fatalf("no verdict: %+v", d)
		}
		if d.Verdict > drivers.Reject {
			t.Fatalf("verdict %d", d.Verdict)
		}
		if d.Tally.Prior != m.Tally.Prior {
			t.Fatalf("prior went from %d to %d", m.Tally.Prior, d.Tally.Prior)
		}
	})
}

// A run that is the guest's own ends in success, or is counted as exactly one failure or
// delay: no guest can make an uncounted end, or touch what the host alone counts.
func TestGuestsCannotForgeAnUncountedEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		end, m, p := genEnd(guestCauses).Draw(t, "end"), genMessage().Draw(t, "message"), genPolicy().Draw(t, "policy")
		n := rapid.IntRange(0, 1000)
		m.Tally.Failures, m.Tally.Delays = n.Draw(t, "failures"), n.Draw(t, "delays")
		d := decide(t, end, m, p)
		if d.Tally.Interruptions != m.Tally.Interruptions || d.Tally.Stalls != m.Tally.Stalls {
			t.Fatalf("the guest changed the host's counts: %+v", d.Tally)
		}
		if d.Verdict == drivers.Ack {
			if end.Cause != abi.Returned || end.Outcome.Kind != abi.Success {
				t.Fatalf("acknowledged without a success: %+v", end)
			}
			return
		}
		counted := d.Tally.Failures - m.Tally.Failures + d.Tally.Delays - m.Tally.Delays
		if counted != 1 {
			t.Fatalf("counted %d times: %+v", counted, d.Tally)
		}
		if d.Failure != (d.Tally.Failures == m.Tally.Failures+1) {
			t.Fatalf("failure %v with %+v", d.Failure, d.Tally)
		}
		if d.Tally.Unrouted != 0 {
			t.Fatalf("a run left unrouted at %d", d.Tally.Unrouted)
		}
	})
}

// However many delays, interruptions and stalls a message went through, its failures alone
// decide when its attempts are spent and how long the next retry waits.
func TestOnlyFailuresSpendAttempts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 1_000_000)
		p := plain(func(p *policy.Policy) { p.MaxAttempts = rapid.IntRange(1, 50).Draw(t, "max attempts") })
		failed := rapid.IntRange(0, 60).Draw(t, "failures")
		bare := policy.Message{Tally: drivers.Tally{Failures: failed}}
		busy := policy.Message{Tally: drivers.Tally{Failures: failed, Delays: n.Draw(t, "delays"),
			Stalls: n.Draw(t, "stalls"), Interruptions: n.Draw(t, "interruptions"), Prior: n.Draw(t, "prior")}}
		end := returned(abi.Retry, 0, "x")
		a, b := policy.Decide(end, bare, p, start, half), policy.Decide(end, busy, p, start, half)
		if a.Verdict != b.Verdict || a.Delay != b.Delay || a.Reason != b.Reason {
			t.Fatalf("other counts changed a failure:\n%+v\n%+v", a, b)
		}
		if (a.Verdict == drivers.Dead) != (failed+1 >= p.MaxAttempts) {
			t.Fatalf("failure %d of %d: %v", failed+1, p.MaxAttempts, a.Verdict)
		}
		d := policy.Decide(returned(abi.Delay, time.Minute, ""), busy, p, start, half)
		if d.Verdict != drivers.Requeue || d.Tally.Failures != failed || d.Failure {
			t.Fatalf("a delay spent an attempt: %+v", d)
		}
	})
}

func TestDelaysAreLowerBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]abi.Kind{abi.RetryAfter, abi.Delay, abi.Pause}).Draw(t, "kind")
		asked := time.Duration(rapid.Int64Range(1, int64(abi.MaxDelay)).Draw(t, "asked"))
		p := genPolicy().Draw(t, "policy")
		end := abi.End{Cause: abi.Returned, Outcome: abi.Outcome{Kind: kind, Delay: asked}}
		d := decide(t, end, genMessage().Draw(t, "message"), p)
		if d.Verdict != drivers.Requeue {
			return
		}
		if p.MaxWait > 0 && p.MaxWait < asked {
			if d.Delay != p.MaxWait || !d.Capped {
				t.Fatalf("asked for %v, max_wait %v: %+v", asked, p.MaxWait, d)
			}
			return
		}
		if d.Delay != asked || d.Capped {
			t.Fatalf("asked for %v: %+v", asked, d)
		}
	})
}

func TestInterruptionBypassesEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := genMessage().Draw(t, "message")
		d := decide(t, genEnd([]abi.Cause{abi.Interrupted}).Draw(t, "end"), m, genPolicy().Draw(t, "policy"))
		if d.Verdict != drivers.Requeue || d.Delay != 0 || d.Failure || d.Pause != 0 {
			t.Fatalf("%+v", d)
		}
		if d.Tally.Failures != m.Tally.Failures || d.Tally.Delays != m.Tally.Delays || d.Tally.Stalls != m.Tally.Stalls {
			t.Fatalf("%+v from %+v", d.Tally, m.Tally)
		}
	})
}

func TestWaitIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, n, rnd := genPolicy().Draw(t, "policy"), genInt().Draw(t, "failures"), genFloat().Draw(t, "rnd")
		wait := p.Wait(n, func() float64 { return rnd })
		if wait < 0 {
			t.Fatalf("negative wait %v", wait)
		}
		if p.Backoff != policy.Fixed && wait > max(0, p.Max) {
			t.Fatalf("wait %v above max %v", wait, p.Max)
		}
		if still := p.Wait(n, nil); wait > still {
			t.Fatalf("jitter made %v of %v", wait, still)
		}
	})
}

func TestWaitIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := genPolicy().Draw(t, "policy")
		p.Jitter = false
		p.Factor = rapid.OneOf(rapid.Float64Range(1, 1.0001), rapid.Float64Range(1, 4), rapid.Float64Min(1)).Draw(t, "factor")
		n := rapid.OneOf(rapid.IntRange(1, 200), rapid.IntRange(1, math.MaxInt-1)).Draw(t, "failures")
		if a, b := p.Wait(n, nil), p.Wait(n+1, nil); b < a {
			t.Fatalf("wait %v after failure %d, then %v", a, n, b)
		}
	})
}

func TestArrivalAndUnroutedAreTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, now := genMessage().Draw(t, "message"), genTime().Draw(t, "now")
		if d, must := policy.Arrival(m, genPolicy().Draw(t, "policy"), now); must && (d.Verdict != drivers.Dead || d.Reason == "" || d.Failure) {
			t.Fatalf("arrival: %+v", d)
		}
		tries := genInt().Draw(t, "tries")
		d := policy.Unrouted(m, genDuration().Draw(t, "wait"), tries, rapid.String().Draw(t, "job"), now)
		if d.Reason == "" || d.Failure || d.Delay < 0 {
			t.Fatalf("unrouted: %+v", d)
		}
		if d.Verdict != drivers.Requeue && d.Verdict != drivers.Dead {
			t.Fatalf("unrouted: %+v", d)
		}
		same := d.Tally
		same.Unrouted = m.Tally.Unrouted
		if same != m.Tally {
			t.Fatalf("unrouted counted more than itself: %+v from %+v", d.Tally, m.Tally)
		}
	})
}
