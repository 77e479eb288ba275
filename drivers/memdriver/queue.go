package memdriver

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// queue is one worker's view of a store.
type queue struct {
	d    *Driver
	s    *store
	o    drivers.QueueOptions
	info drivers.Info
	wake chan struct{}
	done chan struct{} // closed by Close, under the store's lock
}

var (
	_ drivers.Queue       = (*queue)(nil)
	_ drivers.DeadLetters = (*queue)(nil)
)

func (q *queue) Info() drivers.Info {
	info := q.info
	info.Findings = slices.Clone(info.Findings)
	return info
}

func (q *queue) closed() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

func (q *queue) Receive(ctx context.Context, max int) ([]*drivers.Delivery, error) {
	switch {
	case max < 1:
		return nil, fmt.Errorf("receive %s: asked for %d messages", q.o.Name, max)
	case q.o.SendOnly:
		return nil, fmt.Errorf("receive %s: the queue was opened for sending only", q.o.Name)
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ds, next, err := q.take(max)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		q.sleep(ctx, next)
	}
}

// take hands out what is ready, or says when to look again; zero: when woken.
func (q *queue) take(max int) ([]*drivers.Delivery, time.Time, error) {
	q.s.mu.Lock()
	if q.closed() {
		q.s.mu.Unlock()
		return nil, time.Time{}, drivers.ErrClosed
	}
	now := time.Now()
	q.s.advance(now)
	n := min(max, q.s.ready.Len())
	if n == 0 {
		next := q.s.await(q)
		q.s.mu.Unlock()
		return nil, next, nil
	}
	ds := make([]*drivers.Delivery, n)
	for i := range ds {
		ds[i] = q.s.hold(q, now)
	}
	q.s.mu.Unlock()

	for _, d := range ds {
		d.Headers, d.Payload, d.Carry = d.Headers.Clone(), slices.Clone(d.Payload), cloneCarry(d.Carry)
	}
	return ds, time.Time{}, nil
}

func (q *queue) sleep(ctx context.Context, until time.Time) {
	var due <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-q.wake:
	case <-due:
	case <-q.done:
	case <-ctx.Done():
	}
}

// each runs f for every index with the store locked and brought up to date, and returns
// one error each.
func (q *queue) each(ctx context.Context, n int, f func(i int, now time.Time) error) []error {
	errs := make([]error, n)
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	err := ctx.Err()
	if q.closed() {
		err = drivers.ErrClosed
	}
	now := time.Now()
	q.s.advance(now)
	for i := range errs {
		if errs[i] = err; err == nil {
			errs[i] = f(i, now)
		}
	}
	return errs
}

func (q *queue) Renew(ctx context.Context, ds []*drivers.Delivery) []error {
	return q.each(ctx, len(ds), func(i int, now time.Time) error {
		tok, err := q.token(ds[i])
		if err != nil {
			return err
		}
		if tok.m.lease != tok {
			return drivers.ErrLeaseLost
		}
		tok.m.due = now.Add(q.o.Lease)
		q.s.leased.moved(tok.m)
		return nil
	})
}

func (q *queue) token(d *drivers.Delivery) (*token, error) {
	if d != nil {
		if tok, ok := d.Token.(*token); ok && tok.q.s == q.s {
			return tok, nil
		}
	}
	return nil, fmt.Errorf("queue %s: not a delivery of this queue", q.o.Name)
}

func (q *queue) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	defer q.s.reportDropped(false)
	return q.each(ctx, len(ss), func(i int, now time.Time) error {
		return q.settle(ss[i], now)
	})
}

