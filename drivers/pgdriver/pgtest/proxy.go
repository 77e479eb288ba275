package pgtest

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// Proxy stands between a client and a server, so that a test can break connections and leave
// the server alone.
type Proxy struct {
	// URL is where the client connects, as the superuser.
	URL string

	server string
	l      net.Listener

	mu     sync.Mutex
	conns  map[net.Conn]*end
	deaf   bool // what the server answers is lost
	closed bool
	wg     sync.WaitGroup
}

// end is one side of a connection.
type end struct {
	client bool
	silent bool // what comes in from now on is lost, and nobody is told
}

// Through starts a proxy to s, until the test ends.
func Through(t testing.TB, s *Server) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{URL: strings.Replace(s.URL, s.Addr, l.Addr().String(), 1), server: s.Addr, l: l, conns: map[net.Conn]*end{}}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Cut breaks every connection; new ones are taken.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf = false
	for c := range p.conns {
		_ = c.Close() // one that is closed already is no matter
	}
}

// HalfOpen makes every packet of the connections there are vanish, in both directions and
// without an end; new ones work.
func (p *Proxy) HalfOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.conns {
		e.silent = true
	}
}

// LoseAnswers lets statements through and loses what the server says, until Cut.
func (p *Proxy) LoseAnswers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf = true
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
		p.wg.Go(func() { p.copy(s, c) })
		p.wg.Go(func() { p.copy(c, s) })
	}
}

func (p *Proxy) keep(client, server net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_, _ = client.Close(), server.Close()
		return false
	}
	p.conns[client], p.conns[server] = &end{client: true}, &end{}
	return true
}

func (p *Proxy) copy(to, from net.Conn) {
	_, _ = io.Copy(writer{p, to, from}, from) // ends with either connection
	_, _ = to.Close(), from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, to)
	delete(p.conns, from)
}

// writer passes on, or pretends to.
type writer struct {
	p        *Proxy
	to, from net.Conn
}

func (w writer) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	e := w.p.conns[w.from]
	lost := e != nil && (e.silent || w.p.deaf && !e.client)
	w.p.mu.Unlock()
	if lost {
		return len(b), nil
	}
	return w.to.Write(b)
}
