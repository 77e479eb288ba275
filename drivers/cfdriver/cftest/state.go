package cftest

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
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
	messages  []*message
	leases    map[string]*message // also of messages that are gone
}

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
	q := &queue{id: newID(), name: name, retention: 4 * 24 * time.Hour, leases: map[string]*message{}}
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
	q.messages = append(q.messages, m)
}

// sweep ends leases and lives that are over.
func (s *state) sweep(q *queue) {
	now := time.Now()
	for _, m := range slices.Clone(q.messages) {
		switch {
		case now.Sub(m.sent) > q.retention:
			q.remove(m)
		case m.leased && !now.Before(m.visible):
			m.leased = false
			s.judge(q, m)
		}
	}
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
	m.gone, m.body = true, nil
	if i := slices.Index(q.messages, m); i >= 0 {
		q.messages = slices.Delete(q.messages, i, i+1)
	}
}

// pull leases messages, each under a new id.
func (s *state) pull(q *queue, n int, visibility time.Duration) (ms []*message, leases []string) {
	s.sweep(q)
	now := time.Now()
	for _, m := range q.messages {
		if len(ms) == n {
			break
		}
		if m.leased || now.Before(m.visible) || q.paused {
			continue
		}
		m.leased, m.visible = true, now.Add(visibility)
		m.attempts++
		lease := newID()
		q.leases[lease] = m
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
		m.leased, m.visible = false, time.Now().Add(delay)
		s.judge(q, m)
	}
	return true
}
