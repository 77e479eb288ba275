package sqstest

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault is what befalls one request.
type Fault struct {
	// Refuse answers with an error instead of doing anything.
	Refuse *Error
	// Fail refuses these entries of a batch, by place.
	Fail []int
	// LoseAnswer does what was asked and breaks the connection.
	LoseAnswer bool
	// Hang does what was asked and answers nothing until the client leaves.
	Hang bool
}

// Throttled is how SQS asks for fewer requests.
var Throttled = &Error{"RequestThrottled", "Rate exceeded", 400}

// Server is SQS in this process.
type Server struct {
	URL string

	addr string
	http *http.Server

	mu     sync.Mutex
	queues map[string]*queue // by URL
	serial int
	faults func(action string, n int) *Fault
	calls  map[string]int
	ended  chan struct{} // of this life
	wake   chan struct{} // closed and made anew at each change
	second time.Duration
	most   time.Duration
}

// Start runs a server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{
		addr: "127.0.0.1:0", queues: map[string]*queue{}, calls: map[string]int{},
		wake: make(chan struct{}), second: time.Second, most: maxVisibility * time.Second,
	}
	s.start(t)
	t.Cleanup(s.Stop)
	return s
}

func (s *Server) start(t testing.TB) {
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	s.URL = "http://" + s.addr
	h := &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Minute}
	s.mu.Lock()
	s.http, s.ended = h, make(chan struct{})
	s.mu.Unlock()
	go func() {
		if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // a test without its server has no meaning
		}
	}()
}

// Stop breaks all connections; messages stay.
func (s *Server) Stop() {
	s.mu.Lock()
	h := s.http
	select {
	case <-s.ended:
	default:
		close(s.ended)
	}
	s.mu.Unlock()
	_ = h.Close()
}

// Restart stops the server, if it runs, and starts it at the same address with its messages.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	s.start(t)
}

// Addr is host:port.
func (s *Server) Addr() string { return s.addr }

// WaitSecond lets a second of a long poll's wait take another time; everything else stays.
func (s *Server) WaitSecond(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.second = d
}

// MaxVisibility shrinks the limit of 12 hours from the receive on.
func (s *Server) MaxVisibility(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = d
}

func (s *Server) maxVisibility() time.Duration { return s.most }

// Fault is asked about every request: the action, and how many of it there were, from 1.
func (s *Server) Fault(f func(action string, n int) *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.calls = f, map[string]int{}
}

// Calls is how many requests of an action there were since Fault was set.
func (s *Server) Calls(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[action]
}

// Set changes a queue's attributes.
func (s *Server) Set(t testing.TB, name, key, value string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.named(name)
	if q == nil {
		t.Fatalf("no queue %s", name)
	}
	q.attrs[key] = value
}

// Redeliver makes what was deleted visible again, as standard queues sometimes do, and returns
// how many messages that were.
func (s *Server) Redeliver(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.named(name)
	n := len(q.gone)
	for _, m := range q.gone {
		m.deleted, m.visible = false, time.Now()
		q.messages = append(q.messages, m)
	}
	q.gone = nil
	s.changed()
	return n
}

// Expire makes everything in flight visible, as if its leases were over.
func (s *Server) Expire(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.named(name).messages {
		if m.receipt != "" {
			m.visible = time.Now()
		}
	}
	s.changed()
}

// Bodies are the messages in a queue, whatever their state, with their attributes' text.
func (s *Server) Bodies(name string) (bodies []string, attrs []map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.named(name).messages {
		a := map[string]string{}
		for k, v := range m.MessageAttributes {
			if v.StringValue != nil {
				a[k] = *v.StringValue
			}
		}
		bodies, attrs = append(bodies, m.MessageBody), append(attrs, a)
	}
	return bodies, attrs
}

func (s *Server) named(name string) *queue {
	for _, q := range s.queues {
		if q.name == name {
			return q
		}
	}
	return nil
}

// changed wakes polls; s.mu is held.
func (s *Server) changed() {
	close(s.wake)
	s.wake = make(chan struct{})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return
	}
	action, ok := strings.CutPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.")
	if !ok || r.Method != http.MethodPost {
		s.answer(w, nil, &Error{"InvalidAction", "no action", 400})
		return
	}
	req, bad := parse(body)
	if bad != nil {
		s.answer(w, nil, bad)
		return
	}
	s.mu.Lock()
	s.calls[action]++
	fault := &Fault{}
	if s.faults != nil {
		if f := s.faults(action, s.calls[action]); f != nil {
			fault = f
		}
	}
	ended := s.ended
	s.mu.Unlock()
	if fault.Refuse != nil {
		s.answer(w, nil, fault.Refuse)
		return
	}
	res, failed := s.do(r, action, req, fault, ended)
	switch {
	case fault.Hang:
		select {
		case <-r.Context().Done():
		case <-ended:
		}
		return
	case fault.LoseAnswer:
		panic(http.ErrAbortHandler)
	}
	s.answer(w, res, failed)
}

func (s *Server) answer(w http.ResponseWriter, res any, failed *Error) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if failed != nil {
		w.Header().Set("X-Amzn-Query-Error", failed.Code+";Sender")
		w.WriteHeader(failed.Status)
		res = map[string]string{"__type": "com.amazonaws.sqs#" + failed.Code, "message": failed.Message}
	}
	_ = json.NewEncoder(w).Encode(res) // a client that left is no matter
}

