package pgdriver

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// links are a driver's connections, so that those without a sign of life can be ended
// together: each would be tried and closed politely otherwise, a time-out long.
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

// through makes dial's connections links.
func (l *links) through(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		k := &link{Conn: c, of: l}
		k.last.Store(time.Now().UnixNano())
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.conns == nil {
			l.conns = map[*link]struct{}{}
		}
		l.conns[k] = struct{}{}
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
