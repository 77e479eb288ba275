package rabbittest

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Proxy stands between a client and a node, so that a test can break one client's connections
// and leave the node alone.
type Proxy struct {
	// URL is where the client connects.
	URL string

	node string
	l    net.Listener

	mu     sync.Mutex
	deaf   bool // the client's bytes vanish
	dumb   bool // the node's bytes vanish
	conns  map[net.Conn]struct{}
	closed bool
	wg     sync.WaitGroup
}

// Through starts a proxy to n, until the test ends.
func Through(t testing.TB, n *Node) *Proxy {
	t.Helper()
	u, err := url.Parse(n.URL)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{node: u.Host, l: l, conns: map[net.Conn]struct{}{}}
	u.Host = l.Addr().String()
	p.URL = u.String()
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Cut breaks every connection; new ones are taken.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf, p.dumb = false, false
	for c := range p.conns {
		_ = c.Close() // one that is closed already is no matter
	}
}

// HalfOpen loses everything either side sends from now on, with no end of the connection to
// tell. New connections pass only after Cut or Heal.
func (p *Proxy) HalfOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf, p.dumb = true, true
}

// Heal lets new connections pass; those that lost something stay silent.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf, p.dumb = false, false
}

// Swallow loses what the client sends from now on, until Cut.
func (p *Proxy) Swallow() {
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
		s, err := net.Dial("tcp", p.node)
		if err != nil {
			_ = c.Close()
			continue
		}
		if !p.keep(c, s) {
			return
		}
		p.wg.Go(func() { p.copy(s, c, &p.deaf) })
		p.wg.Go(func() { p.copy(c, s, &p.dumb) })
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

func (p *Proxy) copy(to, from net.Conn, lost *bool) {
	_, _ = io.Copy(&writer{p: p, to: to, lost: lost}, from) // ends with either connection
	_, _ = to.Close(), from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, to)
	delete(p.conns, from)
}

// writer passes on, or pretends to. Once bytes were lost, the stream is of no use any more.
type writer struct {
	p      *Proxy
	to     net.Conn
	lost   *bool
	silent bool
}

func (w *writer) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	w.silent = w.silent || *w.lost
	w.p.mu.Unlock()
	if w.silent {
		return len(b), nil
	}
	return w.to.Write(b)
}
