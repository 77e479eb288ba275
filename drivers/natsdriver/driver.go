package natsdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/drivers"
)

// MinimumServer is the oldest server that does what the driver relies on: +TERM with a reason,
// and metadata of streams and consumers.
const MinimumServer = "2.10.4"

const (
	defaultLease = 30 * time.Second
	// maxAckPending bounds what a consumer may have in flight. Delayed messages count in it,
	// so it is far above the server's default of 1000, at which a queue stands still.
	maxAckPending = 100_000
	connectWait   = 5 * time.Second
	closeWait     = 10 * time.Second
)

// Options say how to reach the server.
type Options struct {
	// URL is one or several addresses with commas between, as nats.go takes them;
	// default nats://127.0.0.1:4222.
	URL string
	// Credentials is the path of a .creds file; User and Password are the plain way.
	Credentials    string
	User, Password string
	// Name is the connection's name in the server's monitoring; default guesthand.
	Name string
	// Worker names this host in dead letters and logs.
	Worker string
	// Logger takes what has no caller to go to; default none.
	Logger *slog.Logger

	// MaxDelay, if not 0, is the longest delay given to the server at once; longer ones
	// hop. The server itself takes any.
	MaxDelay time.Duration
	// InProcess, if set, connects to a server inside this process in place of URL.
	InProcess nats.InProcessConnProvider
	// InboxPrefix, if set, replaces _INBOX for the answers to this connection.
	InboxPrefix string
	// Journal, if set, opens the journal of a consumer's started messages: for a server
	// that dies together with the worker.
	Journal func(stream, consumer string) (Journal, error)
}

func (o Options) withDefaults() Options {
	if o.URL == "" {
		o.URL = nats.DefaultURL
	}
	if o.Name == "" {
		o.Name = "guesthand"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Caps is what every NATS queue can do.
func Caps() drivers.Caps {
	return drivers.Caps{
		Granularity: time.Millisecond,
		Renewable:   true,
		ExactCounts: true,
		BrowseDead:  true,
		StableIDs:   true,
		Ordered:     true,
		Durable:     true,
		Keys:        true,
	}
}

// Driver is a connection to a NATS server or cluster.
type Driver struct {
	o   Options
	nc  *nats.Conn
	js  jetstream.JetStream
	log *slog.Logger
	// link is the connection's life.
	link atomic.Pointer[link]
	// ended is closed when the connection's goroutines were told to end.
	ended chan struct{}

	mu       sync.Mutex
	queues   map[*queue]struct{}
	sessions map[string]*session
	closed   bool
}

var _ drivers.Driver = (*Driver)(nil)

// Open connects. It fails where the server cannot be reached before ctx ends, has no
// JetStream, or is older than MinimumServer; afterwards the connection comes back by itself.
func Open(ctx context.Context, o Options) (*Driver, error) {
	o = o.withDefaults()
	d := &Driver{
		o: o, log: o.Logger, ended: make(chan struct{}),
		queues: map[*queue]struct{}{}, sessions: map[string]*session{},
	}
	d.link.Store(newLink())
	if err := d.connect(ctx); err != nil {
		return nil, err
	}
	if err := d.check(ctx); err != nil {
		d.nc.Close()
		return nil, err
	}
	return d, nil
}

func (d *Driver) connect(ctx context.Context) error {
	wait := connectWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline))
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	opts := []nats.Option{
		nats.Name(d.o.Name), nats.Timeout(max(wait, time.Millisecond)),
		nats.MaxReconnects(-1), nats.CustomReconnectDelay(reconnectDelay), nats.IgnoreAuthErrorAbort(),
		// Nothing is kept for later while the connection is down: a put-back sent after
		// the lease has ended would take the message from its next worker.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(20 * time.Second), nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(d.disconnected), nats.ReconnectHandler(d.reconnected),
		nats.ClosedHandler(func(*nats.Conn) { close(d.ended) }),
		nats.ErrorHandler(d.asyncError),
	}
	if d.o.User != "" {
		opts = append(opts, nats.UserInfo(d.o.User, d.o.Password))
	}
	if d.o.Credentials != "" {
		opts = append(opts, nats.UserCredentials(d.o.Credentials))
	}
	if d.o.InProcess != nil {
		opts = append(opts, nats.InProcessServer(d.o.InProcess))
	}
	if d.o.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(d.o.InboxPrefix))
	}
	nc, err := nats.Connect(d.o.URL, opts...)
	if err != nil {
		return fmt.Errorf("connect to NATS at %s: %w", d.where(), err)
	}
	d.nc = nc
	d.js, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(sendWindow), jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		nc.Close()
		return fmt.Errorf("JetStream: %w", err)
	}
	return nil
}

