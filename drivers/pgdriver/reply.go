package pgdriver

import (
	"context"
	"fmt"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

const (
	// replyKeep is how long an answer waits for its reader, and replyMost how many may wait
	// under one address.
	replyKeep = 10 * time.Minute
	replyMost = 100
	// maxAddress is the longest address, bytes: it must fit into a notification.
	maxAddress = 1000
)

// replyChannel is where new answers are told, by their address.
func (d *Driver) replyChannel() string { return d.o.Schema + "_replies" }

// Reply implements drivers.Replier: the answer is a row of replies under the address that the
// message names, whatever that is, and the address is told on the channel of replies.
func (q *queue) Reply(ctx context.Context, d *drivers.Delivery, r drivers.Reply) error {
	what := fmt.Sprintf("reply to %q", d.ReplyTo)
	switch {
	case q.isDone():
		return drivers.ErrClosed
	case d.ReplyTo == "" || len(d.ReplyTo) > maxAddress || !isText(d.ReplyTo):
		return fmt.Errorf("%s: an address is text of 1 to %d bytes: %w", what, maxAddress, drivers.ErrInvalid)
	case len(r.Payload) > MaxPayload:
		return fmt.Errorf("%s of %d bytes, at most %d: %w", what, len(r.Payload), MaxPayload, drivers.ErrTooLarge)
	}
	payload := r.Payload
	if payload == nil {
		payload = []byte{}
	}
	_, err := q.d.exec(ctx, q.d.sql.reply, d.ReplyTo, clean(d.ID), clean(r.Outcome), payload, replyKeep.Microseconds(), q.d.replyChannel())
	if err == nil {
		_, err = q.d.exec(ctx, q.d.sql.trimReplies, d.ReplyTo, replyMost)
	}
	return q.d.wrap(what, err)
}
