package host

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/metrics"
	"github.com/guesthand/guesthand/host/policy"
)

// queue is one queue's loop: a receiver that asks for as many messages as there are free
// slots (and a bounded read-ahead), workers that run them, a settler, and the leases of
// everything between.
type queue struct {
	host    *Host
	name    string
	driver  drivers.Queue
	starts  drivers.StartRecorder // nil: the broker's own counts survive us
	leases  *leases
	settle  *settler
	metrics *metrics.Queue
	// retention is the broker's, read once: Info makes a copy each time.
	retention time.Duration
	// replyFailed is when a reply could not be sent last, Unix nanoseconds.
	replyFailed atomic.Int64
	log         *slog.Logger

	mu      sync.Mutex
	work    sync.Cond // the backlog has something, or the queue stops
	free    sync.Cond // a worker became idle, or the queue stops
	backlog []*held   // received and waiting for a worker
	idle    int       // workers that wait
	ahead   readAhead
	stopped bool
}

func (h *Host) newQueue(c config.Queue, dq drivers.Queue) *queue {
	q := &queue{host: h, name: c.Name, driver: dq, log: h.log.With(keyQueue, c.Name), metrics: h.metrics.Queue(c.Name)}
	q.starts, _ = dq.(drivers.StartRecorder)
	q.work.L, q.free.L = &q.mu, &q.mu
	info := dq.Info()
	q.ahead.lease, q.retention = info.Lease, info.Retention
	q.leases = newLeases(dq, q.leaseLost, q.renewed)
	q.settle = newSettler(dq, q.leases, q.settled)
	q.settle.instead = q.instead
	return q
}

// config is the queue's section as it stands now; SIGHUP may have changed it.
func (q *queue) config() config.Queue { return q.host.Config().Queues[q.name] }

// run works until ctx ends, then stops in the two steps of the specification.
func (q *queue) run(ctx context.Context) {
	// The leases live on through the drain, until the last settlement.
	leaseCtx, endLeases := context.WithCancel(context.WithoutCancel(ctx))
	var keeping, working sync.WaitGroup
	keeping.Go(func() { q.leases.keep(leaseCtx) })
	working.Go(func() { q.receive(ctx) })
	for range q.config().Concurrency {
		working.Go(func() { q.worker(ctx) })
	}
	<-ctx.Done()
	q.drain(&working)
	q.settle.close()
	endLeases()
	keeping.Wait()
}

// drain gives back what has not started, lets runs finish for the drain time, then
// interrupts them.
func (q *queue) drain(working *sync.WaitGroup) {
	end := time.Now().Add(q.host.Config().Drain)
	q.settle.finishBy(end.Add(settleBudget))
	q.mu.Lock()
	q.stopped = true
	waiting := q.backlog
	q.backlog = nil
	q.mu.Unlock()
	q.work.Broadcast()
	q.free.Broadcast()
	all, _ := q.leases.snapshot()
	for _, h := range all {
		h.call.SetDrainEnd(end)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, h := range waiting {
			q.putBack(h, 0)
		}
		working.Wait()
	}()
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
	}
	all, _ = q.leases.snapshot()
	for _, h := range all {
		h.call.Stop(abi.Interrupted) // of no effect where no run is going on
	}
	<-done
}

// receive fills the backlog until ctx ends.
func (q *queue) receive(ctx context.Context) {
	wait := time.Second
	for ctx.Err() == nil {
		if !q.serving(ctx) {
			continue
		}
		want := q.room()
		if want == 0 {
			return
		}
		ds, err := q.driver.Receive(ctx, want)
		if len(ds) > 0 {
			q.accept(ds)
		}
		switch {
		case err == nil:
			wait = time.Second
		case ctx.Err() != nil:
			return
		default:
			q.log.Error("receive", keyError, err)
			sleep(ctx, wait+rand.N(wait/2))
			wait = min(2*wait, 30*time.Second)
		}
	}
}

// serving waits where a queue with a single handler has nothing to run it with: then it
// does not receive at all, and other hosts may. Nor does any queue while a suspect is to be
// the only one here.
func (q *queue) serving(ctx context.Context) bool {
	if !q.host.suspects.calm() {
		sleep(ctx, 10*time.Millisecond)
		return false
	}
	job := q.config().Handler
	if d := q.host.pauses.left(q.name, job, time.Now()); d > 0 {
		sleep(ctx, min(d, resumeTick))
		return false
	}
	if job == "" {
		return true
	}
	p, _ := q.host.plugins.Acquire(job)
	if p == nil {
		sleep(ctx, 100*time.Millisecond)
		return false
	}
	defer p.Release()
	if d := q.host.gates.of(p.Handler()).paused(time.Now()); d > 0 {
		sleep(ctx, min(d, resumeTick))
		return false
	}
	return true
}

// resumeTick is how soon a paused queue notices that it was resumed.
const resumeTick = 200 * time.Millisecond

