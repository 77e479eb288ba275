package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/policy"
)

// cancellation is somebody who waits for a delivery's end. word is the outcome that was
// settled, "" where the message left this host without one; it is set before done is closed.
type cancellation struct {
	done chan struct{}
	word string
}

// cancel stops the deliveries of a message that are held here, running or not.
func (l *leases) cancel(id string) (all []*cancellation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := l.head.next; h != &l.head; h = h.next {
		if h.d.ID != id {
			continue
		}
		c := h.cancel.Load()
		if c == nil {
			c = &cancellation{done: make(chan struct{})}
			h.cancel.Store(c)
		}
		h.call.Stop(abi.Cancelled) // under the lock: what is removed is soon another message's
		all = append(all, c)
	}
	return all
}

// ended tells whoever asked for it how a delivery ended.
func (h *held) ended() {
	if c := h.cancel.Load(); c != nil {
		if h.attempt.settled {
			c.word = h.attempt.word
		}
		close(c.done)
	}
}

// cancelled finishes a message that somebody cancelled before a run of it began.
func (q *queue) cancelled(h *held) {
	a := &h.attempt
	*a = attempt{q: q, h: h, job: q.route(h.d), message: policy.Message{Tally: h.d.Carry.Tally}}
	end := abi.End{Cause: abi.Cancelled}
	a.finish(end, policy.Decide(end, a.message, a.policy, time.Now(), nil))
}

// Cancel implements admin.Service.
func (h *Host) Cancel(ctx context.Context, queue, id string) error {
	q := h.queues[queue]
	if q == nil {
		return &UnknownQueueError{Name: queue, Known: slices.Sorted(maps.Keys(h.queues))}
	}
	here := q.leases.cancel(id)
	if len(here) == 0 {
		return q.dropWaiting(ctx, id)
	}
	var errs []error
	for _, c := range here {
		select {
		case <-c.done:
		case <-ctx.Done():
			return fmt.Errorf("message %s was told to stop and has not ended yet: %w", id, ctx.Err())
		}
		switch c.word {
		case string(abi.Cancelled):
		case "":
			errs = append(errs, fmt.Errorf("%w: message %s left this host before it was cancelled, and will run again", admin.ErrNotCancelled, id))
		default:
			errs = append(errs, fmt.Errorf("%w: message %s ended in %s before that", admin.ErrNotCancelled, id, c.word))
		}
	}
	return errors.Join(errs...)
}

// dropWaiting cancels a message that no host has, where the broker can find it.
func (q *queue) dropWaiting(ctx context.Context, id string) error {
	ds, err := dropWaiting(ctx, q.driver, q.name, id)
	if err != nil {
		return err
	}
	for _, d := range ds {
		h := &held{d: d}
		a := &h.attempt
		*a = attempt{q: q, h: h, job: q.route(d), word: string(abi.Cancelled), end: abi.End{Cause: abi.Cancelled},
			message: policy.Message{Tally: d.Carry.Tally}, decision: policy.Decision{Verdict: drivers.Ack, Tally: d.Carry.Tally, Reason: string(abi.Cancelled)}}
		a.reply()
		a.tell(drivers.Settlement{Verdict: drivers.Ack})
		a.report(nil)
	}
	return nil
}

func dropWaiting(ctx context.Context, q drivers.Queue, name, id string) ([]*drivers.Delivery, error) {
	c, ok := q.(drivers.Canceller)
	if !ok {
		return nil, fmt.Errorf("message %s is not in this host's hands, and the broker of queue %s cannot drop one that waits: %w", id, name, drivers.ErrUnsupported)
	}
	ds, err := c.DropWaiting(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("message %s of queue %s: %w", id, name, err)
	}
	return ds, nil
}

// Cancel implements admin.Service.
func (o *Operations) Cancel(ctx context.Context, queue, id string) error {
	q, err := o.brokers.Queue(ctx, queue)
	if err != nil {
		return err
	}
	_, err = dropWaiting(ctx, q, queue, id)
	return err
}
