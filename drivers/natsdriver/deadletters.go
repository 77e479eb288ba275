package natsdriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// scanBatch is how many messages one request of a scan brings.
const scanBatch = 256

// entryOf names a dead letter: its place in the stream, and when it was stored, so that the
// name of one does not fit another in a stream made anew.
func entryOf(seq uint64, stored time.Time) string {
	return number(seq) + "." + stampToken(stored.UnixNano())
}

func parseEntry(entry string) (seq uint64, stamp int64, err error) {
	a, b, found := strings.Cut(entry, ".")
	if seq, err = parseNumber(a); err == nil && found {
		stamp, err = parseStamp(b)
	}
	if err != nil || !found || seq == 0 {
		return 0, 0, fmt.Errorf("dead letter %q: %w", entry, drivers.ErrNotFound)
	}
	return seq, stamp, nil
}

// ListDead implements drivers.DeadLetters.
func (q *queue) ListDead(ctx context.Context, after string, limit int) ([]drivers.DeadLetter, error) {
	if q.isDone() {
		return nil, drivers.ErrClosed
	}
	from := uint64(1)
	if after != "" {
		seq, _, err := parseEntry(after)
		if err != nil {
			return nil, err
		}
		from = seq + 1
	}
	var out []drivers.DeadLetter
	if limit < 1 {
		return nil, nil
	}
	err := q.d.scan(ctx, scanOptions{stream: q.n.deadStream, filter: q.n.deadPrefix + ">", from: from, limit: limit}, func(m jetstream.Msg, meta *jetstream.MsgMetadata) bool {
		out = append(out, q.letter(drivers.Header(m.Headers()), m.Data(), m.Subject(), meta.Sequence.Stream, meta.Timestamp))
		return len(out) < limit
	})
	return out, wrap(err, "dead letters of "+q.n.queue)
}

