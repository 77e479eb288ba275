package host

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/plugindir"
)

// The kinds of events. A kind is also the job of the message on the events queue.
const (
	eventDead      = "dead-lettered"
	eventRejected  = "rejected"
	eventStalled   = "stalled"
	eventReloaded  = "reloaded"
	eventLeaseLost = "lease-lost"
	eventCancelled = "cancelled"
)

// Event is what happened to a message or plug-in, as it is sent to the events queue.
type Event struct {
	Kind    string    `json:"kind"`
	Time    time.Time `json:"time"`
	Worker  string    `json:"worker"`
	Queue   string    `json:"queue,omitempty"`
	Job     string    `json:"job,omitempty"`
	ID      string    `json:"id,omitempty"`
	Attempt int       `json:"attempt,omitempty"`
	Outcome string    `json:"outcome,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Digest  string    `json:"digest,omitempty"`
	Error   string    `json:"error,omitempty"`
}

const (
	eventBacklog = 1024 // messages that wait to be sent
	eventBatch   = 64
	// eventBudget is how long one batch is tried, and how long a stop waits for the last ones.
	eventBudget = 10 * time.Second
)

// notice is a message about something that happened, on its way to a queue.
type notice struct {
	queue string
	m     drivers.Message
}

// events sends notices beside the hot path. They are for people and tools: a message is never
// held up for one, so when a broker is away for long the newest are dropped, counted and logged.
type events struct {
	log     *slog.Logger
	send    func(ctx context.Context, queue string, ms []drivers.Message) error
	dropped atomic.Int64
	sending sync.WaitGroup

	mu      sync.Mutex
	pending chan notice // nil once closed
}

func newEvents(log *slog.Logger, send func(context.Context, string, []drivers.Message) error) *events {
	e := &events{log: log, send: send, pending: make(chan notice, eventBacklog)}
	pending := e.pending
	e.sending.Go(func() { e.work(pending) })
	return e
}

// offer queues a notice, or drops it.
func (e *events) offer(n notice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case e.pending <- n: // never, once closed
	default:
		e.drop(1, "the backlog is full, or the host has stopped")
	}
}

func (e *events) drop(n int, why string) {
	// One line for each power of two: an outage must not bury the log.
	if old := e.dropped.Add(int64(n)) - int64(n); old == 0 || (old+int64(n))&^old > old {
		e.log.Warn("events dropped", keyCount, old+int64(n), keyReason, why)
	}
}

// close sends what is left and waits. It is safe to call twice.
func (e *events) close() {
	e.mu.Lock()
	if e.pending != nil {
		close(e.pending)
		e.pending = nil
	}
	e.mu.Unlock()
	e.sending.Wait()
}

func (e *events) work(pending <-chan notice) {
	for n := range pending {
		batch := map[string][]drivers.Message{n.queue: {n.m}}
		for i := 1; i < eventBatch; i++ {
			select {
			case n, ok := <-pending:
				if ok {
					batch[n.queue] = append(batch[n.queue], n.m)
					continue
				}
			default:
			}
			break
		}
		for queue, ms := range batch {
			e.sendAll(queue, ms)
		}
	}
}

// sendAll tries a batch for a while. Its messages keep their ids, so that a repeat is to be
// recognised.
func (e *events) sendAll(queue string, ms []drivers.Message) {
	ctx, cancel := context.WithTimeout(context.Background(), eventBudget)
	defer cancel()
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		err := e.send(ctx, queue, ms)
		if err == nil {
			return
		}
		if !sleep(ctx, wait) {
			e.drop(len(ms), err.Error())
			return
		}
	}
}

// emit makes an event known: to the metrics, and to the events queue where there is one.
// Events about messages of that queue are not sent, or one failure would go on for ever.
func (h *Host) emit(ev Event) {
	h.metrics.Event(ev.Kind)
	queue := h.Config().Events
	if queue == "" || ev.Queue == queue {
		return
	}
	ev.Time, ev.Worker = time.Now().UTC(), h.worker
	h.notify(queue, ev.Kind, ev.ID, ev)
}

// notify sends a value as JSON.
func (h *Host) notify(queue, job, parent string, v any) {
	payload, err := json.Marshal(v)
	if err == nil {
		var id uuid.UUID
		if id, err = uuid.NewV7(); err == nil {
			m := drivers.Message{ID: id.String(), Job: job, Payload: payload, Headers: drivers.Header{"Content-Type": {"application/json"}}}
			if parent != "" {
				m.Headers[abi.HeaderParent] = []string{parent}
			}
			h.events.offer(notice{queue, m})
			return
		}
	}
	h.log.Error("event", keyJob, job, keyError, err)
}

// publish sends notices for the host's events.
func (h *Host) publish(ctx context.Context, queue string, ms []drivers.Message) error {
	q, err := h.brokers.Queue(ctx, queue)
	if err != nil {
		return err
	}
	for _, err := range q.Send(ctx, ms) {
		if err != nil {
			return err
		}
	}
	return nil
}

// onDead hands a dead letter to the job that on_dead names, JOB on the queue of the message or
// QUEUE/JOB. A message of that job does not come back to it, nor does an event.
func (a *attempt) onDead(carry drivers.Carry, death *drivers.Death) {
	c := a.q.host.Config()
	to := c.OnDead
	if to == "" || a.q.name == c.Events {
		return
	}
	queue, job, named := strings.Cut(to, "/")
	if !named {
		queue, job = a.q.name, to
	}
	d := a.h.d
	if a.job == job {
		return
	}
	letter := drivers.DeadLetter{ID: d.ID, Job: a.job, Queue: a.q.name, Reason: death.Reason, Outcome: death.Outcome,
		Cause: death.Cause, Tally: carry.Tally, Enqueued: d.EnqueuedAt, Died: death.Time, Digest: death.Digest,
		Worker: death.Worker, Headers: d.Headers, Payload: d.Payload, Errors: carry.Errors}
	a.q.host.notify(queue, job, d.ID, letter)
}

// changed is told of every version of a plug-in that took over, was refused or went away.
func (h *Host) changed(c plugindir.Change) {
	ev := Event{Kind: eventReloaded, Job: c.Job, Digest: c.Digest}
	switch c.Kind {
	case plugindir.Loaded:
		h.metrics.Reloaded(c.Job, true)
	case plugindir.Refused:
		h.metrics.Reloaded(c.Job, false)
		ev.Error = c.Err.Error()
	case plugindir.Removed:
		ev.Reason = "removed"
	}
	if c.Kind == plugindir.Loaded && c.Old == "" { // a start is no reload
		return
	}
	h.emit(ev)
}
