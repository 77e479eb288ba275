package rabbitdriver

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// Headers of a dead letter that only this driver needs.
const (
	headerDeathEntry  = "Guesthand-Death-Entry"
	headerDeathID     = "Guesthand-Death-Id" // where the message brought none
	headerDeathJob    = "Guesthand-Death-Job"
	headerDeathPrefix = "Guesthand-Death-"
)

// maxDeathReason bounds the reason in a header.
const maxDeathReason = 4 << 10

// deadLetter is the message as it came, with what is to be known of its death.
func (q *queue) deadLetter(t *token, s *drivers.Settlement) (*publication, error) {
	m := t.copyOf()
	for name := range m.Headers {
		if hasFoldedPrefix(name, headerDeathPrefix) {
			delete(m.Headers, name)
		}
	}
	q.deathHeaders(m.Headers, t, s)
	for errs := s.Carry.Errors; ; errs = errs[1:] {
		delete(m.Headers, abi.HeaderDeathErrors)
		if len(errs) == 0 {
			break
		}
		b, err := json.Marshal(errs)
		if err != nil {
			return nil, err
		}
		if m.Headers[abi.HeaderDeathErrors] = string(b); sizeOf(m.Headers) <= headerRoom {
			break
		}
	}
	q.shed(m.Headers, t.id)
	return &publication{queue: q.n.dead, msg: m}, nil
}

