package natsdriver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

var (
	_ drivers.Replier = (*queue)(nil)
	_ drivers.Inboxes = (*Driver)(nil)
)

// Reply implements drivers.Replier: a core NATS message to the subject that
// Guesthand-Reply-To names, sent when the server has taken it. The subject comes from whoever
// may send messages, who must not be able to command the server or to fill a stream with it.
func (q *queue) Reply(ctx context.Context, d *drivers.Delivery, r drivers.Reply) error {
	if q.isDone() {
		return drivers.ErrClosed
	}
	ctx, done := q.d.asking(ctx)
	err := q.reply(ctx, d, r)
	return wrap(done(err), fmt.Sprintf("reply to %.200q", d.ReplyTo))
}

func (q *queue) reply(ctx context.Context, d *drivers.Delivery, r drivers.Reply) error {
	if err := q.d.checkReplyTo(ctx, d.ReplyTo); err != nil {
		return err
	}
	h := drivers.Header{abi.HeaderID: {d.ID}, abi.HeaderOutcome: {r.Outcome}}
	if h.Validate() != nil { // a foreign producer's id
		h = drivers.Header{abi.HeaderOutcome: {r.Outcome}}
	}
	m := &nats.Msg{Subject: d.ReplyTo, Header: nats.Header(h), Data: r.Payload}
	if size := msgSize(m); size > int(q.d.nc.MaxPayload()) {
		return fmt.Errorf("%d bytes, the server takes %d: %w", size, q.d.nc.MaxPayload(), drivers.ErrTooLarge)
	}
	if err := q.d.nc.PublishMsg(m); err != nil {
		return err
	}
	// Core NATS confirms nothing, but answers in order: it has what was sent before.
	return q.d.nc.FlushWithContext(ctx)
}

// checkReplyTo refuses addresses that are more than somebody's inbox.
func (d *Driver) checkReplyTo(ctx context.Context, subject string) error {
	refused := func(why string) error { return fmt.Errorf("%s: %w", why, drivers.ErrInvalid) }
	switch {
	case !validFilter(subject) || wildcard(subject) || strings.ContainsFunc(subject, func(r rune) bool { return r < ' ' }):
		return refused("it is no subject")
	case strings.HasPrefix(subject, "$"), strings.HasPrefix(subject, subjectRoot):
		return refused("its subjects are the server's and ours")
	case strings.HasPrefix(subject, inboxPrefix):
		return nil // no stream takes these
	}
	stream, err := d.js.StreamNameBySubject(ctx, subject)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil
	case err != nil:
		return err
	}
	return refused("stream " + stream + " takes this subject")
}

// inboxPrefix is what clients derive their own addresses from.
const inboxPrefix = "_INBOX."

// inboxSize is how many answers an inbox keeps for a reader that is elsewhere.
const inboxSize = 64

// inbox implements drivers.Inbox by a subscription.
type inbox struct {
	d       *Driver
	sub     *nats.Subscription
	answers chan *nats.Msg
	closed  chan struct{}
	once    sync.Once
}

// OpenInbox implements drivers.Inboxes.
func (d *Driver) OpenInbox(ctx context.Context) (drivers.Inbox, error) {
	if d.isClosed() {
		return nil, drivers.ErrClosed
	}
	i := &inbox{d: d, answers: make(chan *nats.Msg, inboxSize), closed: make(chan struct{})}
	var err error
	if i.sub, err = d.nc.ChanSubscribe(d.nc.NewInbox(), i.answers); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	bounded, done := d.asking(ctx)
	if err = done(d.nc.FlushWithContext(bounded)); err != nil {
		return nil, fmt.Errorf("inbox: %w", errors.Join(err, i.Close()))
	}
	return i, nil
}

// Address implements drivers.Inbox.
func (i *inbox) Address() string { return i.sub.Subject }

// Next implements drivers.Inbox.
func (i *inbox) Next(ctx context.Context) (drivers.Answer, error) {
	select {
	case m := <-i.answers:
		return drivers.Answer{ID: m.Header.Get(abi.HeaderID),
			Reply: drivers.Reply{Outcome: m.Header.Get(abi.HeaderOutcome), Payload: m.Data}}, nil
	case <-i.closed:
	case <-i.d.ended:
	case <-ctx.Done():
		return drivers.Answer{}, ctx.Err()
	}
	return drivers.Answer{}, drivers.ErrClosed
}

// Close implements drivers.Inbox.
func (i *inbox) Close() (err error) {
	i.once.Do(func() {
		close(i.closed)
		if err = i.sub.Unsubscribe(); errors.Is(err, nats.ErrConnectionClosed) {
			err = nil
		}
	})
	return err
}