func (q *queue) settle(s drivers.Settlement, now time.Time) error {
	tok, err := q.token(s.Delivery)
	switch {
	case err != nil:
		return err
	case s.Verdict == drivers.Dead && s.Death == nil:
		return fmt.Errorf("settle %s: a dead letter without a death", tok.m.id)
	case tok.settled != 0 && tok.settled == s.Verdict:
		return nil
	case tok.m.lease != tok:
		return drivers.ErrLeaseLost
	}
	m := tok.m
	switch s.Verdict {
	case drivers.Ack, drivers.Reject:
		q.s.finish(m)
	case drivers.Requeue:
		q.s.release(m)
		m.carry = cloneCarry(s.Carry)
		if s.Delay > 0 {
			q.s.delay(m, now.Add(s.Delay))
		} else {
			q.s.append(m)
		}
	case drivers.Dead:
		q.s.finish(m)
		q.s.dead.add(q.deadLetter(m, s, now), now)
	default:
		return fmt.Errorf("settle %s: %s", m.id, s.Verdict)
	}
	tok.settled = s.Verdict
	return nil
}

func (q *queue) Send(ctx context.Context, ms []drivers.Message) []error {
	made := make([]*message, len(ms))
	invalid := make([]error, len(ms))
	for i, m := range ms {
		made[i], invalid[i] = q.message(m)
	}
	return q.each(ctx, len(ms), func(i int, now time.Time) error {
		if invalid[i] != nil {
			return invalid[i]
		}
		key := ms[i].Key
		switch {
		case key == "":
		case q.s.keys.known(key, now):
			return nil
		case len(q.s.keys.seen) >= maxKeys:
			return fmt.Errorf("queue %s: %d keys in %s, the most remembered in memory", q.o.Name, maxKeys, keyWindow)
		}
		made[i].enqueued = now.Round(0)
		if err := q.s.admit(made[i], ms[i].NotBefore, now); err != nil {
			return err
		}
		if key != "" {
			q.s.keys.add(key, now)
		}
		return nil
	})
}

// message makes a message of what a producer sends, with our headers beside its own.
func (q *queue) message(m drivers.Message) (*message, error) {
	switch {
	case m.Job == "":
		return nil, fmt.Errorf("message without a job: %w", drivers.ErrInvalid)
	case len(m.Payload) > q.info.MaxPayload:
		return nil, fmt.Errorf("payload of %d bytes, limit %d: %w", len(m.Payload), q.info.MaxPayload, drivers.ErrTooLarge)
	}
	h := m.Headers.Clone()
	if m.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("message id: %w", err)
		}
		m.ID = id.String()
	}
	h.Set(abi.HeaderID, m.ID)
	h.Set(abi.HeaderJob, m.Job)
	if m.Key != "" {
		h.Set(abi.HeaderKey, m.Key)
	}
	if !m.NotBefore.IsZero() {
		h.Set(abi.HeaderNotBefore, m.NotBefore.UTC().Format(time.RFC3339Nano))
	}
	if err := h.Validate(); err != nil {
		return nil, err
	}
	replyTo, _ := h.Get(abi.HeaderReplyTo)
	return &message{id: m.ID, job: m.Job, headers: h, payload: slices.Clone(m.Payload), replyTo: replyTo}, nil
}

func (q *queue) Counts(ctx context.Context) (drivers.Counts, error) {
	defer q.s.reportDropped(false)
	var c drivers.Counts
	err := q.each(ctx, 1, func(_ int, now time.Time) error {
		q.s.dead.expire(now)
		c = drivers.Counts{
			Depth:    q.s.depth(),
			InFlight: q.s.leased.Len(),
			Delayed:  q.s.delayed.Len(),
			Dead:     len(q.s.dead.entries),
		}
		return nil
	})[0]
	return c, err
}

func (q *queue) Close(context.Context) error {
	q.s.mu.Lock()
	if q.closed() {
		q.s.mu.Unlock()
		return nil
	}
	// What had run out before is a stall, also when nobody has looked since.
	q.s.advance(time.Now())
	for _, m := range slices.Clone(q.s.leased.ms) {
		if m.lease.q == q {
			q.s.giveBack(m)
		}
	}
	delete(q.s.waiters, q)
	close(q.done)
	q.s.mu.Unlock()
	q.s.reportDropped(true)
	q.d.forget(q)
	return nil
}
