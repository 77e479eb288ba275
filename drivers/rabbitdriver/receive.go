package rabbitdriver

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

const (
	// newerTallyRest is how long a message is put back that only a newer host can read.
	newerTallyRest = 30 * time.Second
	// blockedWait is how soon Receive looks again whether the broker takes messages.
	blockedWait = 100 * time.Millisecond
	// retryWait is after what time arrivals are looked at again that could not be replaced.
	retryWait = 200 * time.Millisecond
)

// Receive implements drivers.Queue.
func (q *queue) Receive(ctx context.Context, max int) ([]*drivers.Delivery, error) {
	switch {
	case max < 1:
		return nil, fmt.Errorf("receive %s: asked for %d messages", q.n.queue, max)
	case q.o.SendOnly:
		return nil, fmt.Errorf("receive %s: the queue was opened for sending only", q.n.queue)
	}
	q.receiving.Lock()
	defer q.receiving.Unlock()
	defer q.want(0)
	for {
		if q.closing.Load() {
			return nil, drivers.ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if q.isBlocked() {
			q.wait(ctx, blockedWait)
			continue
		}
		in := q.intake()
		if in == nil || in.isGone() {
			q.want(max)
			q.wait(ctx, 0)
			continue
		}
		batch := in.take(max)
		q.want(max - len(batch))
		if len(batch) == 0 {
			q.wait(ctx, 0)
			continue
		}
		ds, retry := q.deliver(in, batch)
		if len(ds) > 0 {
			return ds, nil
		}
		if retry {
			q.wait(ctx, retryWait)
		}
	}
}

// want says how many messages Receive waits for.
func (q *queue) want(n int) {
	q.mu.Lock()
	was := q.demand
	q.waiting, q.demand = n > 0, n
	in := q.in
	q.mu.Unlock()
	switch {
	case n == 0:
		q.stir()
	case in == nil || in.isGone() || n != was && in.needs(n):
		q.wake()
	}
}

// needs reports that consumers have less credit than wanted.
func (in *intake) needs(n int) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.buf)+in.credit() < n
}

// wait returns when something may have changed, or d is over where it is more than 0.
func (q *queue) wait(ctx context.Context, d time.Duration) {
	var tick <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		tick = t.C
		select {
		case <-tick:
		case <-q.done:
		case <-ctx.Done():
		}
		return
	}
	select {
	case <-q.arrived:
	case <-q.done:
	case <-ctx.Done():
	}
}

// isBlocked reports that the broker takes no messages: then no retry could be stored, and no
// new work is begun.
func (q *queue) isBlocked() bool {
	s, _, _ := q.d.publishing.now()
	return s != nil && s.blocked.Load() != nil
}

// deliver makes deliveries of arrivals. Those that must not be handed out as they are get
// replaced by a copy; retry is true where that failed.
func (q *queue) deliver(in *intake, batch []arrival) (ds []*drivers.Delivery, retry bool) {
	ds = make([]*drivers.Delivery, 0, len(batch))
	var slow []*replacement
	now := time.Now()
	for i := range batch {
		a := &batch[i]
		it, err := q.newItem(in, &a.m, a.at)
		if err != nil {
			q.log.Error("a message's tally cannot be read and is taken for empty", slog.String("id", it.t.id), slog.Any("error", err))
			it.t.rec = nil
		}
		if r := q.replacementFor(&it.t, now); r != nil {
			r.a = *a
			slow = append(slow, r)
			continue
		}
		ds = append(ds, &it.d)
	}
	if len(slow) > 0 {
		ctx, cancel := context.WithTimeout(q.d.stop, sendWait)
		defer cancel()
		if err := q.replace(ctx, in, slow); err != nil {
			q.log.Debug("messages whose time has not come cannot be put back, trying again", slog.Any("error", err))
			for _, r := range slow {
				if r.p == nil || r.p.err != nil {
					in.untake([]arrival{r.a})
					retry = true
				}
			}
		}
	}
	in.hold(ds)
	return ds, retry
}

// replacement is a message and the copy that takes its place.
type replacement struct {
	t   *token
	a   arrival
	rec record
	p   *publication
}

