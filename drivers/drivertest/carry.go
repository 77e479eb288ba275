package drivertest

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// fullCarry is what a message may carry at most, with bytes of every kind in it.
func fullCarry() drivers.Carry {
	c := drivers.Carry{Tally: drivers.Tally{Failures: 5, Delays: 4, Stalls: 3, Interruptions: 2, Unrouted: 1, Prior: 6}}
	c.State = make([]byte, abi.MaxState)
	for i := range c.State {
		c.State[i] = byte(i)
	}
	for i := range drivers.MaxErrors {
		text := strings.Repeat("ü\n\"", drivers.MaxErrorText/4)
		c.Errors = append(c.Errors, drivers.RunError{
			Attempt: i + 1, At: time.Date(2026, 1, 2, 3, 4, 5, i*1_000_000, time.UTC),
			Outcome: "retry", Cause: "returned", Text: text,
		})
	}
	return c
}

// carryOverTwoWorkers lets two workers take turns with one message, each adding to what the
// other left.
func carryOverTwoWorkers(s *suite) {
	workers := []drivers.Queue{s.worker("a"), s.worker("b")}
	s.send(workers[0], "m")
	want := drivers.Carry{}
	for round := range 12 {
		q := workers[round%2]
		d := s.take(q, 1)[0]
		s.hasCarry(d, want)
		if d.Stalled != 0 && s.caps.ExactCounts {
			s.Errorf("round %d: stalled %d", round, d.Stalled)
		}
		switch round % 4 {
		case 0:
			want.Failures++
			want.Errors = append(want.Errors, drivers.RunError{Attempt: round, Outcome: "retry", Text: fmt.Sprint(round)})
		case 1:
			want.Delays++
			want.State = fmt.Appendf(nil, "state %d", round)
		case 2:
			want.Interruptions++
		case 3:
			want.Unrouted++
		}
		s.settle(q, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: want})
	}
	q := workers[0]
	full := fullCarry()
	s.settle(q, drivers.Settlement{Delivery: s.take(q, 1)[0], Verdict: drivers.Requeue, Carry: full})
	s.hasCarry(s.take(workers[1], 1)[0], full)
}

// carryCleared: a carry replaces the earlier one, it does not add to it.
func carryCleared(s *suite) {
	q := s.worker("a")
	s.send(q, "m")
	s.settle(q, drivers.Settlement{Delivery: s.take(q, 1)[0], Verdict: drivers.Requeue, Carry: fullCarry()})
	small := drivers.Carry{Tally: drivers.Tally{Failures: 6}}
	s.settle(q, drivers.Settlement{Delivery: s.take(q, 1)[0], Verdict: drivers.Requeue, Carry: small})
	s.hasCarry(s.take(q, 1)[0], small)
}

// putBack: requeued as it came, a message counts nothing however often.
func putBack(s *suite) {
	a, b := s.worker("a"), s.worker("b")
	s.send(a, "m")
	for range 5 {
		for _, q := range []drivers.Queue{a, b} {
			d := s.take(q, 1)[0]
			s.hasCarry(d, drivers.Carry{})
			s.settle(q, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: d.Carry, Delay: 10 * time.Millisecond})
		}
	}
	d := s.take(a, 1)[0]
	s.hasCarry(d, drivers.Carry{})
	if d.Carry.Attempt() != 1 {
		s.Errorf("attempt %d", d.Carry.Attempt())
	}
}

// callerOwnsBytes: what the caller does with its bytes afterwards changes no message.
func callerOwnsBytes(s *suite) {
	q := s.worker("a")
	m := drivers.Message{ID: "m", Job: "job", Payload: []byte("payload"), Headers: drivers.Header{"X-A": {"a"}}}
	s.sendMessages(q, m)
	copy(m.Payload, "XXXXXXX")
	m.Headers["X-A"][0] = "X"
	carry := drivers.Carry{State: []byte("state"), Errors: []drivers.RunError{{Text: "text"}}}
	for range 2 {
		d := s.take(q, 1)[0]
		if !bytes.Equal(d.Payload, []byte("payload")) || d.Headers["X-A"][0] != "a" {
			s.Errorf("payload %q, headers %v", d.Payload, d.Headers)
		}
		copy(d.Payload, "YYYYYYY")
		d.Headers["X-A"][0] = "Y"
		s.settle(q, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: carry})
		copy(carry.State, "YYYYY")
		carry.Errors[0].Text = "Y"
		d = s.take(q, 1)[0]
		carry = drivers.Carry{State: []byte("state"), Errors: []drivers.RunError{{Text: "text"}}}
		s.hasCarry(d, carry)
		copy(d.Carry.State, "ZZZZZ")
		s.settle(q, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: carry})
	}
}
