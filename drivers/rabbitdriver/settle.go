package rabbitdriver

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/guesthand/guesthand/drivers"
)

// tokenState says whether a delivery is held, being settled, or settled and how.
type tokenState struct{ atomic.Uint32 }

const (
	tokenHeld uint32 = iota
	tokenBusy
	settledAs // plus the verdict
)

// Renew implements drivers.Queue. The lease is the channel: one request shows that it lives.
func (q *queue) Renew(ctx context.Context, ds []*drivers.Delivery) []error {
	errs := make([]error, len(ds))
	proven := map[*intake]error{}
	for i, d := range ds {
		t, err := q.token(d)
		switch {
		case err != nil:
			errs[i] = err
			continue
		case q.closing.Load():
			errs[i] = drivers.ErrClosed
			continue
		case t.in.isGone() || t.state.Load() >= settledAs:
			errs[i] = drivers.ErrLeaseLost
			continue
		}
		err, known := proven[t.in]
		if !known {
			err = t.in.prove(ctx)
			proven[t.in] = err
		}
		if err != nil && t.in.isGone() {
			err = drivers.ErrLeaseLost
		}
		errs[i] = err
	}
	return errs
}

// claim takes a delivery for settling: nil and no error where it is settled like that already.
func (q *queue) claim(s *drivers.Settlement) (*token, error) {
	t, err := q.token(s.Delivery)
	switch {
	case err != nil:
		return nil, err
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
	case q.isDone() && t.in.isGone():
		return nil, drivers.ErrClosed
	case t.in.isGone():
		return nil, drivers.ErrLeaseLost
	case !t.state.CompareAndSwap(tokenHeld, tokenBusy):
		return nil, fmt.Errorf("settle %s: it is being settled", s.Delivery.ID)
	}
	return t, nil
}

// job is one settlement on its way.
type job struct {
	i int
	t *token
	p *publication
}

// Settle implements drivers.Queue. Copies and dead letters are published first; then
// everything is acknowledged at once.
func (q *queue) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	q.settling.RLock()
	defer q.settling.RUnlock()
	errs := make([]error, len(ss))
	jobs := make([]job, 0, len(ss))
	publish := false
	for i := range ss {
		t, err := q.claim(&ss[i])
		errs[i] = err
		if t != nil {
			jobs = append(jobs, job{i: i, t: t})
			publish = publish || ss[i].Verdict != drivers.Ack
		}
	}
	if publish {
		jobs = q.store(ctx, ss, jobs, errs)
	}
	q.release(ctx, ss, jobs, errs)
	q.afterDeath(ctx, ss, jobs)
	return errs
}

// fail ends a claim without success. While nothing was acknowledged, the end of the channel is
// the end of the lease; afterwards it leaves open what the broker has read.
func fail(s *drivers.Settlement, t *token, err error) error {
	t.state.Store(tokenHeld)
	return fmt.Errorf("%s %s: %w", s.Verdict, s.Delivery.ID, err)
}

// store publishes what has to be there before the originals go, and returns the jobs that
// may go on.
func (q *queue) store(ctx context.Context, ss []drivers.Settlement, jobs []job, errs []error) []job {
	// A channel that does not answer has lost its messages, maybe to somebody who runs them:
	// a copy of ours would be one too many.
	proven := map[*intake]error{}
	var ps []*publication
	for k := range jobs {
		j := &jobs[k]
		s := &ss[j.i]
		if s.Verdict == drivers.Ack || s.Verdict == drivers.Reject || j.t.stored == s.Verdict {
			continue
		}
		err, known := proven[j.t.in]
		if !known {
			err = j.t.in.prove(ctx)
			proven[j.t.in] = err
		}
		if err == nil {
			j.p, err = q.publicationFor(ctx, j.t, s)
		}
		if err != nil {
			j.p = &publication{err: err}
			continue
		}
		ps = append(ps, j.p)
	}
	q.d.publisher.publish(ctx, ps)
	kept := jobs[:0]
	for _, j := range jobs {
		if j.p != nil && j.p.err != nil {
			err := j.p.err
			if j.t.in.isGone() {
				err = fmt.Errorf("%w: %w", drivers.ErrLeaseLost, err)
			}
			errs[j.i] = fail(&ss[j.i], j.t, err)
			continue
		}
		if j.p != nil {
			j.t.stored = ss[j.i].Verdict
		}
		kept = append(kept, j)
	}
	return kept
}

func (q *queue) publicationFor(ctx context.Context, t *token, s *drivers.Settlement) (*publication, error) {
	if s.Verdict == drivers.Dead {
		return q.deadLetter(t, s)
	}
	rec := record{Out: true, Enqueued: t.enqueued.UnixMilli()}
	rec.setCarry(s.Carry)
	rec.rest(s.Delay)
	return q.copyFor(ctx, &replacement{t: t, rec: rec})
}

// release acknowledges or rejects, and waits until the broker has read it.
func (q *queue) release(ctx context.Context, ss []drivers.Settlement, jobs []job, errs []error) {
	for len(jobs) > 0 {
		in := jobs[0].t.in
		var mine, others []job
		for _, j := range jobs {
			if j.t.in == in {
				mine = append(mine, j)
			} else {
				others = append(others, j)
			}
		}
		jobs = others
		err := q.letGo(in, ss, mine)
		if err == nil {
			err = in.prove(ctx)
		}
		for _, j := range mine {
			if err != nil {
				errs[j.i] = fail(&ss[j.i], j.t, err)
				continue
			}
			j.t.state.Store(settledAs + uint32(ss[j.i].Verdict))
		}
	}
}

func (q *queue) letGo(in *intake, ss []drivers.Settlement, jobs []job) error {
	tags := make([]uint64, 0, len(jobs))
	for _, j := range jobs {
		if ss[j.i].Verdict != drivers.Reject {
			tags = append(tags, j.t.tag)
			continue
		}
		if err := in.reject(j.t.tag); err != nil {
			return err
		}
	}
	if len(tags) == 0 {
		return nil
	}
	return in.ack(tags)
}
