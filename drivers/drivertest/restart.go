package drivertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// disturbances runs f once for each way to disturb this broker, each with a queue and a
// worker of its own. The lease is short, since a message on its way may have to wait for it.
func (s *suite) disturbances(f func(q drivers.Queue, disturb func())) {
	s.Helper()
	some := false
	once := func(what string, do func(d drivers.Driver)) {
		some = true
		s.fresh()
		d := s.openDriver("a", Tuning{})
		q := s.openQueue(d, drivers.QueueOptions{Worker: "a", Lease: 2 * s.h.Lease})
		s.Logf("%s: queue %s", what, s.name)
		f(q, func() { do(d) })
		s.close(d)
	}
	if s.h.Restart != nil {
		once("restart", func(drivers.Driver) { s.h.Restart(s.T) })
	}
	if s.h.Kill != nil {
		once("kill", func(drivers.Driver) { s.h.Kill(s.T) })
	}
	if s.h.Disconnect != nil {
		once("disconnect", func(d drivers.Driver) { s.h.Disconnect(s.T, d) })
	}
	if !some {
		s.Skip("the broker cannot be disturbed while its driver lives")
	}
}

// sendAnyhow sends until the broker has confirmed every message; some may be there twice.
func (s *suite) sendAnyhow(q drivers.Queue, ids ...string) {
	s.Helper()
	for _, id := range ids {
		s.eventually(func() (bool, string) {
			ctx, cancel := context.WithTimeout(s.Context(), patience/4)
			defer cancel()
			err := q.Send(ctx, []drivers.Message{{ID: id, Job: "job", Payload: []byte(id)}})[0]
			return err == nil, fmt.Sprintf("send: %v", err)
		})
	}
}

// settleAnyhow repeats a settlement until it is confirmed or the lease is lost, and tells
// which.
func (s *suite) settleAnyhow(q drivers.Queue, st drivers.Settlement) (confirmed bool) {
	s.Helper()
	confirmed, _ = s.settleInDoubt(q, st)
	return confirmed
}

// settleInDoubt is settleAnyhow. It is in doubt where the lease was lost only after a try without
// an answer: that one may have settled the message.
func (s *suite) settleInDoubt(q drivers.Queue, st drivers.Settlement) (confirmed, doubt bool) {
	s.Helper()
	tried := false
	s.eventually(func() (bool, string) {
		ctx, cancel := context.WithTimeout(s.Context(), patience/4)
		defer cancel()
		err := q.Settle(ctx, []drivers.Settlement{st})[0]
		confirmed = err == nil
		lost := errors.Is(err, drivers.ErrLeaseLost)
		doubt = lost && tried
		tried = true
		return confirmed || lost, fmt.Sprintf("%s: %v", st.Verdict, err)
	})
	return confirmed, doubt
}

// drain finishes everything and checks that these ids were among it, and that no broker's
// trouble counts as a failure, a delay or an interruption beyond what was recorded.
func (s *suite) drain(q drivers.Queue, recorded map[string]drivers.Tally, ids ...string) {
	s.Helper()
	missing := map[string]bool{}
	for _, id := range ids {
		missing[id] = true
	}
	s.eventually(func() (bool, string) {
		ctx, cancel := context.WithTimeout(s.Context(), 100*time.Millisecond)
		defer cancel()
		ds, err := q.Receive(ctx, 16)
		if err != nil && ctx.Err() == nil {
			s.Fatalf("receive: %v", err)
		}
		for _, d := range ds {
			got := d.Carry.Tally
			got.Stalls = 0
			if got != recorded[d.ID] {
				s.Errorf("%s: tally %+v, want %+v", d.ID, got, recorded[d.ID])
			}
			if s.settleAnyhow(q, drivers.Settlement{Delivery: d, Verdict: drivers.Ack}) {
				delete(missing, d.ID)
			}
		}
		return len(missing) == 0, fmt.Sprintf("missing: %v", missing)
	})
	for end := time.Now().Add(patience); ; {
		ctx, cancel := context.WithTimeout(s.Context(), patience/4)
		c, err := q.Counts(ctx)
		cancel()
		if err == nil && c.Depth == 0 {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("counts %+v, %v, want depth 0", c, err)
		}
		ctx, cancel = context.WithTimeout(s.Context(), 100*time.Millisecond)
		ds, _ := q.Receive(ctx, 16) // what was sent or handed out twice
		cancel()
		for _, d := range ds {
			s.settleAnyhow(q, drivers.Settlement{Delivery: d, Verdict: drivers.Ack})
		}
	}
}

func restartIdle(s *suite) {
	s.disturbances(func(q drivers.Queue, disturb func()) {
		before, after := numbered("before", 10), numbered("after", 10)
		s.send(q, before...)
		disturb()
		s.sendAnyhow(q, after...)
		s.drain(q, nil, append(before, after...)...)
	})
}

func restartReceiving(s *suite) {
	s.disturbances(func(q drivers.Queue, disturb func()) {
		type result struct {
			ds  []*drivers.Delivery
			err error
		}
		received := make(chan result, 1)
		waiting, end := context.WithCancel(s.Context())
		defer end()
		go func() {
			ds, err := q.Receive(waiting, 4)
			received <- result{ds, err}
		}()
		s.underway()
		disturb()
		s.sendAnyhow(q, "m")
		defer time.AfterFunc(patience, end).Stop() // it counts once the broker is back
		r := <-received
		if r.err != nil || len(r.ds) == 0 || r.ds[0].ID != "m" {
			s.Fatalf("received %s, %v", ids(r.ds), r.err)
		}
		s.settleAnyhow(q, drivers.Settlement{Delivery: r.ds[0], Verdict: drivers.Ack})
		s.drain(q, nil)
	})
}

