package rabbitdriver

import (
	"context"
	"errors"
	"sync"

	"github.com/guesthand/guesthand/drivers"
)

// Counts implements drivers.Queue. AMQP tells how many messages wait in a queue and nothing of
// those that a consumer holds, so that InFlight is what this host holds, and Depth has nobody
// else's in it.
func (q *queue) Counts(ctx context.Context) (c drivers.Counts, err error) {
	if q.isDone() {
		return c, drivers.ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, 3*callWait)
	defer cancel()
	s, err := q.d.consuming.get(ctx)
	if err != nil {
		return c, err
	}
	ready, err := q.inspect(ctx, s, q.n.work)
	if err != nil {
		return c, err
	}
	if c.Dead, err = q.inspect(ctx, s, q.n.dead); err != nil {
		return c, err
	}
	if c.Delayed, err = q.delayed(ctx, s); err != nil {
		return c, err
	}
	if in := q.intake(); in != nil && !in.isGone() {
		in.mu.Lock()
		c.InFlight = in.open
		in.mu.Unlock()
	}
	c.Depth = ready + c.Delayed + c.InFlight
	return c, nil
}

// delayed adds up the hold queues, side by side: a question about one that is not there closes
// its channel.
func (q *queue) delayed(ctx context.Context, s *session) (total int, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for step := range maxStep + 1 {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			n, ierr := q.inspect(ctx, s, q.n.holdName(step))
			mu.Lock()
			defer mu.Unlock()
			total += n
			if ierr != nil && !errors.Is(ierr, errNoQueue) {
				err = ierr
			}
		})
	}
	wg.Wait()
	return total, err
}
