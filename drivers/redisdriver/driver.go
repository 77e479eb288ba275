package redisdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/guesthand/guesthand/drivers"
)

// MinimumServer is the oldest server that does what the driver relies on: scripts that may run
// when memory is full.
const MinimumServer = "7.0"

// DefaultURL is the server on this machine.
const DefaultURL = "redis://127.0.0.1:6379/0"

const (
	defaultLease = 30 * time.Second
	closeWait    = 10 * time.Second
	// pollEvery is how often a waiting worker looks without being told to.
	pollEvery = time.Second
	// keyWindow is how long a message's key is remembered.
	keyWindow = 24 * time.Hour
)

// Options say how to reach the server.
type Options struct {
	// URL is redis://host:port/database, or rediss:// for TLS; default DefaultURL.
	URL string
	// User and Password override those of the URL; a password alone is the server's own.
	User, Password string
	// Name is the connection's name in CLIENT LIST; default guesthand.
	Name string
	// Worker names this host in dead letters and logs.
	Worker string
	// Logger takes what has no caller to go to; default none.
	Logger *slog.Logger

	// MaxDelay, if not 0, is the longest delay stored at once; longer ones hop. The server
	// itself takes any.
	MaxDelay time.Duration
	// AnswerTimeout is how long an answer may take, after which its connection is given up;
	// default 5 s.
	AnswerTimeout time.Duration
	// ReapEvery is the pause between two steps of the search for orphans, and between two looks
	// at the bounds of dead letters; default 1 s.
	ReapEvery time.Duration
	// NoWake leaves out the subscription, so that workers only poll.
	NoWake bool
}

func (o Options) withDefaults() Options {
	if o.URL == "" {
		o.URL = DefaultURL
	}
	if o.Name == "" {
		o.Name = "guesthand"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.AnswerTimeout <= 0 {
		o.AnswerTimeout = answerTimeout
	}
	if o.ReapEvery <= 0 {
		o.ReapEvery = time.Second
	}
	return o
}

// Caps is what every Redis queue can do.
func Caps() drivers.Caps {
	return drivers.Caps{
		Granularity: time.Millisecond,
		Renewable:   true,
		Fenced:      true,
		ExactCounts: true,
		AtomicDead:  true,
		BrowseDead:  true,
		StableIDs:   true,
		Ordered:     true,
		Durable:     true,
		Keys:        true,
	}
}

// Driver is a pool of connections to one Redis server.
type Driver struct {
	o      Options
	rdb    *redis.Client
	log    *slog.Logger
	links  links
	server server
	waker  *waker
	away   atomic.Bool // the connection is lost, and that was said

	mu     sync.Mutex
	queues map[*queue]struct{}
	closed bool
}

var (
	_ drivers.Driver   = (*Driver)(nil)
	_ drivers.KeyValue = (*Driver)(nil)
)

// Open connects. It fails where the server cannot be reached before ctx ends, is older than
// MinimumServer, a replica, or part of a cluster; afterwards connections come back by themselves.
func Open(ctx context.Context, o Options) (*Driver, error) {
	o = o.withDefaults()
	quiet()
	d := &Driver{o: o, log: o.Logger, queues: map[*queue]struct{}{}}
	d.links.conns = map[*link]struct{}{}
	co, err := d.clientOptions()
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	d.rdb = redis.NewClient(co)
	if d.server, err = d.inspect(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("redis at %s: %w", d.where(), err), d.rdb.Close())
	}
	d.loadScripts(ctx)
	if !o.NoWake {
		d.waker = newWaker(d)
	}
	return d, nil
}

// where is the address without secrets.
func (d *Driver) where() string {
	u, err := url.Parse(d.o.URL)
	if err != nil {
		return "the given url"
	}
	return u.Host + u.Path
}

func (d *Driver) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
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
	closed := d.closed
	if !closed {
		d.queues[q] = struct{}{}
	}
	d.mu.Unlock()
	if closed {
		return nil, errors.Join(fmt.Errorf("queue %s: %w", o.Name, drivers.ErrClosed), q.Close(ctx))
	}
	return q, nil
}

// Ping implements drivers.Driver.
func (d *Driver) Ping(ctx context.Context) error {
	if d.isClosed() {
		return drivers.ErrClosed
	}
	ping := redis.NewStatusCmd(ctx, "ping")
	d.do(ctx, ping)
	return d.wrap("redis at "+d.where(), ping.Err())
}

// Close implements drivers.Driver.
func (d *Driver) Close(ctx context.Context) error {
	qs, first := d.shut()
	if !first {
		return nil
	}
	errs := make([]error, len(qs)+1)
	var wg sync.WaitGroup
	for i, q := range qs {
		wg.Go(func() { errs[i] = q.Close(ctx) })
	}
	wg.Wait()
	d.waker.close()
	errs[len(qs)] = d.rdb.Close()
	return errors.Join(errs...)
}

// shut marks the driver closed and returns its open queues.
func (d *Driver) shut() (qs []*queue, first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	first = !d.closed
	d.closed = true
	for q := range d.queues {
		qs = append(qs, q)
	}
	return qs, first
}

// Abandon ends the connections as the death of the process would: nothing is given back.
// Tests of what a crash leaves use it.
func (d *Driver) Abandon() {
	qs, first := d.shut()
	if !first {
		return
	}
	for _, q := range qs {
		q.abandon()
	}
	d.waker.close()
	_ = d.rdb.Close() // its connections are cut either way
}

// quiet keeps the client from writing to standard error: what it has to say comes back as
// errors, too.
var quiet = sync.OnceFunc(func() { redis.SetLogger(silence{}) })

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

func newOwner() string { return uuid.NewString()[:18] }
