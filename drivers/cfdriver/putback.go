package cfdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// move is one message that goes back to its queue.
type move struct {
	t     *token
	carry drivers.Carry
	due   time.Time // not before; zero for at once
	again bool      // somebody had it before
}

// pending is a lease that is to end.
type pending struct {
	t *token
	// final is the verdict that the acknowledgement completes; 0 for a retry where it is.
	final drivers.Verdict
	delay time.Duration // of a retry
}

// putBack carries out moves, an error for each.
func (q *queue) putBack(ctx context.Context, ms []move) []error {
	ps, errs := q.prepare(ctx, ms)
	var at []int
	var ready []*pending
	for i, p := range ps {
		if p != nil {
			at, ready = append(at, i), append(ready, p)
		}
	}
	for k, err := range q.release(ctx, ready) {
		errs[at[k]] = err
	}
	return errs
}

// prepare stores what moves must leave behind: copies in queues of ours, records elsewhere and
// where a copy has no room for the counts. Each result has the lease to end, or an error.
func (q *queue) prepare(ctx context.Context, ms []move) ([]*pending, []error) {
	ps, errs := make([]*pending, len(ms)), make([]error, len(ms))
	var outs []*outgoing
	var copies []int
	for i, m := range ms {
		if q.isCopied(m.t) {
			ps[i] = &pending{t: m.t, final: drivers.Requeue}
			continue
		}
		out, err := q.copyOf(m)
		if errors.Is(err, errNoRoom) {
			ps[i], errs[i] = q.keepInPlace(ctx, m)
			continue
		}
		if errs[i] = err; err == nil {
			outs, copies = append(outs, out), append(copies, i)
		}
	}
	q.send(ctx, q.n.id, outs)
	for k, out := range outs {
		i := copies[k]
		if errs[i] = out.err; out.err == nil {
			q.copied(ms[i].t, drivers.Requeue)
			q.pump.expect(time.Now().Add(out.delay))
			ps[i] = &pending{t: ms[i].t, final: drivers.Requeue}
		}
	}
	return ps, errs
}

func (q *queue) isCopied(t *token) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return t.copied != 0
}

// copied notes that a copy is at Cloudflare, so that a repetition makes no second one.
func (q *queue) copied(t *token, v drivers.Verdict) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t.copied = v
}

// errNoRoom is a message that has to stay where it is: its queue is not ours, it cannot be read,
// or it is full.
var errNoRoom = errors.New("no room for the counts")

// copyOf is the copy of a message with a new carry. Errors of earlier runs are shed where it
// would be too large, the oldest first, then the handler's state; counts and payload never.
func (q *queue) copyOf(m move) (*outgoing, error) {
	if !q.n.own || m.t.c.broken {
		return nil, errNoRoom
	}
	e := m.t.c.e.clone()
	e.setCarry(m.carry)
	e.Again, e.Enqueued, e.NotBefore = m.again, m.t.enqueued.UnixMilli(), 0
	if idOf(e.headers(), "") == "" {
		e.ID = m.t.messageID
	}
	out := &outgoing{}
	if !m.due.IsZero() {
		out.delay = time.Duration(seconds(time.Until(m.due))) * time.Second
		if out.delay > q.maxDelay {
			out.delay, e.NotBefore = q.maxDelay, unixMilliUp(m.due)
		}
	}
	for {
		var err error
		if out.body, err = e.pack(m.t.c.payload); err != nil {
			return nil, err
		}
		switch {
		case out.size() <= maxMessage:
			return out, nil
		case len(e.Errors) > 0:
			e.Errors = e.Errors[1:]
		case len(e.State) > 0:
			e.State = nil
			q.log.Warn("a message has no room for its handler's state", slog.String("message", m.t.id))
		default:
			q.log.Warn("a message has no room for its counts: it is kept in place, and they may be inexact", slog.String("message", m.t.id))
			return nil, errNoRoom
		}
	}
}

