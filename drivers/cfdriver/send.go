package cfdriver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// Send implements drivers.Queue.
func (q *queue) Send(ctx context.Context, ms []drivers.Message) []error {
	if q.isClosing() {
		return all(len(ms), drivers.ErrClosed)
	}
	errs := make([]error, len(ms))
	outs := make([]*outgoing, 0, len(ms))
	at := make([]int, 0, len(ms))
	for i, m := range ms {
		out, err := q.outgoing(m)
		if errs[i] = wrap(err, "send to "+q.o.Name); err == nil {
			outs, at = append(outs, out), append(at, i)
		}
	}
	q.send(ctx, q.n.id, outs)
	for k, out := range outs {
		errs[at[k]] = wrap(out.err, "send to "+q.o.Name)
		if out.err == nil && !q.o.SendOnly {
			q.pump.expect(time.Now().Add(out.delay))
		}
	}
	return errs
}

// send pushes batches of what Cloudflare takes at once, and fills in each error.
func (q *queue) send(ctx context.Context, queue string, outs []*outgoing) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for from := 0; from < len(outs); {
		to, size := from, 0
		for to < len(outs) && to-from < batchMax && (to == from || size+outs[to].size() <= batchBytes) {
			size += outs[to].size()
			to++
		}
		batch := outs[from:to]
		from = to
		slots <- struct{}{}
		wg.Go(func() {
			q.sendBatch(ctx, queue, batch)
			<-slots
		})
	}
	wg.Wait()
}

// sendBatch pushes one batch, which Cloudflare takes whole or not at all. Where it says that
// something in it is wrong, each message is pushed by itself, so that a bad one spoils no other.
func (q *queue) sendBatch(ctx context.Context, queue string, batch []*outgoing) {
	err := sendError(q.d.c.push(ctx, queue, batch))
	if len(batch) > 1 && isFaulty(err) {
		for i := range batch {
			q.sendBatch(ctx, queue, batch[i:i+1])
		}
		return
	}
	for _, out := range batch {
		out.err = err
	}
}

// isFaulty tells an answer that blames what was sent.
func isFaulty(err error) bool {
	switch statusOf(err) {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// sendError marks what the sender has to mend.
func sendError(err error) error {
	if statusOf(err) == http.StatusRequestEntityTooLarge {
		return fmt.Errorf("%w: %w", drivers.ErrTooLarge, err)
	}
	return err
}

// outgoing is m as Cloudflare carries it.
func (q *queue) outgoing(m drivers.Message) (*outgoing, error) {
	switch {
	case m.Job == "":
		return nil, fmt.Errorf("a message needs a job: %w", drivers.ErrInvalid)
	case m.Key != "":
		return nil, fmt.Errorf("a key: %w", drivers.ErrUnsupported)
	}
	h := m.Headers.Clone()
	if key, _ := h.Get(abi.HeaderKey); key != "" {
		return nil, fmt.Errorf("header %q: %w", abi.HeaderKey, drivers.ErrUnsupported)
	}
	if m.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, err
		}
		m.ID = id.String()
	}
	h.Set(abi.HeaderID, m.ID)
	h.Set(abi.HeaderJob, m.Job)
	out := &outgoing{}
	if !m.NotBefore.IsZero() {
		h.Set(abi.HeaderNotBefore, m.NotBefore.UTC().Format(time.RFC3339Nano))
		out.delay = min(q.maxDelay, time.Duration(seconds(time.Until(m.NotBefore)))*time.Second)
	}
	if err := h.Validate(); err != nil {
		return nil, err
	}
	for _, text := range []string{m.ID, m.Job} {
		if strings.ToValidUTF8(text, "") != text {
			return nil, fmt.Errorf("%q is not UTF-8: %w", text, drivers.ErrInvalid)
		}
	}
	e := envelope{ID: m.ID, Job: m.Job}
	e.setHeaders(h)
	var err error
	if out.body, err = e.pack(m.Payload); err != nil {
		return nil, err
	}
	if most := maxMessage - reserve; out.size() > most {
		return nil, fmt.Errorf("%d bytes as Cloudflare counts them, limit %d with room for counts: %w", out.size(), most, drivers.ErrTooLarge)
	}
	return out, nil
}
