package redisdriver

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// sendBytes is about the most one script is given.
const sendBytes = 8 << 20

// Send implements drivers.Queue.
func (q *queue) Send(ctx context.Context, ms []drivers.Message) []error {
	errs := make([]error, len(ms))
	var c *call
	var places []int
	bytes := 0
	flush := func() {
		if len(places) == 0 {
			return
		}
		err := ctx.Err()
		if err == nil {
			q.d.run(ctx, c)
			err = c.cmd.Err()
		}
		for _, i := range places {
			errs[i] = q.d.wrap("send to "+q.o.Name, err)
		}
		places, bytes = nil, 0
	}
	for i := range ms {
		args, err := q.message(ms[i])
		if err != nil {
			errs[i] = fmt.Errorf("send to %s: %w", q.o.Name, err)
			continue
		}
		if len(places) == batch || bytes > 0 && bytes+len(ms[i].Payload) > sendBytes {
			flush()
		}
		if len(places) == 0 {
			c = q.call(sendScript, keyWindow.Milliseconds())
		}
		c.args = append(c.args, args...)
		places = append(places, i)
		bytes += len(ms[i].Payload)
	}
	flush()
	return errs
}

// message is one as the script takes it.
func (q *queue) message(m drivers.Message) ([]any, error) {
	switch {
	case q.isDone():
		return nil, drivers.ErrClosed
	case m.Job == "":
		return nil, fmt.Errorf("a message needs a job: %w", drivers.ErrInvalid)
	case len(m.Payload) > q.info.MaxPayload:
		return nil, fmt.Errorf("payload of %d bytes, the server takes %d: %w", len(m.Payload), q.info.MaxPayload, drivers.ErrTooLarge)
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
	due := int64(0)
	if !m.NotBefore.IsZero() {
		h.Set(abi.HeaderNotBefore, m.NotBefore.UTC().Format(time.RFC3339Nano))
		due = m.NotBefore.Add(time.Millisecond - 1).UnixMilli()
	}
	if err := h.Validate(); err != nil {
		return nil, err
	}
	headers, err := encodeHeaders(h)
	if err != nil {
		return nil, err
	}
	if len(headers) > q.info.MaxPayload {
		return nil, fmt.Errorf("headers of %d bytes, the server takes %d: %w", len(headers), q.info.MaxPayload, drivers.ErrTooLarge)
	}
	payload := m.Payload
	if payload == nil {
		payload = []byte{}
	}
	return []any{m.ID, m.Job, headers, payload, due, m.Key}, nil
}

// Counts implements drivers.Queue. Oldest is not told: no key has messages by age.
func (q *queue) Counts(ctx context.Context) (drivers.Counts, error) {
	if q.isDone() {
		return drivers.Counts{}, drivers.ErrClosed
	}
	c := q.call(countsScript)
	q.d.run(ctx, c)
	n, err := c.answers(5, 0)
	if err != nil {
		return drivers.Counts{}, q.d.wrap("counts of "+q.o.Name, err)
	}
	return drivers.Counts{Depth: int(n[0] + n[1] + n[2]), InFlight: int(n[1]), Delayed: int(n[3]), Dead: int(n[4])}, nil
}
