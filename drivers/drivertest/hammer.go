package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// fate is what the hammer test knows of one message.
type fate struct {
	held  bool
	end   drivers.Verdict // 0: unfinished
	tally drivers.Tally
}

// hammered is the model that deliveries are compared with.
type hammered struct {
	mu    sync.Mutex
	fates map[string]*fate
	open  int // messages without an end
	ends  map[drivers.Verdict]int
	exact bool
	kinds []drivers.Verdict // drawn from
	done  context.CancelFunc
}

// receive checks a delivery against what is known, and draws what becomes of it.
func (h *hammered) receive(d *drivers.Delivery, rnd *rand.Rand) (drivers.Settlement, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.fates[d.ID]
	switch {
	case f == nil:
		return drivers.Settlement{}, fmt.Errorf("received %q, which was not sent", d.ID)
	case f.held:
		return drivers.Settlement{}, fmt.Errorf("%s is held by two workers", d.ID)
	case f.end != 0:
		return drivers.Settlement{}, fmt.Errorf("%s came back after %s", d.ID, f.end)
	}
	got := d.Carry.Tally
	if !h.exact {
		got.Stalls = f.tally.Stalls
	}
	if got != f.tally {
		return drivers.Settlement{}, fmt.Errorf("%s has the tally %+v, want %+v", d.ID, got, f.tally)
	}
	f.held = true
	st := drivers.Settlement{Delivery: d, Verdict: h.kinds[rnd.IntN(len(h.kinds))], Carry: d.Carry}
	switch st.Verdict {
	case drivers.Requeue:
		if st.Carry.Failures++; rnd.IntN(3) == 0 {
			st.Carry.Delays++
			st.Delay = time.Duration(rnd.IntN(30)) * time.Millisecond
		}
	case drivers.Dead:
		st.Carry.Failures++
		st.Death = &drivers.Death{Reason: "hammered", Outcome: "retry", Cause: "returned", Time: time.Now()}
	}
	return st, nil
}

// settling notes what is about to be asked for, since the next worker may be faster than
// the answer.
func (h *hammered) settling(ss []drivers.Settlement) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, st := range ss {
		f := h.fates[st.Delivery.ID]
		f.held, f.tally = false, st.Carry.Tally
		if st.Verdict != drivers.Requeue {
			f.end = st.Verdict
			h.open--
		}
	}
}

// settled counts the ends that were confirmed.
func (h *hammered) settled(ss []drivers.Settlement) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, st := range ss {
		h.ends[st.Verdict]++
	}
	total := h.ends[drivers.Ack] + h.ends[drivers.Dead] + h.ends[drivers.Reject]
	if h.open == 0 && total == len(h.fates) {
		h.done()
	}
}

func (h *hammered) work(ctx, limit context.Context, q drivers.Queue, rnd *rand.Rand) error {
	for {
		ds, err := q.Receive(ctx, 1+rnd.IntN(16))
		if err != nil {
			if errors.Is(err, context.Canceled) && limit.Err() == nil {
				return nil
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			return fmt.Errorf("receive: %w, %d messages unfinished", err, h.open)
		}
		ss := make([]drivers.Settlement, len(ds))
		for i, d := range ds {
			if ss[i], err = h.receive(d, rnd); err != nil {
				return err
			}
		}
		h.settling(ss)
		for i, err := range q.Settle(limit, ss) {
			if err != nil {
				return fmt.Errorf("%s of %s: %w", ss[i].Verdict, ds[i].ID, err)
			}
		}
		h.settled(ss)
	}
}

// hammer lets four workers settle at random: each message ends exactly once, and no count
// is lost on the way.
func hammer(s *suite) {
	ctx, stop := context.WithCancel(s.Context())
	defer stop()
	const a, r, d = drivers.Ack, drivers.Requeue, drivers.Dead
	h := &hammered{fates: map[string]*fate{}, ends: map[drivers.Verdict]int{}, exact: s.caps.ExactCounts,
		kinds: []drivers.Verdict{a, a, a, a, a, r, r, r, r, d}, open: s.h.Hammer, done: stop}
	if !s.h.RejectReturns {
		h.kinds = append(h.kinds, drivers.Reject)
	}
	workers := make([]drivers.Queue, 4)
	for i := range workers {
		workers[i] = s.worker(fmt.Sprint("worker", i))
	}
	names := numbered("m", s.h.Hammer)
	for _, id := range names {
		h.fates[id] = &fate{}
	}
	for len(names) > 0 {
		n := min(100, len(names))
		s.send(workers[0], names[:n]...)
		names = names[n:]
	}
	s.together(len(workers), func(limit context.Context, i int) error {
		defer context.AfterFunc(limit, stop)()
		return h.work(ctx, limit, workers[i], rand.New(rand.NewPCG(1, uint64(i))))
	})
	s.hasCounts(workers[0], drivers.Counts{Dead: h.ends[d]})
	if s.caps.BrowseDead {
		h.buried(s, workers[0])
	}
}

// buried compares the dead letters with the model.
func (h *hammered) buried(s *suite, q drivers.Queue) {
	s.Helper()
	n := 0
	for _, l := range s.listDead(s.deadLetters(q), 100) {
		f := h.fates[l.ID]
		if f == nil || f.end != drivers.Dead {
			s.Fatalf("dead letter of %q, which did not die", l.ID)
		}
		f.end = drivers.Ack // once only
		n++
		if l.Tally != f.tally && h.exact {
			s.Errorf("dead letter of %s has the tally %+v, want %+v", l.ID, l.Tally, f.tally)
		}
	}
	if n != h.ends[drivers.Dead] {
		s.Errorf("%d dead letters listed, want %d", n, h.ends[drivers.Dead])
	}
}
