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
	// lost is true once the lease is known to be gone; settling while the broker is asked
	// to let go: it may answer a renewal with that.
	lost, settling atomic.Bool
	cancel         atomic.Pointer[cancellation]
	suspect        bool // counted among the host's suspects that wait

	prev, next *held // in leases' list
}

// settleable tells whether anything but a success may still be asked of the broker.
func (h *held) settleable(now time.Time) bool {
	return !h.lost.Load() && now.UnixNano() < h.leaseEnd.Load()
}

// leases keeps the lease of everything that was received and not yet settled.
type leases struct {
	queue     drivers.Queue
	lease     time.Duration
	renewable bool
	// beat is when keep or one of its batches was last at work, Unix nanoseconds; 0 while it
	// does not run.
	beat atomic.Int64

	mu   sync.Mutex
	head held // of a ring
	n    int

	onLost  func(*drivers.Delivery)        // called once for each lease that ended under a delivery
	onRenew func(n, failed int, err error) // after each batch: renewed, and not answered
}

func newLeases(q drivers.Queue, onLost func(*drivers.Delivery), onRenew func(n, failed int, err error)) *leases {
	i := q.Info()
	l := &leases{queue: q, lease: i.Lease, renewable: i.Caps.Renewable, onLost: onLost, onRenew: onRenew}
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

// remove stops keeping deliveries that are settled or given up, and lets go of their bytes:
// others of their slab may stay for much longer.
func (l *leases) remove(hs ...*held) {
	l.mu.Lock()
	for _, h := range hs {
		h.prev.next, h.next.prev = h.next, h.prev
		h.prev, h.next, h.d = nil, nil, nil
	}
	l.n -= len(hs)
	l.mu.Unlock()
	for _, h := range hs {
		h.ended()
		h.attempt = attempt{}
		h.call.Reset(engine.Input{})
	}
}

// snapshot is what is held now, and the deliveries: those of what is removed meanwhile are
// no longer there to be read.
func (l *leases) snapshot() (hs []*held, ds []*drivers.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hs, ds = make([]*held, 0, l.n), make([]*drivers.Delivery, 0, l.n)
	for h := l.head.next; h != &l.head; h = h.next {
		hs, ds = append(hs, h), append(ds, h.d)
	}
	return hs, ds
}

// keep renews at a third of the lease until ctx ends. A lease that cannot be renewed is
// only watched.
func (l *leases) keep(ctx context.Context) {
	tick := time.NewTicker(l.lease / 3)
	defer tick.Stop()
	defer l.beat.Store(0)
	for {
		l.beat.Store(time.Now().UnixNano())
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
	hs, ds := l.snapshot()
	if !l.renewable {
		l.expire(hs, time.Now())
		return
	}
	for len(hs) > 0 {
		n := min(len(hs), renewBatch)
		l.renew(ctx, hs[:n], ds[:n])
		l.beat.Store(time.Now().UnixNano())
		hs, ds = hs[n:], ds[n:]
	}
}

func (l *leases) expire(hs []*held, now time.Time) {
	for _, h := range hs {
		if now.UnixNano() >= h.leaseEnd.Load() {
			l.lose(h)
		}
	}
}

func (l *leases) renew(ctx context.Context, hs []*held, ds []*drivers.Delivery) {
	asked := time.Now()
	renewCtx, cancel := context.WithTimeout(ctx, l.lease/3)
	errs := l.queue.Renew(renewCtx, ds)
	cancel()
	renewed, failed, now := 0, 0, time.Now()
	var cause error
	for i, h := range hs {
		err := errs[i]
		switch {
		case err == nil:
			h.leaseEnd.Store(asked.Add(l.lease - l.margin()).UnixNano())
			renewed++
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
	if ctx.Err() != nil { // we stopped asking
		failed = 0
	}
	l.onRenew(renewed, failed, cause)
}

// lose stops the guest of a delivery whose lease is gone, once, unless it is settled already
// or just being settled: then the settlement's answer is what counts.
func (l *leases) lose(h *held) {
	l.mu.Lock()
	d := h.d
	l.mu.Unlock()
	if d == nil || h.settling.Load() || h.lost.Swap(true) {
		return
	}
	h.call.Stop(abi.LeaseLost)
	l.onLost(d)
}
