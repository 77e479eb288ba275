package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// mortal is a worker with a short lease, and the way it dies without a word.
func (s *suite) mortal(worker string) (drivers.Queue, func()) {
	s.Helper()
	d := s.openDriver(worker, Tuning{})
	q := s.openQueue(d, drivers.QueueOptions{Worker: worker, Lease: s.h.Lease})
	return q, func() {
		if s.h.Die != nil {
			s.h.Die(s.T, d)
		}
	}
}

// stalled takes the one message that a worker lost, which must not come before the lease of
// the earlier delivery is over.
func (s *suite) stalled(q drivers.Queue, earlier *drivers.Delivery, stalls int) *drivers.Delivery {
	s.Helper()
	d := s.take(q, 1)[0]
	if due := earlier.Received.Add(s.h.Lease); s.h.Die == nil {
		s.notBefore(d.ID, due)
		s.soonAfter(d.ID, due, s.h.Lease)
	}
	if s.caps.ExactCounts && (d.Stalled != 1 || d.Carry.Stalls != stalls) {
		s.Errorf("%s: stalled %d, stalls %d, want 1 and %d", d.ID, d.Stalled, d.Carry.Stalls, stalls)
	}
	if !d.Redelivered {
		s.Errorf("%s: not marked as redelivered", d.ID)
	}
	return d
}

func expiryIsStall(s *suite) {
	a, die := s.mortal("a")
	b, _ := s.mortal("b")
	s.send(a, "m")
	lost := s.take(a, 1)[0]
	die()
	d := s.stalled(b, lost, 1)
	s.hasCarry(d, drivers.Carry{Tally: drivers.Tally{Stalls: 1}})
	s.ack(b, d)
	s.finished(b)
}

func stallsAddUp(s *suite) {
	q, die := s.mortal("first")
	s.send(q, "m")
	d := s.take(q, 1)[0]
	for n := 1; n <= 3; n++ {
		die()
		q, die = s.mortal("next")
		d = s.stalled(q, d, n)
	}
	// Once settled, they stay in the tally and are not noticed again.
	carry := d.Carry
	carry.Failures++
	s.settle(q, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: carry})
	d = s.take(q, 1)[0]
	s.hasCarry(d, drivers.Carry{Tally: drivers.Tally{Stalls: 3, Failures: 1}})
	if s.caps.ExactCounts && d.Stalled != 0 {
		s.Errorf("stalled %d after a settlement", d.Stalled)
	}
	s.ack(q, d)
	s.finished(q)
}

func stallKeepsTally(s *suite) {
	a, die := s.mortal("a")
	b, _ := s.mortal("b")
	s.send(a, "m")
	carry := fullCarry()
	s.settle(a, drivers.Settlement{Delivery: s.take(a, 1)[0], Verdict: drivers.Requeue, Carry: carry})
	lost := s.take(a, 1)[0]
	die()
	d := s.stalled(b, lost, carry.Stalls+1)
	carry.Stalls++
	s.hasCarry(d, carry)
	s.ack(b, d)
}

func renew(s *suite) {
	a, _ := s.mortal("a")
	b, _ := s.mortal("b")
	s.send(a, "1", "2", "3")
	ds := s.take(a, 3)
	step := s.h.Lease / 4
	for end := time.Now().Add(3 * s.h.Lease); time.Now().Before(end); {
		s.nothing(b, step)
		errs := a.Renew(s.Context(), ds)
		if len(errs) != len(ds) {
			s.Fatalf("%d renewals have %d results", len(ds), len(errs))
		}
		for i, err := range errs {
			if err != nil {
				s.Fatalf("renew %s: %v", ds[i].ID, err)
			}
		}
		if !s.caps.Renewable {
			break // it answers nil, and there is nothing to wait for
		}
	}
	s.ack(a, ds...)
	s.finished(a)
}

// stale makes a delivery that a holds no longer, and the one that b has instead.
func (s *suite) stale() (a, b drivers.Queue, old, now *drivers.Delivery) {
	s.Helper()
	a, die := s.mortal("a")
	b, _ = s.mortal("b")
	s.send(a, "m")
	old = s.take(a, 1)[0]
	die()
	return a, b, old, s.stalled(b, old, 1)
}

// isStale checks what a stale settlement came to.
func (s *suite) isStale(what string, err error) {
	s.Helper()
	switch {
	case errors.Is(err, drivers.ErrLeaseLost):
	case s.caps.Fenced:
		s.Errorf("stale %s: %v, want ErrLeaseLost since Caps.Fenced", what, err)
	case err != nil && s.h.Die == nil:
		s.Errorf("stale %s: %v, want nil or ErrLeaseLost", what, err)
	}
}

func staleSuccess(s *suite) {
	a, b, old, now := s.stale()
	if err := a.Renew(s.Context(), []*drivers.Delivery{old})[0]; s.caps.Renewable {
		s.isStale("renewal", err)
	}
	s.isStale("success", s.settleResults(a, drivers.Settlement{Delivery: old, Verdict: drivers.Ack})[0])
	s.ack(b, now)
	s.finished(b)
	s.nothing(b, 200*time.Millisecond)
}

func staleRequeue(s *suite) {
	a, b, old, now := s.stale()
	s.isStale("requeue", s.settleResults(a, drivers.Settlement{Delivery: old, Verdict: drivers.Requeue,
		Carry: drivers.Carry{Tally: drivers.Tally{Failures: 7}, State: []byte("stale")}})[0])
	carry := now.Carry
	carry.Failures, carry.State = 1, []byte("newer")
	s.settle(b, drivers.Settlement{Delivery: now, Verdict: drivers.Requeue, Carry: carry})
	again := s.take(b, 1)[0]
	s.hasCarry(again, carry)
	s.ack(b, again)
	s.finished(b)
}

func staleDead(s *suite) {
	if !s.caps.Fenced {
		s.Skip("not Caps.Fenced: only the host's own lease clock keeps it from burying a stale message")
	}
	a, b, old, now := s.stale()
	s.isStale("death", s.settleResults(a, drivers.Settlement{Delivery: old, Verdict: drivers.Dead, Death: aDeath()})[0])
	s.isStale("rejection", s.settleResults(a, drivers.Settlement{Delivery: old, Verdict: drivers.Reject})[0])
	s.ack(b, now)
	s.hasCounts(b, drivers.Counts{})
}

// expiredSettlement: the lease is over and nobody else has the message yet, so the broker
// may take the success or refuse it, but not do half of it.
func expiredSettlement(s *suite) {
	a, die := s.mortal("a")
	s.send(a, "m")
	d := s.take(a, 1)[0]
	die()
	ctx, cancel := context.WithDeadline(s.Context(), time.Now().Add(s.h.Lease+s.h.Lease/10))
	defer cancel()
	<-ctx.Done()
	err := s.settleResults(a, drivers.Settlement{Delivery: d, Verdict: drivers.Ack})[0]
	b, _ := s.mortal("b")
	switch {
	case errors.Is(err, drivers.ErrLeaseLost), err != nil && s.h.Die != nil:
		got := s.take(b, 1)[0]
		s.hasCarry(got, drivers.Carry{Tally: drivers.Tally{Stalls: 1}})
		s.ack(b, got)
	case err != nil:
		s.Errorf("settle after the lease: %v, want nil or ErrLeaseLost", err)
	}
	s.finished(b)
}
