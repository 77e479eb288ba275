package memdriver

import (
	"context"
	"slices"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

var _ drivers.Canceller = (*queue)(nil)

// DropWaiting implements drivers.Canceller. It looks at every message that waits.
func (q *queue) DropWaiting(ctx context.Context, id string) (ds []*drivers.Delivery, err error) {
	err = q.each(ctx, 1, func(_ int, now time.Time) error {
		for _, h := range []*msgHeap{&q.s.ready, &q.s.delayed} {
			for _, m := range slices.Clone(h.ms) {
				if m.id != id {
					continue
				}
				h.remove(m)
				q.s.bytes -= len(m.payload)
				ds = append(ds, &drivers.Delivery{ID: m.id, Job: m.job, Headers: m.headers, Payload: m.payload,
					EnqueuedAt: m.enqueued, Received: now, Carry: m.carry, ReplyTo: m.replyTo})
			}
		}
		if len(ds) == 0 {
			return drivers.ErrNotFound
		}
		return nil
	})[0]
	return ds, err
}
