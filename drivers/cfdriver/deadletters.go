package cfdriver

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
	"unicode/utf8"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

const (
	// lookMax is how many dead letters one look pulls, and lookLease for how long nobody else
	// sees them where the look is cut short.
	lookMax   = 1000
	lookLease = 30 * time.Second
	// lookEmpty is how many pulls in a row may find nothing while there should be something.
	lookEmpty = 3
)

// ListDead implements drivers.DeadLetters. It is a sample: what Cloudflare hands out, at most
// lookMax.
func (q *queue) ListDead(ctx context.Context, after string, limit int) ([]drivers.DeadLetter, error) {
	if limit < 1 {
		return nil, q.closedError()
	}
	var out []drivers.DeadLetter
	err := q.look(ctx, func(s *seen) (bool, bool) {
		if s.l.Entry > after {
			out = append(out, s.l)
		}
		return true, true
	})
	slices.SortFunc(out, byEntry)
	return out[:min(len(out), limit)], wrap(err, "dead letters of "+q.o.Name)
}

func byEntry(a, b drivers.DeadLetter) int { return cmp.Compare(a.Entry, b.Entry) }

// GetDead implements drivers.DeadLetters.
func (q *queue) GetDead(ctx context.Context, entryOrID string) ([]drivers.DeadLetter, error) {
	var out []drivers.DeadLetter
	err := q.look(ctx, func(s *seen) (bool, bool) {
		if s.l.Entry == entryOrID {
			out = []drivers.DeadLetter{s.l}
			return true, false
		}
		if s.l.ID == entryOrID {
			out = append(out, s.l)
		}
		return true, true
	})
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("%q: %w", entryOrID, drivers.ErrNotFound)
	}
	slices.SortFunc(out, byEntry)
	return out, wrap(err, "dead letter of "+q.o.Name)
}

// ReplayDead implements drivers.DeadLetters.
func (q *queue) ReplayDead(ctx context.Context, entry string) error {
	return q.withEntry(ctx, entry, func(s *seen) error {
		out, err := q.replay(s)
		if err != nil {
			return err
		}
		q.send(ctx, q.n.id, []*outgoing{out})
		if out.err == nil && !q.o.SendOnly {
			q.pump.expect(time.Now())
		}
		return out.err
	})
}

// replay is a dead letter's message, as if it was sent anew.
func (q *queue) replay(s *seen) (*outgoing, error) {
	if errors.Is(s.err, errNewer) {
		return nil, s.err
	}
	e := s.c.e.clone()
	for name := range e.Headers {
		if strings.EqualFold(name, abi.HeaderReplays) || strings.EqualFold(name, abi.HeaderNotBefore) {
			delete(e.Headers, name)
		}
	}
	if e.Headers == nil {
		e.Headers = map[string]values{}
	}
	e.Headers[abi.HeaderReplays] = values{strconv.Itoa(s.l.Replays + 1)}
	e.ID, e.Death, e.packed = s.l.ID, nil, packed{Prior: s.l.Tally.Replayed().Prior}
	body, err := e.pack(s.c.payload)
	if err != nil {
		return nil, err
	}
	out := &outgoing{body: body}
	if out.size() <= maxMessage {
		return out, nil
	}
	q.log.Warn("a replayed message has no room for its attempts and headers", slog.String("id", s.l.ID))
	return &outgoing{body: string(s.c.raw), json: s.c.kind == contentJSON}, nil
}

// DropDead implements drivers.DeadLetters.
func (q *queue) DropDead(ctx context.Context, entry string) error {
	return q.withEntry(ctx, entry, func(*seen) error { return nil })
}

