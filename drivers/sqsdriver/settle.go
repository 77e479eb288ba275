package sqsdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/guesthand/guesthand/drivers"
)

// Renew implements drivers.Queue. A lease that would go beyond what SQS keeps a message
// for is lost, a little early.
func (q *queue) Renew(ctx context.Context, ds []*drivers.Delivery) []error {
	errs := make([]error, len(ds))
	var ts []*token
	var at []int
	for i, d := range ds {
		t, err := q.token(d)
		if err == nil {
			err = q.renewable(t)
		}
		if errs[i] = err; err == nil {
			ts, at = append(ts, t), append(at, i)
		}
	}
	for k, err := range q.changeVisibility(ctx, ts, q.lease) {
		errs[at[k]] = wrap(err, "renew "+ds[at[k]].ID)
	}
	return errs
}

func (q *queue) renewable(t *token) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closing:
		return drivers.ErrClosed
	case t.lost || t.settled != 0 || time.Since(t.received)+q.lease > q.longest:
		return drivers.ErrLeaseLost
	}
	return nil
}

func (q *queue) token(d *drivers.Delivery) (*token, error) {
	if d != nil {
		if t, ok := d.Token.(*token); ok && t.q == q {
			return t, nil
		}
	}
	return nil, fmt.Errorf("queue %s: not a delivery of this queue", q.o.Name)
}

// changeVisibility sets how long messages stay invisible from now on, and what we know of
// their leases.
func (q *queue) changeVisibility(ctx context.Context, ts []*token, d time.Duration) []error {
	waits := make([]time.Duration, len(ts))
	for i := range waits {
		waits[i] = d
	}
	return q.changeVisibilities(ctx, ts, waits)
}

func (q *queue) changeVisibilities(ctx context.Context, ts []*token, waits []time.Duration) []error {
	errs := make([]error, len(ts))
	batches(len(ts), func(from, to int) {
		in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: aws.String(q.n.url)}
		for i := from; i < to; i++ {
			in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
				Id: aws.String(entryID(i - from)), ReceiptHandle: aws.String(q.receiptOf(ts[i])), VisibilityTimeout: seconds(waits[i]),
			})
		}
		asked := time.Now()
		call, cancel := q.call(ctx)
		defer cancel()
		out, err := q.d.c.ChangeMessageVisibilityBatch(call, in)
		var ok []string
		var failed []types.BatchResultErrorEntry
		if err == nil {
			for _, e := range out.Successful {
				ok = append(ok, deref(e.Id))
			}
			failed = out.Failed
		}
		for i, err := range results(to-from, ok, failed, err) {
			errs[from+i] = leaseLost(err, false)
			q.noteVisibility(ts[from+i], asked.Add(time.Duration(seconds(waits[from+i]))*time.Second), errs[from+i])
		}
	})
	return errs
}

func (q *queue) noteVisibility(t *token, until time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case err == nil:
		t.leased = until
	case errors.Is(err, drivers.ErrLeaseLost):
		t.lost = true
	}
}

// receiptOf is the newest receipt handle this process has of a message: SQS takes an older
// one for a delete and does nothing.
func (q *queue) receiptOf(t *token) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if newest := q.held[t.id]; newest != nil {
		return newest.receipt
	}
	return t.receipt
}

// Settle implements drivers.Queue: what must be kept is sent, in batches, then the messages
// are deleted, in batches.
func (q *queue) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	q.settling.RLock()
	defer q.settling.RUnlock()
	errs := make([]error, len(ss))
	r := &round{q: q, ss: ss, errs: errs}
	for i := range ss {
		claimed, err := q.claim(&ss[i])
		if errs[i] = err; claimed {
			r.open = append(r.open, i)
		}
	}
	r.probe(ctx)
	r.reject()
	r.bury(ctx)
	r.requeue(ctx)
	r.delete(ctx)
	return errs
}

// claim takes a delivery for settling; false and no error where it is settled like that
// already.
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
	done, known := q.recent.get(t.id)
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case t.settled == s.Verdict:
		return false, nil
	case q.closing:
		return false, drivers.ErrClosed
	case t.settled != 0:
		return false, drivers.ErrLeaseLost
	case t.busy:
		return false, fmt.Errorf("settle %s: it is being settled", s.Delivery.ID)
	case known && (done != drivers.Ack || s.Verdict != drivers.Ack):
		return false, drivers.ErrLeaseLost // an earlier delivery of it was settled meanwhile
	case t.lost && s.Verdict != drivers.Ack:
		return false, drivers.ErrLeaseLost
	case t.copied != 0 && t.copied != s.Verdict:
		// Half of another settlement is done: its copy is there, the message is not ours.
		return false, fmt.Errorf("settle %s: %s, but its %s was half done: %w", s.Delivery.ID, s.Verdict, t.copied, drivers.ErrLeaseLost)
	}
	t.busy = true
	return true, nil
}

// round is one call of Settle: what is still open is taken through its steps.
type round struct {
	q    *queue
	ss   []drivers.Settlement
	errs []error
	open []int // claimed, without an end yet
	done []int // to be deleted
}

func (r *round) tokenOf(i int) *token { return r.ss[i].Delivery.Token.(*token) }

// take removes the open ones of a verdict.
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

// conclude ends a claim.
func (r *round) conclude(i int, err error) {
	t, v := r.tokenOf(i), r.ss[i].Verdict
	r.errs[i] = wrap(err, v.String()+" "+r.ss[i].Delivery.ID)
	r.q.conclude(t, v, err)
}

