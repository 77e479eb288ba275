package host

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/engine"
)

// held is one delivery from Receive to its confirmed settlement.
type held struct {
	d       *drivers.Delivery
	call    engine.Call
	attempt attempt
	// leaseEnd is the local lease clock, Unix nanoseconds: past it only a success may
	// still be settled, since the broker may have given the message to another worker.
	leaseEnd atomic.Int64
	// running is true while a guest works on it; lost once the lease is known to be gone.
	running, lost atomic.Bool

	prev, next *held // in leases' list
}

// settleable tells whether anything but a success may still be asked of the broker.
func (h *held) settleable(now time.Time) bool {
	return !h.lost.Load() && now.UnixNano() < h.leaseEnd.Load()
}

// leases keeps the lease of everything that was received and not yet settled.
type leases struct {
	queue drivers.Queue
	lease time.Duration

	mu   sync.Mutex
	head held // of a ring
	n    int

	onLost func(*held)          // called once for each lease that ended under a delivery
	onFail func(n int, _ error) // renewals the broker did not answer
}

func newLeases(q drivers.Queue, onLost func(*held), onFail func(int, error)) *leases {
	l := &leases{queue: q, lease: q.Info().Lease, onLost: onLost, onFail: onFail}
	l.head.prev, l.head.next = &l.head, &l.head
	return l
}

// margin is how much earlier than the broker the local clock lets a lease end.
func (l *leases) margin() time.Duration { return min(l.lease/10, time.Second) }

// add starts keeping a batch. The slab it returns is one allocation for all of them.
func (l *leases) add(ds []*drivers.Delivery) []held {
	hs := make([]held, len(ds))
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, d := range ds {
		h := &hs[i]
		h.d = d
		h.leaseEnd.Store(d.Received.Add(l.lease - l.margin()).UnixNano())
		h.prev, h.next = l.head.prev, &l.head
		h.prev.next, h.next.prev = h, h
	}
	l.n += len(ds)
	return hs
}

// remove stops keeping deliveries that are settled or given up.
func (l *leases) remove(hs []*held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range hs {
		if h.next == nil {
			continue
		}
		h.prev.next, h.next.prev = h.next, h.prev
		h.prev, h.next = nil, nil
		l.n--
	}
}

func (l *leases) snapshot() []*held {
	l.mu.Lock()
	defer l.mu.Unlock()
	hs := make([]*held, 0, l.n)
	for h := l.head.next; h != &l.head; h = h.next {
		hs = append(hs, h)
	}
	return hs
}

// keep renews at a third of the lease until ctx ends.
func (l *leases) keep(ctx context.Context) {
	tick := time.NewTicker(l.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.renewAll(ctx)
		}
	}
}

// renewBatch bounds one Renew, so that its answers come well before the next tick.
const renewBatch = 256

func (l *leases) renewAll(ctx context.Context) {
	hs := l.snapshot()
	for len(hs) > 0 {
		n := min(len(hs), renewBatch)
		l.renew(ctx, hs[:n])
		hs = hs[n:]
	}
}

func (l *leases) renew(ctx context.Context, hs []*held) {
	ds := make([]*drivers.Delivery, len(hs))
	for i, h := range hs {
		ds[i] = h.d
	}
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, l.lease/3)
	errs := l.queue.Renew(ctx, ds)
	cancel()
	failed, now := 0, time.Now()
	var cause error
	for i, h := range hs {
		err := errs[i]
		switch {
		case err == nil:
			h.leaseEnd.Store(asked.Add(l.lease - l.margin()).UnixNano())
			continue
		case errors.Is(err, drivers.ErrLeaseLost):
			l.lose(h)
			continue
		}
		failed, cause = failed+1, err
		if now.UnixNano() >= h.leaseEnd.Load() {
			l.lose(h)
		}
	}
	if failed > 0 && ctx.Err() != context.Canceled {
		l.onFail(failed, cause)
	}
}

// lose stops the guest of a delivery whose lease is gone, once, unless it is settled already.
func (l *leases) lose(h *held) {
	l.mu.Lock()
	gone := h.next == nil
	l.mu.Unlock()
	if gone || h.lost.Swap(true) {
		return
	}
	h.call.Stop(abi.LeaseLost)
	l.onLost(h)
}
