package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

const (
	// settleBudget is how long a settlement may take from its first try, all further ones
	// included, and how long all of them may take once the queue stops.
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
	// What follows is set once the broker has refused it.
	err   error
	until time.Time // when it is given up
}

// settler hands settlements to the driver in groups, without ever waiting for a group to
// fill. Acknowledgements have a lane of their own: they are what is fast and common, and
// must not wait behind a retry's extra writes. What fails leaves its lane and is tried again
// beside it: a dead letter that the broker refuses must not hold up the others.
type settler struct {
	queue  drivers.Queue
	leases *leases
	// done is called exactly once for each settlement, with nil after the broker's
	// confirmation.
	done func(finished, error)
	// instead is asked for another settlement where the broker can never carry out the one it
	// was given; nil, or false, where there is none.
	instead              func(finished, error) (finished, bool)
	acks, others, failed lane
	lanes, retrying      sync.WaitGroup
	// end is when everything must be done, Unix nanoseconds; 0 until the queue stops.
	end atomic.Int64
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
	for _, ln := range []*lane{&s.acks, &s.others, &s.failed} {
		ln.more.L, ln.room.L = &ln.mu, &ln.mu
	}
	for range settleWorkers {
		s.lanes.Go(func() { s.work(&s.acks) })
		s.lanes.Go(func() { s.work(&s.others) })
	}
	s.retrying.Go(s.retry)
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

// finishBy bounds what is still to be settled: a broker that is away must not keep the host
// from stopping. The earliest time holds.
func (s *settler) finishBy(t time.Time) {
	for {
		old := s.end.Load()
		if old != 0 && old <= t.UnixNano() || s.end.CompareAndSwap(old, t.UnixNano()) {
			return
		}
	}
}

// deadline is when a settlement that begins now is given up.
func (s *settler) deadline() time.Time {
	t := time.Now().Add(settleBudget)
	if end := s.end.Load(); end != 0 && end < t.UnixNano() {
		return time.Unix(0, end)
	}
	return t
}

// close waits until everything queued is settled or given up. Nothing may be queued after.
func (s *settler) close() {
	s.finishBy(time.Now().Add(settleBudget))
	s.acks.close()
	s.others.close()
	s.lanes.Wait()
	s.failed.close()
	s.retrying.Wait()
}

func (ln *lane) close() {
	ln.mu.Lock()
	ln.closed = true
	ln.mu.Unlock()
	ln.more.Broadcast()
}

// take waits for settlements and returns at most so many, none when the lane is closed and
// empty.
func (ln *lane) take(group []finished, most int) []finished {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	for len(ln.pending) == 0 && !ln.closed {
		ln.more.Wait()
	}
	n := min(len(ln.pending), most)
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

// offer queues a group, unless there is a backlog.
func (ln *lane) offer(group []finished) bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if len(ln.pending) >= settleBacklog {
		return false
	}
	ln.pending = append(ln.pending, group...)
	ln.more.Signal()
	return true
}

// put queues a group that was taken from the lane.
func (ln *lane) put(group []finished) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.pending = append(ln.pending, group...)
}

func (s *settler) work(ln *lane) {
	group := make([]finished, 0, settleGroup)
	var r round
	for {
		group = ln.take(group[:0], settleGroup)
		if len(group) == 0 {
			return
		}
		s.carryOut(&r, group)
		clear(group)
		r.reset()
	}
}

// round is what one call to the driver needs, kept by each goroutine from call to call.
type round struct {
	ss      []drivers.Settlement
	asked   []finished
	settled []*held
	again   []finished
}

// reset empties it, and lets go of what it held.
func (r *round) reset() {
	clear(r.ss)
	clear(r.asked)
	clear(r.settled)
	clear(r.again)
	r.ss, r.asked, r.settled, r.again = r.ss[:0], r.asked[:0], r.settled[:0], r.again[:0]
}

// The wait between two tries of what failed.
const firstWait, longestWait = 50 * time.Millisecond, 2 * time.Second

// carryOut settles a group and hands what failed to retry. Where too much has failed there
// already, this lane waits, and with it the workers.
func (s *settler) carryOut(r *round, group []finished) {
	until := s.deadline()
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		group = append(group[:0], s.once(r, group, until)...)
		if len(group) == 0 || s.failed.offer(group) {
			return
		}
		time.Sleep(min(wait, time.Until(until)))
	}
}

// retry tries what failed again while it may be, all of it in each round: settlements are
// idempotent, and an unsettled message only costs another run.
func (s *settler) retry() {
	var all []finished
	var r round
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		all = s.failed.take(all[:0], 2*settleBacklog)
		if len(all) == 0 {
			return
		}
		time.Sleep(min(wait, time.Until(latest(all))))
		for group := range slices.Chunk(all, settleGroup) {
			again := s.once(&r, group, latest(group))
			if len(again) < len(group) {
				wait = firstWait
			}
			s.failed.put(again)
		}
		clear(all)
		r.reset()
	}
}

func latest(group []finished) (t time.Time) {
	for _, f := range group {
		if f.until.After(t) {
			t = f.until
		}
	}
	return t
}

// once asks the driver once and returns what is worth another try, which is r's until the
// next call. until is when those are given up that were not refused before.
func (s *settler) once(r *round, group []finished, until time.Time) []finished {
	r.reset()
	now := time.Now()
	for _, f := range group {
		// Another worker may have the message by now: only a success is still true.
		if f.s.Verdict != drivers.Ack && !f.h.settleable(now) {
			s.giveUp(f, lostBefore(f.err))
			continue
		}
		f.h.settling.Store(true)
		r.ss, r.asked = append(r.ss, f.s), append(r.asked, f)
	}
	if len(r.ss) == 0 {
		return nil
	}
	ctx, cancel := context.WithDeadline(context.Background(), until)
	errs := s.queue.Settle(ctx, r.ss)
	cancel()
	now = time.Now()
	for i, f := range r.asked {
		if f.until.IsZero() {
			f.until = until
		}
		switch err := errs[i]; {
		case err == nil:
			s.done(f, nil)
			r.settled = append(r.settled, f.h)
		case errors.Is(err, drivers.ErrUnsupported):
			other, ok := finished{}, false
			if s.instead != nil {
				other, ok = s.instead(f, err)
			}
			if !ok {
				s.giveUp(f, err)
				continue
			}
			other.err = err
			f.h.settling.Store(false)
			r.again = append(r.again, other)
		case errors.Is(err, drivers.ErrLeaseLost), errors.Is(err, drivers.ErrClosed), !now.Before(f.until):
			s.giveUp(f, err)
		default:
			f.err = err
			f.h.settling.Store(false)
			r.again = append(r.again, f)
		}
	}
	s.leases.remove(r.settled...)
	return r.again
}

// lostBefore is the error of what could not be settled before its lease ended.
func lostBefore(cause error) error {
	if cause == nil {
		return drivers.ErrLeaseLost
	}
	return fmt.Errorf("%w, before that: %w", drivers.ErrLeaseLost, cause)
}

func (s *settler) giveUp(f finished, err error) {
	s.done(f, err)
	s.leases.remove(f.h)
}
