package natsdriver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/drivers"
)

// maxCounted is how many tallies a count looks at.
const maxCounted = 10_000

// Counts implements drivers.Queue. The server counts delayed messages among those in flight:
// they are told apart by their tallies, at most ten thousand of which are read; with
// more the two figures are estimates.
func (q *queue) Counts(ctx context.Context) (drivers.Counts, error) {
	c, err := q.counts(ctx)
	if err != nil {
		return drivers.Counts{}, fmt.Errorf("counts of %s: %w", q.n.queue, err)
	}
	return c, nil
}

func (q *queue) counts(ctx context.Context) (c drivers.Counts, err error) {
	if q.isDone() {
		return c, drivers.ErrClosed
	}
	dead, err := q.d.js.Stream(ctx, q.n.deadStream)
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return c, err
	}
	if err == nil {
		c.Dead = int(dead.CachedInfo().State.Msgs)
	}
	stream, err := q.d.js.Stream(ctx, q.n.stream)
	if err != nil {
		return c, err
	}
	cons, err := stream.Consumer(ctx, q.n.consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		c.Depth = int(stream.CachedInfo().State.Msgs)
		return c, nil
	}
	if err != nil {
		return c, err
	}
	info := cons.CachedInfo()
	c.InFlight = info.NumAckPending
	c.Depth = int(info.NumPending) + c.InFlight
	if s := stream.CachedInfo(); c.Depth > 0 && s.Config.Retention == jetstream.WorkQueuePolicy {
		c.Oldest = s.State.FirstTime
	}
	if c.InFlight == 0 {
		return c, nil
	}
	if c.Delayed, err = q.delayed(ctx); err != nil {
		return c, err
	}
	c.Delayed = min(c.Delayed, c.InFlight)
	c.InFlight -= c.Delayed
	return c, nil
}

// delayed counts the tallies whose time has not come.
func (q *queue) delayed(ctx context.Context) (int, error) {
	t := q.tally
	if t == nil {
		t = newTally(q.d, q.n, q.log)
	}
	looked, resting, now := 0, 0, time.Now().UnixMilli()
	o := scanOptions{stream: t.stream, filter: t.prefix + ">", from: 1, headersOnly: true}
	err := q.d.scan(ctx, o, func(m jetstream.Msg, _ *jetstream.MsgMetadata) bool {
		looked++
		if until, err := strconv.ParseInt(m.Headers().Get(headerRest), 10, 64); err == nil && until > now {
			resting++
		}
		return looked < maxCounted
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	return resting, err
}
