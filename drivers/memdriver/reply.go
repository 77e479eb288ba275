package memdriver

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/guesthand/guesthand/drivers"
)

// inboxSize is how many answers an inbox keeps for a reader that is elsewhere; further ones
// are dropped.
const inboxSize = 64

var (
	_ drivers.Replier = (*queue)(nil)
	_ drivers.Inboxes = (*Driver)(nil)
)

// inbox is an address in this process.
type inbox struct {
	b       *broker
	address string
	answers chan drivers.Answer
	closed  chan struct{}
	once    sync.Once
}

// OpenInbox implements drivers.Inboxes. All joined drivers reach the address.
func (d *Driver) OpenInbox(ctx context.Context) (drivers.Inbox, error) {
	if err := d.Ping(ctx); err != nil {
		return nil, err
	}
	d.b.mu.Lock()
	defer d.b.mu.Unlock()
	d.b.inboxSerial++
	i := &inbox{b: d.b, address: "memory:" + strconv.Itoa(d.b.inboxSerial),
		answers: make(chan drivers.Answer, inboxSize), closed: make(chan struct{})}
	d.b.inboxes[i.address] = i
	return i, nil
}

// Reply implements drivers.Replier.
func (q *queue) Reply(ctx context.Context, d *drivers.Delivery, r drivers.Reply) error {
	switch {
	case q.closed():
		return drivers.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case len(r.Payload) > q.info.MaxPayload:
		return fmt.Errorf("reply of %d bytes, limit %d: %w", len(r.Payload), q.info.MaxPayload, drivers.ErrTooLarge)
	}
	r.Payload = slices.Clone(r.Payload)
	b := q.d.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := b.inboxes[d.ReplyTo]; i != nil {
		select {
		case i.answers <- drivers.Answer{ID: d.ID, Reply: r}:
		default: // nobody takes them
		}
	}
	return nil
}

// Address implements drivers.Inbox.
func (i *inbox) Address() string { return i.address }

// Next implements drivers.Inbox.
func (i *inbox) Next(ctx context.Context) (drivers.Answer, error) {
	select {
	case a := <-i.answers:
		return a, nil
	case <-i.closed:
		return drivers.Answer{}, drivers.ErrClosed
	case <-ctx.Done():
		return drivers.Answer{}, ctx.Err()
	}
}

// Close implements drivers.Inbox.
func (i *inbox) Close() error {
	i.once.Do(func() {
		i.b.mu.Lock()
		delete(i.b.inboxes, i.address)
		i.b.mu.Unlock()
		close(i.closed)
	})
	return nil
}
