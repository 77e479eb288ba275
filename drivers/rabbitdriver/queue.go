package rabbitdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// grace is how long messages stay here that nobody asks for: a busy host asks again long before.
const grace = 100 * time.Millisecond

// quiet is how long nothing may have moved before a consumer with credit is cancelled: on a
// busy machine a message may be on its way for a while.
const quiet = time.Second

// queue implements drivers.Queue, drivers.DeadLetters and drivers.Replier.
type queue struct {
	d       *Driver
	o       drivers.QueueOptions
	n       names
	log     *slog.Logger
	info    drivers.Info
	version string
	maxStep int
	holds   holds
	bounds  deadBounds
	reading sync.Mutex // held while dead letters are out of their queue

	// receiving is held by Receive.
	receiving sync.Mutex
	arrived   chan struct{} // something came in, or the channel changed
	kick      chan struct{} // the manager has to look
	resting   atomic.Bool   // the manager waits for a kick

	mu      sync.Mutex
	in      *intake
	waiting bool // a Receive is going on
	demand  int  // how many it still wants

	closing   atomic.Bool
	done      chan struct{} // closed when nothing may be received any more
	closeOnce sync.Once
	closeErr  error
	working   sync.WaitGroup // the manager
	settling  sync.RWMutex   // held for reading by Settle, for writing while Close gives back
}

var (
	_ drivers.Queue       = (*queue)(nil)
	_ drivers.DeadLetters = (*queue)(nil)
	_ drivers.Replier     = (*queue)(nil)
)

func (d *Driver) newQueue(ctx context.Context, o drivers.QueueOptions) (*queue, error) {
	n, err := namesOf(o)
	if err != nil {
		return nil, err
	}
	q := &queue{
		d: d, o: o, n: n, log: d.log.With(slog.String("queue", o.Name)),
		arrived: make(chan struct{}, 1), kick: make(chan struct{}, 1), done: make(chan struct{}),
	}
	limit := d.o.MaxDelay
	if limit <= 0 {
		limit = holdTime(maxStep)
	}
	q.maxStep = maxStepFor(limit)
	q.info = drivers.Info{Caps: Caps(), Lease: o.Lease}
	q.info.Caps.MaxDelay = holdTime(q.maxStep)
	if err := q.setup(ctx); err != nil {
		return nil, err
	}
	if !o.SendOnly {
		q.working.Go(q.manage)
	}
	return q, nil
}

// Info implements drivers.Queue.
func (q *queue) Info() drivers.Info { return q.info }

func (q *queue) isDone() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// signal lets a waiting Receive look.
func (q *queue) signal() {
	select {
	case q.arrived <- struct{}{}:
	default:
	}
}

// wake lets the manager look.
func (q *queue) wake() {
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

// stir wakes the manager where it does not look by itself soon.
func (q *queue) stir() {
	if q.resting.Load() {
		q.wake()
	}
}

func (q *queue) intake() *intake {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.in
}

// manage keeps the queue's channel and its consumers as Receive needs them, until the queue
// is closed.
func (q *queue) manage() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var idle time.Time // since when something is here that nobody receives
	failures := 0
	for {
		q.resting.Store(true) // what happens from here on is looked at once more
		again := q.look(&idle, &failures)
		var tick <-chan time.Time
		if again > 0 {
			q.resting.Store(false)
			timer.Reset(again)
			tick = timer.C
		}
		select {
		case <-q.kick:
		case <-tick:
		case <-q.done:
			return
		}
	}
}

// look does what is to be done now, and returns after what time to look again; 0: when woken.
func (q *queue) look(idle *time.Time, failures *int) time.Duration {
	q.mu.Lock()
	in, waiting, demand := q.in, q.waiting, q.demand
	if in != nil && in.isGone() {
		q.in, in = nil, nil
	}
	q.mu.Unlock()
	if in == nil {
		if !waiting {
			return 0
		}
		return q.reopen(failures)
	}
	in.mu.Lock()
	buffered, credit, open, consumers, total := len(in.buf), in.credit(), in.open, len(in.consumers), 0
	for _, c := range in.consumers {
		total += c.prefetch
	}
	in.mu.Unlock()
	if !waiting {
		return q.unwanted(in, buffered, idle)
	}
	*idle = time.Time{}
	short := demand - buffered - credit
	switch {
	case short <= 0, buffered+credit > 0 && 4*short < total:
		return 0 // it has something to go on with
	case consumers >= maxConsumers:
		return q.adjust(in, demand-buffered+open)
	}
	if err := in.consume(short); err != nil {
		return q.broken(in, err)
	}
	return 0
}

