package rabbitdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/drivers"
)

const (
	dialWait  = 5 * time.Second
	heartbeat = 10 * time.Second
	// callWait bounds every request: a connection that does not answer within it is closed.
	callWait = 10 * time.Second
	// writeWait bounds every write into the socket.
	writeWait = 15 * time.Second
)

var errDisconnected = errors.New("not connected")

// session is one connection's life.
type session struct {
	conn *amqp.Connection
	raw  net.Conn
	// ended is closed when the connection is gone.
	ended   chan struct{}
	cause   error // of the end; to be read after ended
	version string
	blocked atomic.Pointer[string] // why the broker takes no publications now; nil where it does
}

// kill closes the socket, which ends every call that waits for it.
func (s *session) kill() { _ = s.raw.Close() }

func (s *session) alive() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// call runs a request of the client library, which itself may wait for ever: where no
// answer comes the connection is closed. When ctx ends first, the request goes on by itself.
func (s *session) call(ctx context.Context, request func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	timer := time.AfterFunc(callWait, s.kill)
	go func() {
		done <- request()
		timer.Stop()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// channel opens a channel.
func (s *session) channel(ctx context.Context) (*amqp.Channel, error) {
	opened := make(chan *amqp.Channel, 1)
	err := s.call(ctx, func() error {
		ch, err := s.conn.Channel()
		opened <- ch
		return err
	})
	if err != nil {
		if ctx.Err() != nil { // it may open yet, and nobody would close it
			go func() {
				if ch := <-opened; ch != nil {
					_ = ch.Close()
				}
			}()
		}
		return nil, err
	}
	return <-opened, nil
}

// closeChannel ends a channel; one that does not end takes the connection with it.
func (s *session) closeChannel(ch *amqp.Channel) {
	ctx, cancel := context.WithTimeout(context.Background(), callWait)
	defer cancel()
	_ = s.call(ctx, ch.Close) // it was of no use any more
}

// link keeps one connection up.
type link struct {
	d    *Driver
	role string // for the connection's name

	mu      sync.Mutex
	cur     *session
	changed chan struct{} // closed and replaced at every change
	err     error         // of the last try
}

func newLink(d *Driver, role string) *link {
	return &link{d: d, role: role, changed: make(chan struct{})}
}

func (l *link) set(s *session, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cur, l.err = s, err
	close(l.changed)
	l.changed = make(chan struct{})
}

// now returns the session, nil for none, what closes at the next change, and the last error.
func (l *link) now() (*session, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur != nil && !l.cur.alive() {
		return nil, l.changed, l.err
	}
	return l.cur, l.changed, l.err
}

// get waits for a session.
func (l *link) get(ctx context.Context) (*session, error) {
	for {
		s, changed, err := l.now()
		if s != nil {
			return s, nil
		}
		select {
		case <-changed:
		case <-l.d.stop.Done():
			return nil, drivers.ErrClosed
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w: %w", ctx.Err(), errDisconnected, err)
		}
	}
}

// keep dials until the driver ends. first, if not nil, is a connection made already.
func (l *link) keep(first *session) {
	s := first
	for try := 0; l.d.stop.Err() == nil; {
		if s == nil {
			var err error
			if s, err = l.d.dial(l.d.stop, l.role); err != nil {
				l.set(nil, err)
				l.d.lost(err)
				pause(l.d.stop, reconnectDelay(try))
				try++
				continue
			}
		}
		try = 0
		l.set(s, nil)
		l.d.cameBack()
		select {
		case <-s.ended:
			l.set(nil, s.cause)
			l.d.lost(s.cause)
			s = nil
			pause(l.d.stop, reconnectDelay(0))
		case <-l.d.stop.Done():
		}
	}
	if s != nil {
		l.d.hangUp(s)
	}
}

// reconnectDelay backs off from 50 ms to 4 s, with jitter so that hosts do not come in step.
func reconnectDelay(try int) time.Duration {
	most := min(4*time.Second, 50*time.Millisecond<<min(try, 8))
	return most/2 + rand.N(most/2)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// dial tries the addresses in turn, from a random one on.
func (d *Driver) dial(ctx context.Context, role string) (*session, error) {
	var errs []error
	at := rand.IntN(len(d.urls))
	for i := range d.urls {
		s, err := d.dialOne(ctx, d.urls[(at+i)%len(d.urls)], role)
		if err == nil {
			return s, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// dialOne makes a fresh Config each time: the library wipes the credentials of a used one.
func (d *Driver) dialOne(ctx context.Context, url, role string) (*session, error) {
	s := &session{ended: make(chan struct{})}
	c := amqp.Config{
		Heartbeat:  d.o.Heartbeat,
		Properties: amqp.NewConnectionProperties(),
		Dial: func(network, addr string) (net.Conn, error) {
			dialer := net.Dialer{Timeout: dialWait}
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			// For the handshake, after which the library lifts it.
			if err := c.SetDeadline(time.Now().Add(callWait)); err != nil {
				return nil, errors.Join(err, c.Close())
			}
			s.raw = &boundedConn{Conn: c}
			return s.raw, nil
		},
	}
	c.Properties.SetClientConnectionName(d.o.Name + " " + role)
	if d.o.User != "" {
		c.SASL = []amqp.Authentication{&amqp.PlainAuth{Username: d.o.User, Password: d.o.Password}}
	}
	conn, err := amqp.DialConfig(url, c)
	if err != nil {
		if s.raw != nil {
			s.kill()
		}
		return nil, fmt.Errorf("connect to RabbitMQ at %s: %w", withoutSecrets(url), err)
	}
	s.conn = conn
	s.version, _ = conn.Properties["version"].(string)
	closes, blocks := conn.NotifyClose(make(chan *amqp.Error, 1)), conn.NotifyBlocked(make(chan amqp.Blocking, 8))
	go d.watch(s, closes, blocks)
	return s, nil
}

// watch drains what the library tells about a connection, until its end.
func (d *Driver) watch(s *session, closes <-chan *amqp.Error, blocks <-chan amqp.Blocking) {
	defer close(s.ended)
	for {
		select {
		case b, ok := <-blocks:
			if !ok {
				blocks = nil
				continue
			}
			if !b.Active {
				s.blocked.Store(nil)
				d.log.Info("RabbitMQ takes messages again", slog.String("server", d.where()))
				continue
			}
			s.blocked.Store(&b.Reason)
			d.log.Warn("RabbitMQ takes no messages now; no new work is started until it does",
				slog.String("server", d.where()), slog.String("reason", b.Reason))
		case err, ok := <-closes:
			s.cause = errDisconnected
			if ok && err != nil {
				s.cause = err
			}
			s.kill() // the library may leave it open
			return
		}
	}
}

// hangUp closes a connection orderly, or not, but in time.
func (d *Driver) hangUp(s *session) {
	_ = s.conn.CloseDeadline(time.Now().Add(closeWait)) // it is gone in any case
	s.kill()
	<-s.ended
}

// boundedConn lets no write wait for ever: the library holds its locks meanwhile.
type boundedConn struct{ net.Conn }

func (c *boundedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeWait)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// withoutSecrets is an address without its user and password.
func withoutSecrets(url string) string {
	if at := strings.LastIndexByte(url, '@'); at >= 0 {
		scheme, _, found := strings.Cut(url, "://")
		if url = url[at+1:]; found {
			url = scheme + "://" + url
		}
	}
	return url
}
