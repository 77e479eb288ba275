package natsdriver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// sendWindow is how many messages are on their way without confirmation at a time, and
// sendBytes about how many bytes.
const (
	sendWindow = 512
	sendBytes  = 32 << 20
)

// keyNamespace keeps the keys of producers apart from our own message ids.
const (
	keyNamespace    = "key:"
	replayNamespace = "replay:"
)

// Send implements drivers.Queue.
func (q *queue) Send(ctx context.Context, ms []drivers.Message) []error {
	errs := make([]error, len(ms))
	for from := 0; from < len(ms); {
		to, bytes := from, 0
		for to < len(ms) && to-from < sendWindow && (to == from || bytes+len(ms[to].Payload) <= sendBytes) {
			bytes += len(ms[to].Payload)
			to++
		}
		q.sendSome(ctx, ms[from:to], errs[from:to])
		from = to
	}
	return errs
}

func (q *queue) sendSome(ctx context.Context, ms []drivers.Message, errs []error) {
	ctx, cancel := context.WithTimeout(ctx, 3*requestTimeout)
	defer cancel()
	q.d.awaitConnection(ctx, requestTimeout)
	futures := make([]jetstream.PubAckFuture, len(ms))
	for i := range ms {
		if errs[i] = ctx.Err(); errs[i] == nil && q.isDone() {
			errs[i] = drivers.ErrClosed
		}
		if errs[i] == nil {
			futures[i], errs[i] = q.publish(ms[i])
		}
	}
	for i, f := range futures {
		if f == nil {
			errs[i] = wrap(errs[i], "send to "+q.n.queue)
			continue
		}
		select {
		case <-f.Ok(): // a duplicate is confirmed too
		case err := <-f.Err():
			errs[i] = fmt.Errorf("send to %s: %w", q.n.queue, err)
		case <-ctx.Done():
			errs[i] = fmt.Errorf("send to %s: no confirmation: %w", q.n.queue, ctx.Err())
		}
	}
}

// awaitConnection gives a connection that broke a moment to come back: nothing was sent yet,
// so waiting leaves no doubt about what the server has.
func (d *Driver) awaitConnection(ctx context.Context, most time.Duration) {
	if d.nc.IsConnected() {
		return
	}
	back := d.nc.StatusChanged(nats.CONNECTED)
	defer d.nc.RemoveStatusListener(back)
	if d.nc.IsConnected() {
		return
	}
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-back:
	case <-t.C:
	case <-ctx.Done():
	}
}

func (q *queue) publish(m drivers.Message) (jetstream.PubAckFuture, error) {
	msg, err := q.message(m)
	if err != nil {
		return nil, err
	}
	if !q.d.nc.IsConnected() {
		return nil, nats.ErrDisconnected
	}
	return q.d.js.PublishMsgAsync(msg, jetstream.WithExpectStream(q.n.stream), jetstream.WithRetryAttempts(0))
}

// message is m as NATS carries it.
func (q *queue) message(m drivers.Message) (*nats.Msg, error) {
	if m.Job == "" {
		return nil, fmt.Errorf("a message needs a job: %w", drivers.ErrInvalid)
	}
	if len(m.Payload) > q.info.MaxPayload {
		return nil, fmt.Errorf("payload of %d bytes, the server takes %d: %w", len(m.Payload), q.info.MaxPayload, drivers.ErrTooLarge)
	}
	subject, err := q.n.subjectFor(m.Job)
	if err != nil {
		return nil, err
	}
	h := m.Headers.Clone()
	if m.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, err
		}
		m.ID = id.String()
	}
	h.Set(abi.HeaderID, m.ID)
	h.Set(abi.HeaderJob, m.Job)
	if m.Key != "" {
		h.Set(abi.HeaderKey, m.Key)
	}
	if !m.NotBefore.IsZero() {
		h.Set(abi.HeaderNotBefore, m.NotBefore.UTC().Format(time.RFC3339Nano))
	}
	if err := checkHeaders(h); err != nil {
		return nil, err
	}
	if m.Key != "" {
		h[headerMsgID] = []string{keyNamespace + m.Key}
	}
	msg := &nats.Msg{Subject: subject, Header: nats.Header(h), Data: slices.Clone(m.Payload)}
	if size := msgSize(msg); size > int(q.d.nc.MaxPayload()) {
		return nil, fmt.Errorf("headers and payload of %d bytes, the server takes %d: %w", size, q.d.nc.MaxPayload(), drivers.ErrTooLarge)
	}
	return msg, nil
}

// msgSize is what counts against the server's max_payload.
func msgSize(m *nats.Msg) int { return m.Size() - len(m.Subject) - len(m.Reply) + 64 }

// checkHeaders refuses what NATS would alter on the way, or what would command the server.
func checkHeaders(h drivers.Header) error {
	if err := h.Validate(); err != nil {
		return err
	}
	for _, name := range h.Names() {
		if hasFoldedPrefix(name, "Nats-") {
			return fmt.Errorf("header %q: names that begin with Nats- are commands to the server: %w", name, drivers.ErrInvalid)
		}
	}
	return nil
}

func hasFoldedPrefix(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