func restartRunning(s *suite) {
	s.disturbances(func(q drivers.Queue, disturb func()) {
		names := numbered("m", 5)
		s.send(q, names...)
		ds := s.takeByID(q, names...)
		disturb()
		recorded := map[string]drivers.Tally{}
		failed := drivers.Tally{Failures: 1}
		if s.settleAnyhow(q, drivers.Settlement{Delivery: ds[0], Verdict: drivers.Requeue, Carry: drivers.Carry{Tally: failed}}) {
			recorded[ds[0].ID] = failed
		}
		left := []string{ds[0].ID}
		for _, d := range ds[1:] {
			if ok, doubt := s.settleInDoubt(q, drivers.Settlement{Delivery: d, Verdict: drivers.Ack}); !ok && !doubt {
				left = append(left, d.ID)
			}
		}
		s.drain(q, recorded, left...)
	})
}

func restartSettling(s *suite) {
	s.disturbances(func(q drivers.Queue, disturb func()) {
		names := numbered("m", 300)
		s.send(q, names...)
		started, drained := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(drained)
			<-started
			disturb()
		}()
		acked := map[string]bool{} // or in doubt
		ds := s.take(q, 100)
		for i, d := range ds {
			if i == len(ds)/3 {
				close(started)
			}
			ok, doubt := s.settleInDoubt(q, drivers.Settlement{Delivery: d, Verdict: drivers.Ack})
			acked[d.ID] = ok || doubt
		}
		<-drained
		var left []string
		for _, id := range names {
			if !acked[id] {
				left = append(left, id)
			}
		}
		s.drain(q, nil, left...)
	})
}

// kept is what a durable broker must still have after its end.
type kept struct {
	carry drivers.Carry
	due   time.Time
}

// leave puts one message of each kind into the queue.
func (s *suite) leave(q drivers.Queue) kept {
	s.Helper()
	k := kept{carry: fullCarry(), due: time.Now().Add(3 * time.Second)}
	s.bury(q, "dead1", "dead2")
	s.send(q, "carried", "delayed")
	ds := s.takeByID(q, "carried", "delayed")
	s.settle(q, drivers.Settlement{Delivery: ds[1], Verdict: drivers.Requeue, Carry: k.carry, Delay: time.Until(k.due)},
		drivers.Settlement{Delivery: ds[0], Verdict: drivers.Requeue, Carry: k.carry, Delay: time.Millisecond})
	s.sendMessages(q, drivers.Message{ID: "notbefore", Job: "job", NotBefore: k.due})
	s.send(q, "new")
	return k
}

// find looks for what was left.
func (s *suite) find(q drivers.Queue, k kept) {
	s.Helper()
	left := map[string]drivers.Carry{"carried": k.carry, "delayed": k.carry, "notbefore": {}, "new": {}}
	for range len(left) {
		d := s.take(q, 1)[0]
		carry, known := left[d.ID]
		if !known {
			s.Fatalf("received %q", d.ID)
		}
		delete(left, d.ID)
		if s.hasCarry(d, carry); d.ID == "delayed" || d.ID == "notbefore" {
			s.notBefore(d.ID, k.due)
		}
		s.ack(q, d)
	}
	s.hasCounts(q, drivers.Counts{Dead: 2})
	dl, ok := q.(drivers.DeadLetters)
	if !ok || !s.caps.BrowseDead {
		return
	}
	entries := s.entries(dl, "dead1", "dead2")
	if err := dl.ReplayDead(s.Context(), entries[0]); err != nil {
		s.Fatalf("replay: %v", err)
	}
	d := s.take(q, 1)[0]
	if v, _ := d.Headers.Get(abi.HeaderReplays); d.ID != "dead1" || v != "1" {
		s.Errorf("replayed as %q, %s %q", d.ID, abi.HeaderReplays, v)
	}
	s.ack(q, d)
}

func restartKeeps(s *suite) {
	s.disturbances(func(q drivers.Queue, disturb func()) {
		k := s.leave(q)
		disturb()
		s.find(q, k)
	})
}

// restartOutOfOrder: after the broker's own orderly end, exactly what was not settled comes
// back to another worker.
func restartOutOfOrder(s *suite) {
	if s.h.Restart == nil {
		s.Skip("the broker cannot be restarted while its driver lives")
	}
	a, die := s.mortal("a")
	left := s.settleHalf(a)
	s.h.Restart(s.T)
	die()
	b, _ := s.mortal("b")
	for range len(left) {
		d := s.take(b, 1)[0]
		if _, known := left[d.ID]; !known {
			s.Errorf("%q came back", d.ID)
		}
		delete(left, d.ID)
		s.hasCarry(d, drivers.Carry{Tally: drivers.Tally{Stalls: 1}})
		s.ack(b, d)
	}
	s.finished(b)
}

// reopen ends every connection, and with it a broker that lives in the process.
func reopen(s *suite) {
	if !s.caps.Durable {
		s.Skip("not Caps.Durable")
	}
	d := s.openDriver("a", Tuning{})
	q := s.openQueue(d, drivers.QueueOptions{})
	k := s.leave(q)
	s.take(q, 1) // and given back at the end
	s.close(d)
	d = s.openDriver("b", Tuning{})
	q = s.openQueue(d, drivers.QueueOptions{})
	s.find(q, k)
}
