package cfdriver

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

const (
	// maxDeathReason bounds the reason of a dead letter, shortReason where space is short.
	maxDeathReason = 4 << 10
	shortReason    = 256
	deathPrefix    = "Guesthand-Death-"
)

// death is what a dead letter's envelope says beside the counts.
type death struct {
	Entry   string    `json:"entry"`
	Reason  string    `json:"reason"`
	Outcome string    `json:"outcome,omitempty"`
	Cause   string    `json:"cause,omitempty"`
	Time    time.Time `json:"time"`
	Queue   string    `json:"queue"`
	Worker  string    `json:"worker,omitempty"`
	Digest  string    `json:"digest,omitempty"`
}

// deadLetter lays out a message's dead letter: its envelope with everything about the death, less
// of that where there is no room, and the body as it came where there is none at all.
func (q *queue) deadLetter(t *token, s *drivers.Settlement) (*outgoing, error) {
	e := t.c.e.clone()
	e.setCarry(s.Carry)
	e.State, e.NotBefore, e.Again = nil, 0, false
	e.Enqueued, e.ID, e.Job = t.enqueued.UnixMilli(), t.messageID, t.job
	e.Death = q.death(s)
	return q.shed(e, t.c)
}

// shed lays out a dead letter that fits.
func (q *queue) shed(e envelope, c *content) (*outgoing, error) {
	for _, shed := range q.sheds(&e) {
		for {
			body, err := e.pack(c.payload)
			if err != nil {
				return nil, err
			}
			if out := (&outgoing{body: body}); out.size() <= maxMessage {
				return out, nil
			}
			if !shed() {
				break
			}
		}
	}
	q.log.Warn("a dead letter has no room for anything but its body", slog.String("id", e.ID))
	out := &outgoing{body: string(c.raw), json: c.kind == contentJSON}
	if out.size() > maxMessage || !utf8.Valid(c.raw) {
		return nil, fmt.Errorf("dead letter of %d bytes that are no text, Cloudflare takes %d: %w", len(c.raw), maxMessage, drivers.ErrTooLarge)
	}
	return out, nil
}

// sheds are the steps by which a dead letter gets smaller, what can be missed most first: each
// returns false when it has nothing left to give. The payload is not among them.
func (q *queue) sheds(e *envelope) []func() bool {
	drop := func(text *string) func() bool {
		return func() bool {
			had := *text != ""
			*text = ""
			return had
		}
	}
	d := e.Death
	return []func() bool{
		func() bool {
			if len(e.Errors) == 0 {
				return false
			}
			e.Errors = e.Errors[1:]
			return true
		},
		drop(&d.Digest), drop(&d.Worker), drop(&d.Cause),
		func() bool {
			if len(d.Reason) <= shortReason {
				return false
			}
			d.Reason = strings.ToValidUTF8(d.Reason[:shortReason], "")
			return true
		},
		func() bool {
			names := slices.Sorted(maps.Keys(e.Headers))
			if len(names) == 0 {
				return false
			}
			delete(e.Headers, names[0])
			return true
		},
		func() bool { return false },
	}
}

func (q *queue) death(s *drivers.Settlement) *death {
	d := &death{
		Entry: newEntry(), Reason: s.Death.Reason, Outcome: s.Death.Outcome, Cause: s.Death.Cause, Time: s.Death.Time,
		Queue: q.o.Name, Worker: s.Death.Worker, Digest: s.Death.Digest,
	}
	if len(d.Reason) > maxDeathReason {
		d.Reason = strings.ToValidUTF8(d.Reason[:maxDeathReason], "")
	}
	if d.Time.IsZero() {
		d.Time = time.Now()
	}
	if d.Worker == "" {
		d.Worker = q.o.Worker
	}
	return d
}

// newEntry names a dead letter so that names sort by the time it was made. It is in the envelope,
// since Cloudflare's id is another one for each copy.
func newEntry() string { return entryName(time.Now(), uuid.NewString()) }

func entryName(at time.Time, id string) string { return fmt.Sprintf("%013d.%s", at.UnixMilli(), id) }

// letter is the contract's view of a message in the dead queue, also of one that Cloudflare
// itself or somebody else put there.
func (q *queue) letter(m *message) (drivers.DeadLetter, *content, error) {
	c, err := open(m)
	h := c.e.headers()
	l := drivers.DeadLetter{
		Entry: entryName(m.sent(), m.ID), Queue: q.o.Name, ID: idOf(h, m.ID), Job: jobOf(h),
		Tally: c.e.carry().Tally, Errors: slices.Clone(c.e.Errors), Enqueued: m.sent(), Died: m.sent(), Payload: c.owned(),
	}
	if c.e.Enqueued > 0 {
		l.Enqueued = time.UnixMilli(c.e.Enqueued)
	}
	for name := range h {
		if len(name) >= len(deathPrefix) && strings.EqualFold(name[:len(deathPrefix)], deathPrefix) {
			delete(h, name)
		}
	}
	l.Headers = h
	if v, ok := h.Get(abi.HeaderReplays); ok {
		if n, bad := strconv.Atoi(v); bad == nil {
			l.Replays = n
		}
	}
	switch d := c.e.Death; {
	case d != nil:
		l.Entry, l.Reason, l.Outcome, l.Cause, l.Died = d.Entry, d.Reason, d.Outcome, d.Cause, d.Time
		l.Queue, l.Worker, l.Digest = d.Queue, d.Worker, d.Digest
	case err != nil:
		l.Reason = "unknown: " + err.Error()
	default:
		l.Reason = "unknown: moved here by Cloudflare (dead_letter_queue) after max_retries, or not put here by guesthand"
	}
	return l, c, err
}
