// Package memdriver keeps queues in the memory of this process, for tests, demonstrations
// and work that may be lost.
//
// Mapping: a queue is a list in memory; it exists as soon as it is opened, whatever
// QueueOptions.Create says. Payloads and headers are copied in and out.
//
// Delivery: first deliveries come in the order of sending. What a closing worker gives back,
// or lost with its lease, keeps its place at the head; a requeued message goes to the tail.
// Leases expire exactly, and every settlement is fenced: one of a worker that lost its lease
// is ErrLeaseLost. A delivery that is neither renewed nor settled in time comes back with
// one stall more.
//
// Retry and dead letters: delays of any length are kept as due times, without a goroutine
// or timer of their own. A dead letter is moved under the queue's lock, so it is atomic;
// the oldest are dropped beyond the bound, with a warning. A rejected message is dropped.
//
// Limits: at-most-once over the end of the process, since nothing is written anywhere. The
// number of messages, their bytes and the keys remembered are bounded, and Send says which
// bound is reached.
//
// Buckets: maps in memory with an exact quota; those of all joined drivers are the same ones.
package memdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// keyWindow is how long a Message.Key is remembered.
const keyWindow = 2 * time.Minute

// maxKeys bounds the keys remembered by one queue.
const maxKeys = 1 << 20

// Options configures the driver. The zero value is useful.
type Options struct {
	// Worker names this host in dead letters, where neither QueueOptions nor Death does.
	Worker string
	// MaxMessages is how many unfinished messages a queue holds; 100,000. Send beyond it
	// is an error.
	MaxMessages int
	// MaxPayload is the largest payload, bytes; 64 MiB.
	MaxPayload int
	// MaxBytes bounds the payload bytes of a queue's unfinished messages, and once more
	// those of its dead letters; 1 GiB.
	MaxBytes int
	// DeadMax is how many dead letters a queue keeps at most, also where QueueOptions asks
	// for more or for no limit; 100,000.
	DeadMax int
	// Lease is for queues that are opened without one; 30 s.
	Lease time.Duration
	// Logger gets the warnings about dropped dead letters; slog.Default().
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.MaxMessages, 100_000)
	set(&o.MaxPayload, 64<<20)
	set(&o.MaxBytes, 1<<30)
	set(&o.DeadMax, 100_000)
	if o.Lease == 0 {
		o.Lease = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Validate names the first option that cannot be.
func (o Options) Validate() error {
	for name, v := range map[string]int64{
		"MaxMessages": int64(o.MaxMessages), "MaxPayload": int64(o.MaxPayload),
		"MaxBytes": int64(o.MaxBytes), "DeadMax": int64(o.DeadMax), "Lease": int64(o.Lease),
	} {
		if v < 0 {
			return fmt.Errorf("memory driver: %s must not be negative", name)
		}
	}
	return nil
}

// broker is the queues that drivers joined to each other share.
type broker struct {
	o       Options
	mu      sync.Mutex
	stores  map[string]*store
	buckets map[string]*bucket

	inboxes     map[string]*inbox
	inboxSerial int
}

func (b *broker) store(name string) *store {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stores[name]
	if s == nil {
		s = newStore(name, b.o)
		b.stores[name] = s
	}
	return s
}

// Driver is one worker's way to a broker in memory. It implements drivers.Driver.
type Driver struct {
	b      *broker
	worker string

	mu     sync.Mutex
	queues map[*queue]struct{}
	closed bool
}

var _ drivers.Driver = (*Driver)(nil)

// Open makes a broker without any message and a worker on it. The messages are gone when
// the driver and those joined to it are.
func Open(ctx context.Context, o Options) (*Driver, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	return newDriver(&broker{o: o, stores: map[string]*store{}, buckets: map[string]*bucket{}, inboxes: map[string]*inbox{}}, o.Worker), nil
}

func newDriver(b *broker, worker string) *Driver {
	return &Driver{b: b, worker: worker, queues: map[*queue]struct{}{}}
}

// Join is another worker on the same messages, as a second host on one broker would be. It
// lives on when d is closed.
func (d *Driver) Join(worker string) *Driver { return newDriver(d.b, worker) }

// OpenQueue opens a queue of that name; all that are opened with one name share its
// messages. The bounds of its dead letters are those of the latest opening.
func (d *Driver) OpenQueue(ctx context.Context, o drivers.QueueOptions) (drivers.Queue, error) {
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case o.Name == "":
		return nil, errors.New("memory driver: queue without a name")
	case o.Lease < 0, o.DeadKeep < 0, o.DeadMax < 0:
		return nil, fmt.Errorf("memory driver: queue %s: negative lease, dead.keep or dead.max", o.Name)
	}
	if o.Lease == 0 {
		o.Lease = d.b.o.Lease
	}
	if o.Worker == "" {
		o.Worker = d.worker
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, drivers.ErrClosed
	}
	q := &queue{d: d, s: d.b.store(o.Name), o: o,
		wake: make(chan struct{}, 1), done: make(chan struct{})}
	q.info = drivers.Info{Caps: Caps(), Lease: o.Lease, MaxPayload: d.b.o.MaxPayload}
	if o.DeadMax > d.b.o.DeadMax {
		q.info.Findings = []drivers.Finding{{Warning: true, Text: fmt.Sprintf(
			"dead.max is %d, but the memory driver keeps %d dead letters at most", o.DeadMax, d.b.o.DeadMax)}}
	}
	q.s.boundDead(o.DeadMax, o.DeadKeep)
	d.queues[q] = struct{}{}
	return q, nil
}

// Caps is what every queue in memory can do.
func Caps() drivers.Caps {
	return drivers.Caps{
		Renewable:   true,
		Fenced:      true,
		ExactCounts: true,
		AtomicDead:  true,
		BrowseDead:  true,
		StableIDs:   true,
		Ordered:     true,
		Keys:        true,
	}
}

// Ping fails only after Close.
func (d *Driver) Ping(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return drivers.ErrClosed
	}
	return ctx.Err()
}

// Close closes this driver's queues; those of joined drivers stay open.
func (d *Driver) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	queues := make([]*queue, 0, len(d.queues))
	for q := range d.queues {
		queues = append(queues, q)
	}
	d.mu.Unlock()
	var err error
	for _, q := range queues {
		err = errors.Join(err, q.Close(ctx))
	}
	return err
}

// forget is called by a queue that closes.
func (d *Driver) forget(q *queue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.queues, q)
}
