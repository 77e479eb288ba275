package host

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

const (
	// settleBudget is how long a settlement may take, retries included.
	settleBudget = 30 * time.Second
	// settleGroup is the most settlements in one call to the driver, settleWorkers how
	// many calls are in flight: two groups of 64 cost nothing against unconfirmed
	// acknowledgements, and one in flight loses a third.
	settleGroup   = 64
	settleWorkers = 2
	// settleBacklog is where workers start to wait for the broker.
	settleBacklog = 8 * settleGroup
)

// finished is a settlement on its way.
type finished struct {
	h   *held
	s   drivers.Settlement
	ran bool // it ends a run or a message, and is to be reported; else it only puts back
}

// settler hands settlements to the driver in groups, without ever waiting for a group to
// fill. Acknowledgements have a lane of their own: they are what is fast and common, and
// must not wait behind a retry's extra writes.
type settler struct {
	queue  drivers.Queue
	leases *leases
	// done is called exactly once for each settlement, with nil after the broker's
	// confirmation.
	done   func(finished, error)
	acks   lane
	others lane
	wg     sync.WaitGroup
}

type lane struct {
	mu      sync.Mutex
	more    sync.Cond // something is pending, or closed
	room    sync.Cond // less than settleBacklog is pending
	pending []finished
	closed  bool
}

func newSettler(q drivers.Queue, l *leases, done func(finished, error)) *settler {
	s := &settler{queue: q, leases: l, done: done}
	for _, ln := range []*lane{&s.acks, &s.others} {
		ln.more.L, ln.room.L = &ln.mu, &ln.mu
		for range settleWorkers {
			s.wg.Go(func() { s.work(ln) })
		}
	}
	return s
}

// settle queues one settlement; it waits while the broker is far behind.
func (s *settler) settle(f finished) {
	ln := &s.others
	if f.s.Verdict == drivers.Ack {
		ln = &s.acks
	}
	ln.mu.Lock()
	for len(ln.pending) >= settleBacklog {
		ln.room.Wait()
	}
	ln.pending = append(ln.pending, f)
	ln.mu.Unlock()
	ln.more.Signal()
}

// close waits until everything queued is settled or given up. Nothing may be queued after.
func (s *settler) close() {
	for _, ln := range []*lane{&s.acks, &s.others} {
		ln.mu.Lock()
		ln.closed = true
		ln.mu.Unlock()
		ln.more.Broadcast()
	}
	s.wg.Wait()
}

func (s *settler) work(ln *lane) {
	group := make([]finished, 0, settleGroup)
	for {
		group = ln.take(group[:0])
		if len(group) == 0 {
			return
		}
		s.carryOut(group)
		clear(group)
	}
}

// take waits for settlements and returns a group of them, none when the lane is closed and empty.
func (ln *lane) take(group []finished) []finished {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	for len(ln.pending) == 0 && !ln.closed {
		ln.more.Wait()
	}
	n := min(len(ln.pending), settleGroup)
	group = append(group, ln.pending[:n]...)
	rest := copy(ln.pending, ln.pending[n:])
	clear(ln.pending[rest:])
	ln.pending = ln.pending[:rest]
	if n > 0 {
		ln.room.Broadcast()
	}
	if rest > 0 {
		ln.more.Signal()
	}
	return group
}

// carryOut settles a group within the budget. What failed is tried again while it may be:
// settlements are idempotent, and an unsettled message only costs another run.
func (s *settler) carryOut(group []finished) {
	ctx, cancel := context.WithTimeout(context.Background(), settleBudget)
	defer cancel()
	wait := 50 * time.Millisecond
	for {
		group = s.once(ctx, group)
		if len(group) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			s.giveUp(group, ctx.Err())
			return
		case <-time.After(wait):
			wait = min(2*wait, 2*time.Second)
		}
	}
}

// once asks the driver once and returns what is worth another try.
func (s *settler) once(ctx context.Context, group []finished) []finished {
	ss := make([]drivers.Settlement, 0, len(group))
	asked, now := group[:0:0], time.Now()
	for _, f := range group {
		// Another worker may have the message by now: only a success is still true.
		if f.s.Verdict != drivers.Ack && !f.h.settleable(now) {
			s.giveUp([]finished{f}, drivers.ErrLeaseLost)
			continue
		}
		ss, asked = append(ss, f.s), append(asked, f)
	}
	if len(ss) == 0 {
		return nil
	}
	errs := s.queue.Settle(ctx, ss)
	settled := make([]*held, 0, len(asked))
	again := asked[:0:0]
	for i, f := range asked {
		switch err := errs[i]; {
		case err == nil:
			settled = append(settled, f.h)
		case errors.Is(err, drivers.ErrLeaseLost), errors.Is(err, drivers.ErrClosed), ctx.Err() != nil:
			s.giveUp([]finished{f}, err)
		default:
			again = append(again, f)
		}
	}
	s.leases.remove(settled)
	for i, f := range asked {
		if errs[i] == nil {
			s.done(f, nil)
		}
	}
	return again
}

func (s *settler) giveUp(group []finished, err error) {
	for _, f := range group {
		s.leases.remove([]*held{f.h})
		s.done(f, err)
	}
}
