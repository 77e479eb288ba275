package drivertest

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

func info(s *suite) {
	d := s.openDriver("a", Tuning{})
	if err := d.Ping(s.Context()); err != nil {
		s.Errorf("ping: %v", err)
	}
	q := s.openQueue(d, drivers.QueueOptions{Lease: 30 * time.Second})
	got := q.Info()
	if got.Caps != s.caps {
		s.Errorf("the queue shows %+v,\nthe driver publishes %+v", got.Caps, s.caps)
	}
	if got.Lease < 0 || got.Retention < 0 || got.MaxPayload < 0 {
		s.Errorf("negative figures in %+v", got)
	}
	if s.caps.Renewable && got.Lease != 30*time.Second {
		s.Errorf("lease %s, want the 30s asked for", got.Lease)
	}
	for _, f := range got.Findings {
		if f.Text == "" {
			s.Error("finding without a text")
		}
	}
}

func firstDelivery(s *suite) {
	q := s.worker("a")
	before := time.Now()
	s.sendMessages(q, drivers.Message{ID: "m", Job: "resize", Payload: []byte("hello")})
	d := s.take(q, 1)[0]
	after := time.Now()
	s.hasCarry(d, drivers.Carry{})
	if d.ID != "m" || d.Job != "resize" || !bytes.Equal(d.Payload, []byte("hello")) {
		s.Errorf("got id %q, job %q, payload %q", d.ID, d.Job, d.Payload)
	}
	if d.Stalled != 0 || d.Held || d.Broken != "" || d.Redelivered {
		s.Errorf("stalled %d, held %t, broken %q, redelivered %t", d.Stalled, d.Held, d.Broken, d.Redelivered)
	}
	if d.Received.Before(before.Add(-slack)) || d.Received.After(after.Add(slack)) {
		s.Errorf("received at %s, not between %s and %s", d.Received, before, after)
	}
	s.enqueuedBetween(d.EnqueuedAt, before, after)
}

// enqueuedBetween leaves room for brokers that count seconds.
func (s *suite) enqueuedBetween(got, before, after time.Time) {
	s.Helper()
	if got.Before(before.Add(-time.Second-slack)) || got.After(after.Add(time.Second+slack)) {
		s.Errorf("enqueued at %s, not between %s and %s", got, before, after)
	}
}

func ack(s *suite) {
	q := s.worker("a")
	s.send(q, "m")
	s.hasCounts(q, drivers.Counts{Depth: 1})
	d := s.take(q, 1)[0]
	s.hasCounts(q, drivers.Counts{Depth: 1, InFlight: 1})
	s.ack(q, d)
	s.hasCounts(q, drivers.Counts{})
	s.nothing(q, 200*time.Millisecond)
}

func requeue(s *suite) {
	q := s.worker("a")
	s.send(q, "m")
	first := s.take(q, 1)[0]
	failed := drivers.Carry{Tally: drivers.Tally{Failures: 1}}
	s.settle(q, drivers.Settlement{Delivery: first, Verdict: drivers.Requeue, Carry: failed})
	again := s.take(q, 1)[0]
	s.hasCarry(again, failed)
	if again.ID != "m" || !again.Redelivered || again.Stalled != 0 || string(again.Payload) != "m" {
		s.Errorf("got id %q, payload %q, redelivered %t, stalled %d", again.ID, again.Payload, again.Redelivered, again.Stalled)
	}
	if d := again.EnqueuedAt.Sub(first.EnqueuedAt).Abs(); d > time.Second {
		s.Errorf("enqueued moved by %s", d)
	}
	s.hasCounts(q, drivers.Counts{Depth: 1, InFlight: 1})
	failed.Failures++
	s.settle(q, drivers.Settlement{Delivery: again, Verdict: drivers.Requeue, Carry: failed, Delay: time.Hour})
	s.hasCounts(q, drivers.Counts{Depth: 1, Delayed: 1})
}

func dead(s *suite) {
	q := s.worker("a")
	s.send(q, "m")
	s.settle(q, drivers.Settlement{Delivery: s.take(q, 1)[0], Verdict: drivers.Dead, Death: aDeath()})
	s.hasCounts(q, drivers.Counts{Dead: 1})
	s.nothing(q, 200*time.Millisecond)
}

func reject(s *suite) {
	q := s.worker("a")
	if s.h.RejectReturns {
		s.Skip("the broker hands rejected messages out again until its own policy takes them")
	}
	s.send(q, "m")
	s.settle(q, drivers.Settlement{Delivery: s.take(q, 1)[0], Verdict: drivers.Reject, Reason: "not an order"})
	s.finished(q)
	s.nothing(q, 200*time.Millisecond)
}

func rejectCounted(s *suite) {
	if (s.h.Rejected != nil) != s.caps.RejectCounted {
		s.Fatalf("Caps.RejectCounted is %t, the harness can read rejected messages: %t", s.caps.RejectCounted, s.h.Rejected != nil)
	}
	if !s.caps.RejectCounted {
		s.Skip("not Caps.RejectCounted")
	}
	q := s.worker("a")
	s.send(q, "m")
	want := drivers.Tally{Failures: 2, Delays: 3}
	s.settle(q, drivers.Settlement{Delivery: s.take(q, 1)[0], Verdict: drivers.Reject,
		Reason: "not an order", Carry: drivers.Carry{Tally: want}})
	if got := s.h.Rejected(s.T, s.name); !slices.Equal(got, []drivers.Tally{want}) {
		s.Errorf("rejected with %+v, want %+v", got, want)
	}
}

