package pgdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/guesthand/guesthand/drivers"
)

// MinimumServer is the oldest server that is tested and supported.
const MinimumServer = 13

// MaxPayload is the largest payload, bytes. The server's own limit is 1 GiB for a message with
// everything around it, but both sides hold a payload in memory several times over.
const MaxPayload = 64 << 20

const (
	defaultLease = 30 * time.Second
	closeWait    = 10 * time.Second
	// pollEvery is how often a waiting worker looks without being told to.
	pollEvery = time.Second
)

// Options say how to reach the server.
type Options struct {
	// URL is postgres://host:port/database, with parameters as libpq and pgxpool know them
	// (sslmode, pool_max_conns); what it leaves out is taken from PGHOST and so on.
	URL string
	// User and Password override those of the URL.
	User, Password string
	// Schema has the tables; default DefaultSchema.
	Schema string
	// Name is the connections' application_name; default guesthand.
	Name string
	// Worker names this host in dead letters, the table of workers and logs.
	Worker string
	// Logger takes what has no caller to go to; default none.
	Logger *slog.Logger

	// AnswerTimeout is how long an answer may take, after which its connection is given up;
	// default 10 s.
	AnswerTimeout time.Duration
	// MaintainEvery is the pause between two looks at expired workers and bounds; default 1 s.
	MaintainEvery time.Duration
	// PingEvery is how long the connection that listens may be silent before it is tried;
	// default 20 s.
	PingEvery time.Duration
	// LongTransaction is the age at which an open transaction is a finding; default 5 min.
	LongTransaction time.Duration
	// NoListen leaves out the connection that listens, so that workers only poll.
	NoListen bool
}

func (o Options) withDefaults() Options {
	orDefault := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	orDefault(&o.AnswerTimeout, 10*time.Second)
	orDefault(&o.MaintainEvery, time.Second)
	orDefault(&o.PingEvery, 20*time.Second)
	orDefault(&o.LongTransaction, 5*time.Minute)
	if o.Schema == "" {
		o.Schema = DefaultSchema
	}
	if o.Name == "" {
		o.Name = "guesthand"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Caps is what every PostgreSQL queue can do.
func Caps() drivers.Caps {
	return drivers.Caps{
		Granularity:   time.Microsecond,
		Renewable:     true,
		Fenced:        true,
		ExactCounts:   true,
		RejectCounted: true,
		AtomicDead:    true,
		BrowseDead:    true,
		StableIDs:     true,
		Ordered:       true,
		Durable:       true,
		Keys:          true,
	}
}

// Driver is a pool of connections to one database, and one that listens.
type Driver struct {
	o      Options
	log    *slog.Logger
	pool   *pgxpool.Pool
	sql    statements
	links  links
	server server
	hints  *hints
	away   atomic.Bool // the connection is lost, and that was said

	mu       sync.Mutex
	queues   map[*queue]struct{}
	closed   bool
	keeping  bool // the maintenance runs
	done     chan struct{}
	working  sync.WaitGroup
	maintain chan struct{} // asks for maintenance now
}

var (
	_ drivers.Driver   = (*Driver)(nil)
	_ drivers.KeyValue = (*Driver)(nil)
)

// Open connects. It fails where the server cannot be reached before ctx ends, is older than
// MinimumServer or a standby; afterwards connections come back by themselves. The schema
// need not be there yet.
func Open(ctx context.Context, o Options) (*Driver, error) {
	o = o.withDefaults()
	if !schemaName.MatchString(o.Schema) {
		return nil, fmt.Errorf("postgres: schema %q: want [a-z_][a-z0-9_]*, at most 63", o.Schema)
	}
	d := &Driver{o: o, log: o.Logger, sql: newStatements(o.Schema), queues: map[*queue]struct{}{},
		done: make(chan struct{}), maintain: make(chan struct{}, 1)}
	if err := d.connect(ctx); err != nil {
		return nil, fmt.Errorf("postgres at %s: %w", o.where(), err)
	}
	d.hints = newHints(d)
	return d, nil
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
	if !d.adopt(q) {
		return nil, errors.Join(fmt.Errorf("queue %s: %w", o.Name, drivers.ErrClosed), q.Close(ctx))
	}
	return q, nil
}

// adopt keeps an open queue, and is false where the driver has been closed meanwhile.
func (d *Driver) adopt(q *queue) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.queues[q] = struct{}{}
	if !q.o.SendOnly {
		d.keep()
		d.hints.listen()
	}
	return true
}

// keep starts the maintenance, once. d.mu is held.
func (d *Driver) keep() {
	if !d.keeping {
		d.keeping = true
		d.working.Go(d.maintenance)
	}
}

// openQueues are the queues open now.
func (d *Driver) openQueues() []*queue {
	d.mu.Lock()
	defer d.mu.Unlock()
	qs := make([]*queue, 0, len(d.queues))
	for q := range d.queues {
		qs = append(qs, q)
	}
	return qs
}

// Ping implements drivers.Driver.
func (d *Driver) Ping(ctx context.Context) error {
	if d.isClosed() {
		return drivers.ErrClosed
	}
	return d.wrap("postgres at "+d.o.where(), d.do(ctx, d.pool.Ping))
}

// Close implements drivers.Driver.
func (d *Driver) Close(ctx context.Context) error {
	qs, first := d.shut()
	if !first {
		return nil
	}
	errs := make([]error, len(qs))
	var wg sync.WaitGroup
	for i, q := range qs {
		wg.Go(func() { errs[i] = q.Close(ctx) })
	}
	wg.Wait()
	close(d.done)
	d.working.Wait()
	d.hints.close(ctx)
	d.pool.Close()
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
	close(d.done)
	for _, q := range qs {
		q.abandon()
	}
	d.working.Wait()
	d.hints.abandon()
	d.pool.Close()
}
