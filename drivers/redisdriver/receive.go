package redisdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

const (
	// maxReserve bounds one request's messages, and reserveBytes about its bytes.
	maxReserve   = batch
	reserveBytes = 16 << 20
	// answerGrace is how long a Receive whose context has ended waits for an answer that is
	// on its way.
	answerGrace = 100 * time.Millisecond
)

// request asks the server for messages, once: repeated under its number it brings the same.
type request struct {
	number int64
	most   int
	again  bool

	done  chan struct{} // closed when there is an answer, or none will come
	ds    []*drivers.Delivery
	next  time.Duration // until something else falls due; 0 unknown
	err   error
	lost  bool // no answer: it may have been carried out
	alone bool // nobody waits for it; requests.mu
}

// requests is what Receive has asked for.
type requests struct {
	mu         sync.Mutex
	shut       bool     // no more may be asked for
	open       *request // on its way
	number     int64
	unanswered *request
	troubles   int // in a row
}

// Receive implements drivers.Queue.
func (q *queue) Receive(ctx context.Context, max int) ([]*drivers.Delivery, error) {
	switch {
	case max < 1:
		return nil, fmt.Errorf("receive %s: asked for %d messages", q.o.Name, max)
	case q.o.SendOnly:
		return nil, fmt.Errorf("receive %s: the queue was opened for sending only", q.o.Name)
	}
	q.receiving.Lock()
	defer q.receiving.Unlock()
	for {
		if q.closing.Load() {
			return nil, drivers.ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r := q.begin(max)
		if r == nil || !q.await(ctx, r) {
			continue
		}
		ds, err := q.answered(ctx, r, max)
		if q.closing.Load() {
			continue // Close gives them back
		}
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		q.sleep(ctx, r)
	}
}

// shutDown lets no more requests begin.
func (s *requests) shutDown() {
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
}

// begin sends a request, or takes up the one that is on its way; nil where the queue ends.
func (q *queue) begin(most int) *request {
	s := &q.requests
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return nil
	}
	if s.open != nil {
		s.open.alone = false
		return s.open
	}
	r := &request{most: min(most, maxReserve), done: make(chan struct{})}
	if u := s.unanswered; u != nil {
		r.number, r.most, r.again = u.number, u.most, true
	} else {
		s.number++
		r.number = s.number
	}
	s.open = r
	q.working.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), q.d.o.AnswerTimeout)
		defer cancel()
		q.ask(ctx, r)
		q.arrived(ctx, r)
	})
	return r
}

// arrived ends a request. What nobody waits for any more goes back.
func (q *queue) arrived(ctx context.Context, r *request) {
	s := &q.requests
	s.mu.Lock()
	s.open = nil
	s.unanswered = nil
	if r.lost {
		s.unanswered = r
	}
	alone := r.alone
	if !alone {
		q.hold(r.ds)
	}
	s.mu.Unlock()
	close(r.done)
	if alone && len(r.ds) > 0 {
		if err := q.giveBack(ctx, tokensOf(r.ds)); err != nil {
			q.log.Warn("messages that nobody waited for could not be given back: they come again after their lease", slog.Any("error", err))
		}
	}
}

// await is true when the request has ended, false when ctx or the queue has and the request is
// left to itself.
func (q *queue) await(ctx context.Context, r *request) bool {
	select {
	case <-r.done:
		return true
	case <-ctx.Done():
	case <-q.done:
	}
	grace := time.NewTimer(answerGrace)
	defer grace.Stop()
	select {
	case <-r.done:
		return true
	case <-grace.C:
	}
	s := &q.requests
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != r {
		return true
	}
	r.alone = true
	return false
}

// answered is what a request came to.
func (q *queue) answered(ctx context.Context, r *request, max int) ([]*drivers.Delivery, error) {
	if r.err != nil {
		if hopeless(r.err) {
			return nil, q.d.wrap("receive "+q.o.Name, r.err)
		}
		return nil, nil
	}
	ds := q.ripe(ctx, r.ds)
	if len(ds) > max { // a repeated request, made for more
		surplus := tokensOf(ds[max:])
		ds = ds[:max]
		q.forget(surplus...)
		if err := q.giveBack(context.WithoutCancel(ctx), surplus); err != nil {
			q.log.Warn("messages could not be given back: they come again after their lease", slog.Any("error", err))
		}
	}
	return ds, nil
}

// sleep returns when there may be something.
func (q *queue) sleep(ctx context.Context, r *request) {
	wait := pollEvery
	if r.next > 0 {
		wait = min(wait, r.next)
	}
	wake := q.wake
	if r.err == nil {
		q.requests.troubles = 0
	} else {
		wait = backoff(q.requests.troubles)
		q.requests.troubles++
		wake = nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-wake:
	case <-t.C:
	case <-ctx.Done():
	case <-q.done:
	}
}

