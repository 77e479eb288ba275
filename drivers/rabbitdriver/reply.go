package rabbitdriver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

var _ drivers.Inboxes = (*Driver)(nil)

// Reply implements drivers.Replier: a message to the queue that reply_to names, with the
// original's correlation id, else its id. The address comes from whoever may send messages, who
// must not be able to write to the queues of handlers.
func (q *queue) Reply(ctx context.Context, d *drivers.Delivery, r drivers.Reply) error {
	if q.isDone() {
		return drivers.ErrClosed
	}
	p, err := q.answer(d, r)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, sendWait)
		defer cancel()
		q.d.publisher.publish(ctx, []*publication{p})
		err = p.err
	}
	if err != nil {
		return fmt.Errorf("reply to %.200q: %w", d.ReplyTo, err)
	}
	return nil
}

func (q *queue) answer(d *drivers.Delivery, r drivers.Reply) (*publication, error) {
	t, err := q.token(d)
	if err != nil {
		return nil, err
	}
	refused := func(why string) error { return fmt.Errorf("%s: %w", why, drivers.ErrInvalid) }
	switch to := d.ReplyTo; {
	case to == "" || len(to) > maxShort:
		return nil, refused(fmt.Sprintf("an address has 1 to %d bytes", maxShort))
	case strings.HasPrefix(to, ourPrefix), to == q.n.work, to == q.n.dead, strings.HasPrefix(to, q.n.holdPrefix):
		return nil, refused("the queue is ours")
	case q.info.MaxPayload > 0 && len(r.Payload) > q.info.MaxPayload:
		return nil, fmt.Errorf("%d bytes, the broker takes %d: %w", len(r.Payload), q.info.MaxPayload, drivers.ErrTooLarge)
	}
	correlation := t.props.CorrelationId
	if correlation == "" {
		correlation = short(t.id)
	}
	// Somebody waits for it now, so it need not outlive the broker.
	return &publication{queue: d.ReplyTo, optional: true, msg: amqp.Publishing{
		CorrelationId: correlation, MessageId: newID(), Timestamp: time.Now(), Body: r.Payload,
		Headers: amqp.Table{abi.HeaderOutcome: r.Outcome, abi.HeaderID: t.id},
	}}, nil
}

// inboxSize is how many answers an inbox keeps for a reader that is elsewhere.
const inboxSize = 64

// inbox implements drivers.Inbox by a queue that lives as long as its connection.
type inbox struct {
	d       *Driver
	s       *session
	ch      *amqp.Channel
	name    string
	answers <-chan amqp.Delivery
	closed  chan struct{}
	once    sync.Once
}

// OpenInbox implements drivers.Inboxes. The address ends with the connection.
func (d *Driver) OpenInbox(ctx context.Context) (drivers.Inbox, error) {
	if d.isClosed() {
		return nil, drivers.ErrClosed
	}
	s, err := d.consuming.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	i := &inbox{d: d, s: s, closed: make(chan struct{})}
	if i.ch, err = s.channel(ctx); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	err = s.call(ctx, func() error {
		state, err := i.ch.QueueDeclare("", false, true, true, false, amqp.Table{argMaxLength: int64(inboxSize), argOverflow: "drop-head"})
		if err != nil {
			return err
		}
		i.name = state.Name
		if err := i.ch.Qos(inboxSize, 0, false); err != nil {
			return err
		}
		i.answers, err = i.ch.Consume(i.name, "", false, true, false, false, nil)
		return err
	})
	if err != nil {
		s.closeChannel(i.ch)
		return nil, fmt.Errorf("inbox: %w", err)
	}
	return i, nil
}

// Address implements drivers.Inbox.
func (i *inbox) Address() string { return i.name }

var errInboxGone = errors.New("the inbox ended with its connection")

// Next implements drivers.Inbox.
func (i *inbox) Next(ctx context.Context) (a drivers.Answer, err error) {
	if err := ctx.Err(); err != nil {
		return a, err
	}
	select {
	case m, ok := <-i.answers:
		if ok {
			return i.read(&m)
		}
	case <-i.closed:
	case <-ctx.Done():
		return a, ctx.Err()
	}
	select {
	case <-i.closed:
		return a, drivers.ErrClosed
	case <-i.d.stop.Done():
		return a, drivers.ErrClosed
	default:
		return a, errInboxGone
	}
}

func (i *inbox) read(m *amqp.Delivery) (a drivers.Answer, err error) {
	timer := time.AfterFunc(callWait, i.s.kill)
	defer timer.Stop()
	if err := i.ch.Ack(m.DeliveryTag, false); err != nil {
		return a, fmt.Errorf("inbox: %w", err)
	}
	h := headerOf(m.Headers)
	id, _ := h.Get(abi.HeaderID)
	outcome, _ := h.Get(abi.HeaderOutcome)
	return drivers.Answer{ID: id, Reply: drivers.Reply{Outcome: outcome, Payload: m.Body}}, nil
}

// Close implements drivers.Inbox.
func (i *inbox) Close() error {
	i.once.Do(func() {
		close(i.closed)
		i.s.closeChannel(i.ch) // the queue goes with its consumer
	})
	return nil
}
