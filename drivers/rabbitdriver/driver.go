package rabbitdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/drivers"
)

// MinimumServer is the oldest server with hold queues that lose nothing: quorum queues with
// a time to live and dead-lettering at least once.
const MinimumServer = "3.10"

const (
	defaultURL   = "amqp://127.0.0.1:5672"
	defaultLease = 30 * time.Second
	closeWait    = 5 * time.Second
)

// Options say how to reach the broker.
type Options struct {
	// URL is one or several amqp or amqps addresses with commas between, tried in turn;
	// default amqp://127.0.0.1:5672. The path is the virtual host.
	URL string
	// User and Password replace those of the addresses.
	User, Password string
	// Name is the connections' name in the broker's management; default guesthand.
	Name string
	// Worker names this host in dead letters.
	Worker string
	// Logger takes what has no caller to go to; default none.
	Logger *slog.Logger
	// Heartbeat is how often the connections prove that they live; default 10 s. One that is
	// silent for three of them is given up.
	Heartbeat time.Duration
	// MaxDelay, if not 0, is the longest delay given to a hold queue, at least 1 s; longer
	// ones hop. The default is the longest that RabbitMQ takes, some 48 days.
	MaxDelay time.Duration
}

func (o Options) withDefaults() Options {
	if o.URL == "" {
		o.URL = defaultURL
	}
	if o.Name == "" {
		o.Name = "guesthand"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Heartbeat <= 0 {
		o.Heartbeat = heartbeat
	}
	return o
}

// ClassicCaps is what a classic queue can do: it marks a message as handed out before also where
// the broker itself had ended without warning, so that stalls may be too many.
func ClassicCaps() drivers.Caps {
	c := Caps()
	c.ExactCounts = false
	return c
}

// Caps is what a quorum queue can do.
func Caps() drivers.Caps {
	return drivers.Caps{
		MaxDelay:    holdTime(maxStep),
		Granularity: time.Second,
		Renewable:   true,
		ExactCounts: true,
		Durable:     true,
	}
}

// Driver is a pair of connections to a RabbitMQ broker.
type Driver struct {
	o    Options
	urls []string
	log  *slog.Logger

	// stop ends the goroutines that keep the connections.
	stop    context.Context
	end     context.CancelFunc
	keeping sync.WaitGroup

	consuming  *link
	publishing *link
	publisher  *publisher

	mu     sync.Mutex
	queues map[*queue]struct{}
	closed bool
	isLost bool
}

var _ drivers.Driver = (*Driver)(nil)

// Open connects. It fails where no address can be reached before ctx ends, or the server is
// older than MinimumServer; afterwards the connections come back by themselves.
func Open(ctx context.Context, o Options) (*Driver, error) {
	o = o.withDefaults()
	d := &Driver{o: o, log: o.Logger, queues: map[*queue]struct{}{}}
	for u := range strings.SplitSeq(o.URL, ",") {
		u = strings.TrimSpace(u)
		if _, err := amqp.ParseURI(u); err != nil {
			return nil, fmt.Errorf("address %s: %w", withoutSecrets(u), err)
		}
		d.urls = append(d.urls, u)
	}
	d.stop, d.end = context.WithCancel(context.Background())
	d.consuming, d.publishing = newLink(d, "consuming"), newLink(d, "publishing")
	d.publisher = newPublisher(d)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	s, err := d.dial(ctx, d.consuming.role)
	if err == nil {
		if err = checkVersion(s.version, d.where()); err != nil {
			d.hangUp(s)
		}
	}
	if err != nil {
		d.end()
		return nil, err
	}
	p, err := d.dial(ctx, d.publishing.role)
	if err != nil {
		d.hangUp(s)
		d.end()
		return nil, err
	}
	d.consuming.set(s, nil)
	d.publishing.set(p, nil)
	d.keeping.Go(func() { d.consuming.keep(s) })
	d.keeping.Go(func() { d.publishing.keep(p) })
	return d, nil
}

func checkVersion(version, where string) error {
	if version != "" && !atLeast(version, MinimumServer) {
		return fmt.Errorf("the RabbitMQ server at %s is version %s; guesthand needs %s or newer, since older ones "+
			"cannot hold messages without losing some: upgrade it", where, version, MinimumServer)
	}
	return nil
}

// atLeast compares versions a.b.
func atLeast(version, minimum string) bool {
	have, want := versionOf(version), versionOf(minimum)
	return have[0] > want[0] || have[0] == want[0] && have[1] >= want[1]
}

func versionOf(s string) (v [2]int) {
	for i, part := range strings.SplitN(s, ".", 3) {
		n, err := strconv.Atoi(part)
		if err != nil || i == len(v) {
			return v
		}
		v[i] = n
	}
	return v
}

// where is the addresses without secrets.
func (d *Driver) where() string {
	out := make([]string, len(d.urls))
	for i, u := range d.urls {
		out[i] = withoutSecrets(u)
	}
	return strings.Join(out, ", ")
}

// lost says once that a connection is gone, until both are back.
func (d *Driver) lost(err error) {
	d.mu.Lock()
	first := !d.isLost && !d.closed
	d.isLost = true
	d.mu.Unlock()
	if first {
		d.log.Warn("connection to RabbitMQ lost, reconnecting", slog.String("server", d.where()), slog.Any("error", err))
	}
}

func (d *Driver) cameBack() {
	c, _, _ := d.consuming.now()
	p, _, _ := d.publishing.now()
	d.mu.Lock()
	back := d.isLost && c != nil && p != nil
	if back {
		d.isLost = false
	}
	d.mu.Unlock()
	if back {
		d.log.Info("connection to RabbitMQ is back", slog.String("server", d.where()))
	}
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

func (d *Driver) forget(q *queue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.queues, q)
}

// Ping implements drivers.Driver: both connections have to answer.
func (d *Driver) Ping(ctx context.Context) error {
	if d.isClosed() {
		return drivers.ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	for _, l := range []*link{d.consuming, d.publishing} {
		s, _, err := l.now()
		if s == nil {
			return fmt.Errorf("RabbitMQ at %s: %w: %w", d.where(), errDisconnected, err)
		}
		ch, err := s.channel(ctx)
		if err != nil {
			return fmt.Errorf("RabbitMQ at %s: %w", d.where(), err)
		}
		go s.closeChannel(ch)
	}
	return nil
}

// Close implements drivers.Driver.
func (d *Driver) Close(ctx context.Context) error {
	d.mu.Lock()
	again := d.closed
	d.closed = true
	d.mu.Unlock()
	if again {
		return nil
	}
	qs := d.openQueues()
	errs := make([]error, len(qs))
	var wg sync.WaitGroup
	for i, q := range qs {
		wg.Go(func() { errs[i] = q.Close(ctx) })
	}
	wg.Wait()
	d.end()
	d.keeping.Wait()
	d.publisher.wait()
	return errors.Join(errs...)
}

// Abandon ends the connections as the death of the process would: nothing is given back.
// Tests of what a crash leaves use it.
func (d *Driver) Abandon() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.end()
	for _, l := range []*link{d.consuming, d.publishing} {
		if s, _, _ := l.now(); s != nil {
			s.kill()
		}
	}
	for _, q := range d.openQueues() {
		q.abandon()
	}
	d.keeping.Wait()
	d.publisher.wait()
}