// ask carries a request out.
func (q *queue) ask(ctx context.Context, r *request) {
	again := ""
	if r.again {
		again = "1"
	}
	c := q.call(reserveScript, q.owner, r.number, r.most, q.o.Lease.Milliseconds(), reserveBytes, q.d.o.MaxDelay.Milliseconds(), again)
	begun := time.Now()
	q.d.run(ctx, c)
	answer, err := c.cmd.Slice()
	if err != nil {
		var refusal redis.Error
		r.err, r.lost = err, !errors.As(err, &refusal)
		return
	}
	r.err = q.read(r, begun, answer)
}

// read turns a script's answer into deliveries.
func (q *queue) read(r *request, begun time.Time, answer []any) error {
	if len(answer) < 3 {
		return errAnswer
	}
	head, err := integers(answer[:3])
	if err != nil {
		return err
	}
	if next := head[1]; next > 0 {
		r.next = time.Duration(max(1, next-head[0])) * time.Millisecond
	}
	if missing := head[2]; missing > 0 {
		q.log.Warn("messages were listed and are not there: evicted or deleted by somebody, or listed twice", slog.Int64("count", missing))
	}
	lease := q.owner + ":" + strconv.FormatInt(r.number, 10)
	for _, m := range answer[3:] {
		fields, ok := m.([]any)
		if !ok || len(fields) < 7 {
			return errAnswer
		}
		r.ds = append(r.ds, q.delivery(fields, lease, begun))
	}
	return nil
}

// delivery decodes id, n, payload, headers, job, message id, at, and for one that was handed
// out before stalls, noticed, carry, state.
func (q *queue) delivery(f []any, lease string, begun time.Time) *drivers.Delivery {
	t := &token{q: q, id: text(f[0]), lease: lease}
	d := &drivers.Delivery{
		Payload: []byte(text(f[2])), EnqueuedAt: time.UnixMilli(number(f[6])), Received: begun,
		Redelivered: number(f[1]) > 1, Token: t,
	}
	var err error
	if d.Headers, err = decodeHeaders(text(f[3])); err != nil {
		d.Broken = "the headers cannot be decoded: " + err.Error()
	}
	d.Job, d.ID = text(f[4]), text(f[5])
	q.name(d, t)
	if len(f) >= 11 {
		if d.Carry, err = decodeCarry(text(f[9])); err != nil && d.Broken == "" {
			d.Broken = "the counts cannot be decoded: " + err.Error()
		}
		d.Carry.Stalls = int(number(f[7]))
		d.Stalled = int(number(f[8]))
		d.Held = d.Stalled > 0
		if state := text(f[10]); state != "" {
			d.Carry.State = []byte(state)
		}
	}
	return d
}

// name settles job and id, and shows both as headers.
func (q *queue) name(d *drivers.Delivery, t *token) {
	for _, v := range []struct {
		field              *string
		header, cloudevent string
	}{
		{&d.Job, abi.HeaderJob, abi.HeaderCEType},
		{&d.ID, abi.HeaderID, abi.HeaderCEID},
	} {
		if *v.field != "" {
			d.Headers.Set(v.header, *v.field)
		} else if own, ok := d.Headers.Get(v.header); ok {
			*v.field = own
		} else if own, ok := d.Headers.Get(v.cloudevent); ok {
			*v.field = own
		}
	}
	if d.ID == "" {
		d.ID = t.id
	}
	t.messageID = d.ID
	d.ReplyTo, _ = d.Headers.Get(abi.HeaderReplyTo)
}

// ripe puts back first deliveries whose Guesthand-Not-Before is still to come: a producer
// that does not know of the sorted set may ask so, too.
func (q *queue) ripe(ctx context.Context, ds []*drivers.Delivery) []*drivers.Delivery {
	var early []drivers.Settlement
	kept := ds[:0]
	for _, d := range ds {
		until := notBefore(d)
		if until <= 0 {
			kept = append(kept, d)
			continue
		}
		early = append(early, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Delay: until})
	}
	for i, err := range q.Settle(context.WithoutCancel(ctx), early) {
		if err != nil && !errors.Is(err, drivers.ErrLeaseLost) && !errors.Is(err, drivers.ErrClosed) {
			q.log.Warn("a message whose time has not come could not be put back: it comes again after its lease",
				slog.String("id", early[i].Delivery.ID), slog.Any("error", err))
			q.forget(early[i].Delivery.Token.(*token))
		}
	}
	return kept
}

func notBefore(d *drivers.Delivery) time.Duration {
	if d.Redelivered {
		return 0
	}
	v, ok := d.Headers.Get(abi.HeaderNotBefore)
	if !ok {
		return 0
	}
	at, err := time.Parse(time.RFC3339Nano, v)
	if err != nil {
		return 0
	}
	return time.Until(at)
}

func tokensOf(ds []*drivers.Delivery) []*token {
	ts := make([]*token, len(ds))
	for i, d := range ds {
		ts[i] = d.Token.(*token)
	}
	return ts
}
