package sqsdriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

const (
	// lookMax is how many dead letters one look receives, and lookLease for how long nobody
	// else sees them where the look is cut short.
	lookMax   = 1000
	lookLease = 30 * time.Second
	// lookWait is a poll's: a long one asks all of SQS's servers, a short one only some.
	lookWait = time.Second
	// lookEmpty is how many polls in a row may find nothing while somebody else looks too.
	lookEmpty = 3
)

// ListDead implements drivers.DeadLetters. It is a sample: what SQS hands out, at most lookMax.
func (q *queue) ListDead(ctx context.Context, after string, limit int) ([]drivers.DeadLetter, error) {
	if limit < 1 {
		return nil, q.closedError()
	}
	var out []drivers.DeadLetter
	err := q.look(ctx, func(m *types.Message) (bool, bool) {
		if l := q.letter(m); l.Entry > after {
			out = append(out, l)
		}
		return true, after != "" || len(out) < limit
	})
	slices.SortFunc(out, func(a, b drivers.DeadLetter) int { return cmp.Compare(a.Entry, b.Entry) })
	return out[:min(len(out), limit)], wrap(err, "dead letters of "+q.o.Name)
}

// GetDead implements drivers.DeadLetters.
func (q *queue) GetDead(ctx context.Context, entryOrID string) ([]drivers.DeadLetter, error) {
	var out []drivers.DeadLetter
	err := q.look(ctx, func(m *types.Message) (bool, bool) {
		l := q.letter(m)
		if l.Entry == entryOrID {
			out = []drivers.DeadLetter{l}
			return true, false
		}
		if l.ID == entryOrID {
			out = append(out, l)
		}
		return true, true
	})
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("%q: %w", entryOrID, drivers.ErrNotFound)
	}
	slices.SortFunc(out, func(a, b drivers.DeadLetter) int { return cmp.Compare(a.Entry, b.Entry) })
	return out, wrap(err, "dead letter of "+q.o.Name)
}

// ReplayDead implements drivers.DeadLetters.
func (q *queue) ReplayDead(ctx context.Context, entry string) error {
	return q.withEntry(ctx, entry, func(m *types.Message) error {
		out, err := q.replay(m)
		if err != nil {
			return err
		}
		q.send(ctx, q.n.url, q.n.fifo, []*outgoing{out})
		return out.err
	})
}

// replay is a dead letter's message, as if it was sent anew.
func (q *queue) replay(m *types.Message) (*outgoing, error) {
	l := q.letter(m)
	e, err := open(m)
	if errors.Is(err, errNewer) {
		return nil, err
	}
	e = e.clone()
	for name := range e.attrs {
		if hasFoldedPrefix(name, deathPrefix) || strings.EqualFold(name, abi.HeaderReplays) || strings.EqualFold(name, abi.HeaderNotBefore) {
			delete(e.attrs, name)
		}
	}
	e.attrs[abi.HeaderReplays] = textAttribute(strconv.Itoa(l.Replays + 1))
	e.group = ""
	if d := e.p.Death; d != nil {
		e.group = d.Group
	}
	e.p = packed{ID: l.ID, Headers: e.p.Headers, Prior: l.Tally.Replayed().Prior}
	group := ""
	if q.n.fifo {
		group = deref(m.MessageId)
	}
	out, err := q.outgoing(e, group)
	if err == nil && out.size > q.maxSize {
		q.log.Warn("a replayed message has no room for its attempts and headers", slog.String("id", l.ID))
		bare := &envelope{body: e.body, group: e.group, attrs: attributes{}}
		if v, ok := e.attrs[attributeEncoding]; ok {
			bare.attrs[attributeEncoding] = v
		}
		out, err = q.outgoing(bare, group)
	}
	if err != nil {
		return nil, err
	}
	if q.n.fifo { // a repetition after a crash is dropped, for five minutes
		out.entry.MessageDeduplicationId = aws.String("replay:" + deref(m.MessageId))
	}
	return out, nil
}

