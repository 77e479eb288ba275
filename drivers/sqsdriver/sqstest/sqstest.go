// Package sqstest has the servers that tests of the SQS driver run against: an emulator as a
// private child process, and a server in Go that speaks the real protocol, enforces the
// service's documented limits where the emulator does not, and can be made to fail.
package sqstest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"
)

// emulatorVariable names the emulator's cli.js; see .make/brokers.d/fauxqs.
const emulatorVariable = "GUESTHAND_TEST_FAUXQS"

// startWait bounds how long the emulator takes to come up on a busy machine.
const startWait = time.Minute

// Credentials sets what the SDK signs with; no server here looks at it.
func Credentials() {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		_ = os.Setenv(name, value) // fails for malformed names only
	}
}

// Emulator is a fauxqs process.
type Emulator struct {
	URL string
}

// StartEmulator runs one until the test ends, or skips the test where there is none.
func StartEmulator(t testing.TB) *Emulator {
	t.Helper()
	cli := os.Getenv(emulatorVariable)
	if cli == "" {
		t.Skipf("%s is not set: no SQS emulator (eval \"$(.make/brokers)\" finds or installs it)", emulatorVariable)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skipf("no node to run the SQS emulator with: %v", err)
	}
	port := freePort(t)
	c := exec.Command(node, cli)
	c.Env = append(os.Environ(), "FAUXQS_PORT="+strconv.Itoa(port), "FAUXQS_HOST=127.0.0.1", "FAUXQS_LOGGER=false")
	c.Dir = t.TempDir()
	out := &tail{}
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = c.Wait() // it is killed below
		close(ended)
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-ended
	})
	e := &Emulator{URL: "http://127.0.0.1:" + strconv.Itoa(port)}
	ctx, cancel := context.WithTimeout(t.Context(), startWait)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			http.DefaultClient.CloseIdleConnections()
			return e
		}
		select {
		case <-ended:
			t.Fatalf("the emulator ended at once: %s", out)
		case <-ctx.Done():
			t.Fatalf("the emulator does not answer: %s", out)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// freePort is one that was free a moment ago.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// tail keeps the end of a process's output for a failure's text.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if len(t.b) > 4<<10 {
		t.b = t.b[len(t.b)-4<<10:]
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}

// Proxy stands between a client and a server, so that a test can break connections and leave
// the server alone.
type Proxy struct {
	URL    string
	server string
	l      net.Listener

	mu     sync.Mutex
	silent bool
	closed bool
	conns  map[net.Conn]struct{}
	wg     sync.WaitGroup
}

// Through starts a proxy to a server's address, host:port, until the test ends.
func Through(t testing.TB, server string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{URL: "http://" + l.Addr().String(), server: server, l: l, conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		_ = l.Close()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Cut breaks every connection; new ones are taken and work.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = false
	for c := range p.conns {
		_ = c.Close() // one that is closed already is no matter
	}
}

// Silence lets everything vanish, both ways and without a FIN, until Cut.
func (p *Proxy) Silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
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
		p.mu.Lock()
		if p.closed {
			_, _ = c.Close(), s.Close()
		} else {
			p.conns[c], p.conns[s] = struct{}{}, struct{}{}
		}
		p.mu.Unlock()
		p.wg.Go(func() { p.copy(s, c) })
		p.wg.Go(func() { p.copy(c, s) })
	}
}

func (p *Proxy) copy(to, from net.Conn) {
	r := bufio.NewReader(from)
	b := make([]byte, 32<<10)
	for {
		n, err := r.Read(b)
		p.mu.Lock()
		silent := p.silent
		p.mu.Unlock()
		if n > 0 && !silent {
			if _, werr := to.Write(b[:n]); werr != nil {
				err = fmt.Errorf("write: %w", werr)
			}
		}
		if err != nil {
			break
		}
	}
	_, _ = to.Close(), from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, to)
	delete(p.conns, from)
}