func (s *Server) do(r *http.Request, action string, req *request, fault *Fault, ended chan struct{}) (any, *Error) {
	if action == "ReceiveMessage" {
		return s.receive(r, req, ended)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed()
	now := time.Now()
	switch action {
	case "CreateQueue":
		return s.create(req)
	case "GetQueueUrl":
		if q := s.named(req.QueueName); q != nil {
			return map[string]string{"QueueUrl": q.url}, nil
		}
		return nil, missing
	}
	q := s.queues[req.QueueUrl]
	if q == nil {
		return nil, missing
	}
	switch action {
	case "GetQueueAttributes":
		return map[string]any{"Attributes": q.attributes(now)}, nil
	case "DeleteQueue":
		delete(s.queues, q.url)
		return struct{}{}, nil
	case "SendMessage":
		if err := req.entry.check(q.fifo, q.maxSize()); err != nil {
			return nil, err
		}
		return q.send(&req.entry, now), nil
	case "SendMessageBatch":
		return batch(req.Entries, true, fault, func(e *entry) (map[string]string, *Error) {
			if err := e.check(q.fifo, q.maxSize()); err != nil {
				return nil, err
			}
			return q.send(e, now), nil
		})
	case "DeleteMessageBatch":
		return batch(req.Entries, false, fault, func(e *entry) (map[string]string, *Error) {
			return map[string]string{"Id": e.Id}, q.delete(e.ReceiptHandle, now)
		})
	case "ChangeMessageVisibilityBatch":
		return batch(req.Entries, false, fault, func(e *entry) (map[string]string, *Error) {
			return map[string]string{"Id": e.Id}, q.changeVisibility(e.ReceiptHandle, e.VisibilityTimeout, now)
		})
	}
	return nil, &Error{"InvalidAction", "unknown action " + action, 400}
}

var missing = &Error{"QueueDoesNotExist", "The specified queue does not exist.", 400}

func batch(entries []entry, sending bool, fault *Fault, do func(e *entry) (map[string]string, *Error)) (any, *Error) {
	if err := checkBatch(entries, sending); err != nil {
		return nil, err
	}
	res := batchResult{Successful: []map[string]string{}, Failed: []failedEntry{}}
	for i := range entries {
		e := &entries[i]
		if slices.Contains(fault.Fail, i) {
			res.Failed = append(res.Failed, failedEntry{e.Id, "InternalError", "We encountered an internal error.", false})
			continue
		}
		ok, err := do(e)
		if err != nil {
			res.Failed = append(res.Failed, failedEntry{e.Id, err.Code, err.Message, true})
			continue
		}
		res.Successful = append(res.Successful, ok)
	}
	return res, nil
}

func (s *Server) create(req *request) (any, *Error) {
	name := req.QueueName
	fifo := strings.HasSuffix(name, ".fifo")
	if (req.Attributes["FifoQueue"] == "true") != fifo {
		return nil, invalid("The name of a FIFO queue ends in .fifo, and FifoQueue is true for it only.")
	}
	if q := s.named(name); q != nil {
		for k, v := range req.Attributes {
			if q.attrs[k] != v {
				return nil, &Error{"QueueNameExists", "A queue already exists with the same name and a different value for " + k, 400}
			}
		}
		return map[string]string{"QueueUrl": q.url}, nil
	}
	attrs := map[string]string{"VisibilityTimeout": "30", "MaximumMessageSize": "1048576", "MessageRetentionPeriod": "345600", "DelaySeconds": "0"}
	for k, v := range req.Attributes {
		attrs[k] = v
	}
	q := &queue{
		s: s, name: name, fifo: fifo, attrs: attrs, url: "https://sqs.test/123456789012/" + name, arn: "arn:aws:sqs:us-east-1:123456789012:" + name,
		receipts: map[string]*message{}, dedupe: map[string]dedupe{}, attempts: map[string]attempt{},
	}
	s.queues[q.url] = q
	return map[string]string{"QueueUrl": q.url}, nil
}

// receive waits like a long poll. A client that left gets messages all the same, since the
// service does not notice either.
func (s *Server) receive(r *http.Request, req *request, ended chan struct{}) (any, *Error) {
	number := func(p *int, otherwise int) int {
		if p != nil {
			return *p
		}
		return otherwise
	}
	n, wait, visibility := number(req.MaxNumberOfMessages, 1), number(req.WaitTimeSeconds, 0), number(req.VisibilityTimeout, 30)
	if n < 1 || n > 10 || wait < 0 || wait > 20 || visibility < 0 || visibility > maxVisibility {
		return nil, invalid("MaxNumberOfMessages is 1 to 10, WaitTimeSeconds 0 to 20, VisibilityTimeout 0 to 43200.")
	}
	s.mu.Lock()
	end := time.Now().Add(time.Duration(wait) * s.second)
	for {
		now := time.Now()
		q := s.queues[req.QueueUrl]
		if q == nil {
			s.mu.Unlock()
			return nil, missing
		}
		if req.ReceiveRequestAttemptId != "" && !q.fifo {
			s.mu.Unlock()
			return nil, invalid("ReceiveRequestAttemptId is for FIFO queues.")
		}
		if ms := q.take(n, time.Duration(visibility)*time.Second, req.ReceiveRequestAttemptId, now); len(ms) > 0 || !now.Before(end) {
			s.changed() // something may have moved
			s.mu.Unlock()
			return map[string]any{"Messages": ms}, nil
		}
		next := q.nextVisible(now, end)
		wake := s.wake
		s.mu.Unlock()
		t := time.NewTimer(time.Until(next))
		select {
		case <-wake:
		case <-t.C:
		case <-ended:
			t.Stop()
			return nil, &Error{"ServiceUnavailable", "stopping", 503}
		}
		t.Stop()
		s.mu.Lock()
	}
}

// nextVisible is when to look again without a change.
func (q *queue) nextVisible(now, end time.Time) time.Time {
	next := end
	for _, m := range q.messages {
		if m.visible.After(now) && m.visible.Before(next) {
			next = m.visible
		}
	}
	return next
}
