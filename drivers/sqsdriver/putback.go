package sqsdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/guesthand/guesthand/drivers"
)

// move is one message that goes back to its queue.
type move struct {
	t     *token
	carry drivers.Carry
	due   time.Time // not before; zero for at once
	again bool      // somebody had it before
}

// putBack carries out moves, an error for each: as copies on standard queues, in place on FIFO
// queues and where a copy has no room for the counts.
func (q *queue) putBack(ctx context.Context, ms []move) []error {
	errs := make([]error, len(ms))
	var inPlace, copies []int
	var outs []*outgoing
	var sent []int // indexes into ms of those with a copy at SQS
	for i, m := range ms {
		switch {
		case q.isCopied(m.t):
			sent = append(sent, i)
			continue
		case q.n.fifo:
			inPlace = append(inPlace, i)
			continue
		}
		out, err := q.copyOf(m)
		if errors.Is(err, errNoRoom) {
			q.log.Warn("a message has no room for its counts: it is kept in place, and its stalls may be inexact", slog.String("message", m.t.id))
			inPlace = append(inPlace, i)
			continue
		}
		if err != nil {
			errs[i] = err
			continue
		}
		outs, copies = append(outs, out), append(copies, i)
	}
	q.send(ctx, q.n.url, q.n.fifo, outs)
	for k, out := range outs {
		i := copies[k]
		if errs[i] = out.err; out.err == nil {
			q.mu.Lock()
			ms[i].t.copied = drivers.Requeue
			q.mu.Unlock()
			sent = append(sent, i)
		}
	}
	ts := make([]*token, len(sent))
	for k, i := range sent {
		ts[k] = ms[i].t
	}
	for k, err := range q.finish(ctx, ts, func(int) drivers.Verdict { return drivers.Requeue }) {
		errs[sent[k]] = err
	}
	q.putBackInPlace(ctx, ms, inPlace, errs)
	return errs
}

// errNoRoom is a message that SQS would not take with its counts.
var errNoRoom = errors.New("no room for the counts")

// copyOf is the copy of a message with a new carry. Errors of earlier runs are shed where it
// would be too large, the oldest first, then the handler's state; counts and payload never.
func (q *queue) copyOf(m move) (*outgoing, error) {
	e := m.t.e.clone()
	e.p.setCarry(cloneCarry(m.carry))
	e.p.Again = m.again
	e.p.Enqueued = m.t.enqueuedMilli()
	if e.p.ID == "" && m.t.messageID == m.t.id {
		e.p.ID = m.t.id
	}
	e.p.NotBefore = 0
	delay := time.Duration(0)
	if !m.due.IsZero() {
		delay = time.Duration(seconds(time.Until(m.due))) * time.Second
		if delay > q.maxDelay {
			delay, e.p.NotBefore = q.maxDelay, unixMilliUp(m.due)
		}
	}
	for {
		out, err := q.outgoing(e, "")
		if err != nil {
			return nil, err
		}
		if out.size <= q.maxSize {
			out.entry.DelaySeconds = seconds(delay)
			return out, nil
		}
		switch {
		case len(e.p.Errors) > 0:
			e.p.Errors = e.p.Errors[1:]
		case len(e.p.State) > 0:
			e.p.State = nil
			q.log.Warn("a message has no room for its handler's state", slog.String("message", m.t.id))
		default:
			return nil, errNoRoom
		}
	}
}

func (t *token) enqueuedMilli() int64 { return t.enqueued.UnixMilli() }

// putBackInPlace stores what a copy would carry, then changes the visibility. On a FIFO queue
// that holds up the message's group, so order is kept.
func (q *queue) putBackInPlace(ctx context.Context, ms []move, at []int, errs []error) {
	var ts []*token
	var waits []time.Duration
	var changed []int
	for _, i := range at {
		wait, err := q.keepInPlace(ctx, ms[i])
		if errs[i] = err; err == nil {
			ts, waits, changed = append(ts, ms[i].t), append(waits, wait), append(changed, i)
		}
	}
	for k, err := range q.changeVisibilities(ctx, ts, waits) {
		errs[changed[k]] = err
	}
}

// keepInPlace writes a message's record, and says how long it is to stay invisible.
func (q *queue) keepInPlace(ctx context.Context, m move) (time.Duration, error) {
	t := m.t
	call, cancel := q.call(ctx)
	defer cancel()
	if found, ok, err := q.place.get(call, t.id); err != nil {
		return 0, err
	} else if ok && found.N > t.count {
		return 0, fmt.Errorf("receive %d was settled since: %w", found.N, drivers.ErrLeaseLost)
	}
	r := placed{packed: t.e.clone().p, N: t.count}
	r.setCarry(cloneCarry(m.carry))
	r.Again, r.Headers, r.NotBefore = m.again, nil, 0
	wait := time.Duration(0)
	if !m.due.IsZero() {
		wait = max(0, time.Until(m.due))
		left := (q.longest - time.Since(t.received)).Truncate(time.Second)
		if most := max(time.Second, min(q.maxDelay, left)); wait > most {
			wait, r.NotBefore = most, unixMilliUp(m.due)
		}
	}
	return wait, q.place.put(call, t.id, r)
}

// giveBackHeld gives back, uncounted, what was handed out and not settled.
func (q *queue) giveBackHeld(ctx context.Context) error {
	q.mu.Lock()
	var ms []move
	for id, t := range q.held {
		if t.settled == 0 && !t.busy && !t.lost && time.Now().Before(t.leased) {
			ms = append(ms, move{t: t, carry: t.carry, again: true})
		}
		delete(q.held, id)
	}
	q.mu.Unlock()
	for i := range ms {
		// A settlement that is half done is not to be undone by a second copy.
		if ms[i].t.copied == 0 && time.Now().Before(ms[i].t.e.notBefore()) {
			ms[i].due = ms[i].t.e.notBefore()
		}
	}
	return q.gaveBack(q.putBack(ctx, ms))
}

// giveBackBuffered gives back what polls brought and nobody asked for.
func (q *queue) giveBackBuffered(ctx context.Context) error {
	var ms []move
	var early []error
	for _, a := range q.pump.drain() {
		if time.Since(a.at) > q.lease {
			continue
		}
		t, _, err := q.open(ctx, a)
		if err != nil {
			early = append(early, err)
			continue
		}
		m := move{t: t, carry: t.carry, again: t.e.p.Again || t.count > 1}
		if due := t.e.notBefore(); due.After(time.Now()) {
			m.due = due
		}
		ms = append(ms, m)
	}
	return q.gaveBack(append(early, q.putBack(ctx, ms)...))
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

// outgoing is a message on its way into a queue.
type outgoing struct {
	entry types.SendMessageBatchRequestEntry
	size  int
	err   error
}

// outgoing lays out an envelope. group is the message group where the message names none, ""
// for none at all.
func (q *queue) outgoing(e *envelope, group string) (*outgoing, error) {
	a, err := e.pack()
	if err != nil {
		return nil, err
	}
	out := &outgoing{size: len(e.body) + a.size()}
	out.entry.MessageBody = aws.String(e.body)
	if len(a) > 0 {
		out.entry.MessageAttributes = a
	}
	if e.group != "" {
		group = e.group
	}
	if group != "" {
		out.entry.MessageGroupId = aws.String(group)
	}
	if e.trace != "" {
		out.entry.MessageSystemAttributes = map[string]types.MessageSystemAttributeValue{
			string(types.MessageSystemAttributeNameForSendsAWSTraceHeader): {DataType: aws.String("String"), StringValue: aws.String(e.trace)},
		}
	}
	return out, nil
}
