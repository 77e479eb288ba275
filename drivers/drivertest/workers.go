package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

func twoWorkersShare(s *suite) {
	const total = 300
	workers := []drivers.Queue{s.worker("a"), s.worker("b")}
	s.send(workers[0], numbered("m", total)...)
	var mu sync.Mutex
	seen := map[string]int{}
	ctx, stop := context.WithCancel(s.Context())
	defer stop()
	s.together(2, func(limit context.Context, i int) error {
		defer context.AfterFunc(limit, stop)()
		for {
			ds, err := workers[i].Receive(ctx, 7)
			if err != nil {
				if ctx.Err() != nil {
					return limit.Err()
				}
				return err
			}
			for _, d := range ds {
				if err := workers[i].Settle(limit, []drivers.Settlement{{Delivery: d, Verdict: drivers.Ack}})[0]; err != nil {
					return fmt.Errorf("ack %s: %w", d.ID, err)
				}
				mu.Lock()
				seen[d.ID]++
				if seen[d.ID] > 1 {
					err = fmt.Errorf("%s was delivered twice", d.ID)
				}
				if len(seen) == total {
					stop()
				}
				mu.Unlock()
				if err != nil {
					return err
				}
			}
		}
	})
	s.finished(workers[0])
}

// backPressure: nothing is held for a worker beyond what it asked for.
func backPressure(s *suite) {
	a, b := s.worker("a"), s.worker("b")
	s.send(a, numbered("m", 10)...)
	held := s.take(a, 3)
	rest := s.take(b, 7)
	s.hasCounts(a, drivers.Counts{Depth: 10, InFlight: 10})
	s.ack(b, rest...)
	s.ack(a, held...)
	s.finished(a)
}

func closeGivesBack(s *suite) {
	a, b := s.worker("a"), s.worker("b")
	failed := drivers.Carry{Tally: drivers.Tally{Failures: 1}, State: []byte("state")}
	s.send(a, "failed")
	s.settle(a, drivers.Settlement{Delivery: s.take(a, 1)[0], Verdict: drivers.Requeue, Carry: failed})
	held := s.takeByID(a, "failed")
	s.send(a, "1", "2", "3", "4")
	held = append(held, s.takeByID(a, "1", "2", "3", "4")...)
	s.ack(a, held[4])
	s.close(a)
	s.gaveBack(b, map[string]drivers.Carry{"failed": failed, "1": {}, "2": {}, "3": {}})
}

// gaveBack takes what a closed worker had, which counts nothing and does not wait for the
// lease, and finishes it.
func (s *suite) gaveBack(q drivers.Queue, want map[string]drivers.Carry) {
	s.Helper()
	for _, d := range s.take(q, len(want)) {
		carry, known := want[d.ID]
		if !known {
			s.Fatalf("received %q", d.ID)
		}
		delete(want, d.ID)
		s.hasCarry(d, carry)
		if d.Stalled != 0 && s.caps.ExactCounts || !d.Redelivered {
			s.Errorf("%s: stalled %d, redelivered %t", d.ID, d.Stalled, d.Redelivered)
		}
		s.ack(q, d)
	}
	s.finished(q)
}

func driverCloseGivesBack(s *suite) {
	d := s.openDriver("a", Tuning{})
	a, b := s.openQueue(d, drivers.QueueOptions{}), s.worker("b")
	s.send(a, "1", "2", "3")
	s.take(a, 3)
	s.close(d)
	s.gaveBack(b, map[string]drivers.Carry{"1": {}, "2": {}, "3": {}})
}

func outOfOrder(s *suite) {
	a, b := s.worker("a"), s.worker("b")
	left := s.settleHalf(a)
	s.close(a)
	s.gaveBack(b, left)
}

// settleHalf receives 20 messages, acknowledges every second in no order, and returns the
// others.
func (s *suite) settleHalf(q drivers.Queue) map[string]drivers.Carry {
	s.Helper()
	names := numbered("m", 20)
	s.send(q, names...)
	ds := s.takeByID(q, names...)
	left := map[string]drivers.Carry{}
	for _, i := range rand.Perm(len(ds)) {
		if i%2 == 0 {
			left[ds[i].ID] = drivers.Carry{}
		} else {
			s.ack(q, ds[i])
		}
	}
	return left
}

func closed(s *suite) {
	d := s.openDriver("a", Tuning{})
	q := s.openQueue(d, drivers.QueueOptions{})
	s.send(q, "m")
	m := s.take(q, 1)
	s.close(q)
	s.close(q)
	ctx := s.Context()
	isClosed := func(what string, err error, lost bool) {
		s.Helper()
		if !errors.Is(err, drivers.ErrClosed) && !(lost && errors.Is(err, drivers.ErrLeaseLost)) {
			s.Errorf("%s after close: %v", what, err)
		}
	}
	_, err := q.Receive(ctx, 1)
	isClosed("receive", err, false)
	isClosed("send", q.Send(ctx, []drivers.Message{{Job: "job"}})[0], false)
	isClosed("renew", q.Renew(ctx, m)[0], true)
	isClosed("settle", q.Settle(ctx, []drivers.Settlement{{Delivery: m[0], Verdict: drivers.Ack}})[0], true)
	_, err = q.Counts(ctx)
	isClosed("counts", err, false)
	if dl, ok := q.(drivers.DeadLetters); ok {
		_, err = dl.ListDead(ctx, "", 1)
		isClosed("list of dead letters", err, false)
	}
	s.close(d)
	s.close(d)
	_, err = d.OpenQueue(ctx, drivers.QueueOptions{Name: s.name, Create: true})
	isClosed("open queue", err, false)
	isClosed("ping", d.Ping(ctx), false)
}

