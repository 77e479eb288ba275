package natsdriver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// minimumDelay is the shortest delay of a put-back: a bare NAK is forgotten when the server
// restarts, one with a delay is stored.
const minimumDelay = time.Millisecond

// maxReason bounds the text of a rejection.
const maxReason = 1 << 10

var (
	ackBody   = []byte("+ACK")
	renewBody = []byte("+WPI")
)

// Renew implements drivers.Queue. The server does not say whether the lease was still ours;
// it is known to be lost only where the message was handed out again in this process.
func (q *queue) Renew(ctx context.Context, ds []*drivers.Delivery) []error {
	errs := make([]error, len(ds))
	_ = inParallel(len(ds), func(i int) error {
		errs[i] = q.renew(ctx, ds[i])
		return nil
	})
	return errs
}

func (q *queue) renew(ctx context.Context, d *drivers.Delivery) error {
	t, err := q.token(d)
	switch {
	case err != nil:
		return err
	case q.closing.Load():
		return drivers.ErrClosed
	case t.lost.Load(), t.state.Load() >= settledAs:
		return drivers.ErrLeaseLost
	}
	if _, err := q.d.request(ctx, t.reply, renewBody); err != nil {
		return fmt.Errorf("renew %s: %w", d.ID, err)
	}
	return nil
}

func (q *queue) token(d *drivers.Delivery) (*token, error) {
	if d != nil {
		if t, ok := d.Token.(*token); ok && t.q == q {
			return t, nil
		}
	}
	return nil, fmt.Errorf("queue %s: not a delivery of this queue", q.n.queue)
}

// Settle implements drivers.Queue. Successes go as one group, everything else side by side.
func (q *queue) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	q.settling.RLock()
	defer q.settling.RUnlock()
	errs := make([]error, len(ss))
	acks := make([]*token, 0, len(ss))
	var others []int
	for i := range ss {
		t, err := q.claim(&ss[i])
		switch {
		case err != nil || t == nil: // refused, or settled so already
			errs[i] = err
		case ss[i].Verdict == drivers.Ack:
			acks = append(acks, t)
		default:
			others = append(others, i)
		}
	}
	var wg sync.WaitGroup
	if len(others) > 0 {
		wg.Go(func() {
			_ = inParallel(len(others), func(k int) error {
				s := &ss[others[k]]
				t := s.Delivery.Token.(*token)
				err := q.carryOut(ctx, t, s)
				q.conclude(t, s.Verdict, err)
				errs[others[k]] = err
				return nil
			})
		})
	}
	if len(acks) > 0 {
		failed := q.ack(ctx, acks)
		for i := range ss {
			if failed != nil && ss[i].Verdict == drivers.Ack && errs[i] == nil {
				if t, ok := ss[i].Delivery.Token.(*token); ok {
					errs[i] = failed[t]
				}
			}
		}
	}
	wg.Wait()
	return errs
}

// claim takes a delivery for settling: nil and no error where it is settled like that already.
func (q *queue) claim(s *drivers.Settlement) (*token, error) {
	t, err := q.token(s.Delivery)
	switch {
	case err != nil:
		return nil, err
	case q.closing.Load() && q.isDone():
		return nil, drivers.ErrClosed
	case s.Verdict < drivers.Ack || s.Verdict > drivers.Reject:
		return nil, fmt.Errorf("settle %s: %s", s.Delivery.ID, s.Verdict)
	case s.Verdict == drivers.Dead && s.Death == nil:
		return nil, fmt.Errorf("settle %s: a dead letter without a death", s.Delivery.ID)
	}
	state := t.state.Load()
	switch {
	case state == settledAs+uint32(s.Verdict):
		return nil, nil
	case state >= settledAs:
		return nil, drivers.ErrLeaseLost
	case t.lost.Load() && s.Verdict != drivers.Ack:
		return nil, drivers.ErrLeaseLost
	case !t.state.CompareAndSwap(tokenHeld, tokenBusy):
		return nil, fmt.Errorf("settle %s: it is being settled", s.Delivery.ID)
	}
	return t, nil
}

func (q *queue) isDone() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// conclude ends a claim.
func (q *queue) conclude(t *token, v drivers.Verdict, err error) {
	if err != nil {
		t.state.Store(tokenHeld)
		return
	}
	t.state.Store(settledAs + uint32(v))
	q.finished(t)
}

func (q *queue) carryOut(ctx context.Context, t *token, s *drivers.Settlement) error {
	var err error
	switch s.Verdict {
	case drivers.Requeue:
		err = q.requeue(ctx, t, s)
	case drivers.Dead:
		err = q.bury(ctx, t, s)
	case drivers.Reject:
		err = q.reject(ctx, t, s.Reason)
	}
	return wrap(err, s.Verdict.String()+" "+s.Delivery.ID)
}

// ack acknowledges a group: the server handles one connection's acknowledgements in order, so
// the answer to the last proves them all, unless the connection broke in between. In
// doubt each is asked for again, which is harmless. The result is nil when all went well.
func (q *queue) ack(ctx context.Context, ts []*token) map[*token]error {
	failed := map[*token]error(nil)
	if q.ackGroup(ctx, ts) != nil {
		failed = q.ackEach(ctx, ts)
	}
	proven := ts
	if failed != nil {
		proven = ts[:0:0]
	}
	for _, t := range ts {
		err := failed[t]
		q.conclude(t, drivers.Ack, err)
		if err == nil && failed != nil {
			proven = append(proven, t)
		}
	}
	q.acked.add(proven, 2*time.Duration(q.ackWait.Load()))
	q.dropTallies(ctx, proven)
	return failed
}