// where is the address without secrets.
func (d *Driver) where() string {
	if d.o.InProcess != nil {
		return "the embedded server"
	}
	var out []string
	for u := range strings.SplitSeq(d.o.URL, ",") {
		if at := strings.LastIndexByte(u, '@'); at >= 0 {
			scheme, _, found := strings.Cut(u, "://")
			if u = u[at+1:]; found {
				u = scheme + "://" + u
			}
		}
		out = append(out, strings.TrimSpace(u))
	}
	return strings.Join(out, ", ")
}

// check refuses servers that would take our settings and silently not keep them.
func (d *Driver) check(ctx context.Context) error {
	if v := d.nc.ConnectedServerVersion(); !atLeast(v, MinimumServer) {
		return fmt.Errorf("the NATS server at %s is version %s; guesthand needs %s or newer, "+
			"since older ones silently ignore rejections and metadata: upgrade nats-server", d.where(), v, MinimumServer)
	}
	if !d.nc.HeadersSupported() {
		return fmt.Errorf("the NATS server at %s does not support headers", d.where())
	}
	if _, err := d.js.AccountInfo(ctx); err != nil {
		if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
			return fmt.Errorf("the NATS server at %s has no JetStream for this account: start it with -js, or enable it for the account: %w", d.where(), err)
		}
		return fmt.Errorf("JetStream at %s: %w", d.where(), err)
	}
	return nil
}

// atLeast compares versions a.b.c; what follows the third number is ignored.
func atLeast(version, minimum string) bool {
	have, want := versionOf(version), versionOf(minimum)
	for i := range have {
		if have[i] != want[i] {
			return have[i] > want[i]
		}
	}
	return true
}

func versionOf(s string) (v [3]int) {
	for i, part := range strings.SplitN(strings.TrimPrefix(s, "v"), ".", 3) {
		digits := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' })
		if digits >= 0 {
			part = part[:digits]
		}
		n, err := strconv.Atoi(part)
		if err != nil {
			return v
		}
		v[i] = n
	}
	return v
}

// reconnectDelay backs off from 50 ms to 4 s, with jitter so that hosts do not come in step.
func reconnectDelay(attempts int) time.Duration {
	most := min(4*time.Second, 50*time.Millisecond<<min(attempts, 8))
	return most/2 + rand.N(most/2)
}

func (d *Driver) disconnected(_ *nats.Conn, err error) {
	d.link.Swap(newLink()).sever()
	if d.isClosed() {
		return
	}
	d.log.Warn("connection to NATS lost, reconnecting", slog.String("server", d.where()), slog.Any("error", err))
}

func (d *Driver) reconnected(nc *nats.Conn) {
	d.log.Info("connection to NATS is back", slog.String("server", nc.ConnectedUrlRedacted()))
	for _, q := range d.openQueues() {
		q.reconnected()
	}
}

func (d *Driver) asyncError(_ *nats.Conn, _ *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrBadHeaderMsg) {
		return // handed out as a broken message
	}
	d.log.Warn("NATS", slog.Any("error", err))
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
	if q.session != nil {
		return journaledQueue{q}, nil
	}
	return q, nil
}

// Ping implements drivers.Driver.
func (d *Driver) Ping(ctx context.Context) error {
	if d.isClosed() {
		return drivers.ErrClosed
	}
	if !d.nc.IsConnected() {
		return fmt.Errorf("NATS at %s: %w", d.where(), nats.ErrDisconnected)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := d.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("NATS at %s: %w", d.where(), err)
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
	d.nc.Close()
	select {
	case <-d.ended:
	case <-ctx.Done():
	}
	return errors.Join(errs...)
}

// Abandon ends the connection as the death of the process would: nothing is given back.
// Tests of what a crash leaves use it.
func (d *Driver) Abandon() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	for _, q := range d.openQueues() {
		q.abandon()
	}
	d.nc.Close()
	<-d.ended
}

func newWriter() string { return uuid.NewString()[:13] }
