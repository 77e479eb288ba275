package sqsdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptrace"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// transit is the most that an answer is taken to be on its way, or a quarter of the lease: a
// busy machine may be slow to read it.
const transit = time.Second

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
		if got := q.pump.take(most, q.lease); len(got) > 0 {
			if ds := q.deliver(ctx, got); len(ds) > 0 && !q.isClosing() {
				return ds, nil
			}
			continue // when closing, Close gives them back
		}
		q.pump.sleep(ctx, q.poll(most))
	}
}

// poll opens as many polls as may be open for that many messages, and returns when to look
// again, the zero time for when woken.
func (q *queue) poll(most int) time.Time {
	p := &q.pump
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.retryAt) {
		return p.retryAt
	}
	for !p.closed && p.asked < most && p.open < p.width {
		n := min(batchMax, most-p.asked)
		p.asked += n
		p.open++
		p.polls.Go(func() { q.pollOnce(n) })
	}
	return time.Time{}
}

func (q *queue) pollOnce(n int) {
	ms, at, err := q.receive(q.life, n)
	got := make([]arrival, len(ms))
	for i := range ms {
		got[i] = arrival{m: &ms[i], at: at}
	}
	if err != nil && q.life.Err() == nil {
		err = q.judge(err)
	}
	q.pump.finished(q, n, got, err)
}

// receive asks once. at is when the leases began or a little before it: the moment of the
// request where messages were there already.
func (q *queue) receive(ctx context.Context, n int) (_ []types.Message, at time.Time, _ error) {
	ctx, cancel := context.WithTimeout(ctx, q.d.o.Wait+q.d.o.CallTimeout)
	defer cancel()
	asked, answer := time.Now(), time.Time{}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { answer = time.Now() }})
	in := &sqs.ReceiveMessageInput{
		QueueUrl: aws.String(q.n.url), MaxNumberOfMessages: int32(n), WaitTimeSeconds: seconds(q.d.o.Wait),
		VisibilityTimeout:           seconds(q.lease),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		MessageAttributeNames:       []string{"All"},
	}
	if q.n.fifo {
		// With the same attempt id SQS hands out again what an answer that was lost had.
		in.ReceiveRequestAttemptId = aws.String(q.pump.attempt())
	}
	out, err := q.d.c.ReceiveMessage(ctx, in)
	if err != nil {
		q.pump.lost(deref(in.ReceiveRequestAttemptId))
		return nil, time.Time{}, err
	}
	if answer.IsZero() {
		answer = time.Now()
	}
	if way := min(transit, q.lease/4); answer.Sub(asked) > way {
		asked = answer.Add(-way) // a long poll: they came while it waited
	}
	return out.Messages, asked, nil
}

// judge makes an error final where waiting cannot help.
func (q *queue) judge(err error) error {
	if !isMissing(err) {
		return err
	}
	if !q.o.Create || q.n.givenURL {
		return &goneError{fmt.Errorf("queue %s was deleted: %w", q.n.queue, err)}
	}
	q.log.Warn("the queue was deleted and is made again", slog.String("sqs_queue", q.n.queue))
	n := q.n
	n.url, n.deadURL = "", ""
	again := &queue{d: q.d, o: q.o, n: n, longest: q.longest}
	if cerr := again.setup(q.life); cerr != nil {
		return errors.Join(err, cerr)
	}
	return err
}

// goneError ends Receive.
type goneError struct{ error }

func (e *goneError) Unwrap() error { return e.error }

// arrival is a message as it was received.
type arrival struct {
	m  *types.Message
	at time.Time
}

// token is the driver's side of a delivery.
type token struct {
	q     *queue
	id    string // MessageId
	e     *envelope
	count int // receives, this one included
	// carry is what the delivery came with, stalls noticed included.
	carry drivers.Carry
	// messageID and job as the delivery has them.
	messageID, job string
	enqueued       time.Time
	received       time.Time
	nonce          string

	// These are guarded by the queue's lock.
	receipt string
	leased  time.Time // until when the lease is ours for certain
	lost    bool
	busy    bool
	settled drivers.Verdict
	copied  drivers.Verdict // whose copy SQS has confirmed, for a repetition
}