func (q *queue) ackGroup(ctx context.Context, ts []*token) error {
	nc := q.d.nc
	before := nc.Stats().Reconnects
	last := len(ts) - 1
	for _, t := range ts[:last] {
		if err := nc.Publish(t.reply, ackBody); err != nil {
			return err
		}
	}
	half, cancel := halfOf(ctx)
	defer cancel()
	if _, err := q.d.request(half, ts[last].reply, ackBody); err != nil {
		return err
	}
	if nc.Stats().Reconnects != before {
		return fmt.Errorf("the connection broke in between")
	}
	return nil
}

// halfOf leaves time for a second way.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	return context.WithCancel(ctx)
}

// finish asks for a final verb and waits for the answer. The server gives none for a delivery
// it forgot when it was killed: the message will be handed out again, as if for the first
// time.
func (q *queue) finish(ctx context.Context, t *token, body []byte) error {
	half, cancel := halfOf(ctx)
	defer cancel()
	_, err := q.d.request(half, t.reply, body)
	if err == nil || half.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	stream, serr := q.d.js.Stream(ctx, q.n.stream)
	if serr != nil {
		return err
	}
	cons, cerr := stream.Consumer(ctx, q.n.consumer)
	if cerr == nil && cons.CachedInfo().Delivered.Stream < t.seq {
		return drivers.ErrLeaseLost
	}
	return err
}

func (q *queue) ackEach(ctx context.Context, ts []*token) map[*token]error {
	var mu sync.Mutex
	failed := map[*token]error{}
	_ = inParallel(len(ts), func(i int) error {
		if err := q.finish(ctx, ts[i], ackBody); err != nil {
			mu.Lock()
			failed[ts[i]] = fmt.Errorf("ack %s: %w", ts[i].d.ID, err)
			mu.Unlock()
		}
		return nil
	})
	return failed
}

// dropTallies removes what is kept of finished messages; those of the first try have nothing.
func (q *queue) dropTallies(ctx context.Context, ts []*token) {
	var with []*token
	for _, t := range ts {
		if t.rev > 0 {
			with = append(with, t)
		}
	}
	_ = inParallel(len(with), func(i int) error {
		q.tally.drop(ctx, with[i].rev)
		return nil
	})
}

// requeue stores the tally, then puts the message back.
func (q *queue) requeue(ctx context.Context, t *token, s *drivers.Settlement) error {
	rec := q.newRecord(t, s.Carry)
	due := time.Now().Add(s.Delay)
	if s.Delay > minimumDelay {
		rec.Rest = due.UnixNano()
	}
	if _, err := q.write(ctx, t, rec); err != nil {
		return err
	}
	return q.putBack(ctx, t, time.Until(due))
}

// newRecord is a tally that accounts for this delivery.
func (q *queue) newRecord(t *token, c drivers.Carry) *record {
	r := &record{N: t.n, C: q.inc.Load().consumer, E: q.session.epoch(), W: q.writer}
	r.setCarry(c)
	return r
}

// write stores a tally over the one read at delivery. A tally found instead is replaced if it
// is of an earlier delivery or our own of this one, written by a try whose answer was lost;
// else the message belongs to somebody else.
func (q *queue) write(ctx context.Context, t *token, rec *record) (uint64, error) {
	key := q.tally.key(t.seq, t.stamp)
	for range casTries {
		rev, err := q.tally.put(ctx, key, rec, t.rev)
		if err == nil {
			t.rev = rev
			return rev, nil
		}
		if !isConflict(err) {
			return 0, err
		}
		found, rev, err := q.tally.get(ctx, key)
		if err != nil {
			return 0, err
		}
		if found != nil {
			same := found.C == rec.C && found.E == rec.E
			switch {
			case found.V > recordVersion,
				same && found.N > t.n,
				same && found.N == t.n && found.W != q.writer:
				return 0, drivers.ErrLeaseLost
			}
		} else if t.rev > 0 && rev == 0 {
			return 0, drivers.ErrLeaseLost // finished by somebody else
		}
		t.rev = rev
	}
	return 0, drivers.ErrLeaseLost
}

// putBack releases a message, to come again after d at the earliest.
func (q *queue) putBack(ctx context.Context, t *token, d time.Duration) error {
	d = max(d, minimumDelay)
	if most := q.d.o.MaxDelay; most > 0 {
		d = min(d, most)
	}
	if r := d % time.Millisecond; r > 0 {
		d += time.Millisecond - r
	}
	body := strconv.AppendInt([]byte(`-NAK {"delay":`), int64(d), 10)
	_, err := q.d.request(ctx, t.reply, append(body, '}'))
	return wrap(err, "put back")
}

// reject ends the message the server's own way.
func (q *queue) reject(ctx context.Context, t *token, reason string) error {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	if err := q.finish(ctx, t, append([]byte("+TERM "), reason...)); err != nil {
		return err
	}
	q.dropTallies(ctx, []*token{t})
	return nil
}
