package redisdriver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/guesthand/guesthand/drivers"
)

const (
	dialTimeout = 5 * time.Second
	// answerTimeout is the default for Options.AnswerTimeout.
	answerTimeout = 5 * time.Second
	poolSize      = 32
)

// clientOptions reads the address. What its query asks for beyond that is overridden where it
// would break a promise: a command that is repeated by the client could be done twice.
func (d *Driver) clientOptions() (*redis.Options, error) {
	o, err := redis.ParseURL(d.o.URL)
	if err != nil {
		var bad *url.Error
		if errors.As(err, &bad) {
			err = bad.Err // without the address, which may hold a password
		}
		return nil, fmt.Errorf("url: %w", err)
	}
	if d.o.User != "" {
		o.Username = d.o.User
	}
	if d.o.Password != "" {
		o.Password = d.o.Password
	}
	o.ClientName = d.o.Name
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.ContextTimeoutEnabled = true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = dialTimeout, d.o.AnswerTimeout, d.o.AnswerTimeout
	o.PoolSize, o.PipelinePoolSize = poolSize, -1
	o.PoolTimeout = d.o.AnswerTimeout
	o.ReadBufferSize, o.WriteBufferSize = 64<<10, 64<<10
	o.Dialer = d.links.dialer(o.TLSConfig)
	return o, nil
}

// do sends commands in one round trip; each has its own answer or error.
func (d *Driver) do(ctx context.Context, cmds ...redis.Cmder) {
	begun, caller := time.Now(), ctx
	ctx, cancel := context.WithTimeout(ctx, d.o.AnswerTimeout)
	defer cancel()
	var err error
	if len(cmds) == 1 {
		err = d.rdb.Process(ctx, cmds[0])
	} else {
		pipe := d.rdb.Pipeline()
		for _, c := range cmds {
			err = errors.Join(err, pipe.Process(ctx, c))
		}
		if err == nil {
			_, err = pipe.Exec(ctx)
		}
	}
	if caller.Err() == nil { // the caller's impatience says nothing about the connection
		d.note(begun, err)
	}
}

// note learns from an answer how the connection is.
func (d *Driver) note(begun time.Time, err error) {
	var answer redis.Error
	if err == nil || errors.As(err, &answer) {
		if !temporary(err) && d.away.CompareAndSwap(true, false) {
			d.log.Info("connection to Redis is back", slog.String("server", d.where()))
		}
		return
	}
	if d.isClosed() || errors.Is(err, redis.ErrClosed) {
		return
	}
	if isTimeout(err) {
		d.links.sever(begun)
	}
	if d.away.CompareAndSwap(false, true) {
		d.log.Warn("connection to Redis lost, reconnecting", slog.String("server", d.where()), slog.Any("error", err))
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// temporary tells of a server's refusal that it will end by itself: it starts, fails over, is
// busy or full.
func temporary(err error) bool {
	if err == nil {
		return false
	}
	for _, prefix := range []string{"LOADING", "READONLY", "MASTERDOWN", "BUSY", "OOM", "TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF", "ERR max number of clients"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// hopeless tells of an error that waiting cannot help.
func hopeless(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer) && !errors.Is(err, redis.Nil) && !temporary(err)
}

// wrap says what failed, and that a closed driver is the reason where it is.
func (d *Driver) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	if d.isClosed() && errors.Is(err, redis.ErrClosed) {
		err = drivers.ErrClosed
	}
	return fmt.Errorf("%s: %w", what, err)
}

// backoff waits between tries: 50 ms to 4 s, with jitter so that hosts do not come in step.
func backoff(troubles int) time.Duration {
	most := min(4*time.Second, 50*time.Millisecond<<min(troubles, 8))
	return most/2 + rand.N(most/2)
}

// links are the connections, so that those without a sign of life can be ended together:
// the pool would try each of them, a time-out long.
type links struct {
	mu    sync.Mutex
	conns map[*link]struct{}
}

// link is a connection that remembers when something last came.
type link struct {
	net.Conn
	of   *links
	last atomic.Int64 // Unix ns
}

// rawLink is a link that the pool can look at without reading.
type rawLink struct {
	*link
	syscall.Conn
}

func (l *links) dialer(config *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	plain := &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		var c net.Conn
		var err error
		if config == nil {
			c, err = plain.DialContext(ctx, network, addr)
		} else {
			c, err = (&tls.Dialer{NetDialer: plain, Config: config}).DialContext(ctx, network, addr)
		}
		if err != nil {
			return nil, err
		}
		k := &link{Conn: c, of: l}
		k.last.Store(time.Now().UnixNano())
		l.mu.Lock()
		l.conns[k] = struct{}{}
		l.mu.Unlock()
		if raw, ok := c.(syscall.Conn); ok {
			return rawLink{k, raw}, nil
		}
		return k, nil
	}
}

func (k *link) Read(b []byte) (int, error) {
	n, err := k.Conn.Read(b)
	if n > 0 {
		k.last.Store(time.Now().UnixNano())
	}
	return n, err
}

func (k *link) Close() error {
	k.of.mu.Lock()
	delete(k.of.conns, k)
	k.of.mu.Unlock()
	return k.Conn.Close()
}

// sever ends the connections that nothing came over since t.
func (l *links) sever(t time.Time) {
	l.mu.Lock()
	var dumb []*link
	for k := range l.conns {
		if k.last.Load() < t.UnixNano() {
			dumb = append(dumb, k)
		}
	}
	l.mu.Unlock()
	for _, k := range dumb {
		_ = k.Close() // given up already
	}
}
