package rabbitdriver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

const (
	// sampleMax and sampleBytes bound what a look at the dead letters takes out at once.
	sampleMax   = 10_000
	sampleBytes = 64 << 20
	// sampleQuiet is how long a look waits for the next letter: others may have been faster.
	sampleQuiet = 2 * time.Second
	// settledWait bounds the wait for the broker to have put back what was looked at.
	settledWait = 2 * time.Second
)

// foreignEntry names a letter that somebody else put there by what it is.
func foreignEntry(m *amqp.Delivery) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%d\x00", m.MessageId, m.Type, m.Timestamp.Unix())
	h.Write(m.Body)
	return "0-" + hex.EncodeToString(h.Sum(nil)[:12])
}

// ListDead implements drivers.DeadLetters. It takes letters out and puts them back, so that it
// is a sample where others do the same at the moment.
func (q *queue) ListDead(ctx context.Context, after string, limit int) (out []drivers.DeadLetter, err error) {
	if limit < 1 {
		return nil, q.openError()
	}
	err = q.sample(ctx, func(all []letter) *letter {
		for _, l := range all {
			if l.d.Entry > after && len(out) < limit {
				out = append(out, l.d)
			}
		}
		return nil
	}, nil)
	return out, err
}

// GetDead implements drivers.DeadLetters.
func (q *queue) GetDead(ctx context.Context, entryOrID string) (out []drivers.DeadLetter, err error) {
	err = q.sample(ctx, func(all []letter) *letter {
		if l := find(all, entryOrID); l != nil {
			out = append(out, l.d)
			return nil
		}
		for _, l := range all {
			if l.d.ID == entryOrID {
				out = append(out, l.d)
			}
		}
		return nil
	}, nil)
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("dead letter %q of %s: %w", entryOrID, q.n.queue, drivers.ErrNotFound)
	}
	return out, err
}

// DropDead implements drivers.DeadLetters.
func (q *queue) DropDead(ctx context.Context, entry string) error {
	return q.takeOut(ctx, entry, func(context.Context, *letter) error { return nil })
}

// ReplayDead implements drivers.DeadLetters.
func (q *queue) ReplayDead(ctx context.Context, entry string) error {
	return q.takeOut(ctx, entry, func(ctx context.Context, l *letter) error {
		p, err := q.replayOf(l)
		if err != nil {
			return fmt.Errorf("replay %s: %w", entry, err)
		}
		q.d.publisher.publish(ctx, []*publication{p})
		if p.err != nil {
			return fmt.Errorf("replay %s: %w", entry, p.err)
		}
		return nil
	})
}

// replayOf is the message of a dead letter with a fresh budget.
func (q *queue) replayOf(l *letter) (*publication, error) {
	t := &token{q: q, props: l.m, id: l.d.ID, job: l.d.Job, enqueued: time.Now()}
	m := t.copyOf()
	for name := range m.Headers {
		if hasFoldedPrefix(name, headerDeathPrefix) || strings.EqualFold(name, abi.HeaderEnqueued) ||
			strings.EqualFold(name, abi.HeaderPrior) || strings.EqualFold(name, abi.HeaderNotBefore) {
			delete(m.Headers, name)
		}
	}
	m.Timestamp = t.enqueued
	set(m.Headers, abi.HeaderReplays, int64(l.d.Replays+1))
	r := record{Enqueued: t.enqueued.UnixMilli(), ID: l.d.ID, Job: l.d.Job}
	r.setCarry(drivers.Carry{Tally: l.d.Tally.Replayed()})
	text, err := r.text()
	m.Headers[headerTally] = text
	return &publication{queue: q.n.work, msg: m}, err
}

// letter is a dead letter and the message it was read from.
type letter struct {
	d drivers.DeadLetter
	m amqp.Delivery
}