// keepInPlace writes a message's record, and says how long it is to stay out of sight.
func (q *queue) keepInPlace(ctx context.Context, m move) (*pending, error) {
	t := m.t
	call, cancel := context.WithTimeout(ctx, q.d.o.CallTimeout)
	defer cancel()
	if found, ok, err := q.place.get(call, t.id); err != nil {
		return nil, err
	} else if ok && found.N > t.count {
		return nil, fmt.Errorf("attempt %d was settled since: %w", found.N, drivers.ErrLeaseLost)
	}
	r := placed{N: t.count}
	r.setCarry(m.carry)
	r.Again, r.Enqueued = m.again, t.enqueued.UnixMilli()
	p := &pending{t: t}
	if !m.due.IsZero() {
		if p.delay = max(0, time.Until(m.due)); p.delay > q.maxDelay {
			p.delay, r.NotBefore = q.maxDelay, unixMilliUp(m.due)
		}
	}
	return p, q.place.put(call, t.id, r)
}

// release ends leases, in batches, an error for each.
func (q *queue) release(ctx context.Context, ps []*pending) []error {
	errs := make([]error, len(ps))
	batches(len(ps), func(from, to int) {
		rs := make([]release, to-from)
		for i := range rs {
			p := ps[from+i]
			rs[i] = release{lease: p.t.lease, retry: p.final == 0, delay: p.delay}
		}
		for i, err := range q.d.c.settle(ctx, q.n.id, rs) {
			errs[from+i] = q.released(ctx, ps[from+i], err)
		}
	})
	return errs
}

// released judges the answer for one lease, and remembers what is finished.
func (q *queue) released(ctx context.Context, p *pending, err error) error {
	var w *warning
	switch {
	case errors.As(err, &w) && p.t.over():
		return lostLease(err)
	case err != nil:
		return err
	case p.final == 0:
		q.pump.expect(time.Now().Add(time.Duration(seconds(p.delay)) * time.Second))
		return nil
	}
	q.recent.put(p.t.id, p.final)
	q.refused.drop(p.t.id)
	if p.t.count > 1 {
		if err := q.place.drop(ctx, p.t.id); err != nil {
			// It is found by nobody again and goes with its age.
			q.log.Debug("the counts of a finished message stay", slog.String("message", p.t.id), slog.Any("error", err))
		}
	}
	return nil
}

// batches calls f for each run of at most batchMax indexes, some of them side by side, and waits.
func batches(n int, f func(from, to int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for from := 0; from < n; from += batchMax {
		slots <- struct{}{}
		wg.Go(func() {
			f(from, min(n, from+batchMax))
			<-slots
		})
	}
	wg.Wait()
}

// giveBackHeld gives back, uncounted, what was handed out and not settled.
func (q *queue) giveBackHeld(ctx context.Context) error {
	q.mu.Lock()
	var ms []move
	for id, t := range q.held {
		if t.settled == 0 && !t.busy && !t.lost && !t.over() {
			ms = append(ms, move{t: t, carry: t.carry, again: true})
		}
		delete(q.held, id)
	}
	q.mu.Unlock()
	return q.gaveBack(q.putBack(ctx, ms))
}

// giveBack gives back what pulls brought and nobody asked for.
func (q *queue) giveBack(ctx context.Context, got []arrival) error {
	var ms []move
	var errs []error
	for _, a := range got {
		if time.Since(a.at) > q.lease {
			continue
		}
		t, _, err := q.open(ctx, a)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		m := move{t: t, carry: t.carry, again: t.c.e.Again || t.count > 1}
		if due := t.c.e.notBefore(); due.After(time.Now()) {
			m.due = due
		}
		ms = append(ms, m)
	}
	return q.gaveBack(append(errs, q.putBack(ctx, ms)...))
}

func (q *queue) gaveBack(errs []error) error {
	var failed []error
	for _, err := range errs {
		if err != nil && !errors.Is(err, drivers.ErrLeaseLost) {
			failed = append(failed, err)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("%d messages of %s come again when their lease is over: %w", len(failed), q.o.Name, failed[0])
}
