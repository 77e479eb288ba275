package pgdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// batch is the most messages one statement takes.
const batch = 500

// NameQueue is the key of QueueOptions.Names that sets the queue's name in the tables.
const NameQueue = "queue"

var queueName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,47}$`)

// queue implements drivers.Queue, drivers.DeadLetters and drivers.Replier.
type queue struct {
	d      *Driver
	o      drivers.QueueOptions
	name   string // in the tables
	worker int64  // this opening's number in the tables
	log    *slog.Logger
	info   drivers.Info
	wake   chan struct{}
	woken  atomic.Bool // since the last look from the beginning
	drops  dropLog
	buried atomic.Bool // the bounds of dead letters want looking at

	receiving sync.Mutex // held by Receive
	intake    intake
	settling  sync.RWMutex // held for reading by Settle, for writing while Close gives back

	mu   sync.Mutex
	held map[int64]*token

	closing   atomic.Bool
	done      chan struct{}
	closeOnce sync.Once
	closeErr  error
}

var (
	_ drivers.Queue       = (*queue)(nil)
	_ drivers.DeadLetters = (*queue)(nil)
	_ drivers.Replier     = (*queue)(nil)
)

// nameOf is a queue's name in the tables.
func nameOf(o drivers.QueueOptions) (string, error) {
	for key := range o.Names {
		if key != NameQueue {
			return "", fmt.Errorf("unknown name %q, the driver has %q", key, NameQueue)
		}
	}
	if name := o.Names[NameQueue]; name != "" {
		if len(name) > 200 || !isText(name) {
			return "", fmt.Errorf("queue %q: want at most 200 bytes of text", name)
		}
		return name, nil
	}
	if !queueName.MatchString(o.Name) {
		return "", fmt.Errorf("queue name %q: want [a-z0-9][a-z0-9_-]{0,47}", o.Name)
	}
	return o.Name, nil
}

func (d *Driver) newQueue(ctx context.Context, o drivers.QueueOptions) (*queue, error) {
	name, err := nameOf(o)
	if err != nil {
		return nil, err
	}
	q := &queue{
		d: d, o: o, name: name, worker: rand.Int64(), wake: make(chan struct{}, 1), done: make(chan struct{}),
		log: d.log.With(slog.String("queue", o.Name)), held: map[int64]*token{},
		info: drivers.Info{Caps: Caps(), Lease: o.Lease, MaxPayload: MaxPayload},
	}
	if err := q.setup(ctx); err != nil {
		return nil, err
	}
	if !o.SendOnly {
		q.info.Findings = d.findings(ctx)
		q.buried.Store(true)
	}
	return q, nil
}

// Info implements drivers.Queue.
func (q *queue) Info() drivers.Info {
	info := q.info
	info.Findings = slices.Clone(info.Findings)
	return info
}

// signal makes a waiting Receive look.
func (q *queue) signal() {
	q.woken.Store(true)
	select {
	case q.wake <- struct{}{}:
	default:
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
	q       *queue
	entry   int64
	claims  int32     // the fence
	due     time.Time // run_at
	id, job string
	state   atomic.Uint32
	until   atomic.Int64 // when the lease ends, as far as known; Unix ns
	// tried are the verdicts (bits) of settlements that got no answer: the message may be gone
	// because of one.
	tried atomic.Uint32
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
		t.until.Store(d.Received.Add(q.o.Lease).UnixNano())
		q.held[t.entry] = t
	}
}

// forget drops tokens, unless a later claim of the same message has taken their place.
func (q *queue) forget(ts ...*token) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range ts {
		if q.held[t.entry] == t {
			delete(q.held, t.entry)
		}
	}
}

// heldEntries are the messages that the queue knows it holds.
func (q *queue) heldEntries() []int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	entries := make([]int64, 0, len(q.held))
	for e := range q.held {
		entries = append(entries, e)
	}
	return entries
}

// neglected are tokens whose lease ran out because nobody renewed it, though the worker
// lives.
func (q *queue) neglected() []*token {
	now := time.Now().UnixNano()
	q.mu.Lock()
	defer q.mu.Unlock()
	var ts []*token
	for _, t := range q.held {
		if t.until.Load() < now && t.state.Load() == tokenHeld && len(ts) < batch {
			ts = append(ts, t)
		}
	}
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
	q.d.mu.Lock()
	delete(q.d.queues, q)
	q.d.mu.Unlock()
	q.receiving.Lock()
	defer q.receiving.Unlock()
	if q.o.SendOnly {
		return nil
	}
	q.settling.Lock()
	defer q.settling.Unlock()
	q.drops.report(q, 0, 0, true)
	return q.leave(ctx)
}

// leave gives back all that is this worker's, known or not, and ends it.
func (q *queue) leave(ctx context.Context) error {
	var n int64
	var err error
	for try := 0; ; try++ {
		if n, err = q.d.exec(ctx, q.d.sql.leave, q.worker); err == nil || !temporary(err) {
			break
		}
		select {
		case <-time.After(backoff(try)):
			continue
		case <-ctx.Done():
		}
		break
	}
	if n > 0 {
		q.d.announce(q.name)
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("no answer: %w", err)
	}
	return q.d.wrap("queue "+q.o.Name+": give back", err)
}

// abandon ends the queue without giving anything back.
func (q *queue) abandon() {
	q.closeOnce.Do(func() {
		q.closing.Store(true)
		close(q.done)
	})
}

func (q *queue) isDone() bool { return q.closing.Load() }
