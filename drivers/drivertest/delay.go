package drivertest

import (
	"fmt"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// arrivals receives n messages and checks that each comes at its time and with its carry.
func (s *suite) arrivals(q drivers.Queue, start time.Time, delays map[string]time.Duration, want drivers.Carry) {
	s.Helper()
	for range delays {
		d := s.take(q, 1)[0]
		delay, known := delays[d.ID]
		if !known {
			s.Fatalf("received %q", d.ID)
		}
		what := fmt.Sprintf("%s, delayed by %s,", d.ID, delay)
		s.notBefore(what, start.Add(delay))
		s.soonAfter(what, start.Add(delay), delay)
		s.hasCarry(d, want)
		if d.Stalled != 0 && s.caps.ExactCounts {
			s.Errorf("%s: stalled %d", d.ID, d.Stalled)
		}
		s.ack(q, d)
	}
	s.finished(q)
}

// requeueAll receives a message for each delay and requeues it.
func (s *suite) requeueAll(q drivers.Queue, delays map[string]time.Duration, carry drivers.Carry) {
	s.Helper()
	for id := range delays {
		s.send(q, id)
	}
	var ss []drivers.Settlement
	for _, d := range s.take(q, len(delays)) {
		ss = append(ss, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Delay: delays[d.ID], Carry: carry})
	}
	s.settle(q, ss...)
}

func delayLowerBound(s *suite) {
	q := s.worker("a")
	delays := map[string]time.Duration{
		"none": 0, "1ms": time.Millisecond, "150ms": 150 * time.Millisecond,
		"400ms": 400*time.Millisecond + 1, "1.2s": 1200 * time.Millisecond,
	}
	carry := drivers.Carry{Tally: drivers.Tally{Failures: 1, Delays: 2}}
	start := time.Now()
	s.requeueAll(q, delays, carry)
	s.arrivals(q, start, delays, carry)
}

// hopper is a worker whose broker takes only short delays.
func (s *suite) hopper(worker string) drivers.Queue {
	s.Helper()
	if s.caps.MaxDelay == 0 {
		s.Skip("Caps.MaxDelay is 0: the broker takes any delay at once")
	}
	const most = 300 * time.Millisecond
	q := s.openQueue(s.openDriver(worker, Tuning{MaxDelay: most}), drivers.QueueOptions{Worker: worker})
	if got := q.Info().Caps.MaxDelay; got <= 0 || got > max(most, s.caps.Granularity) {
		s.Fatalf("Caps.MaxDelay is %s after tuning to %s", got, most)
	}
	return q
}

func delayHops(s *suite) {
	q := s.hopper("a")
	delays := map[string]time.Duration{"short": 100 * time.Millisecond, "hops": time.Second, "more": 1600 * time.Millisecond}
	carry := drivers.Carry{Tally: drivers.Tally{Failures: 3, Stalls: 1}, State: []byte("state")}
	start := time.Now()
	s.requeueAll(q, delays, carry)
	s.arrivals(q, start, delays, carry)
}

func notBefore(s *suite) {
	q := s.worker("a")
	start := time.Now()
	delays := map[string]time.Duration{"zero": 0, "past": -time.Hour, "700ms": 700 * time.Millisecond}
	for id, d := range delays {
		m := drivers.Message{ID: id, Job: "job"}
		if d != 0 {
			m.NotBefore = start.Add(d)
		}
		delays[id] = max(0, d)
		s.sendMessages(q, m)
	}
	s.arrivals(q, start, delays, drivers.Carry{})
}

func notBeforeHops(s *suite) {
	q := s.hopper("a")
	start := time.Now()
	s.sendMessages(q, drivers.Message{ID: "m", Job: "job", NotBefore: start.Add(time.Second)})
	s.arrivals(q, start, map[string]time.Duration{"m": time.Second}, drivers.Carry{})
}

// longestDelay: the broker's own limit is no reason to refuse or to shorten.
func longestDelay(s *suite) {
	q := s.worker("a")
	s.send(q, "requeued")
	s.settle(q, drivers.Settlement{Delivery: s.take(q, 1)[0], Verdict: drivers.Requeue, Delay: abi.MaxDelay})
	s.sendMessages(q, drivers.Message{ID: "sent", Job: "job", NotBefore: time.Now().Add(abi.MaxDelay)})
	s.nothing(q, 300*time.Millisecond)
	s.eventually(func() (bool, string) {
		c, err := q.Counts(s.Context())
		return err == nil && c.Depth == 2, fmt.Sprintf("counts %+v, %v, want depth 2", c, err)
	})
}

// delayOutlivesWorker: a delay does not end with the worker that asked for it.
func delayOutlivesWorker(s *suite) {
	a, b := s.worker("a"), s.worker("b")
	delays := map[string]time.Duration{"m": time.Second}
	carry := drivers.Carry{Tally: drivers.Tally{Delays: 1}}
	start := time.Now()
	s.requeueAll(a, delays, carry)
	s.close(a)
	s.arrivals(b, start, delays, carry)
}