// DropDead implements drivers.DeadLetters.
func (q *queue) DropDead(ctx context.Context, entry string) error {
	return q.withEntry(ctx, entry, func(*types.Message) error { return nil })
}

// withEntry looks for an entry, does something with it, and removes it.
func (q *queue) withEntry(ctx context.Context, entry string, do func(*types.Message) error) error {
	found := false
	var failed error
	err := q.look(ctx, func(m *types.Message) (bool, bool) {
		if entryOf(m) != entry {
			return true, true
		}
		found = true
		if failed = do(m); failed == nil {
			failed = q.deleteFrom(ctx, q.n.deadURL, 1, func(int) string { return deref(m.ReceiptHandle) })[0]
		}
		return failed != nil, false
	})
	if err == nil && !found {
		err = fmt.Errorf("%q: %w", entry, drivers.ErrNotFound)
	}
	return wrap(errors.Join(err, failed), "dead letter of "+q.o.Name)
}

func (q *queue) closedError() error {
	if q.isClosing() {
		return drivers.ErrClosed
	}
	return nil
}

// look receives dead letters, each once, until see wants no more or there are no more, and
// puts those back that see says to keep.
func (q *queue) look(ctx context.Context, see func(m *types.Message) (keep, more bool)) error {
	if err := q.closedError(); err != nil {
		return err
	}
	q.looking.Lock()
	defer q.looking.Unlock()
	a, err := q.attributes(ctx, q.n.deadURL)
	if err != nil {
		return err
	}
	ready, flight, delayed := figures(a)
	var kept []string
	defer func() { q.release(ctx, kept) }()
	for seen, empty := 0, 0; seen < lookMax; {
		if err := ctx.Err(); err != nil {
			return err
		}
		ms, err := q.receiveDead(ctx)
		if err != nil {
			return err
		}
		seen += len(ms)
		wanted := true
		for i := range ms {
			keep, more := true, false
			if wanted {
				keep, more = see(&ms[i])
			}
			wanted = wanted && more
			if keep {
				kept = append(kept, deref(ms[i].ReceiptHandle))
			}
		}
		if empty++; len(ms) > 0 {
			empty = 0
		}
		all := ready > 0 && flight+delayed == 0 && seen >= ready
		if !wanted || all || empty > 0 && (flight == 0 || empty >= lookEmpty) {
			return nil
		}
	}
	q.log.Warn("only a part of the dead letters was looked at", slog.Int("count", lookMax), slog.Int("about", ready))
	return nil
}

func (q *queue) receiveDead(ctx context.Context) ([]types.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWait+q.d.o.CallTimeout)
	defer cancel()
	in := &sqs.ReceiveMessageInput{
		QueueUrl: aws.String(q.n.deadURL), MaxNumberOfMessages: batchMax, WaitTimeSeconds: seconds(lookWait),
		VisibilityTimeout:           seconds(lookLease),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		MessageAttributeNames:       []string{"All"},
	}
	out, err := q.d.c.ReceiveMessage(ctx, in)
	if err != nil {
		return nil, err
	}
	return out.Messages, nil
}

// release makes dead letters visible again, whatever ended the look.
func (q *queue) release(ctx context.Context, receipts []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*q.d.o.CallTimeout)
	defer cancel()
	batches(len(receipts), func(from, to int) {
		in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: aws.String(q.n.deadURL)}
		for i := from; i < to; i++ {
			in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
				Id: aws.String(entryID(i - from)), ReceiptHandle: aws.String(receipts[i]), VisibilityTimeout: 0,
			})
		}
		call, cancel := q.call(ctx)
		defer cancel()
		if _, err := q.d.c.ChangeMessageVisibilityBatch(call, in); err != nil {
			q.log.Debug("dead letters that were looked at stay out for a while", slog.Duration("for", lookLease), slog.Any("error", err))
		}
	})
}
