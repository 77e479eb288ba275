package cfdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"sync"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

const (
	// DefaultURL is where Cloudflare's API is.
	DefaultURL = "https://api.cloudflare.com/client/v4"

	defaultLease = 30 * time.Second
	firstPoll    = 250 * time.Millisecond
	lastPoll     = 10 * time.Second
	callTimeout  = 10 * time.Second
	// maxLease and maxDelay are Cloudflare's limits on visibility_timeout_ms and delay_seconds.
	maxLease = 12 * time.Hour
	maxDelay = 12 * time.Hour
)

// Options say how to reach an account. Account and Token are required.
type Options struct {
	// URL is the API's base; DefaultURL. Tests and proxies override it.
	URL string
	// Account is the account's id, and Token an API token with read and write on Queues.
	Account, Token string
	// Worker names this host in dead letters and logs.
	Worker string
	// Store keeps the counts of messages that may not be rewritten; nil for none.
	Store drivers.KeyValue
	// Logger takes what has no caller to go to; default none.
	Logger *slog.Logger

	// FirstPoll and LastPoll are the least and the longest time between two polls of a queue
	// that is quiet; 250 ms and 10 s.
	FirstPoll, LastPoll time.Duration
	// MaxDelay, if not 0, is the longest delay given to Cloudflare at once, at least a second;
	// longer ones hop.
	MaxDelay time.Duration
	// CallTimeout is the time for one request; 10 s.
	CallTimeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.URL == "" {
		o.URL = DefaultURL
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FirstPoll == 0 {
		o.FirstPoll = firstPoll
	}
	if o.LastPoll == 0 {
		o.LastPoll = max(lastPoll, o.FirstPoll)
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = callTimeout
	}
	return o
}

// accountID goes into paths as it is.
var accountID = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Validate names the first option that cannot be.
func (o Options) Validate() error {
	if !accountID.MatchString(o.Account) {
		return fmt.Errorf("account is the account's id, 32 hexadecimal digits, not %q", o.Account)
	}
	if o.Token == "" {
		return errors.New("token is empty; it is an API token with read and write on Queues")
	}
	if o.URL != "" {
		if u, err := url.Parse(o.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("url is the base of the API, like %s, not %q", DefaultURL, o.URL)
		}
	}
	if o.MaxDelay < 0 || o.CallTimeout < 0 || o.FirstPoll < 0 || o.LastPoll != 0 && o.LastPoll < o.FirstPoll {
		return errors.New("a negative MaxDelay, CallTimeout or FirstPoll, or a LastPoll below it")
	}
	return nil
}

// Caps is what every queue of ours can do.
func Caps() drivers.Caps {
	return drivers.Caps{
		MaxDelay:    maxDelay,
		Granularity: time.Second,
		ExactCounts: true,
		Durable:     true,
	}
}

// ForeignCaps is what queues can do whose messages may not be rewritten, with a store and without.
func ForeignCaps(store bool) drivers.Caps {
	c := Caps()
	c.ExactCounts, c.StableIDs = store, true
	return c
}

// Driver is one account.
type Driver struct {
	o   Options
	log *slog.Logger
	c   *client

	mu     sync.Mutex
	closed bool
	queues map[*queue]struct{}
}

var _ drivers.Driver = (*Driver)(nil)

// Open makes a driver, and asks Cloudflare whether account and token are right.
func Open(ctx context.Context, o Options) (*Driver, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("cloudflare: %w", err)
	}
	o = o.withDefaults()
	d := &Driver{o: o, log: o.Logger, queues: map[*queue]struct{}{}, c: newClient(o)}
	if err := d.Ping(ctx); err != nil {
		d.c.http.CloseIdleConnections()
		return nil, err
	}
	return d, nil
}

// OpenQueue implements drivers.Driver.
func (d *Driver) OpenQueue(ctx context.Context, o drivers.QueueOptions) (drivers.Queue, error) {
	if o.Lease <= 0 {
		o.Lease = defaultLease
	}
	if o.Worker == "" {
		o.Worker = d.o.Worker
	}
	if d.isClosed() {
		return nil, fmt.Errorf("queue %s: %w", o.Name, drivers.ErrClosed)
	}
	q, err := d.newQueue(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("queue %s: %w", o.Name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		q.abandon()
		return nil, fmt.Errorf("queue %s: %w", o.Name, drivers.ErrClosed)
	}
	d.queues[q] = struct{}{}
	return q, nil
}

func (d *Driver) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

func (d *Driver) openQueues() []*queue {
	d.mu.Lock()
	defer d.mu.Unlock()
	qs := make([]*queue, 0, len(d.queues))
	for q := range d.queues {
		qs = append(qs, q)
	}
	return qs
}

func (d *Driver) forget(q *queue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.queues, q)
}

// Ping implements drivers.Driver. Calls that are no pull and no acknowledgement are limited, so
// that it asks for one queue's figures where one is open.
func (d *Driver) Ping(ctx context.Context) error {
	if d.isClosed() {
		return drivers.ErrClosed
	}
	for _, q := range d.openQueues() {
		_, err := d.c.metrics(ctx, q.n.id)
		return wrap(err, "cloudflare")
	}
	_, err := d.c.list(ctx)
	return wrap(err, "cloudflare: list the account's queues")
}

// Close implements drivers.Driver.
func (d *Driver) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	qs := d.openQueues()
	errs := make([]error, len(qs))
	var wg sync.WaitGroup
	for i, q := range qs {
		wg.Go(func() { errs[i] = q.Close(ctx) })
	}
	wg.Wait()
	d.c.http.CloseIdleConnections()
	return errors.Join(errs...)
}

// Abandon ends everything as the death of the process would: nothing is given back. Tests of
// what a crash leaves use it.
func (d *Driver) Abandon() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	for _, q := range d.openQueues() {
		q.abandon()
	}
	d.c.http.CloseIdleConnections()
}
