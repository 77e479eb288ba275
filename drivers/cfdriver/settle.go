package cfdriver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

func (q *queue) token(d *drivers.Delivery) (*token, error) {
	if d != nil {
		if t, ok := d.Token.(*token); ok && t.q == q {
			return t, nil
		}
	}
	return nil, fmt.Errorf("queue %s: not a delivery of this queue", q.o.Name)
}

// round is one call of Settle.
type round struct {
	q    *queue
	ss   []drivers.Settlement
	errs []error
	open []int // indexes into ss of what is still to be done
	// ends are the leases to end, and of which settlements.
	ends []*pending
	of   []int
}

// Settle implements drivers.Queue: what must be kept is pushed, in batches, then the leases are
// ended, in batches.
func (q *queue) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	q.settling.RLock()
	defer q.settling.RUnlock()
	r := &round{q: q, ss: ss, errs: make([]error, len(ss))}
	for i := range ss {
		claimed, err := q.claim(&ss[i])
		if r.errs[i] = err; claimed {
			r.open = append(r.open, i)
		}
	}
	r.reject()
	r.bury(ctx)
	r.requeue(ctx)
	for _, i := range r.take(drivers.Ack) {
		r.end(i, &pending{t: r.tokenOf(i), final: drivers.Ack})
	}
	for k, err := range q.release(ctx, r.ends) {
		r.conclude(r.of[k], err)
	}
	return r.errs
}

// claim takes a delivery for settling; false and no error where it is settled like that already.
func (q *queue) claim(s *drivers.Settlement) (bool, error) {
	t, err := q.token(s.Delivery)
	if err != nil {
		return false, err
	}
	switch {
	case s.Verdict < drivers.Ack || s.Verdict > drivers.Reject:
		return false, fmt.Errorf("settle %s: %s", s.Delivery.ID, s.Verdict)
	case s.Verdict == drivers.Dead && s.Death == nil:
		return false, fmt.Errorf("settle %s: a dead letter without a death", s.Delivery.ID)
	}
	_, known := q.recent.get(t.id)
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case t.settled == s.Verdict:
		return false, nil
	case q.closing:
		return false, fmt.Errorf("settle %s: %w", s.Delivery.ID, drivers.ErrClosed)
	case t.settled != 0, t.copied != 0 && t.copied != s.Verdict && s.Verdict != drivers.Ack, known && s.Verdict != drivers.Ack:
		return false, fmt.Errorf("%s of %s: it was settled otherwise: %w", s.Verdict, s.Delivery.ID, drivers.ErrLeaseLost)
	case t.busy:
		return false, fmt.Errorf("%s of %s: it is being settled", s.Verdict, s.Delivery.ID)
	case s.Verdict != drivers.Ack && (t.lost || t.over()):
		// Cloudflare would take it, and take the message from whoever has it now.
		t.lost = true
		return false, fmt.Errorf("%s of %s: %w", s.Verdict, s.Delivery.ID, drivers.ErrLeaseLost)
	}
	t.busy = true
	return true, nil
}

func (r *round) tokenOf(i int) *token { return r.ss[i].Delivery.Token.(*token) }

// take removes the open settlements of one verdict.
func (r *round) take(v drivers.Verdict) (taken []int) {
	var rest []int
	for _, i := range r.open {
		if r.ss[i].Verdict == v {
			taken = append(taken, i)
		} else {
			rest = append(rest, i)
		}
	}
	r.open = rest
	return taken
}

func (r *round) end(i int, p *pending) { r.ends, r.of = append(r.ends, p), append(r.of, i) }

// conclude ends a claim.
func (r *round) conclude(i int, err error) {
	t, v := r.tokenOf(i), r.ss[i].Verdict
	r.errs[i] = wrap(err, v.String()+" of "+r.ss[i].Delivery.ID)
	q := r.q
	q.mu.Lock()
	defer q.mu.Unlock()
	t.busy = false
	if err != nil {
		t.lost = t.lost || errors.Is(err, drivers.ErrLeaseLost)
		return
	}
	t.settled = v
	if q.held[t.id] == t || v == drivers.Ack {
		delete(q.held, t.id)
	}
}

// reject leaves messages to their visibility and the consumer's own policy.
func (r *round) reject() {
	for _, i := range r.take(drivers.Reject) {
		t := r.tokenOf(i)
		r.q.refused.put(t.id, t.count)
		r.conclude(i, nil)
	}
}

// bury pushes dead letters.
func (r *round) bury(ctx context.Context) {
	q := r.q
	var outs []*outgoing
	var at []int
	for _, i := range r.take(drivers.Dead) {
		t := r.tokenOf(i)
		if q.isCopied(t) {
			r.end(i, &pending{t: t, final: drivers.Dead})
			continue
		}
		out, err := q.deadLetter(t, &r.ss[i])
		if err != nil {
			r.conclude(i, err)
			continue
		}
		outs, at = append(outs, out), append(at, i)
	}
	q.send(ctx, q.n.deadID, outs)
	for k, out := range outs {
		if out.err != nil {
			r.conclude(at[k], out.err)
			continue
		}
		q.copied(r.tokenOf(at[k]), drivers.Dead)
		r.end(at[k], &pending{t: r.tokenOf(at[k]), final: drivers.Dead})
	}
}

// requeue prepares what goes back.
func (r *round) requeue(ctx context.Context) {
	now := time.Now()
	var moves []move
	at := r.take(drivers.Requeue)
	for _, i := range at {
		m := move{t: r.tokenOf(i), carry: r.ss[i].Carry, again: true}
		if d := r.ss[i].Delay; d > 0 {
			m.due = now.Add(d)
		}
		moves = append(moves, m)
	}
	ps, errs := r.q.prepare(ctx, moves)
	for k, p := range ps {
		if errs[k] != nil {
			r.conclude(at[k], errs[k])
			continue
		}
		r.end(at[k], p)
	}
}