// withEntry looks for an entry, does something with it, and removes it.
func (q *queue) withEntry(ctx context.Context, entry string, do func(*seen) error) error {
	found := false
	var failed error
	err := q.look(ctx, func(s *seen) (bool, bool) {
		if s.l.Entry != entry {
			return true, true
		}
		found = true
		if failed = do(s); failed == nil {
			failed = q.d.c.settle(ctx, q.n.deadID, []release{{lease: s.m.LeaseID}})[0]
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

// seen is a dead letter that a look has pulled.
type seen struct {
	m   *message
	l   drivers.DeadLetter
	c   *content
	err error // of its envelope
}

// look pulls dead letters, each once, until see wants no more or there are no more, and puts
// those back that see says to keep.
func (q *queue) look(ctx context.Context, see func(*seen) (keep, more bool)) error {
	if err := q.closedError(); err != nil {
		return err
	}
	q.looking.Lock()
	defer q.looking.Unlock()
	about, err := q.d.c.metrics(ctx, q.n.deadID)
	if err != nil {
		return err
	}
	var kept []*seen
	defer func() { q.putDown(ctx, kept) }()
	known := map[string]bool{}
	for empty := 0; len(known) < lookMax; {
		ms, err := q.d.c.pull(ctx, q.n.deadID, batchMax, lookLease)
		if err != nil {
			return err
		}
		wanted := true
		for i := range ms {
			s := &seen{m: &ms[i]}
			s.l, s.c, s.err = q.letter(s.m)
			keep, more := true, true
			if wanted && !known[s.m.ID] {
				keep, more = see(s)
			}
			known[s.m.ID], wanted = true, wanted && more
			if keep {
				kept = append(kept, s)
			}
		}
		if empty++; len(ms) > 0 {
			empty = 0
		}
		if !wanted || empty > 0 && (len(known) >= int(about.Count) || empty >= lookEmpty) {
			return nil
		}
		if empty > 0 && !pause(ctx, q.d.o.FirstPoll) {
			return ctx.Err()
		}
	}
	q.log.Warn("only a part of the dead letters was looked at", slog.Int("count", lookMax), slog.Int("about", int(about.Count)))
	return nil
}

// pause waits, and is false where ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// putDown makes dead letters visible again, whatever ended the look. Each look spends one of the
// dead queue's own max_retries, after which Cloudflare would delete them: so those that were
// looked at often are replaced by a copy in time.
func (q *queue) putDown(ctx context.Context, kept []*seen) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*q.d.o.CallTimeout)
	defer cancel()
	rs := make([]release, len(kept))
	var outs []*outgoing
	var at []int
	for i, s := range kept {
		rs[i] = release{lease: s.m.LeaseID, retry: true}
		if int(s.m.Attempts) < q.looksMax {
			continue
		}
		if out, err := q.renewed(s); err == nil {
			outs, at = append(outs, out), append(at, i)
		} else {
			q.log.Warn("a dead letter was looked at often and cannot be replaced by a copy", slog.String("id", s.l.ID), slog.Any("error", err))
		}
	}
	q.send(ctx, q.n.deadID, outs)
	for k, out := range outs {
		rs[at[k]].retry = out.err != nil
	}
	batches(len(rs), func(from, to int) {
		for _, err := range q.d.c.settle(ctx, q.n.deadID, rs[from:to]) {
			if err != nil {
				q.log.Debug("a dead letter that was looked at stays out for a while", slog.Duration("for", lookLease), slog.Any("error", err))
			}
		}
	})
}

// renewed is a copy of a dead letter that goes under the same entry.
func (q *queue) renewed(s *seen) (*outgoing, error) {
	if s.err != nil && utf8.Valid(s.c.raw) { // to be left as it is
		return &outgoing{body: string(s.c.raw), json: s.c.kind == contentJSON}, nil
	}
	e := s.c.e.clone()
	e.ID, e.Enqueued = s.l.ID, s.l.Enqueued.UnixMilli()
	if e.Death == nil {
		e.Death = &death{Entry: s.l.Entry, Reason: s.l.Reason, Time: s.l.Died, Queue: s.l.Queue}
	}
	return q.shed(e, s.c)
}
