// Package cftest is a server that answers as Cloudflare's Queues API does, written from its API
// reference and documentation: it enforces the limits described there, keeps its messages over a
// restart, and fails in the ways a test asks for. It is no copy of the real service, and where
// the documentation says two things it does the less convenient one.
package cftest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// Account and Token are what the server expects.
const (
	Account = "023e105f4ecef8ad9ca31a8372d0c353"
	Token   = "a-token"
)

// The actions that faults and Calls name.
const (
	ActionPull        = "pull"
	ActionAck         = "ack"
	ActionPush        = "push"
	ActionBatch       = "batch"
	ActionMetrics     = "metrics"
	ActionList        = "list"
	ActionGet         = "get"
	ActionCreate      = "create"
	ActionEdit        = "edit"
	ActionConsumers   = "consumers"
	ActionNewConsumer = "new consumer"
)

// Fault is what goes wrong with one request.
type Fault struct {
	// Status answers with an error of that kind, and nothing is done. RetryAfter goes with it.
	Status     int
	RetryAfter string
	// Lose does what is asked and breaks the connection instead of answering.
	Lose bool
	// Hang never answers, and does nothing.
	Hang bool
	// Warn are the entries of an acknowledgement, acks first, that are not carried out and get a
	// warning in an answer that succeeds.
	Warn []int
	// Forget answers an acknowledgement as if it was carried out, and does nothing.
	Forget bool
	// Unsuccessful answers 200 with success false, and nothing is done.
	Unsuccessful bool
}

// Server is an account.
type Server struct {
	// URL is the base of the API.
	URL string

	addr  string
	state *state

	mu      sync.Mutex
	http    *http.Server
	conns   map[net.Conn]struct{}
	served  chan struct{}
	fault   func(action string, n int) *Fault
	calls   map[string]int
	silence bool
}

// Start starts a server on a free port, until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{addr: l.Addr().String(), state: newState(), calls: map[string]int{}, conns: map[net.Conn]struct{}{}}
	s.URL = "http://" + s.addr + "/client/v4"
	s.serve(l)
	t.Cleanup(s.stop)
	return s
}

func (s *Server) serve(l net.Listener) {
	srv := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute, ConnState: s.track}
	served := make(chan struct{})
	s.mu.Lock()
	s.http, s.served = srv, served
	s.mu.Unlock()
	go func() {
		defer close(served)
		if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			panic(err) // the test's own listener
		}
	}()
}

// stop breaks every connection.
func (s *Server) stop() {
	s.mu.Lock()
	srv, served := s.http, s.served
	s.mu.Unlock()
	_ = srv.Close() // its listener is closed, whatever it says
	<-served
}

// Restart breaks every connection and serves the same messages again.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.stop()
	var l net.Listener
	for end := time.Now().Add(10 * time.Second); ; {
		var err error
		if l, err = net.Listen("tcp", s.addr); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.serve(l)
}

func (s *Server) track(c net.Conn, now http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now == http.StateClosed || now == http.StateHijacked {
		delete(s.conns, c)
	} else {
		s.conns[c] = struct{}{}
	}
}

// Cut breaks every connection; new ones are taken and work.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close() // one that is closed already is no matter
	}
}

// Fault sets what goes wrong from now on, for the n-th request of an action, counted from 1; nil
// for nothing.
func (s *Server) Fault(f func(action string, n int) *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault, s.calls = f, map[string]int{}
}

// Silence lets nothing be answered any more, as on a link that is half open, until it is called
// with false.
func (s *Server) Silence(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silence = on
}

// Calls is how many requests of an action there were since Fault was called.
func (s *Server) Calls(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[action]
}

func (s *Server) next(action string) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[action]++
	if s.silence {
		return &Fault{Hang: true}
	}
	if s.fault == nil {
		return nil
	}
	return s.fault(action, s.calls[action])
}

// hang waits until the client has had enough, or the server stops.
func hang(ctx context.Context) { <-ctx.Done() }

// Queue describes a queue that a test makes by itself.
type Queue struct {
	Name      string
	Retention time.Duration // 4 days
	Delay     time.Duration
	// Consumer is "http_pull", "worker", or "" for none.
	Consumer   string
	MaxRetries int // of the consumer; 3
	Dead       string
	Paused     bool
}

// Add makes a queue, and returns its id.
func (s *Server) Add(o Queue) string {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	q := s.state.add(o.Name)
	if o.Retention > 0 {
		q.retention = o.Retention
	}
	q.delay, q.paused = o.Delay, o.Paused
	if o.Consumer != "" {
		c := newConsumer(o.Consumer)
		c.dead = o.Dead
		if o.MaxRetries > 0 {
			c.maxRetries = o.MaxRetries
		}
		q.consumer = c
	}
	return q.id
}

// Inject puts a message in as a Worker would, with any content type. v8 cannot be read outside.
func (s *Server) Inject(queue, contentType string, body []byte) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	q := s.state.find(queue)
	q.put(&message{kind: contentType, body: body})
}

// Message is what a test may see of one in a queue.
type Message struct {
	Type     string
	Body     string
	Attempts int
}

// Messages are all of a queue, the oldest first.
func (s *Server) Messages(queue string) (ms []Message) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	q := s.state.find(queue)
	s.state.sweep(q)
	for e := q.messages.Front(); e != nil; e = e.Next() {
		m := e.Value.(*message)
		ms = append(ms, Message{Type: m.kind, Body: string(m.body), Attempts: m.attempts})
	}
	return ms
}

// Restrict shrinks the longest delay, which the server refuses to exceed.
func (s *Server) Restrict(longestDelay time.Duration) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.maxDelay = longestDelay
}

// RetryDelay sets a consumer's, which holds for retries that name none.
func (s *Server) RetryDelay(queue string, d time.Duration) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.find(queue).consumer.retryDelay = d
}