func find(all []letter, entry string) *letter {
	i := slices.IndexFunc(all, func(l letter) bool { return l.d.Entry == entry })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// takeOut removes a letter for good, after act has done with it what is to be done first.
func (q *queue) takeOut(ctx context.Context, entry string, act func(context.Context, *letter) error) error {
	found := false
	err := q.sample(ctx, func(all []letter) *letter {
		l := find(all, entry)
		found = l != nil
		return l
	}, act)
	if err == nil && !found {
		err = fmt.Errorf("dead letter %q of %s: %w", entry, q.n.queue, drivers.ErrNotFound)
	}
	return err
}

func (q *queue) openError() error {
	if q.isDone() {
		return drivers.ErrClosed
	}
	return nil
}

// sample takes letters out of their queue, lets look see them in order, removes the one that
// it returns once act has succeeded, and puts the others back.
func (q *queue) sample(ctx context.Context, look func([]letter) *letter, act func(context.Context, *letter) error) error {
	if err := q.openError(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sendWait)
	defer cancel()
	q.reading.Lock()
	defer q.reading.Unlock()
	s, err := q.d.consuming.get(ctx)
	if err != nil {
		return err
	}
	n, err := q.inspect(ctx, s, q.n.dead)
	if err != nil {
		return err
	}
	left := n
	if n > 0 {
		left, err = q.sampleSome(ctx, s, min(n, sampleMax), look, act)
	} else {
		look(nil)
	}
	if err != nil {
		return fmt.Errorf("dead letters of %s: %w", q.n.queue, err)
	}
	q.awaitBack(ctx, s, left)
	return nil
}

func (q *queue) sampleSome(ctx context.Context, s *session, n int, look func([]letter) *letter, act func(context.Context, *letter) error) (back int, err error) {
	ch, err := s.channel(ctx)
	if err != nil {
		return 0, err
	}
	defer s.closeChannel(ch) // which puts back what nothing was said of
	all, err := q.read(ctx, s, ch, n)
	if err != nil {
		return 0, err
	}
	slices.SortStableFunc(all, func(a, b letter) int { return strings.Compare(a.d.Entry, b.d.Entry) })
	chosen := look(all)
	if chosen != nil {
		if err = act(ctx, chosen); err == nil {
			err = s.call(ctx, func() error { return ch.Ack(chosen.m.DeliveryTag, false) })
		}
	}
	back = len(all)
	if chosen != nil && err == nil {
		back--
	}
	if back > 0 {
		if nerr := s.call(ctx, func() error { return ch.Nack(0, true, true) }); err == nil {
			err = nerr
		}
	}
	return back, err
}

// read consumes up to n letters.
func (q *queue) read(ctx context.Context, s *session, ch *amqp.Channel, n int) (all []letter, err error) {
	tag := "guesthand-dead-" + newID()
	var messages <-chan amqp.Delivery
	err = s.call(ctx, func() (err error) {
		if err = ch.Qos(n, 0, false); err == nil {
			messages, err = ch.Consume(q.n.dead, tag, false, false, false, false, nil)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	quiet := time.NewTimer(sampleQuiet)
	defer quiet.Stop()
	size := 0
	for open := true; open && len(all) < n && size < sampleBytes; {
		var m amqp.Delivery
		select {
		case m, open = <-messages:
			if open {
				all = append(all, letter{d: q.letter(&m), m: m})
				size += len(m.Body)
				quiet.Reset(sampleQuiet)
			}
		case <-quiet.C:
			open = false
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	err = s.call(ctx, func() error { return ch.Cancel(tag, false) })
	go func() { // what came beyond the bounds; it is put back with the others
		for range messages {
		}
	}()
	return all, err
}

// awaitBack waits until the broker shows what was put back, so that the next look finds it.
func (q *queue) awaitBack(ctx context.Context, s *session, n int) {
	end := time.Now().Add(settledWait)
	for time.Now().Before(end) && ctx.Err() == nil {
		if have, err := q.inspect(ctx, s, q.n.dead); err != nil || have >= min(n, max(1, q.bounds.max)) && n > 0 || n == 0 {
			return
		}
		pause(ctx, 10*time.Millisecond)
	}
}