func closeEndsReceive(s *suite) {
	q := s.worker("a")
	ended := make(chan error, 1)
	go func() {
		_, err := q.Receive(s.Context(), 1)
		ended <- err
	}()
	s.underway()
	s.close(q)
	select {
	case err := <-ended:
		if !errors.Is(err, drivers.ErrClosed) {
			s.Errorf("receive ended with %v, want ErrClosed", err)
		}
	case <-time.After(patience):
		s.Error("receive goes on after close")
	}
}

func receiveEndsWithContext(s *suite) {
	q := s.worker("a")
	s.nothing(q, 100*time.Millisecond)
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	start := time.Now()
	if ds, err := q.Receive(ended, 1); len(ds) != 0 || !errors.Is(err, context.Canceled) {
		s.Errorf("receive with an ended context: %s, %v", ids(ds), err)
	}
	if took := time.Since(start); took > patience/2 {
		s.Errorf("an ended context took %s", took)
	}
	// With a message there, it may come all the same; else it stays and is not counted.
	s.send(q, "m")
	ds, err := q.Receive(ended, 1)
	switch {
	case len(ds) == 0 && errors.Is(err, context.Canceled):
		ds = s.take(q, 1)
	case len(ds) != 1 || err != nil:
		s.Fatalf("receive with an ended context and a message: %s, %v", ids(ds), err)
	}
	s.hasCarry(ds[0], drivers.Carry{})
	s.ack(q, ds...)
	s.finished(q)
}

// waitingReceive: whatever makes a message ready reaches a worker that waits already.
func waitingReceive(s *suite) {
	a, b := s.worker("a"), s.worker("b")
	var d *drivers.Delivery
	again := func(delay time.Duration) func() {
		return func() {
			s.settle(b, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Delay: delay})
		}
	}
	for _, ready := range []struct {
		what string
		by   func()
	}{
		{"sent", func() { s.send(a, "m") }},
		{"requeued", again(0)},
		{"delayed", again(200 * time.Millisecond)},
		{"given back", func() { s.close(b) }},
	} {
		waiting := s.worker(ready.what)
		received := make(chan error, 1)
		var ds []*drivers.Delivery
		go func() {
			ctx, cancel := context.WithTimeout(s.Context(), patience)
			defer cancel()
			var err error
			ds, err = waiting.Receive(ctx, 1)
			received <- err
		}()
		s.underway()
		ready.by()
		if err := <-received; err != nil || len(ds) != 1 {
			s.Fatalf("waiting for what is %s: %s, %v", ready.what, ids(ds), err)
		}
		s.hasCarry(ds[0], drivers.Carry{})
		d, b = ds[0], waiting
	}
	s.ack(b, d)
	s.finished(b)
}

// cancelStorm: a receive that ends while messages come in loses and counts none of them.
// The lease is so long that a lost one would not come back in time.
func cancelStorm(s *suite) {
	const total = 200
	q, sender := s.worker("a"), s.worker("sender")
	sent := make(chan error, 1)
	var cancelReceive atomic.Pointer[context.CancelFunc]
	go func() {
		var err error
		for i, id := range numbered("m", total) {
			err = errors.Join(err, sender.Send(s.Context(), []drivers.Message{{ID: id, Job: "job"}})[0])
			if cancel := cancelReceive.Load(); cancel != nil && i%2 == 0 {
				(*cancel)() // just as the message is handed out
			}
			time.Sleep(time.Millisecond)
		}
		sent <- err
	}()
	seen := map[string]bool{}
	for end := time.Now().Add(patience); len(seen) < total; {
		if time.Now().After(end) {
			s.Fatalf("%d of %d messages arrived", len(seen), total)
		}
		ctx, cancel := context.WithTimeout(s.Context(), rand.N(3*time.Millisecond))
		cancelReceive.Store(&cancel)
		ds, err := q.Receive(ctx, 1+rand.IntN(8))
		if err != nil && !errors.Is(err, ctx.Err()) {
			s.Fatalf("receive: %v", err)
		}
		cancel()
		for _, d := range ds {
			if seen[d.ID] {
				s.Errorf("%s was delivered twice", d.ID)
			}
			seen[d.ID] = true
			s.hasCarry(d, drivers.Carry{})
			if d.Stalled != 0 && s.caps.ExactCounts {
				s.Errorf("%s: stalled %d", d.ID, d.Stalled)
			}
			s.ack(q, d)
		}
	}
	if err := <-sent; err != nil {
		s.Errorf("send: %v", err)
	}
	s.finished(q)
}

func ordered(s *suite) {
	if !s.caps.Ordered {
		s.Skip("not Caps.Ordered")
	}
	q := s.worker("a")
	want := numbered("m", 200)
	s.send(q, want[:100]...)
	for _, id := range want[100:] {
		s.send(q, id)
	}
	var got []string
	for len(got) < len(want) {
		ds := s.take(q, min(7, len(want)-len(got)))
		for _, d := range ds {
			got = append(got, d.ID)
		}
		s.ack(q, ds...)
	}
	if !slices.Equal(got, want) {
		s.Errorf("received in the order %q", got)
	}
}