func (q *queue) conclude(t *token, v drivers.Verdict, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t.busy = false
	if err != nil {
		if errors.Is(err, drivers.ErrLeaseLost) {
			t.lost = true
		}
		return
	}
	t.settled = v
	if q.held[t.id] == t || v == drivers.Ack {
		delete(q.held, t.id)
	}
}

// probe makes sure of leases that have run out by our own clock: SQS would take a delete
// and do nothing, but it refuses to change the visibility of what is no longer ours.
func (r *round) probe(ctx context.Context) {
	var doubtful []*token
	var at []int
	now := time.Now()
	for _, i := range r.open {
		t := r.tokenOf(i)
		r.q.mu.Lock()
		over := now.After(t.leased.Add(-min(r.q.lease/10, time.Second)))
		r.q.mu.Unlock()
		if over {
			doubtful, at = append(doubtful, t), append(at, i)
		}
	}
	if len(doubtful) == 0 {
		return
	}
	errs := r.q.changeVisibility(ctx, doubtful, r.q.lease)
	failed := map[int]bool{}
	for k, err := range errs {
		if err != nil {
			r.conclude(at[k], err)
			failed[at[k]] = true
		}
	}
	var rest []int
	for _, i := range r.open {
		if !failed[i] {
			rest = append(rest, i)
		}
	}
	r.open = rest
}

// reject leaves messages to their visibility and the queue's redrive policy.
func (r *round) reject() {
	for _, i := range r.take(drivers.Reject) {
		t := r.tokenOf(i)
		r.q.refused.put(t.id, t.count)
		r.conclude(i, nil)
	}
}

// bury sends dead letters.
func (r *round) bury(ctx context.Context) {
	q := r.q
	var outs []*outgoing
	var at []int
	for _, i := range r.take(drivers.Dead) {
		t := r.tokenOf(i)
		if q.isCopied(t) {
			r.done = append(r.done, i)
			continue
		}
		out, err := q.deadLetter(t, &r.ss[i])
		if err != nil {
			r.conclude(i, err)
			continue
		}
		outs, at = append(outs, out), append(at, i)
	}
	q.send(ctx, q.n.deadURL, q.n.deadFIFO, outs)
	for k, out := range outs {
		r.afterCopy(at[k], out.err)
	}
}

func (q *queue) isCopied(t *token) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return t.copied != 0
}

// afterCopy notes that a copy is at SQS, so that a repetition makes no second one.
func (r *round) afterCopy(i int, err error) {
	if err != nil {
		r.conclude(i, err)
		return
	}
	t := r.tokenOf(i)
	r.q.mu.Lock()
	t.copied = r.ss[i].Verdict
	r.q.mu.Unlock()
	r.done = append(r.done, i)
}

// requeue puts messages back.
func (r *round) requeue(ctx context.Context) {
	now := time.Now()
	var moves []move
	var at []int
	for _, i := range r.take(drivers.Requeue) {
		t, s := r.tokenOf(i), &r.ss[i]
		if r.q.n.fifo && r.q.d.o.Store == nil && s.Carry.Delays > t.carry.Delays {
			r.conclude(i, fmt.Errorf("a delay on a FIFO queue needs a [store] to count it in: %w", drivers.ErrUnsupported))
			continue
		}
		m := move{t: t, carry: s.Carry, again: true}
		if s.Delay > 0 {
			m.due = now.Add(s.Delay)
		}
		moves, at = append(moves, m), append(at, i)
	}
	for k, err := range r.q.putBack(ctx, moves) {
		r.conclude(at[k], err)
	}
}

// delete ends what is acknowledged, and what has its dead letter.
func (r *round) delete(ctx context.Context) {
	r.done = append(r.done, r.take(drivers.Ack)...)
	ts := make([]*token, len(r.done))
	for k, i := range r.done {
		ts[k] = r.tokenOf(i)
	}
	for k, err := range r.q.finish(ctx, ts, func(k int) drivers.Verdict { return r.ss[r.done[k]].Verdict }) {
		r.conclude(r.done[k], err)
	}
}

// finish deletes messages whose settlement is complete with that, and remembers it.
func (q *queue) finish(ctx context.Context, ts []*token, verdict func(i int) drivers.Verdict) []error {
	errs := q.deleteAll(ctx, ts)
	for i, err := range errs {
		if err != nil {
			continue
		}
		t := ts[i]
		q.recent.put(t.id, verdict(i))
		q.refused.drop(t.id)
		if t.count > 1 {
			if err := q.place.drop(ctx, t.id); err != nil {
				// It is found by nobody again and goes with its age.
				q.log.Debug("the counts of a finished message stay", slog.String("message", t.id), slog.Any("error", err))
			}
		}
	}
	return errs
}

func (q *queue) deleteAll(ctx context.Context, ts []*token) []error {
	return q.deleteFrom(ctx, q.n.url, len(ts), func(i int) string { return q.receiptOf(ts[i]) })
}

func (q *queue) deleteFrom(ctx context.Context, url string, n int, receipt func(i int) string) []error {
	errs := make([]error, n)
	batches(n, func(from, to int) {
		in := &sqs.DeleteMessageBatchInput{QueueUrl: aws.String(url)}
		for i := from; i < to; i++ {
			in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{
				Id: aws.String(entryID(i - from)), ReceiptHandle: aws.String(receipt(i)),
			})
		}
		call, cancel := q.call(ctx)
		defer cancel()
		out, err := q.d.c.DeleteMessageBatch(call, in)
		var ok []string
		var failed []types.BatchResultErrorEntry
		if err == nil {
			for _, e := range out.Successful {
				ok = append(ok, deref(e.Id))
			}
			failed = out.Failed
		}
		for i, err := range results(to-from, ok, failed, err) {
			errs[from+i] = leaseLost(err, true)
		}
	})
	return errs
}