// settleBatch gives one settlement of each kind at once, with a wrong one among them.
func settleBatch(s *suite) {
	q := s.worker("a")
	s.send(q, "ack", "requeue", "wrong", "dead", "delay", "last")
	ds := s.takeByID(q, "ack", "requeue", "wrong", "dead", "delay", "last")
	failed := drivers.Carry{Tally: drivers.Tally{Failures: 1}}
	errs := s.settleResults(q,
		drivers.Settlement{Delivery: ds[0], Verdict: drivers.Ack},
		drivers.Settlement{Delivery: ds[1], Verdict: drivers.Requeue, Carry: failed},
		drivers.Settlement{Delivery: ds[2]},
		drivers.Settlement{Delivery: ds[3], Verdict: drivers.Dead, Death: aDeath()},
		drivers.Settlement{Delivery: ds[4], Verdict: drivers.Requeue, Carry: failed, Delay: time.Hour},
		drivers.Settlement{Delivery: ds[5], Verdict: drivers.Ack},
	)
	for i, err := range errs {
		if (err != nil) != (i == 2) {
			s.Errorf("settlement of %s: %v", ds[i].ID, err)
		}
	}
	again := s.takeByID(q, "requeue")[0]
	s.hasCarry(again, failed)
	s.hasCounts(q, drivers.Counts{Depth: 3, InFlight: 2, Delayed: 1, Dead: 1})
	s.ack(q, ds[2], again)
	s.hasCounts(q, drivers.Counts{Depth: 1, Delayed: 1, Dead: 1})
}

// settleTwice repeats each settlement, as after an answer that did not arrive.
func settleTwice(s *suite) {
	q := s.worker("a")
	s.send(q, "ack", "requeue", "delay", "dead")
	ds := s.takeByID(q, "ack", "requeue", "delay", "dead")
	failed := drivers.Carry{Tally: drivers.Tally{Failures: 1}}
	ss := []drivers.Settlement{
		{Delivery: ds[0], Verdict: drivers.Ack},
		{Delivery: ds[1], Verdict: drivers.Requeue, Carry: failed},
		{Delivery: ds[2], Verdict: drivers.Requeue, Carry: failed, Delay: time.Hour},
		{Delivery: ds[3], Verdict: drivers.Dead, Death: aDeath()},
	}
	if !s.h.RejectReturns {
		s.send(q, "reject")
		ss = append(ss, drivers.Settlement{Delivery: s.take(q, 1)[0], Verdict: drivers.Reject})
	}
	for range 2 {
		s.settle(q, ss...)
	}
	again := s.takeByID(q, "requeue")[0]
	s.hasCarry(again, failed)
	s.nothing(q, 200*time.Millisecond)
	s.hasCounts(q, drivers.Counts{Depth: 2, InFlight: 1, Delayed: 1, Dead: 1})
	// Now that it was handed out again, a repetition must not take it back.
	if err := s.settleResults(q, ss[1])[0]; err != nil && !errors.Is(err, drivers.ErrLeaseLost) {
		s.Errorf("requeue repeated after the next delivery: %v", err)
	}
	s.nothing(q, 200*time.Millisecond)
	s.ack(q, again)
	s.hasCounts(q, drivers.Counts{Depth: 1, Delayed: 1, Dead: 1})
}

// settleOtherwise: once acknowledged, a message stays so.
func settleOtherwise(s *suite) {
	q := s.worker("a")
	s.send(q, "m")
	d := s.take(q, 1)[0]
	s.ack(q, d)
	_ = s.settleResults(q, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: drivers.Carry{Tally: drivers.Tally{Failures: 1}}})
	s.nothing(q, 200*time.Millisecond)
	s.hasCounts(q, drivers.Counts{})
}

func settleNonsense(s *suite) {
	q := s.worker("a")
	s.send(q, "m")
	d := s.take(q, 1)[0]
	for _, nonsense := range []drivers.Settlement{
		{Delivery: d},
		{Delivery: d, Verdict: 77},
		{Delivery: d, Verdict: drivers.Dead},
	} {
		if err := s.settleResults(q, nonsense)[0]; err == nil {
			s.Errorf("%s without a death %t: accepted", nonsense.Verdict, nonsense.Death == nil)
		}
	}
	s.hasCounts(q, drivers.Counts{Depth: 1, InFlight: 1})
	s.ack(q, d)
	s.hasCounts(q, drivers.Counts{})
}

func counts(s *suite) {
	q := s.worker("a")
	s.send(q, "dead", "delayed", "held1", "held2")
	ds := s.takeByID(q, "dead", "delayed", "held1", "held2")
	s.settle(q, drivers.Settlement{Delivery: ds[0], Verdict: drivers.Dead, Death: aDeath()},
		drivers.Settlement{Delivery: ds[1], Verdict: drivers.Requeue, Delay: time.Hour})
	s.send(q, "r1", "r2", "r3")
	s.hasCounts(q, drivers.Counts{Depth: 6, InFlight: 2, Delayed: 1, Dead: 1})
	s.hasCounts(s.workerWith("b", drivers.QueueOptions{SendOnly: true}), drivers.Counts{Depth: 6, InFlight: 2, Delayed: 1, Dead: 1})
}