// unwanted gives back what came while nobody receives. A credit alone does no harm, and stays
// for the next Receive.
func (q *queue) unwanted(in *intake, buffered int, idle *time.Time) time.Duration {
	switch {
	case buffered == 0:
		*idle = time.Time{}
		return 0
	case idle.IsZero():
		*idle = time.Now()
		return grace
	case time.Since(*idle) < grace:
		return grace - time.Since(*idle)
	}
	return q.adjust(in, 0)
}

// adjust replaces all consumers by one for n messages, or by none; then what nobody wants
// is given back.
func (q *queue) adjust(in *intake, n int) time.Duration {
	if ok, err := in.cancelAll(quiet); err != nil {
		return q.broken(in, err)
	} else if !ok {
		return grace / 2
	}
	if n > 0 {
		if err := in.consume(n); err != nil {
			return q.broken(in, err)
		}
		return 0
	}
	q.mu.Lock()
	keep := 0
	if q.waiting {
		keep = q.demand
	}
	q.mu.Unlock()
	in.mu.Lock()
	var extra []arrival
	if len(in.buf) > keep {
		extra = in.buf[keep:]
		in.buf = in.buf[:keep:keep]
	}
	in.mu.Unlock()
	if len(extra) > 0 {
		ctx, cancel := context.WithTimeout(q.d.stop, sendWait)
		defer cancel()
		if err := q.giveBack(ctx, in, extra, nil); err != nil {
			q.log.Debug("messages that nobody asked for stay here", slog.Any("error", err))
			in.untake(extra)
			return 10 * grace
		}
	}
	return 0
}

// broken ends a channel on which a request failed.
func (q *queue) broken(in *intake, err error) time.Duration {
	q.log.Debug("the queue's channel failed", slog.Any("error", err))
	go in.s.closeChannel(in.ch)
	return grace
}

// reopen opens the queue's channel, once the connection is there.
func (q *queue) reopen(failures *int) time.Duration {
	s, changed, _ := q.d.consuming.now()
	if s == nil {
		select {
		case <-changed:
		case <-q.done:
		}
		return time.Millisecond
	}
	ctx, cancel := context.WithTimeout(q.d.stop, 3*callWait)
	defer cancel()
	err := q.ensure(ctx, s)
	if err == nil {
		var in *intake
		if in, err = q.openIntake(ctx, s); err == nil {
			*failures = 0
			q.mu.Lock()
			q.in = in
			q.mu.Unlock()
			return time.Millisecond
		}
	}
	if s.alive() && *failures == 0 && q.d.stop.Err() == nil {
		q.log.Warn("the queue cannot be read, trying again", slog.Any("error", err))
	}
	*failures++
	return reconnectDelay(*failures)
}

// Close implements drivers.Queue.
func (q *queue) Close(ctx context.Context) error {
	q.closeOnce.Do(func() { q.closeErr = q.close(ctx) })
	return q.closeErr
}

func (q *queue) close(ctx context.Context) error {
	q.d.forget(q)
	q.closing.Store(true)
	close(q.done)
	q.working.Wait()
	q.receiving.Lock() // what a Receive has in its hands is held, or back in the buffer
	defer q.receiving.Unlock()
	q.settling.Lock()
	defer q.settling.Unlock()
	in := q.intake()
	if in == nil || in.isGone() {
		return nil
	}
	ok, err := in.cancelAll(quiet)
	for end := time.Now().Add(2 * quiet); !ok && err == nil && time.Now().Before(end); {
		pause(ctx, quiet/20)
		ok, err = in.cancelAll(quiet)
	}
	if !ok && err == nil {
		_, err = in.cancelAll(0) // it has to end
	}
	if err == nil {
		err = q.giveBack(ctx, in, in.take(math.MaxInt), in.heldTokens())
	}
	in.s.closeChannel(in.ch)
	in.ending.Wait()
	if err != nil && !in.s.alive() {
		return nil // the broker gives it to others by itself
	}
	if err != nil {
		return fmt.Errorf("queue %s: give back: %w", q.n.queue, err)
	}
	return nil
}

// abandon ends the queue as the death of the process would.
func (q *queue) abandon() {
	q.closeOnce.Do(func() {
		q.d.forget(q)
		q.closing.Store(true)
		close(q.done)
		q.working.Wait()
		if in := q.intake(); in != nil {
			in.ending.Wait()
		}
	})
}

var errNotOurs = errors.New("not a delivery of this queue")

func (q *queue) token(d *drivers.Delivery) (*token, error) {
	if d != nil {
		if t, ok := d.Token.(*token); ok && t.q == q {
			return t, nil
		}
	}
	return nil, fmt.Errorf("queue %s: %w", q.n.queue, errNotOurs)
}
