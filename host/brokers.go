package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/config"
)

// OpenOptions is what opening a broker needs beside its section of the configuration.
type OpenOptions struct {
	Worker string
	Logger *slog.Logger
	// LockWait is how long an embedded store that another process holds is waited for.
	LockWait time.Duration
	// Store is the key-value of the configured [store], nil without one. It is there for
	// brokers that cannot keep what a message needs.
	Store drivers.KeyValue
}

// Opener opens one kind of broker. The command holds the table of them; the host knows no
// driver by name.
type Opener func(ctx context.Context, b config.Broker, o OpenOptions) (drivers.Driver, error)

// UnreachableError is a broker that could not be opened.
type UnreachableError struct {
	Broker string
	Err    error
}

func (e *UnreachableError) Error() string { return fmt.Sprintf("broker %s: %v", e.Broker, e.Err) }
func (e *UnreachableError) Unwrap() error { return e.Err }

// Brokers opens the configured brokers and queues as they are first needed.
type Brokers struct {
	config   *config.Config
	openers  map[string]Opener
	options  OpenOptions
	sendOnly bool

	mu      sync.Mutex
	drivers map[string]drivers.Driver
	queues  map[string]drivers.Queue
}

// NewBrokers prepares to open; it does no I/O. With sendOnly the queues are opened without
// consumers: for commands, which send, count and read dead letters.
func NewBrokers(c *config.Config, openers map[string]Opener, o OpenOptions, sendOnly bool) *Brokers {
	return &Brokers{config: c, openers: openers, options: o, sendOnly: sendOnly,
		drivers: map[string]drivers.Driver{}, queues: map[string]drivers.Queue{}}
}

// Queue opens a queue by its configured name, and its broker where that is not open yet.
func (b *Brokers) Queue(ctx context.Context, name string) (drivers.Queue, error) {
	c, ok := b.config.Queues[name]
	if !ok {
		return nil, &UnknownQueueError{Name: name, Known: slices.Sorted(maps.Keys(b.config.Queues))}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.queues[name]; q != nil {
		return q, nil
	}
	d, err := b.broker(ctx, c.Broker)
	if err != nil {
		return nil, err
	}
	q, err := d.OpenQueue(ctx, drivers.QueueOptions{
		Name: name, Lease: c.Lease, Create: c.Create, SendOnly: b.sendOnly,
		MaxOutstanding: c.Concurrency + maxAhead + 2*settleBacklog,
		DeadKeep:       c.DeadKeep, DeadMax: c.DeadMax, Names: c.Names, Worker: b.options.Worker,
	})
	if err != nil {
		return nil, fmt.Errorf("queue %s on broker %s: %w", name, c.Broker, err)
	}
	b.queues[name] = q
	return q, nil
}

// broker opens a broker; b.mu is held.
func (b *Brokers) broker(ctx context.Context, name string) (d drivers.Driver, err error) {
	if d := b.drivers[name]; d != nil {
		return d, nil
	}
	c := b.config.Brokers[name]
	open := b.openers[c.Driver]
	if open == nil {
		return nil, fmt.Errorf("broker %s: no driver %q in this build", name, c.Driver)
	}
	o := b.options
	o.Logger = o.Logger.With(keyBroker, name, keyDriver, c.Driver)
	if s := b.config.Store.Broker; s != "" && c.NeedsStore() {
		if o.Store, err = b.store(ctx, s); err != nil {
			return nil, fmt.Errorf("[store]: %w", err)
		}
	}
	if d, err = open(ctx, c, o); err != nil {
		return nil, &UnreachableError{Broker: name, Err: err}
	}
	b.drivers[name] = d
	return d, nil
}

// store is the key-value of the broker that [store] names; b.mu is held. It is opened before
// those that need it and never needs one itself.
func (b *Brokers) store(ctx context.Context, name string) (drivers.KeyValue, error) {
	d, err := b.broker(ctx, name)
	if err != nil {
		return nil, err
	}
	kv, ok := d.(drivers.KeyValue)
	if !ok {
		return nil, fmt.Errorf("broker %s keeps no values by key", name)
	}
	return kv, nil
}

// keyValue opens a broker for its values; ErrUnsupported where it keeps none.
func (b *Brokers) keyValue(ctx context.Context, name string) (drivers.KeyValue, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d, err := b.broker(ctx, name)
	if err != nil {
		return nil, err
	}
	kv, ok := d.(drivers.KeyValue)
	if !ok {
		return nil, fmt.Errorf("broker %s keeps no values by key: %w", name, drivers.ErrUnsupported)
	}
	return kv, nil
}

// OpenInbox makes an address for replies at the broker of a queue; ErrUnsupported where it has
// none.
func (b *Brokers) OpenInbox(ctx context.Context, queue string) (drivers.Inbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := b.config.Queues[queue].Broker
	d, err := b.broker(ctx, name)
	if err != nil {
		return nil, err
	}
	i, ok := d.(drivers.Inboxes)
	if !ok {
		return nil, fmt.Errorf("broker %s carries no replies: %w", name, drivers.ErrUnsupported)
	}
	return i.OpenInbox(ctx)
}

// Ping asks every broker that is open, all at once so that one that is silent until ctx ends
// does not speak for the others, and returns what does not answer.
func (b *Brokers) Ping(ctx context.Context) map[string]error {
	b.mu.Lock()
	open := maps.Clone(b.drivers)
	b.mu.Unlock()
	var asking sync.WaitGroup
	var mu sync.Mutex
	away := map[string]error{}
	for name, d := range open {
		asking.Go(func() {
			if err := d.Ping(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				away[name] = err
			}
		})
	}
	asking.Wait()
	return away
}

// Close closes queues and brokers.
func (b *Brokers) Close(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for name, q := range b.queues {
		if err := q.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("close queue %s: %w", name, err))
		}
	}
	// The store goes last: the others may still write to it.
	store := b.config.Store.Broker
	for name, d := range b.drivers {
		if name != store {
			errs = append(errs, closeBroker(ctx, name, d))
		}
	}
	if d := b.drivers[store]; d != nil {
		errs = append(errs, closeBroker(ctx, store, d))
	}
	clear(b.queues)
	clear(b.drivers)
	return errors.Join(errs...)
}

func closeBroker(ctx context.Context, name string, d drivers.Driver) error {
	if err := d.Close(ctx); err != nil {
		return fmt.Errorf("close broker %s: %w", name, err)
	}
	return nil
}

// UnknownQueueError names a queue that the configuration does not have.
type UnknownQueueError struct {
	Name  string
	Known []string
}

func (e *UnknownQueueError) Error() string {
	return fmt.Sprintf("no queue %q in the configuration; there are %v", e.Name, e.Known)
}

// NotFound lets the API answer 404.
func (e *UnknownQueueError) NotFound() bool { return true }
