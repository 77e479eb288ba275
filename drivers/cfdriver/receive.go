package cfdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// newerWait is how long a message is left to workers of a newer version.
const newerWait = time.Minute

// Receive implements drivers.Queue.
func (q *queue) Receive(ctx context.Context, most int) ([]*drivers.Delivery, error) {
	switch {
	case most < 1:
		return nil, fmt.Errorf("receive %s: asked for %d messages", q.o.Name, most)
	case q.o.SendOnly:
		return nil, fmt.Errorf("receive %s: the queue was opened for sending only", q.o.Name)
	}
	q.receiving.Lock()
	defer q.receiving.Unlock()
	q.pump.enter()
	defer q.pump.leave(q)
	for {
		if q.isClosing() {
			return nil, drivers.ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := q.pump.failed(); err != nil {
			return nil, fmt.Errorf("receive %s: %w", q.o.Name, err)
		}
		got, stale := q.pump.take(most, q.fresh())
		q.giveBackStale(stale)
		if len(got) > 0 {
			if ds := q.deliver(ctx, got); len(ds) > 0 && !q.isClosing() {
				return ds, nil
			}
			continue // when closing, Close gives them back
		}
		q.pump.sleep(ctx, q.pump.start(q, most))
	}
}

func (q *queue) giveBackStale(stale []arrival) {
	if len(stale) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(q.life, 2*q.d.o.CallTimeout)
	defer cancel()
	if err := q.giveBack(ctx, stale); err != nil {
		q.log.Debug("give back what was pulled too early", slog.Any("error", err))
	}
}

// pullOnce asks once. The leases begin no earlier than the request.
func (q *queue) pullOnce(n int) {
	at := time.Now()
	ms, err := q.d.c.pull(q.life, q.n.id, n, q.lease)
	got := make([]arrival, len(ms))
	for i := range ms {
		got[i] = arrival{m: &ms[i], at: at}
	}
	if isMissing(err) {
		err = &goneError{fmt.Errorf("queue %s was deleted: %w", q.n.queue, err)}
	}
	q.pump.finished(q, n, got, err)
}

// goneError ends Receive.
type goneError struct{ error }

func (e *goneError) Unwrap() error { return e.error }

// arrival is a message as it was pulled.
type arrival struct {
	m  *message
	at time.Time
}

// token is the driver's side of a delivery.
type token struct {
	q     *queue
	id    string // Cloudflare's
	lease string
	c     *content
	count int // attempts, this one included
	// carry is what the delivery came with, stalls noticed included.
	carry drivers.Carry
	// messageID and job as the delivery has them.
	messageID, job string
	enqueued       time.Time
	leased         time.Time // until when the lease is ours for certain

	// These are guarded by the queue's lock.
	lost    bool
	busy    bool
	settled drivers.Verdict
	copied  drivers.Verdict // whose copy Cloudflare has confirmed, for a repetition
}

func (t *token) over() bool { return !time.Now().Before(t.leased) }

// deliver makes deliveries of messages that arrived. Those that were settled here are
// acknowledged again, those that are not due are put back.
func (q *queue) deliver(ctx context.Context, got []arrival) []*drivers.Delivery {
	var ds []*drivers.Delivery
	var again []*pending
	var early []*token
	for _, a := range got {
		if _, done := q.recent.get(a.m.ID); done {
			t := &token{q: q, id: a.m.ID, lease: a.m.LeaseID, leased: a.at.Add(q.lease)}
			again = append(again, &pending{t: t, final: drivers.Ack})
			continue
		}
		t, d, err := q.open(ctx, a)
		switch {
		case errors.Is(err, errNewer):
			q.log.Warn("a message's envelope is of a newer version: it is left to newer workers", slog.String("message", a.m.ID))
			again = append(again, &pending{t: t, delay: newerWait})
			continue
		case err != nil:
			q.pump.putBack(a, err, q.log)
			continue
		}
		if t.c.e.notBefore().After(time.Now()) {
			early = append(early, t)
			continue
		}
		ds = append(ds, d)
	}
	q.hold(ds)
	q.endAgain(again)
	q.hop(early)
	return ds
}

func (q *queue) endAgain(ps []*pending) {
	if len(ps) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(q.life, q.d.o.CallTimeout)
	defer cancel()
	for i, err := range q.release(ctx, ps) {
		if err != nil {
			q.log.Debug("a message that is not for this worker stays out for a lease", slog.String("message", ps[i].t.id), slog.Any("error", err))
		}
	}
}

// open makes the delivery of one message. Its error is errNewer, or one of the place where
// counts are kept and worth another try.
func (q *queue) open(ctx context.Context, a arrival) (*token, *drivers.Delivery, error) {
	m := a.m
	c, broken := open(m)
	t := &token{q: q, id: m.ID, lease: m.LeaseID, c: c, count: max(1, int(m.Attempts)), leased: a.at.Add(q.lease)}
	if errors.Is(broken, errNewer) {
		return t, nil, errNewer
	}
	accounted, hopped := 0, false
	if t.count > 1 {
		r, ok, err := q.place.get(ctx, t.id)
		if err != nil {
			return t, nil, err
		}
		if ok {
			c.e.packed, accounted = r.packed, r.N
			hopped = !r.Again && r.N == t.count-1 // nobody but the driver had it
		}
		if n, ok := q.refused.get(t.id); ok {
			accounted = max(accounted, n)
		}
	}
	t.carry = c.e.carry()
	stalled := max(0, t.count-1-accounted)
	t.carry.Stalls += stalled
	if t.enqueued = m.sent(); c.e.Enqueued > 0 {
		t.enqueued = time.UnixMilli(c.e.Enqueued)
	}
	h := c.e.headers()
	t.messageID, t.job = idOf(h, m.ID), jobOf(h)
	// Whoever had the delivery before this one has noticed all stalls but that one.
	d := &drivers.Delivery{
		ID: t.messageID, Job: t.job, Headers: h, Payload: c.owned(), EnqueuedAt: t.enqueued, Received: a.at,
		Carry: cloneCarry(t.carry), Stalled: min(stalled, 1), Held: stalled > 0,
		Redelivered: c.e.Again || t.count > 1 && !hopped, Token: t,
	}
	d.ReplyTo, _ = h.Get(abi.HeaderReplyTo)
	if broken != nil {
		d.Broken = broken.Error()
	}
	return t, d, nil
}

// owned is the payload for the caller to keep, since ours is needed for a copy.
func (c *content) owned() []byte { return append([]byte(nil), c.payload...) }

func idOf(h drivers.Header, otherwise string) string {
	for _, name := range []string{abi.HeaderID, abi.HeaderCEID} {
		if id, _ := h.Get(name); id != "" {
			return id
		}
	}
	return otherwise
}

func jobOf(h drivers.Header) string {
	if job, _ := h.Get(abi.HeaderJob); job != "" {
		return job
	}
	job, _ := h.Get(abi.HeaderCEType)
	return job
}

// hold notes deliveries as ours. A token of an earlier delivery of the same message has lost its
// lease.
func (q *queue) hold(ds []*drivers.Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweep()
	for _, d := range ds {
		t := d.Token.(*token)
		if old := q.held[t.id]; old != nil {
			old.lost = true
		}
		q.held[t.id] = t
	}
}

// sweep forgets deliveries that were lost long ago: nobody settles them any more. q.mu is held.
func (q *queue) sweep() {
	now := time.Now()
	if now.Sub(q.swept) < q.lease {
		return
	}
	q.swept = now
	for id, t := range q.held {
		if !t.busy && now.Sub(t.leased) > q.lease {
			delete(q.held, id)
		}
	}
}

// hop puts back what is not due yet, uncounted. What cannot be put back comes again when its
// lease is over.
func (q *queue) hop(ts []*token) {
	if len(ts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(q.life, 2*q.d.o.CallTimeout)
	defer cancel()
	moves := make([]move, len(ts))
	for i, t := range ts {
		// A pull that was lost on its way is no reason to count anything against the message.
		moves[i] = move{t: t, carry: t.c.e.carry(), due: t.c.e.notBefore(), again: t.c.e.Again}
	}
	for i, err := range q.putBack(ctx, moves) {
		if err != nil {
			q.log.Warn("a message that is not due yet could not be put back", slog.String("message", ts[i].id), slog.Any("error", err))
		}
	}
}
