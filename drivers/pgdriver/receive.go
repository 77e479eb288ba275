package pgdriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

const (
	// claimBytes is about the most bytes of one claim.
	claimBytes = 16 << 20
	// answerGrace is how long a Receive whose context has ended waits for an answer that is on
	// its way.
	answerGrace = time.Second
	// wholeEvery is how often at least a claim begins at the front of the queue.
	wholeEvery = time.Second
)

// intake is what Receive knows. queue.receiving is held.
type intake struct {
	leased time.Time // until then the worker's row is good for a whole lease
	unsure time.Time // until then a claim without an answer may still show
	// from is where the next claim begins while the queue is full of work, so that it does not
	// pass what was finished and not yet cleaned away; whole is when one last began at the front.
	from, whole time.Time
	troubles    int // in a row
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
		ds, err := q.take(ctx, min(max, batch))
		ds = q.ripe(ctx, ds)
		if q.closing.Load() {
			continue // Close gives them back
		}
		if len(ds) > 0 {
			return ds, nil
		}
		if hopeless(err) && ctx.Err() == nil {
			return nil, q.d.wrap("receive "+q.o.Name, err)
		}
		q.sleep(ctx, err)
	}
}

// within is ctx for a claim: a little longer than the caller waits and the queue is open, since
// a claim that is cut off has to be looked for.
func (q *queue) within(ctx context.Context) (context.Context, context.CancelFunc) {
	claim, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		select {
		case <-ctx.Done():
		case <-q.done:
		case <-ended:
			return
		}
		select {
		case <-time.After(answerGrace):
			cancel()
		case <-ended:
		}
	}()
	return claim, func() {
		close(ended)
		cancel()
	}
}

// take claims messages once, after those of a claim whose answer was lost.
func (q *queue) take(ctx context.Context, max int) ([]*drivers.Delivery, error) {
	ctx, cancel := q.within(ctx)
	defer cancel()
	if err := q.touch(ctx); err != nil {
		return nil, err
	}
	if time.Now().Before(q.intake.unsure) {
		ds, err := q.rows(ctx, q.d.sql.missed, q.worker, q.heldEntries(), max)
		if err != nil || len(ds) > 0 {
			q.hold(ds)
			return ds, err
		}
	}
	return q.claim(ctx, max)
}

// touch makes the worker's row good for a lease and a tenth, so that not every claim has to.
func (q *queue) touch(ctx context.Context) error {
	begun := time.Now()
	if begun.Add(q.o.Lease).Before(q.intake.leased) {
		return nil
	}
	full := q.o.Lease + q.o.Lease/10
	_, err := q.d.exec(ctx, q.d.sql.touch, q.worker, clean(q.o.Worker), q.name, full.Microseconds(), full.Microseconds())
	if err == nil {
		q.intake.leased = begun.Add(full)
	}
	return err
}

func (q *queue) claim(ctx context.Context, max int) ([]*drivers.Delivery, error) {
	s, begun := &q.intake, time.Now()
	if q.woken.Swap(false) || begun.Sub(s.whole) > wholeEvery {
		s.from = time.Time{}
	}
	if s.from.IsZero() {
		s.whole = begun
	}
	ds, err := q.rows(ctx, q.d.sql.claim, q.worker, q.name, q.o.Lease.Microseconds(), max, s.from, int64(claimBytes))
	if err != nil {
		if broken(err) {
			s.unsure = time.Now().Add(2 * q.d.o.AnswerTimeout)
		}
		s.from = time.Time{}
		return nil, err
	}
	q.hold(ds)
	passed := !s.from.IsZero()
	s.from = time.Time{}
	switch {
	case len(ds) == max:
		s.from = ds[max-1].Token.(*token).due
	case len(ds) == 0 && passed:
		return q.claim(ctx, max)
	case len(ds) == 0:
		s.leased = time.Time{} // somebody may have taken the worker's row
	}
	return ds, nil
}

// rows runs a statement that returns deliveries, and puts them in order.
func (q *queue) rows(ctx context.Context, sql string, args ...any) ([]*drivers.Delivery, error) {
	var ds []*drivers.Delivery
	begun := time.Now()
	err := q.d.each(ctx, sql, args, func(rows pgx.Rows) error {
		d, err := q.delivery(rows, begun)
		ds = append(ds, d)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(ds, func(a, b *drivers.Delivery) int {
		x, y := a.Token.(*token), b.Token.(*token)
		return cmp.Or(x.due.Compare(y.due), cmp.Compare(x.entry, y.entry))
	})
	return ds, nil
}

// delivery reads a row of the columns returned.
func (q *queue) delivery(rows pgx.Rows, begun time.Time) (*drivers.Delivery, error) {
	t := &token{q: q}
	d := &drivers.Delivery{Received: begun, Token: t}
	var headers string
	var id, errs *string
	var c [6]int32
	var stalled bool
	err := rows.Scan(&t.entry, &t.claims, &d.Payload, &headers, &d.Job, &id, &d.EnqueuedAt, &t.due,
		&c[0], &c[1], &c[2], &c[3], &c[4], &c[5], &stalled, &d.Carry.State, &errs)
	if err != nil {
		return nil, err
	}
	d.Carry.Tally = tallyOf(c)
	d.Redelivered = t.claims > 1
	if stalled {
		d.Stalled, d.Held = 1, true
	}
	if d.Headers, err = decodeHeaders(headers); err != nil {
		d.Broken = "the headers cannot be decoded: " + err.Error()
	}
	if d.Carry.Errors, err = decodeErrors(errs); err != nil && d.Broken == "" {
		d.Broken = "the last errors cannot be decoded: " + err.Error()
	}
	if id != nil {
		d.ID = *id
	}
	name(d, t.entry)
	t.id, t.job = d.ID, d.Job
	d.ReplyTo, _ = d.Headers.Get(abi.HeaderReplyTo)
	return d, nil
}

// ripe puts back first deliveries whose Guesthand-Not-Before is still to come: a producer may
// ask so instead of with run_at.
func (q *queue) ripe(ctx context.Context, ds []*drivers.Delivery) []*drivers.Delivery {
	var early []drivers.Settlement
	kept := ds[:0]
	for _, d := range ds {
		if until := notBefore(d); until > 0 {
			early = append(early, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Delay: until})
		} else {
			kept = append(kept, d)
		}
	}
	if len(early) == 0 {
		return kept
	}
	for i, err := range q.Settle(context.WithoutCancel(ctx), early) {
		if err != nil && !errors.Is(err, drivers.ErrLeaseLost) && !errors.Is(err, drivers.ErrClosed) {
			q.log.Warn("a message whose time has not come could not be put back: it comes again after its lease",
				slog.String("id", early[i].Delivery.ID), slog.Any("error", err))
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

// sleep returns when there may be something.
func (q *queue) sleep(ctx context.Context, err error) {
	wait, wake := pollEvery, q.wake
	if err == nil {
		wait = q.untilNext(ctx)
		q.intake.troubles = 0
	} else {
		wait = backoff(q.intake.troubles)
		q.intake.troubles++
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

// untilNext is how long to wait for what falls due next, at most pollEvery.
func (q *queue) untilNext(ctx context.Context) time.Duration {
	ctx, cancel := q.within(ctx)
	defer cancel()
	var ms *int64
	if err := q.d.row(ctx, q.d.sql.next, []any{q.name}, &ms); err != nil || ms == nil {
		return pollEvery
	}
	return min(pollEvery, time.Duration(max(1, min(*ms, pollEvery.Milliseconds())))*time.Millisecond)
}
