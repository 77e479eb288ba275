package natstest

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// Proxy stands between a client and a server, so that a test can break one connection and leave
// the server alone.
type Proxy struct {
	// URL is where the client connects.
	URL string

	server string
	l      net.Listener

	mu     sync.Mutex
	mute   bool
	conns  map[net.Conn]struct{}
	closed bool
	wg     sync.WaitGroup
}

// Through starts a proxy to s, until the test ends.
func Through(t testing.TB, s *Server) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		URL: "nats://" + l.Addr().String(), server: strings.TrimPrefix(s.URL, "nats://"),
		l: l, conns: map[net.Conn]struct{}{},
	}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Cut breaks every connection; new ones are taken.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = false
	for c := range p.conns {
		_ = c.Close() // one that is closed already is no matter
	}
}

// Swallow loses what the client sends from now on, until Cut.
func (p *Proxy) Swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = true
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.l.Close()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		s, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = c.Close()
			continue
		}
		if !p.keep(c, s) {
			return
		}
		p.wg.Go(func() { p.copy(s, c, true) })
		p.wg.Go(func() { p.copy(c, s, false) })
	}
}

func (p *Proxy) keep(cs ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range cs {
		if p.closed {
			_ = c.Close()
			continue
		}
		p.conns[c] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) copy(to, from net.Conn, fromClient bool) {
	_, _ = io.Copy(writer{p, to, fromClient}, from) // ends with either connection
	_, _ = to.Close(), from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, to)
	delete(p.conns, from)
}

// writer passes on, or pretends to.
type writer struct {
	p          *Proxy
	to         net.Conn
	fromClient bool
}

func (w writer) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	mute := w.p.mute && w.fromClient
	w.p.mu.Unlock()
	if mute {
		return len(b), nil
	}
	return w.to.Write(b)
}