// deliver makes deliveries of messages that arrived. Those that were settled here are deleted
// again, those that are not due are put back.
func (q *queue) deliver(ctx context.Context, got []arrival) []*drivers.Delivery {
	var ds []*drivers.Delivery
	var again, early []*token
	for _, a := range got {
		id := deref(a.m.MessageId)
		if _, done := q.recent.get(id); done {
			again = append(again, &token{q: q, id: id, receipt: deref(a.m.ReceiptHandle)})
			continue
		}
		t, d, err := q.open(ctx, a)
		switch {
		case errors.Is(err, errNewer):
			q.log.Warn("a message's counts are of a newer version: it is left to newer workers", slog.String("message", id))
			q.leave(ctx, t)
			continue
		case err != nil:
			q.pump.putBack(a, err, q.log)
			continue
		}
		if t.e.notBefore().After(time.Now()) {
			early = append(early, t)
			continue
		}
		ds = append(ds, d)
	}
	q.hold(ds)
	if len(again) > 0 {
		for i, err := range q.deleteAll(ctx, again) {
			if err != nil {
				q.log.Debug("a finished message came again and stays", slog.String("message", again[i].id), slog.Any("error", err))
			}
		}
	}
	q.hop(early)
	return ds
}

// open makes the delivery of one message. Its error is one of the place where counts are
// kept, and worth another try.
func (q *queue) open(ctx context.Context, a arrival) (*token, *drivers.Delivery, error) {
	m := a.m
	e, broken := open(m)
	count, err := strconv.Atoi(m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)])
	if err != nil {
		count = 1
	}
	t := &token{
		q: q, id: deref(m.MessageId), e: e, count: max(1, count), receipt: deref(m.ReceiptHandle),
		received: a.at, leased: a.at.Add(q.lease), nonce: uuid.NewString(),
	}
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
			headers := e.p.Headers
			e.p = r.packed
			e.p.Headers = headers
			accounted = r.N
			hopped = !r.Again && r.N == t.count-1 // nobody but the driver had it
		}
		if n, ok := q.refused.get(t.id); ok {
			accounted = max(accounted, n)
		}
	}
	t.carry = e.p.carry()
	stalled := max(0, t.count-1-accounted)
	t.carry.Stalls += stalled
	t.enqueued = enqueuedAt(m, e)
	h := e.headers()
	t.messageID, t.job = idOf(h, e, t.id), jobOf(h)
	// Whoever had the delivery before this one has noticed all stalls but that one.
	d := &drivers.Delivery{
		ID: t.messageID, Job: t.job, Headers: h, EnqueuedAt: t.enqueued, Received: a.at,
		Carry: cloneCarry(t.carry), Stalled: min(stalled, 1), Held: stalled > 0, Redelivered: e.p.Again || t.count > 1 && !hopped, Token: t,
	}
	d.ReplyTo, _ = h.Get(abi.HeaderReplyTo)
	if d.Payload, err = e.payload(); err != nil {
		broken = err
	}
	if broken != nil {
		d.Payload, d.Broken = []byte(e.body), broken.Error()
	}
	return t, d, nil
}

func cloneCarry(c drivers.Carry) drivers.Carry {
	c.State, c.Errors = slices.Clone(c.State), slices.Clone(c.Errors)
	return c
}

func enqueuedAt(m *types.Message, e *envelope) time.Time {
	if e.p.Enqueued > 0 {
		return time.UnixMilli(e.p.Enqueued)
	}
	ms, err := strconv.ParseInt(m.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)], 10, 64)
	if err != nil {
		return time.Now()
	}
	return time.UnixMilli(ms)
}

func idOf(h drivers.Header, e *envelope, messageID string) string {
	for _, name := range []string{abi.HeaderID, abi.HeaderCEID} {
		if id, _ := h.Get(name); id != "" {
			return id
		}
	}
	if e.p.ID != "" {
		return e.p.ID
	}
	return messageID
}

func jobOf(h drivers.Header) string {
	if job, _ := h.Get(abi.HeaderJob); job != "" {
		return job
	}
	job, _ := h.Get(abi.HeaderCEType)
	return job
}

// hold notes deliveries as ours. A token of an earlier delivery of the same message has lost
// its lease, and settles a success with the newest receipt.
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

// leave makes a message invisible for a while without a word about it.
func (q *queue) leave(ctx context.Context, t *token) {
	if err := q.changeVisibility(ctx, []*token{t}, newerWait)[0]; err != nil {
		q.log.Debug("leave a message", slog.String("message", t.id), slog.Any("error", err))
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
		due := t.e.notBefore()
		moves[i] = move{t: t, carry: t.e.p.carry(), due: due, again: t.e.p.Again}
	}
	for i, err := range q.putBack(ctx, moves) {
		if err != nil {
			q.log.Warn("a message that is not due yet could not be put back", slog.String("message", ts[i].id), slog.Any("error", err))
		}
	}
}
