package memdriver

import (
	"container/heap"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// message is one unfinished message. It is in exactly one of its store's heaps. Headers,
// payload and what carry points to are never changed in place, so that they may be copied
// without the lock.
type message struct {
	id, job  string
	headers  drivers.Header
	payload  []byte
	enqueued time.Time
	carry    drivers.Carry
	replays  int
	replyTo  string

	order   uint64    // place among the ready
	due     time.Time // end of the delay or of the lease
	handed  bool      // handed out at least once
	stalled int       // stalls noticed since it was last handed out
	lease   *token    // whose it is now; nil unless leased
	index   int       // in its heap
}

// token is one delivery: the lease belongs to it for as long as the message says so.
type token struct {
	m       *message
	q       *queue
	settled drivers.Verdict // what this delivery was settled with; 0 not yet
}

// store is one queue's messages. Nothing happens in the background: whoever takes the lock
// first moves on what has become due since, and a waiting Receive sleeps until the next is.
type store struct {
	name string
	o    Options
	log  *slog.Logger

	mu      sync.Mutex
	ready   msgHeap
	delayed msgHeap
	leased  msgHeap
	order   uint64
	bytes   int
	keys    keys
	dead    deadList

	// waiters is when each sleeping Receive wakes by itself; zero: never. None sleeps while
	// a message is ready.
	waiters map[*queue]time.Time
}

func newStore(name string, o Options) *store {
	byDue := func(a, b *message) bool { return a.due.Before(b.due) }
	return &store{
		name: name, o: o, log: o.Logger.With(slog.String("queue", name)),
		ready:   msgHeap{less: func(a, b *message) bool { return a.order < b.order }},
		delayed: msgHeap{less: byDue},
		leased:  msgHeap{less: byDue},
		keys:    keys{seen: map[string]time.Time{}},
		dead:    deadList{maxBytes: o.MaxBytes, max: o.DeadMax},
		waiters: map[*queue]time.Time{},
	}
}

func (s *store) depth() int { return s.ready.Len() + s.delayed.Len() + s.leased.Len() }

// advance moves on what has become due: delays that are over and leases that have run out.
func (s *store) advance(now time.Time) {
	for m := s.delayed.first(); m != nil && !m.due.After(now); m = s.delayed.first() {
		s.delayed.remove(m)
		s.append(m)
	}
	for m := s.leased.first(); m != nil && !m.due.After(now); m = s.leased.first() {
		m.carry.Stalls++
		m.stalled++
		s.giveBack(m)
	}
}

// append makes m the last of the ready ones.
func (s *store) append(m *message) {
	s.order++
	m.order = s.order
	s.ready.add(m)
	s.wakeAll()
}

// delay keeps m back until due.
func (s *store) delay(m *message, due time.Time) {
	m.due = due
	s.delayed.add(m)
	s.wakeFor(due)
}

// release takes m from its worker.
func (s *store) release(m *message) {
	s.leased.remove(m)
	m.lease = nil
}

// giveBack returns m to its old place.
func (s *store) giveBack(m *message) {
	s.release(m)
	s.ready.add(m)
	s.wakeAll()
}

// finish removes a message for good.
func (s *store) finish(m *message) {
	s.release(m)
	s.bytes -= len(m.payload)
}

// hold hands the first ready message to q.
func (s *store) hold(q *queue, now time.Time) *drivers.Delivery {
	m := s.ready.first()
	s.ready.remove(m)
	m.lease = &token{m: m, q: q}
	m.due = now.Add(q.o.Lease)
	s.leased.add(m)
	d := &drivers.Delivery{
		ID: m.id, Job: m.job, Headers: m.headers, Payload: m.payload, EnqueuedAt: m.enqueued,
		Received: now, Carry: m.carry, Stalled: m.stalled, Redelivered: m.handed,
		// A lease runs out for a message that waited in a worker just as for one that ran.
		Held:    m.carry.Stalls > 0,
		ReplyTo: m.replyTo,
		Token:   m.lease,
	}
	m.handed, m.stalled = true, 0
	return d
}

// admit takes a new message in, or says which bound it would break.
func (s *store) admit(m *message, notBefore, now time.Time) error {
	switch {
	case s.depth() >= s.o.MaxMessages:
		return fmt.Errorf("queue %s is full: it holds %d messages, the most allowed in memory", s.name, s.depth())
	case s.bytes+len(m.payload) > s.o.MaxBytes:
		return fmt.Errorf("queue %s is full: it would hold more than %d bytes, the most allowed in memory", s.name, s.o.MaxBytes)
	}
	s.bytes += len(m.payload)
	// Going through a duration keeps the monotonic clock, so that all due times compare.
	if wait := notBefore.Sub(now); !notBefore.IsZero() && wait > 0 {
		s.delay(m, now.Add(wait))
	} else {
		s.append(m)
	}
	return nil
}

// next is when something becomes due; zero: never.
func (s *store) next() time.Time {
	d, l := s.delayed.first(), s.leased.first()
	switch {
	case d == nil && l == nil:
		return time.Time{}
	case d == nil || l != nil && l.due.Before(d.due):
		return l.due
	}
	return d.due
}

// await enters q among the waiters and returns when it has to look again by itself.
func (s *store) await(q *queue) time.Time {
	next := s.next()
	s.waiters[q] = next
	return next
}

// wakeFor wakes the waiters that would sleep beyond due.
func (s *store) wakeFor(due time.Time) {
	for q, until := range s.waiters {
		if until.IsZero() || due.Before(until) {
			s.rouse(q)
		}
	}
}

func (s *store) wakeAll() {
	for q := range s.waiters {
		s.rouse(q)
	}
}

func (s *store) rouse(q *queue) {
	delete(s.waiters, q)
	select {
	case q.wake <- struct{}{}:
	default: // roused already
	}
}

// msgHeap is a heap of messages that know their place in it.
type msgHeap struct {
	less func(a, b *message) bool
	ms   []*message
}

func (h *msgHeap) add(m *message)    { heap.Push(h, m) }
func (h *msgHeap) remove(m *message) { heap.Remove(h, m.index) }
func (h *msgHeap) moved(m *message)  { heap.Fix(h, m.index) }

func (h *msgHeap) first() *message {
	if len(h.ms) == 0 {
		return nil
	}
	return h.ms[0]
}

// Len, Less, Swap, Push and Pop are for container/heap.
func (h *msgHeap) Len() int           { return len(h.ms) }
func (h *msgHeap) Less(i, j int) bool { return h.less(h.ms[i], h.ms[j]) }

func (h *msgHeap) Swap(i, j int) {
	h.ms[i], h.ms[j] = h.ms[j], h.ms[i]
	h.ms[i].index, h.ms[j].index = i, j
}

func (h *msgHeap) Push(x any) {
	m := x.(*message)
	m.index = len(h.ms)
	h.ms = append(h.ms, m)
}

func (h *msgHeap) Pop() any {
	last := len(h.ms) - 1
	m := h.ms[last]
	h.ms[last] = nil
	h.ms = h.ms[:last]
	return m
}

// keys remembers the keys of the latest window.
type keys struct {
	seen map[string]time.Time
	old  []string // in order of arrival
}

func (k *keys) known(key string, now time.Time) bool {
	n := 0
	for n < len(k.old) && now.Sub(k.seen[k.old[n]]) >= keyWindow {
		delete(k.seen, k.old[n])
		n++
	}
	k.old = k.old[n:]
	_, ok := k.seen[key]
	return ok
}

func (k *keys) add(key string, now time.Time) {
	k.seen[key] = now
	k.old = append(k.old, key)
}

// cloneCarry shares nothing with c.
func cloneCarry(c drivers.Carry) drivers.Carry {
	c.State = slices.Clone(c.State)
	c.Errors = slices.Clone(c.Errors)
	return c
}
