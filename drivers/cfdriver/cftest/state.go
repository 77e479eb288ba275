package cftest

import (
	"container/list"
	"crypto/rand"
	"encoding/hex"
	"sync"
	"time"
)

// The documented limits.
const (
	maxBody       = 128_000 // bytes, about 100 of them Cloudflare's own
	ownBytes      = 100
	maxBatchBytes = 256_000
	maxBatch      = 100
	maxVisibility = 12 * time.Hour
	maxDelay      = 12 * time.Hour
	maxRetries    = 100
	minRetention  = time.Minute
	maxRetention  = 14 * 24 * time.Hour
)

// state is what outlives a restart.
type state struct {
	mu       sync.Mutex
	queues   []*queue
	maxDelay time.Duration
}

func newState() *state { return &state{maxDelay: maxDelay} }

type queue struct {
	id, name  string
	retention time.Duration
	delay     time.Duration
	paused    bool
	consumer  *consumer
	size      int        // bytes of all bodies
	messages  *list.List // of *message, the oldest first
	leased    map[*message]struct{}
	leases    map[string]*message // also of messages that are gone, for a while
	past      []string            // leases of those
}

// pastMax is how many leases of messages that are gone are still known.
const pastMax = 4000

type consumer struct {
	id, kind   string
	dead       string
	maxRetries int
	retryDelay time.Duration
	visibility time.Duration
	batch      int
}

type message struct {
	id       string
	kind     string // content type
	body     []byte
	sent     time.Time
	visible  time.Time
	leased   bool
	attempts int
	gone     bool
	at       *list.Element
	leases   []string
}

func newID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

func newConsumer(kind string) *consumer {
	return &consumer{id: newID(), kind: kind, maxRetries: 3, visibility: 30 * time.Second, batch: 5}
}

func (s *state) add(name string) *queue {
	q := &queue{id: newID(), name: name, retention: 4 * 24 * time.Hour, leases: map[string]*message{},
		messages: list.New(), leased: map[*message]struct{}{}}
	s.queues = append(s.queues, q)
	return q
}

// find returns a queue by name or id, nil for none.
func (s *state) find(nameOrID string) *queue {
	for _, q := range s.queues {
		if q.id == nameOrID || q.name == nameOrID {
			return q
		}
	}
	return nil
}

func (q *queue) put(m *message) {
	now := time.Now()
	m.id, m.sent = newID(), now
	if m.visible.IsZero() {
		m.visible = now.Add(q.delay)
	}
	m.at = q.messages.PushBack(m)
	q.size += len(m.body)
}

// sweep ends leases and lives that are over.
func (s *state) sweep(q *queue) {
	now := time.Now()
	for e := q.messages.Front(); e != nil; e = q.messages.Front() {
		m := e.Value.(*message)
		if now.Sub(m.sent) <= q.retention {
			break
		}
		q.remove(m)
	}
	for m := range q.leased {
		if !now.Before(m.visible) {
			q.unlease(m)
			s.judge(q, m)
		}
	}
}

func (q *queue) unlease(m *message) {
	m.leased = false
	delete(q.leased, m)
}

// judge takes away what was delivered too often.
func (s *state) judge(q *queue, m *message) {
	if q.consumer == nil || m.attempts <= q.consumer.maxRetries {
		return
	}
	if dead := s.find(q.consumer.dead); dead != nil && q.consumer.dead != "" {
		dead.put(&message{kind: m.kind, body: m.body})
	}
	q.remove(m)
}

func (q *queue) remove(m *message) {
	if m.gone {
		return
	}
	q.unlease(m)
	q.messages.Remove(m.at)
	q.size -= len(m.body)
	q.past = append(q.past, m.leases...)
	for len(q.past) > pastMax {
		delete(q.leases, q.past[0])
		q.past = q.past[1:]
	}
	m.gone, m.body, m.leases = true, nil, nil
}

// pull leases messages, each under a new id.
func (s *state) pull(q *queue, n int, visibility time.Duration) (ms []*message, leases []string) {
	s.sweep(q)
	now := time.Now()
	for e := q.messages.Front(); e != nil && len(ms) < n; e = e.Next() {
		m := e.Value.(*message)
		if m.leased || now.Before(m.visible) || q.paused {
			continue
		}
		m.leased, m.visible = true, now.Add(visibility)
		m.attempts++
		lease := newID()
		q.leased[m], q.leases[lease] = struct{}{}, m
		m.leases = append(m.leases, lease)
		ms, leases = append(ms, m), append(leases, lease)
	}
	return ms, leases
}

// ack takes a message away, whoever has it now and also after the lease; false for a lease that
// was never given.
func (q *queue) ack(lease string) bool {
	m := q.leases[lease]
	if m == nil {
		return false
	}
	q.remove(m)
	return true
}

// retry makes a message visible again.
func (s *state) retry(q *queue, lease string, delay time.Duration) bool {
	m := q.leases[lease]
	if m == nil {
		return false
	}
	if !m.gone {
		q.unlease(m)
		m.visible = time.Now().Add(delay)
		s.judge(q, m)
	}
	return true
}