// GetDead implements drivers.DeadLetters. Looking for an id reads the headers of all.
func (q *queue) GetDead(ctx context.Context, entryOrID string) ([]drivers.DeadLetter, error) {
	if m, err := q.deadEntry(ctx, entryOrID); err == nil {
		return []drivers.DeadLetter{q.letterOf(m)}, nil
	} else if !errors.Is(err, drivers.ErrNotFound) {
		return nil, err
	}
	var seqs []uint64
	err := q.d.scan(ctx, scanOptions{stream: q.n.deadStream, filter: q.n.deadPrefix + ">", from: 1, headersOnly: true}, func(m jetstream.Msg, meta *jetstream.MsgMetadata) bool {
		if q.deadID(drivers.Header(m.Headers())) == entryOrID {
			seqs = append(seqs, meta.Sequence.Stream)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("dead letters of %s: %w", q.n.queue, err)
	}
	var out []drivers.DeadLetter
	for _, seq := range seqs {
		m, err := q.d.rawMessage(ctx, q.n.deadStream, byNumber(seq))
		if isAPIError(err, codeNoMessage) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("dead letters of %s: %w", q.n.queue, err)
		}
		out = append(out, q.letterOf(m))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("dead letter %q of %s: %w", entryOrID, q.n.queue, drivers.ErrNotFound)
	}
	return out, nil
}

// deadEntry reads a dead letter by its entry.
func (q *queue) deadEntry(ctx context.Context, entry string) (*storedMessage, error) {
	if q.isDone() {
		return nil, drivers.ErrClosed
	}
	seq, stamp, err := parseEntry(entry)
	if err != nil {
		return nil, err
	}
	m, err := q.d.rawMessage(ctx, q.n.deadStream, byNumber(seq))
	switch {
	case isAPIError(err, codeNoMessage),
		err == nil && (m.Time.UnixNano() != stamp || !strings.HasPrefix(m.Subject, q.n.deadPrefix)):
		return nil, fmt.Errorf("dead letter %q of %s: %w", entry, q.n.queue, drivers.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("dead letter %q of %s: %w", entry, q.n.queue, err)
	}
	return m, nil
}

// DropDead implements drivers.DeadLetters.
func (q *queue) DropDead(ctx context.Context, entry string) error {
	m, err := q.deadEntry(ctx, entry)
	if err != nil {
		return err
	}
	return wrap(q.d.deleteMessage(ctx, q.n.deadStream, m.Seq), "drop dead letter "+entry)
}

// ReplayDead implements drivers.DeadLetters. A repetition within the stream's window for
// duplicates sends nothing.
func (q *queue) ReplayDead(ctx context.Context, entry string) error {
	m, err := q.deadEntry(ctx, entry)
	if err != nil {
		return err
	}
	d := q.letterOf(m)
	subject := m.Header.Get(headerDeathSubject)
	if subject = unescapeText(subject); subject == "" || !covers(q.n.subject, subject) {
		if subject, err = q.n.subjectFor(d.Job); err != nil {
			return fmt.Errorf("replay %s: %w", entry, err)
		}
	}
	h := d.Headers.Clone()
	h.Del(abi.HeaderNotBefore)
	h.Set(abi.HeaderReplays, fmt.Sprint(d.Replays+1))
	h.Set(abi.HeaderPrior, fmt.Sprint(d.Tally.Replayed().Prior))
	if d.ID != "" {
		h.Set(abi.HeaderID, d.ID)
	}
	h[headerMsgID] = []string{replayNamespace + q.n.deadStream + ":" + entry}
	h[headerExpectStream] = []string{q.n.stream}
	if _, err := q.d.publish(ctx, &nats.Msg{Subject: subject, Header: nats.Header(h), Data: m.Data}); err != nil {
		return fmt.Errorf("replay %s: %w", entry, err)
	}
	return wrap(q.d.deleteMessage(ctx, q.n.deadStream, m.Seq), "replayed, but it stays a dead letter: "+entry)
}

func (q *queue) letterOf(m *storedMessage) drivers.DeadLetter {
	return q.letter(drivers.Header(m.Header), m.Data, m.Subject, m.Seq, m.Time)
}

func (q *queue) deadID(h drivers.Header) string {
	if id, ok := h.Get(headerDeathID); ok {
		return unescapeText(id)
	}
	id, _ := h.Get(abi.HeaderID)
	return id
}

// letter reads a dead letter; one that others put there shows what it has.
func (q *queue) letter(h drivers.Header, payload []byte, subject string, seq uint64, stored time.Time) drivers.DeadLetter {
	text := func(name string) string {
		v, _ := h.Get(name)
		return unescapeText(v)
	}
	count := func(name string) int { return atoiOrZero(text(name)) }
	at := func(name string, otherwise time.Time) time.Time {
		if t, err := time.Parse(time.RFC3339Nano, text(name)); err == nil {
			return t
		}
		return otherwise
	}
	d := drivers.DeadLetter{
		ID: q.deadID(h), Entry: entryOf(seq, stored), Job: text(headerDeathJob), Queue: q.n.queue,
		Reason: text(abi.HeaderDeathReason), Outcome: text(abi.HeaderDeathOutcome), Cause: text(abi.HeaderDeathCause),
		Tally: drivers.Tally{
			Failures: count(abi.HeaderDeathFailures), Delays: count(abi.HeaderDeathDelays),
			Stalls: count(abi.HeaderDeathStalls), Interruptions: count(abi.HeaderDeathInterruptions),
			Prior: count(abi.HeaderPrior),
		},
		Replays: count(abi.HeaderReplays), Enqueued: at(abi.HeaderEnqueued, stored), Died: at(abi.HeaderDeathTime, stored),
		Digest: text(abi.HeaderDeathDigest), Worker: text(abi.HeaderDeathWorker), Payload: payload,
		Headers: make(drivers.Header, len(h)),
	}
	if d.Job == "" {
		d.Job, _ = h.Get(abi.HeaderJob)
	}
	if raw, ok := h.Get(abi.HeaderDeathErrors); ok {
		if err := json.Unmarshal([]byte(raw), &d.Errors); err != nil {
			q.log.Debug("errors of a dead letter cannot be read", slog.String("subject", subject), slog.Any("error", err))
		}
	}
	for name, values := range h {
		if !hasFoldedPrefix(name, headerDeathPrefix) && !hasFoldedPrefix(name, "Nats-") && name != abi.HeaderEnqueued && name != abi.HeaderPrior {
			d.Headers[name] = values
		}
	}
	return d
}

// scanOptions select what a scan reads.
type scanOptions struct {
	stream, filter string
	from           uint64
	limit          int // a hint for how much is wanted; 0 all
	headersOnly    bool
}

// scan reads a stream from a sequence on, up to what was its end, until visit returns false.
func (d *Driver) scan(ctx context.Context, o scanOptions, visit func(jetstream.Msg, *jetstream.MsgMetadata) bool) error {
	s, err := d.js.Stream(ctx, o.stream)
	if err != nil {
		return err
	}
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{
		FilterSubject: o.filter, AckPolicy: jetstream.AckNonePolicy, HeadersOnly: o.headersOnly,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: o.from,
		InactiveThreshold: 30 * time.Second, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		defer cancel()
		if err := s.DeleteConsumer(ctx, c.CachedInfo().Name); err != nil {
			d.log.Debug("the consumer of a scan stays until it expires", slog.Any("error", err))
		}
	}()
	batch := scanBatch
	if o.limit > 0 {
		batch = min(batch, o.limit)
	}
	for left := c.CachedInfo().NumPending; left > 0; {
		n, more, err := scanOnce(ctx, c, min(batch, int(left)), visit)
		if err != nil || !more {
			return err
		}
		if n == 0 {
			return ctx.Err()
		}
		left -= min(left, uint64(n))
	}
	return nil
}

func scanOnce(ctx context.Context, c jetstream.Consumer, batch int, visit func(jetstream.Msg, *jetstream.MsgMetadata) bool) (n int, more bool, err error) {
	if err := ctx.Err(); err != nil {
		return 0, false, err
	}
	got, err := c.Fetch(batch, jetstream.FetchMaxWait(2*time.Second))
	if err != nil {
		return 0, false, err
	}
	more = true
	for m := range got.Messages() {
		n++
		meta, err := m.Metadata()
		if err != nil {
			return n, false, err
		}
		if more && !visit(m, meta) {
			more = false
		}
	}
	return n, more, got.Error()
}