// shed drops what can be missed most until the headers fit: at last the producer's own, never
// a byte of the payload.
func (q *queue) shed(h amqp.Table, id string) {
	for _, name := range []string{abi.HeaderDeathDigest, abi.HeaderDeathWorker, abi.HeaderDeathCause} {
		if sizeOf(h) <= headerRoom {
			return
		}
		delete(h, name)
	}
	if reason, _ := h[abi.HeaderDeathReason].(string); len(reason) > 256 && sizeOf(h) > headerRoom {
		h[abi.HeaderDeathReason] = cut(reason, 256)
	}
	said := false
	for sizeOf(h) > headerRoom {
		largest := ""
		for name, v := range h {
			if !hasFoldedPrefix(name, abi.HeaderPrefix) && (largest == "" || sizeOf(v) > sizeOf(h[largest])) {
				largest = name
			}
		}
		if largest == "" {
			return
		}
		delete(h, largest)
		if !said {
			q.log.Warn("a dead letter has no room for all of its headers", slog.String("id", id))
			said = true
		}
	}
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func hasFoldedPrefix(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

func (q *queue) deathHeaders(h amqp.Table, t *token, s *drivers.Settlement) {
	death, died := s.Death, s.Death.Time
	if died.IsZero() {
		died = time.Now()
	}
	worker := death.Worker
	if worker == "" {
		worker = q.o.Worker
	}
	text := func(name, value string) {
		if value != "" {
			h[name] = value
		}
	}
	text(abi.HeaderDeathReason, cut(death.Reason, maxDeathReason))
	text(abi.HeaderDeathOutcome, death.Outcome)
	text(abi.HeaderDeathCause, death.Cause)
	text(abi.HeaderDeathQueue, q.n.queue)
	text(abi.HeaderDeathDigest, death.Digest)
	text(abi.HeaderDeathWorker, worker)
	text(abi.HeaderDeathTime, died.UTC().Format(time.RFC3339Nano))
	text(headerDeathEntry, newID())
	text(headerDeathID, t.id)
	text(headerDeathJob, t.job)
	set(h, abi.HeaderEnqueued, t.enqueued.UTC().Format(time.RFC3339Nano))
	for name, n := range map[string]int{
		abi.HeaderDeathFailures: s.Carry.Failures, abi.HeaderDeathDelays: s.Carry.Delays, abi.HeaderDeathStalls: s.Carry.Stalls,
		abi.HeaderDeathInterruptions: s.Carry.Interruptions, abi.HeaderDeathAttempt: s.Carry.Attempt() - 1,
	} {
		h[name] = int64(n)
	}
	set(h, abi.HeaderPrior, int64(s.Carry.Prior))
}

// letter reads a dead letter; one that others put there shows what it has.
func (q *queue) letter(m *amqp.Delivery) drivers.DeadLetter {
	h := headerOf(m.Headers)
	text := func(name string) string { v, _ := h.Get(name); return v }
	count := func(name string) int { return atoiOrZero(text(name)) }
	at := func(name string) time.Time {
		if t, err := time.Parse(time.RFC3339Nano, text(name)); err == nil {
			return t
		}
		return m.Timestamp
	}
	d := drivers.DeadLetter{
		ID: text(headerDeathID), Entry: text(headerDeathEntry), Job: text(headerDeathJob), Queue: q.n.queue,
		Reason: text(abi.HeaderDeathReason), Outcome: text(abi.HeaderDeathOutcome), Cause: text(abi.HeaderDeathCause),
		Tally: drivers.Tally{
			Failures: count(abi.HeaderDeathFailures), Delays: count(abi.HeaderDeathDelays), Stalls: count(abi.HeaderDeathStalls),
			Interruptions: count(abi.HeaderDeathInterruptions), Prior: count(abi.HeaderPrior),
		},
		Replays: count(abi.HeaderReplays), Enqueued: at(abi.HeaderEnqueued), Died: at(abi.HeaderDeathTime),
		Digest: text(abi.HeaderDeathDigest), Worker: text(abi.HeaderDeathWorker), Payload: m.Body,
		Headers: make(drivers.Header, len(h)),
	}
	if raw := text(abi.HeaderDeathErrors); raw != "" {
		if err := json.Unmarshal([]byte(raw), &d.Errors); err != nil {
			q.log.Debug("errors of a dead letter cannot be read", slog.String("entry", d.Entry), slog.Any("error", err))
		}
	}
	for name, values := range h {
		if !hasFoldedPrefix(name, headerDeathPrefix) && travels(name) &&
			!strings.EqualFold(name, abi.HeaderEnqueued) && !strings.EqualFold(name, abi.HeaderPrior) {
			d.Headers[name] = values
		}
	}
	if d.ID == "" {
		d.ID = m.MessageId
	}
	if d.Job == "" {
		d.Job = m.Type
	}
	if d.Entry == "" {
		d.Entry = foreignEntry(m)
	}
	return d
}

// deadBounds says when the dead letters are at their bounds.
type deadBounds struct {
	max  int           // 0: none
	keep time.Duration // 0: none

	mu     sync.Mutex
	looked time.Time
	warned time.Time
}

const (
	boundsEvery = 5 * time.Second
	boundsWarn  = 10 * time.Minute
)

// checkBounds looks now and then, after a death, whether old dead letters are pushed out.
func (q *queue) checkBounds(ctx context.Context) {
	b := &q.bounds
	now := time.Now()
	b.mu.Lock()
	due := (b.max > 0 || b.keep > 0) && now.Sub(b.looked) >= boundsEvery && now.Sub(b.warned) >= boundsWarn
	if due {
		b.looked = now
	}
	b.mu.Unlock()
	if !due {
		return
	}
	s, err := q.d.consuming.get(ctx)
	if err != nil {
		return // there will be another death
	}
	n, err := q.inspect(ctx, s, q.n.dead)
	if err != nil {
		q.log.Debug("bounds of the dead letters", slog.Any("error", err))
		return
	}
	switch {
	case b.max > 0 && n >= b.max:
		q.log.Warn("the dead letters are at their bound, the oldest are dropped: replay or drop some, or raise dead.max",
			slog.String("deadqueue", q.n.dead), slog.Int("count", n), slog.Int("max", b.max))
	case b.keep > 0:
		q.log.Warn("dead letters are dropped for their age: replay them in time, or raise dead.keep",
			slog.String("deadqueue", q.n.dead), slog.Duration("keep", b.keep))
	default:
		return
	}
	b.mu.Lock()
	b.warned = now
	b.mu.Unlock()
}

func (q *queue) afterDeath(ctx context.Context, ss []drivers.Settlement, jobs []job) {
	for _, j := range jobs {
		if ss[j.i].Verdict == drivers.Dead {
			q.checkBounds(ctx)
			return
		}
	}
}
