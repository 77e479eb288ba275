package rabbitdriver

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// sendWait bounds what a caller without a deadline waits for a confirmation.
const sendWait = 30 * time.Second

func newID() string {
	id, err := uuid.NewV7()
	if err != nil {
		id = uuid.New() // random instead; it panics only where the system has no randomness at all
	}
	return id.String()
}

// Send implements drivers.Queue.
func (q *queue) Send(ctx context.Context, ms []drivers.Message) []error {
	errs := make([]error, len(ms))
	if q.isDone() {
		for i := range errs {
			errs[i] = drivers.ErrClosed
		}
		return errs
	}
	ctx, cancel := context.WithTimeout(ctx, sendWait)
	defer cancel()
	ps := make([]*publication, 0, len(ms))
	at := make([]int, 0, len(ms))
	for i := range ms {
		p, err := q.publicationOf(ctx, &ms[i])
		if err != nil {
			errs[i] = fmt.Errorf("send %s: %w", ms[i].ID, err)
			continue
		}
		ps, at = append(ps, p), append(at, i)
	}
	q.d.publisher.publish(ctx, ps)
	for k, p := range ps {
		if p.err != nil {
			errs[at[k]] = fmt.Errorf("send %s: %w", ms[at[k]].ID, p.err)
		}
	}
	return errs
}

func (q *queue) publicationOf(ctx context.Context, m *drivers.Message) (*publication, error) {
	switch {
	case m.Job == "":
		return nil, fmt.Errorf("no job: %w", drivers.ErrInvalid)
	case m.Key != "":
		return nil, fmt.Errorf("%s: %w", abi.HeaderKey, drivers.ErrUnsupported)
	case q.info.MaxPayload > 0 && len(m.Payload) > q.info.MaxPayload:
		return nil, fmt.Errorf("payload of %d bytes, the broker takes %d: %w", len(m.Payload), q.info.MaxPayload, drivers.ErrTooLarge)
	}
	if err := m.Headers.Validate(); err != nil {
		return nil, err
	}
	for name := range m.Headers {
		switch {
		case !travels(name):
			return nil, fmt.Errorf("header %q is the broker's or the driver's own: %w", name, drivers.ErrInvalid)
		case len(name) > maxShort:
			return nil, fmt.Errorf("header %q: a name has at most %d bytes: %w", name, maxShort, drivers.ErrInvalid)
		}
	}
	id := m.ID
	if id == "" {
		id = newID()
	}
	now := time.Now()
	p := &publication{queue: q.n.work, msg: amqp.Publishing{
		Headers: tableOf(m.Headers), DeliveryMode: amqp.Persistent, Timestamp: now,
		MessageId: short(id), Type: short(m.Job), Body: m.Payload,
	}}
	if v, ok := m.Headers.Get("Content-Type"); ok {
		p.msg.ContentType = short(v)
	}
	set(p.msg.Headers, abi.HeaderID, id)
	set(p.msg.Headers, abi.HeaderJob, m.Job)
	if wait := m.NotBefore.Sub(now); !m.NotBefore.IsZero() && wait > 0 {
		r := record{Enqueued: now.UnixMilli()}
		r.rest(wait)
		text, err := r.text()
		if err != nil {
			return nil, err
		}
		p.msg.Headers[headerTally] = text
		if p.queue, err = q.holdFor(ctx, &r); err != nil {
			return nil, err
		}
	}
	if n := sizeOf(p.msg.Headers); n > headerRoom {
		return nil, fmt.Errorf("headers of %d bytes, the broker takes %d: %w", n, headerRoom, drivers.ErrTooLarge)
	}
	return p, nil
}
