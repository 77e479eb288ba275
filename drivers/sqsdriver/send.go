package sqsdriver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// Send implements drivers.Queue. On a FIFO queue a message whose group is not named has one of
// its own.
func (q *queue) Send(ctx context.Context, ms []drivers.Message) []error {
	errs := make([]error, len(ms))
	if q.isClosing() {
		for i := range errs {
			errs[i] = drivers.ErrClosed
		}
		return errs
	}
	outs := make([]*outgoing, 0, len(ms))
	at := make([]int, 0, len(ms))
	for i, m := range ms {
		out, err := q.message(m)
		if errs[i] = wrap(err, "send to "+q.o.Name); err == nil {
			outs, at = append(outs, out), append(at, i)
		}
	}
	q.send(ctx, q.n.url, q.n.fifo, outs)
	for k, out := range outs {
		errs[at[k]] = wrap(out.err, "send to "+q.o.Name)
	}
	return errs
}

// send sends batches of at most ten messages and a mebibyte, and fills in each error. Those of
// a FIFO queue go one after another, for their order.
func (q *queue) send(ctx context.Context, url string, inOrder bool, outs []*outgoing) {
	width := parallel
	if inOrder {
		width = 1
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, width)
	for from := 0; from < len(outs); {
		to, size := from, 0
		for to < len(outs) && to-from < batchMax && (to == from || size+outs[to].size <= maxMessage) {
			size += outs[to].size
			to++
		}
		batch := outs[from:to]
		from = to
		slots <- struct{}{}
		wg.Go(func() {
			q.sendBatch(ctx, url, batch)
			<-slots
		})
	}
	wg.Wait()
}

func (q *queue) sendBatch(ctx context.Context, url string, batch []*outgoing) {
	in := &sqs.SendMessageBatchInput{QueueUrl: aws.String(url)}
	for i, out := range batch {
		out.entry.Id = aws.String(entryID(i))
		in.Entries = append(in.Entries, out.entry)
	}
	ctx, cancel := q.call(ctx)
	defer cancel()
	res, err := q.d.c.SendMessageBatch(ctx, in)
	var ok []string
	var failed []types.BatchResultErrorEntry
	if err == nil {
		for _, e := range res.Successful {
			ok = append(ok, deref(e.Id))
		}
		failed = res.Failed
	}
	for i, err := range results(len(batch), ok, failed, err) {
		batch[i].err = sendError(err)
	}
}

// sendError marks what the sender has to mend.
func sendError(err error) error {
	var contents *types.InvalidMessageContents
	if errors.As(err, &contents) || codeOf(err) == codeInvalidContents {
		return fmt.Errorf("%w: %w", drivers.ErrInvalid, err)
	}
	return err
}

// message is m as SQS carries it.
func (q *queue) message(m drivers.Message) (*outgoing, error) {
	if m.Job == "" {
		return nil, fmt.Errorf("a message needs a job: %w", drivers.ErrInvalid)
	}
	if m.Key != "" && !q.n.fifo {
		return nil, fmt.Errorf("a key needs a FIFO queue: %w", drivers.ErrUnsupported)
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
	if err := h.Validate(); err != nil {
		return nil, err
	}
	e := &envelope{attrs: attributes{}}
	if group, ok := h.Get(HeaderGroup); ok {
		if !legalGroup.MatchString(group) {
			return nil, fmt.Errorf("header %q: a message group is up to 128 letters, digits and punctuation marks, not %q: %w", HeaderGroup, group, drivers.ErrInvalid)
		}
		e.group = group
		h.Del(HeaderGroup)
	}
	for _, name := range h.Names() {
		if strings.EqualFold(name, attributePacked) || strings.EqualFold(name, attributeEncoding) {
			return nil, fmt.Errorf("header %q is the driver's own: %w", name, drivers.ErrInvalid)
		}
		if err := e.setHeader(name, h[name]); err != nil {
			return nil, err
		}
	}
	e.setPayload(m.Payload)
	return q.firstCopy(e, m)
}

// firstCopy lays out a message that is sent for the first time.
func (q *queue) firstCopy(e *envelope, m drivers.Message) (*outgoing, error) {
	delay := time.Duration(0)
	if !m.NotBefore.IsZero() && !q.n.fifo {
		delay = min(q.maxDelay, time.Duration(seconds(min(time.Until(m.NotBefore), q.maxDelay)))*time.Second)
	}
	group := ""
	if q.n.fifo {
		group = uuid.NewString()
	}
	out, err := q.outgoing(e, group)
	if err != nil {
		return nil, err
	}
	if most := q.maxSize - reserve; out.size > most {
		return nil, fmt.Errorf("%d bytes as SQS counts them, limit %d with room for counts: %w", out.size, most, drivers.ErrTooLarge)
	}
	out.entry.DelaySeconds = seconds(delay)
	if q.n.fifo {
		out.entry.MessageDeduplicationId = aws.String(dedupeID(m.Key))
	}
	return out, nil
}

var (
	legalGroup  = regexp.MustCompile("^[A-Za-z0-9!-/:-@\\[-`{-~]{1,128}$")
	legalDedupe = regexp.MustCompile("^[A-Za-z0-9!-/:-@\\[-`{-~]{1,120}$")
)

// dedupeID is what SQS suppresses repetitions by: the producer's key, its digest where SQS
// does not take it, and something unique without one.
func dedupeID(key string) string {
	switch {
	case key == "":
		return uuid.NewString()
	case legalDedupe.MatchString(key):
		return "key:" + key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}