// room waits until there is a free slot and returns how many messages to ask for; 0 when
// the queue stops.
func (q *queue) room() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.stopped {
		concurrency := q.config().Concurrency
		// Half a read-ahead at a time, so that batches stay batches.
		ahead := q.ahead.size(concurrency)
		if n := q.idle + ahead - len(q.backlog); n > ahead/2 {
			return n
		}
		q.free.Wait()
	}
	return 0
}

// accept takes a batch under leases and hands it to the workers. What was delivered before
// is never read ahead: if this host dies while it only waits, that would count as a stall.
func (q *queue) accept(ds []*drivers.Delivery) {
	hs := q.leases.add(ds)
	for i := range hs {
		h := &hs[i]
		q.noteStalls(h)
		if h.d.Held && policy.Suspect(h.d.Carry.Tally) {
			q.host.suspects.hold(h)
		}
	}
	var back []*held
	q.mu.Lock()
	slots := q.idle - len(q.backlog)
	again := 0
	for i := range hs {
		h := &hs[i]
		if !h.d.Redelivered || !h.d.Held {
			q.backlog = append(q.backlog, h)
			continue
		}
		again++
		if slots > 0 || q.stopped {
			slots--
			q.backlog = append([]*held{h}, q.backlog...)
		} else {
			back = append(back, h)
		}
	}
	q.ahead.saw(len(ds), again)
	stopped, n := q.stopped, min(len(q.backlog), q.idle)
	if stopped {
		back, q.backlog = append(back, q.backlog...), nil
	}
	q.mu.Unlock()
	for range n {
		q.work.Signal()
	}
	for _, h := range back {
		if stopped {
			q.putBack(h, 0)
		} else {
			q.putBack(h, 100*time.Millisecond+rand.N(400*time.Millisecond))
		}
	}
}

// worker runs one message after another until the queue stops.
func (q *queue) worker(ctx context.Context) {
	for {
		h := q.next()
		if h == nil {
			return
		}
		started := time.Now()
		if q.process(ctx, h) {
			q.ahead.ran(time.Since(started))
		}
	}
}

// next waits for a message; nil when the queue stops.
func (q *queue) next() *held {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle++
	if 2*len(q.backlog) <= q.ahead.now {
		q.free.Signal()
	}
	for len(q.backlog) == 0 && !q.stopped {
		q.work.Wait()
	}
	q.idle--
	if q.stopped {
		return nil
	}
	h := q.backlog[0]
	q.backlog[0] = nil
	q.backlog = q.backlog[1:]
	return h
}

// leaseLost is called by leases, once for each delivery.
func (q *queue) leaseLost(d *drivers.Delivery) {
	q.metrics.LeaseLost.Inc()
	q.host.emit(Event{Kind: eventLeaseLost, Queue: q.name, Job: q.route(d), ID: d.ID, Attempt: d.Carry.Attempt()})
	q.log.Warn("lease lost", keyID, d.ID, keyJob, d.Job, keyAttempt, d.Carry.Attempt())
}

// renewed is called after each batch of renewals.
func (q *queue) renewed(n, failed int, err error) {
	q.metrics.Renewed.Add(float64(n))
	if failed > 0 {
		q.metrics.NotRenewed.Add(float64(failed))
		q.log.Warn("renew", keyCount, failed, keyError, err)
	}
}

// readAhead decides how many messages may wait behind the busy workers. Queues whose runs
// are short need it: a round trip for each slot that frees up costs two thirds of the rate.
// Queues whose runs are long must not have it: another host could run what waits here.
type readAhead struct {
	lease   time.Duration
	now     int          // messages; guarded by the queue's lock, as is hold
	hold    int          // batches during which it stays 0: redelivered messages are about
	average atomic.Int64 // of runs, nanoseconds, exponentially weighted; 0: none yet
}

const (
	// maxAhead is where more stops to help (measured on JetStream).
	maxAhead = 256
	// aheadWindow is the longest that a message should wait here for a slot.
	aheadWindow = 200 * time.Millisecond
)

// ran takes the length of a run into account.
func (r *readAhead) ran(d time.Duration) {
	old := r.average.Load()
	if old == 0 {
		r.average.Store(max(1, int64(d)))
		return
	}
	// Lost updates do not matter: it is an average.
	r.average.Store(max(1, old+(int64(d)-old)/16))
}

// saw takes a batch into account: how many messages came, and how many of them had been
// delivered before and might count a stall for waiting.
func (r *readAhead) saw(n, again int) {
	switch {
	case again > 0:
		r.now, r.hold = 0, 8
	case r.hold > 0:
		r.hold--
	case r.now == 0:
		r.now = 16
	case n >= r.now/2:
		r.now = min(2*r.now, maxAhead)
	}
}

// size is the read-ahead that holds for so many workers.
func (r *readAhead) size(workers int) int {
	average := time.Duration(r.average.Load())
	if average == 0 || r.now == 0 {
		return 0
	}
	window := min(aheadWindow, r.lease/10)
	r.now = min(r.now, maxAhead)
	return min(r.now, int(window/average)*workers)
}
