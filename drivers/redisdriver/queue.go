package redisdriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// batch is the most messages one script takes.
const batch = 500

// queue implements drivers.Queue, drivers.DeadLetters and drivers.Replier.
type queue struct {
	d      *Driver
	o      drivers.QueueOptions
	prefix string
	owner  string // this opening's name in leases
	log    *slog.Logger
	info   drivers.Info
	wake   chan struct{}
	drops  dropLog

	receiving sync.Mutex   // held by Receive
	requests  requests     // what was asked for
	settling  sync.RWMutex // held for reading by Settle, for writing while Close gives back

	mu    sync.Mutex
	held  map[*token]struct{}
	order uint64 // of the last token

	closing   atomic.Bool
	done      chan struct{}
	closeOnce sync.Once
	closeErr  error
	working   sync.WaitGroup
}

var (
	_ drivers.Queue       = (*queue)(nil)
	_ drivers.DeadLetters = (*queue)(nil)
	_ drivers.Replier     = (*queue)(nil)
)

func (d *Driver) newQueue(ctx context.Context, o drivers.QueueOptions) (*queue, error) {
	prefix, err := prefixOf(o)
	if err != nil {
		return nil, err
	}
	q := &queue{
		d: d, o: o, prefix: prefix, owner: newOwner(), wake: make(chan struct{}, 1), done: make(chan struct{}),
		log: d.log.With(slog.String("queue", o.Name)), held: map[*token]struct{}{},
		info: drivers.Info{Caps: Caps(), Lease: o.Lease, MaxPayload: d.server.bulk, Findings: d.server.findings()},
	}
	q.info.Caps.MaxDelay = d.o.MaxDelay
	if err := q.setup(ctx); err != nil {
		return nil, err
	}
	if !o.SendOnly {
		d.waker.add(ctx, q)
		q.working.Go(q.maintain)
	}
	return q, nil
}

// Info implements drivers.Queue.
func (q *queue) Info() drivers.Info {
	info := q.info
	info.Findings = slices.Clone(info.Findings)
	return info
}

// call is a script of this queue.
func (q *queue) call(s script, args ...any) *call {
	return &call{script: s, keys: []string{q.prefix + ":ready"}, args: append([]any{q.prefix}, args...)}
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) isDone() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// The states of a token: one of these, or settledAs plus the verdict.
const (
	tokenHeld uint32 = iota
	tokenBusy
	settledAs
)

// token is what a delivery is settled with.
type token struct {
	q         *queue
	id        string // of the message's hash
	lease     string
	messageID string
	order     uint64
	state     atomic.Uint32
	until     atomic.Int64 // when the lease ends, as far as known; Unix ns
	// uncertain: a settlement got no answer, so the message may be gone because of it.
	uncertain atomic.Bool
}

// tokenOf checks that a delivery is this queue's.
func (q *queue) tokenOf(d *drivers.Delivery) (*token, error) {
	if d != nil {
		if t, ok := d.Token.(*token); ok && t.q == q {
			return t, nil
		}
	}
	return nil, fmt.Errorf("queue %s: not a delivery of this queue", q.o.Name)
}

func (q *queue) hold(ds []*drivers.Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range ds {
		t := d.Token.(*token)
		q.order++
		t.order = q.order
		t.until.Store(d.Received.Add(q.o.Lease).UnixNano())
		q.held[t] = struct{}{}
	}
}

func (q *queue) forget(ts ...*token) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range ts {
		delete(q.held, t)
	}
}

// dropLost forgets what ran out a whole lease ago and was never settled: the host gives up what
// it has lost without a word.
func (q *queue) dropLost() {
	limit := time.Now().Add(-q.o.Lease).UnixNano()
	q.mu.Lock()
	defer q.mu.Unlock()
	for t := range q.held {
		if t.until.Load() < limit {
			delete(q.held, t)
		}
	}
}

// takeHeld empties what was handed out and not settled, in its order.
func (q *queue) takeHeld() []*token {
	q.mu.Lock()
	defer q.mu.Unlock()
	ts := make([]*token, 0, len(q.held))
	for t := range q.held {
		ts = append(ts, t)
	}
	clear(q.held)
	slices.SortFunc(ts, func(a, b *token) int { return cmp.Compare(a.order, b.order) })
	return ts
}

// Close implements drivers.Queue.
func (q *queue) Close(ctx context.Context) error {
	q.closeOnce.Do(func() { q.closeErr = q.close(ctx) })
	return q.closeErr
}

func (q *queue) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeWait)
	defer cancel()
	q.closing.Store(true)
	close(q.done)
	q.requests.shutDown()
	q.working.Wait()
	q.receiving.Lock()
	defer q.receiving.Unlock()
	var err error
	if !q.o.SendOnly {
		q.d.waker.remove(ctx, q)
		q.settling.Lock()
		err = q.giveBackAll(ctx)
		q.settling.Unlock()
		q.drops.report(q, 0, 0, true)
	}
	q.d.mu.Lock()
	delete(q.d.queues, q)
	q.d.mu.Unlock()
	return err
}

// giveBackAll returns everything that is not settled, also what the server may have handed
// out without an answer that arrived.
func (q *queue) giveBackAll(ctx context.Context) error {
	var err error
	if r := q.requests.unanswered; r != nil {
		again := &request{number: r.number, most: r.most, again: true}
		q.ask(ctx, again)
		err = again.err
		q.hold(again.ds)
	}
	return errors.Join(err, q.giveBack(ctx, q.takeHeld()))
}

// giveBack returns messages uncounted to the front of the queue, the last first.
func (q *queue) giveBack(ctx context.Context, ts []*token) error {
	var calls []*call
	for n := len(ts); n > 0; n = max(0, n-batch) {
		c := q.call(giveBackScript)
		for _, t := range ts[max(0, n-batch):n] {
			c.args = append(c.args, t.id, t.lease)
		}
		calls = append(calls, c)
	}
	if len(calls) == 0 {
		return nil
	}
	q.d.run(ctx, calls...)
	for _, c := range calls {
		if err := c.cmd.Err(); err != nil {
			return q.d.wrap("queue "+q.o.Name+": give back", err)
		}
	}
	return nil
}

// abandon ends the queue without giving anything back.
func (q *queue) abandon() {
	q.closeOnce.Do(func() {
		q.closing.Store(true)
		close(q.done)
		q.requests.shutDown()
		q.working.Wait()
	})
}