// replacementFor returns nil for a message that is to be handed out.
func (q *queue) replacementFor(t *token, now time.Time) *replacement {
	r := &replacement{t: t, rec: t.came()}
	switch {
	case t.rec != nil && t.rec.V > recordVersion:
		q.log.Error("a message's tally is of a newer version of guesthand: it is left for a newer host",
			slog.String("id", t.id), slog.Int("version", t.rec.V))
		return r
	case t.props.Redelivered && deliveries(&t.props) == 0:
		// A classic queue says only that it was handed out before, and says so for ever.
		if _, counted := t.props.Headers[headerDeliveries]; !counted {
			r.rec.Stalls++
			r.rec.Fresh, r.rec.Out = 1, true
			return r
		}
	}
	if r.rec.Rest > now.UnixMilli() {
		return r
	}
	return nil
}

// came is the record of a message as it came, with the stalls noticed by this delivery, which
// nobody was told of yet.
func (t *token) came() record {
	r := record{}
	if t.rec != nil {
		r = *t.rec
	} else if v, ok := t.d.Headers.Get(abi.HeaderNotBefore); ok {
		if at, err := time.Parse(time.RFC3339Nano, v); err == nil && time.Until(at) > 0 {
			r.rest(time.Until(at))
		}
	}
	if n := deliveries(&t.props); n > 0 {
		r.Stalls += n
		r.Fresh = 1 // the delivery before this one told of the others
	}
	r.Enqueued = t.enqueued.UnixMilli()
	return r
}

// replace publishes the copies, and acknowledges the originals of those that the broker has.
func (q *queue) replace(ctx context.Context, in *intake, rs []*replacement) error {
	var ps []*publication
	var first error
	for _, r := range rs {
		p, err := q.copyFor(ctx, r)
		if err != nil {
			first = err
			continue
		}
		r.p = p
		ps = append(ps, p)
	}
	q.d.publisher.publish(ctx, ps)
	var tags []uint64
	for _, r := range rs {
		switch {
		case r.p == nil:
		case r.p.err != nil:
			first = r.p.err
		default:
			tags = append(tags, r.t.tag)
		}
	}
	if len(tags) > 0 {
		if err := in.ack(tags); err != nil {
			return err
		}
	}
	return first
}

// copyFor makes a copy with its record, for the queue or for the hold queue that its time
// asks for.
func (q *queue) copyFor(ctx context.Context, r *replacement) (p *publication, err error) {
	if r.t.rec != nil && r.t.rec.V > recordVersion {
		p = &publication{msg: r.t.copyOf()}
		p.msg.Headers[headerTally] = r.t.props.Headers[headerTally]
		wait := record{}
		wait.rest(newerTallyRest)
		p.queue, err = q.holdFor(ctx, &wait)
		return p, err
	}
	p = &publication{}
	if p.msg, err = r.t.carrying(r.rec); err == nil {
		p.queue, err = q.holdFor(ctx, &r.rec)
	}
	return p, err
}

// giveBack replaces what was received and not settled by uncounted copies: the broker would
// count what is put back in any other way.
func (q *queue) giveBack(ctx context.Context, in *intake, buffered []arrival, held []*token) error {
	var rs []*replacement
	for i := range buffered {
		it, err := q.newItem(in, &buffered[i].m, buffered[i].at)
		if err != nil {
			it.t.rec = nil // said when it is handed out
		}
		r := q.replacementFor(&it.t, time.Now())
		if r == nil {
			r = &replacement{t: &it.t, rec: it.t.came()}
		}
		rs = append(rs, r)
	}
	for _, t := range held {
		r := &replacement{t: t, rec: t.came()}
		r.rec.Fresh, r.rec.Out = 0, true
		if t.stored != 0 {
			// Its copy or dead letter is there, only the acknowledgement is missing.
			if err := in.ack([]uint64{t.tag}); err != nil {
				return err
			}
			continue
		}
		rs = append(rs, r)
	}
	err := q.replace(ctx, in, rs)
	if perr := in.prove(ctx); err == nil {
		err = perr
	}
	return err
}
