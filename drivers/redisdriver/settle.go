package redisdriver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/guesthand/guesthand/drivers"
)

// Renew implements drivers.Queue.
func (q *queue) Renew(ctx context.Context, ds []*drivers.Delivery) []error {
	errs := make([]error, len(ds))
	var calls []*call
	var places [][]int
	for i, d := range ds {
		t, err := q.tokenOf(d)
		switch {
		case err != nil:
			errs[i] = err
			continue
		case q.closing.Load():
			errs[i] = drivers.ErrClosed
			continue
		}
		if n := len(places); n == 0 || len(places[n-1]) == batch {
			calls = append(calls, q.call(renewScript, q.o.Lease.Milliseconds()))
			places = append(places, nil)
		}
		n := len(places) - 1
		calls[n].args = append(calls[n].args, t.id, t.lease)
		places[n] = append(places[n], i)
	}
	if len(calls) == 0 {
		return errs
	}
	until := time.Now().Add(q.o.Lease).UnixNano()
	q.d.run(ctx, calls...)
	for n, c := range calls {
		answers, err := c.answers(len(places[n]), 0)
		for k, i := range places[n] {
			t := ds[i].Token.(*token)
			switch {
			case err != nil:
				errs[i] = q.d.wrap("renew "+t.messageID, err)
			case answers[k] != done:
				errs[i] = drivers.ErrLeaseLost
				q.forget(t)
			default:
				t.until.Store(until)
			}
		}
	}
	return errs
}

// What scripts answer for each message.
const (
	gone   = -1 // there is no such message
	others = 0  // the lease is not ours any more
	done   = 1
)

// answers reads a script's numbers: n of them after skip others.
func (c *call) answers(n, skip int) ([]int64, error) {
	v, err := c.cmd.Result()
	if err != nil {
		return nil, err
	}
	all, err := integers(v)
	if err != nil {
		return nil, err
	}
	if len(all) != n+skip {
		return nil, errAnswer
	}
	return all[skip:], nil
}

// group is settlements that one script carries out.
type group struct {
	call   *call
	places []int
	skip   int // numbers before those of the messages
}

// Settle implements drivers.Queue.
func (q *queue) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	errs := make([]error, len(ss))
	if len(ss) == 0 {
		return errs
	}
	q.settling.RLock()
	defer q.settling.RUnlock()
	var groups []*group
	open := map[script]*group{}
	for i, s := range ss {
		sc, args, err := q.settlement(s)
		if err != nil || sc == (script{}) {
			errs[i] = err
			continue
		}
		g := open[sc]
		if g == nil || len(g.places) == batch {
			g = q.group(sc)
			open[sc] = g
			groups = append(groups, g)
		}
		g.call.args = append(g.call.args, args...)
		g.places = append(g.places, i)
	}
	if len(groups) == 0 {
		return errs
	}
	calls := make([]*call, len(groups))
	for i, g := range groups {
		calls[i] = g.call
	}
	q.d.run(ctx, calls...)
	for _, g := range groups {
		q.settled(g, ss, errs)
	}
	return errs
}

// group begins a script's arguments.
func (q *queue) group(sc script) *group {
	switch sc {
	case requeueScript:
		return &group{call: q.call(sc, q.d.o.MaxDelay.Milliseconds())}
	case buryScript:
		return &group{call: q.call(sc, q.o.DeadMax, q.o.DeadKeep.Milliseconds()), skip: 2}
	}
	return &group{call: q.call(sc)}
}

// settlement checks one and returns its script and arguments, or no script where there is
// nothing left to do. The token is busy from then on.
func (q *queue) settlement(s drivers.Settlement) (sc script, args []any, err error) {
	t, err := q.tokenOf(s.Delivery)
	if err != nil {
		return sc, nil, err
	}
	if state := t.state.Load(); state >= settledAs {
		if state == settledAs+uint32(s.Verdict) {
			return sc, nil, nil
		}
		return sc, nil, drivers.ErrLeaseLost
	}
	if q.closing.Load() {
		return sc, nil, drivers.ErrClosed
	}
	switch s.Verdict {
	case drivers.Ack, drivers.Reject:
		sc, args = finishScript, []any{t.id, t.lease}
	case drivers.Requeue:
		sc = requeueScript
		args, err = requeueArgs(t, s)
	case drivers.Dead:
		if s.Death == nil {
			return sc, nil, fmt.Errorf("settle %s: a dead letter without a death", t.messageID)
		}
		sc = buryScript
		args, err = q.buryArgs(t, s)
	default:
		return sc, nil, fmt.Errorf("settle %s: %s", t.messageID, s.Verdict)
	}
	if err != nil {
		return script{}, nil, fmt.Errorf("settle %s: %w", t.messageID, err)
	}
	if !t.state.CompareAndSwap(tokenHeld, tokenBusy) {
		return script{}, nil, fmt.Errorf("settle %s: it is being settled", t.messageID)
	}
	return sc, args, nil
}

func requeueArgs(t *token, s drivers.Settlement) ([]any, error) {
	carry, err := encodeCarry(s.Carry)
	if err != nil {
		return nil, err
	}
	return []any{t.id, t.lease, ceilMilli(s.Delay), s.Carry.Stalls, carry, s.Carry.State}, nil
}

func (q *queue) buryArgs(t *token, s drivers.Settlement) ([]any, error) {
	carry, err := encodeCarry(s.Carry)
	if err != nil {
		return nil, err
	}
	died, worker := s.Death.Time, s.Death.Worker
	if died.IsZero() {
		died = time.Now()
	}
	if worker == "" {
		worker = q.o.Worker
	}
	return []any{t.id, t.lease, s.Carry.Stalls, carry, s.Death.Reason, s.Death.Outcome, s.Death.Cause, q.o.Name,
		died.UTC().Format(time.RFC3339Nano), s.Death.Digest, worker, strconv.Itoa(s.Carry.Attempt() - 1)}, nil
}

// ceilMilli rounds up, so that no delay is shortened.
func ceilMilli(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Millisecond) + 1
}

// settled reads what a group came to.
func (q *queue) settled(g *group, ss []drivers.Settlement, errs []error) {
	answers, err := g.call.answers(len(g.places), g.skip)
	if err == nil && g.skip > 0 {
		q.reportDropped(g.call)
	}
	var refusal redis.Error
	ended := make([]*token, 0, len(g.places))
	for k, i := range g.places {
		s := ss[i]
		t := s.Delivery.Token.(*token)
		if err != nil {
			if !errors.As(err, &refusal) {
				t.uncertain.Store(true)
			}
			t.state.Store(tokenHeld)
			errs[i] = q.d.wrap("settle "+t.messageID, err)
			continue
		}
		final := s.Verdict == drivers.Ack || s.Verdict == drivers.Reject
		if answers[k] == done || answers[k] == gone && final && t.uncertain.Load() {
			t.state.Store(settledAs + uint32(s.Verdict))
		} else {
			t.state.Store(settledAs) // as nothing
			errs[i] = drivers.ErrLeaseLost
		}
		ended = append(ended, t)
	}
	q.forget(ended...)
}
