package pgdriver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// sendBytes is about the most one statement is given.
const sendBytes = 8 << 20

// outgoing are messages that one statement sends, by column.
type outgoing struct {
	places   []int
	jobs     []string
	payloads [][]byte
	headers  []string
	ids      []string
	keys     []*string
	due      []*time.Time
	bytes    int
}

// Send implements drivers.Queue.
func (q *queue) Send(ctx context.Context, ms []drivers.Message) []error {
	errs := make([]error, len(ms))
	out := &outgoing{}
	for i := range ms {
		if err := q.prepare(out, i, ms[i]); err != nil {
			errs[i] = fmt.Errorf("send to %s: %w", q.o.Name, err)
			continue
		}
		if len(out.places) >= batch || out.bytes >= sendBytes {
			q.flush(ctx, out, errs)
			out = &outgoing{}
		}
	}
	q.flush(ctx, out, errs)
	return errs
}

// prepare adds a message, or says why it cannot be sent.
func (q *queue) prepare(out *outgoing, place int, m drivers.Message) error {
	switch {
	case q.isDone():
		return drivers.ErrClosed
	case m.Job == "":
		return fmt.Errorf("a message needs a job: %w", drivers.ErrInvalid)
	case len(m.Payload) > MaxPayload:
		return fmt.Errorf("payload of %d bytes, at most %d: %w", len(m.Payload), MaxPayload, drivers.ErrTooLarge)
	}
	h := m.Headers.Clone()
	if m.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		m.ID = id.String()
	}
	h.Set(abi.HeaderID, m.ID)
	h.Set(abi.HeaderJob, m.Job)
	var key *string
	if m.Key != "" {
		h.Set(abi.HeaderKey, m.Key)
		if len(m.Key) > 1000 {
			return fmt.Errorf("key of %d bytes, at most 1000: %w", len(m.Key), drivers.ErrInvalid)
		}
		key = &m.Key
	}
	var due *time.Time
	if !m.NotBefore.IsZero() {
		at := ceilTime(m.NotBefore)
		h.Set(abi.HeaderNotBefore, m.NotBefore.UTC().Format(time.RFC3339Nano))
		if at.After(time.Now()) { // one that is over keeps no place before the others
			due = &at
		}
	}
	if err := h.Validate(); err != nil {
		return err
	}
	headers, err := encodeHeaders(h)
	if err != nil {
		return err
	}
	payload := m.Payload
	if payload == nil {
		payload = []byte{}
	}
	out.places = append(out.places, place)
	out.jobs, out.payloads, out.headers = append(out.jobs, m.Job), append(out.payloads, payload), append(out.headers, headers)
	out.ids, out.keys, out.due = append(out.ids, m.ID), append(out.keys, key), append(out.due, due)
	out.bytes += len(payload) + len(headers)
	return nil
}

// flush sends. Where the server refuses one message for what it is, the others are sent
// without it.
func (q *queue) flush(ctx context.Context, out *outgoing, errs []error) {
	if len(out.places) == 0 {
		return
	}
	err := ctx.Err()
	if err == nil {
		_, err = q.d.exec(ctx, q.d.sql.send, q.name, out.jobs, out.payloads, out.headers, out.ids, out.keys, out.due)
	}
	if err == nil {
		q.d.wakeLocal(q.name)
		q.d.announce(q.name)
		return
	}
	if len(out.places) > 1 && aboutData(err) {
		for i := range out.places {
			one := &outgoing{places: out.places[i : i+1], jobs: out.jobs[i : i+1], payloads: out.payloads[i : i+1], headers: out.headers[i : i+1],
				ids: out.ids[i : i+1], keys: out.keys[i : i+1], due: out.due[i : i+1]}
			q.flush(ctx, one, errs)
		}
		return
	}
	for _, i := range out.places {
		errs[i] = q.d.wrap("send to "+q.o.Name, err)
	}
}

// aboutData tells of a refusal for what a message holds, and not for what the server is.
func aboutData(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || len(pg.Code) < 2 {
		return false
	}
	class := pg.Code[:2]
	return class == "22" || class == "23" || class == "54"
}

// Counts implements drivers.Queue. Oldest looks at what is held and at the 100 messages that
// are due first.
func (q *queue) Counts(ctx context.Context) (drivers.Counts, error) {
	if q.isDone() {
		return drivers.Counts{}, drivers.ErrClosed
	}
	var waiting, held, delayed, dead int
	var oldest *time.Time
	if err := q.d.row(ctx, q.d.sql.counts, []any{q.name}, &waiting, &held, &delayed, &dead, &oldest); err != nil {
		return drivers.Counts{}, q.d.wrap("counts of "+q.o.Name, err)
	}
	c := drivers.Counts{Depth: waiting + held, InFlight: held, Delayed: delayed, Dead: dead}
	if oldest != nil {
		c.Oldest = *oldest
	}
	return c, nil
}
