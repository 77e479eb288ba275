package sqsdriver

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

const (
	// maxDeathReason bounds the reason of a dead letter, shortReason where space is short.
	maxDeathReason = 4 << 10
	shortReason    = 256
	deathPrefix    = "Guesthand-Death-"
)

// death is what a dead letter's packed attribute says beside the counts.
type death struct {
	Reason  string    `json:"reason"`
	Outcome string    `json:"outcome,omitempty"`
	Cause   string    `json:"cause,omitempty"`
	Time    time.Time `json:"time"`
	Queue   string    `json:"queue"`
	Worker  string    `json:"worker,omitempty"`
	Digest  string    `json:"digest,omitempty"`
	ID      string    `json:"id"`
	Job     string    `json:"job,omitempty"`
	Group   string    `json:"group,omitempty"` // the message's own
}

// deadLetter lays out a message's dead letter: the original body and attributes, everything
// about the death in the packed attribute, and the most telling of it as attributes of their
// own where there is room.
func (q *queue) deadLetter(t *token, s *drivers.Settlement) (*outgoing, error) {
	e := t.e.clone()
	e.p.setCarry(cloneCarry(s.Carry))
	e.p.State, e.p.NotBefore, e.p.Again = nil, 0, false
	e.p.Enqueued = t.enqueued.UnixMilli()
	e.p.Death = q.death(t, s)
	e.group = ""
	shown := q.showDeath(e, s.Carry)
	group := ""
	if q.n.deadFIFO {
		group = t.id // so that no dead letter hides behind another
	}
	for _, shed := range q.sheds(e, shown) {
		for {
			out, err := q.outgoing(e, group)
			if err != nil {
				return nil, err
			}
			if out.size <= q.deadSize {
				if q.n.deadFIFO {
					out.entry.MessageDeduplicationId = aws.String("dead:" + t.id)
				}
				return out, nil
			}
			if !shed() {
				break
			}
		}
	}
	return nil, fmt.Errorf("dead letter of %d bytes, the dead queue takes %d: %w", len(e.body), q.deadSize, drivers.ErrTooLarge)
}

// sheds are the steps by which a dead letter gets smaller, what can be missed most first: each
// returns false when it has nothing left to give. The payload is not among them.
func (q *queue) sheds(e *envelope, shown []string) []func() bool {
	drop := func(name *string) func() bool {
		return func() bool {
			had := *name != ""
			*name = ""
			return had
		}
	}
	d := e.p.Death
	return []func() bool{
		func() bool {
			if len(e.p.Errors) == 0 {
				return false
			}
			e.p.Errors = e.p.Errors[1:]
			return true
		},
		func() bool {
			if len(shown) == 0 {
				return false
			}
			delete(e.attrs, shown[len(shown)-1])
			shown = shown[:len(shown)-1]
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
		func() bool { return q.shedHeader(e) },
		func() bool {
			bare := e.p.Death == nil && len(e.attrs) == 0
			q.log.Warn("a dead letter has no room for anything but its payload", slog.String("id", d.ID))
			e.p, e.trace = packed{}, ""
			return !bare
		},
		func() bool { return false },
	}
}

// shedHeader drops one of the producer's headers, then ours; how to read the body stays.
func (q *queue) shedHeader(e *envelope) bool {
	if names := slices.Sorted(maps.Keys(e.p.Headers)); len(names) > 0 {
		delete(e.p.Headers, names[0])
		return true
	}
	names := packingOrder(e.attrs)
	if len(names) == 0 || names[len(names)-1] == attributeEncoding {
		return false
	}
	delete(e.attrs, names[len(names)-1])
	return true
}

func (q *queue) death(t *token, s *drivers.Settlement) *death {
	d := &death{
		Reason: s.Death.Reason, Outcome: s.Death.Outcome, Cause: s.Death.Cause, Time: s.Death.Time,
		Queue: q.o.Name, Worker: s.Death.Worker, Digest: s.Death.Digest,
		ID: t.messageID, Job: t.job, Group: t.e.group,
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

// showDeath gives native consumers attributes to read, as far as there is room, and returns
// their names, the most telling first.
func (q *queue) showDeath(e *envelope, c drivers.Carry) []string {
	d := e.p.Death
	var shown []string
	for _, h := range [][2]string{
		{abi.HeaderDeathReason, d.Reason}, {abi.HeaderDeathOutcome, d.Outcome}, {abi.HeaderDeathQueue, d.Queue},
		{abi.HeaderDeathTime, d.Time.UTC().Format(time.RFC3339Nano)}, {abi.HeaderDeathFailures, strconv.Itoa(c.Failures)},
		{abi.HeaderDeathWorker, d.Worker},
	} {
		if h[1] == "" || len(e.attrs) >= attributesMax-1 {
			continue
		}
		e.attrs[h[0]] = textAttribute(xmlText(h[1]))
		shown = append(shown, h[0])
	}
	return shown
}

// letter is the contract's view of a message in the dead queue, also of one that SQS itself
// or somebody else put there.
func (q *queue) letter(m *types.Message) drivers.DeadLetter {
	e, err := open(m)
	h := e.headers()
	l := drivers.DeadLetter{
		Entry: entryOf(m), Queue: q.o.Name, Tally: e.p.carry().Tally, Enqueued: enqueuedAt(m, e),
		ID: idOf(h, e, deref(m.MessageId)), Job: jobOf(h), Errors: slices.Clone(e.p.Errors),
	}
	for name := range h {
		if hasFoldedPrefix(name, deathPrefix) {
			delete(h, name)
		}
	}
	l.Headers = h
	l.Payload, _ = e.payload() // raw where it cannot be decoded
	if v, ok := h.Get(abi.HeaderReplays); ok {
		if n, bad := strconv.Atoi(v); bad == nil {
			l.Replays = n
		}
	}
	switch d := e.p.Death; {
	case d != nil:
		l.Reason, l.Outcome, l.Cause, l.Died = d.Reason, d.Outcome, d.Cause, d.Time
		l.Digest, l.Worker, l.ID, l.Job, l.Queue = d.Digest, d.Worker, d.ID, d.Job, d.Queue
		if d.Group != "" {
			h[HeaderGroup] = []string{d.Group}
		} else {
			delete(h, HeaderGroup)
		}
	case err != nil:
		l.Reason = "unknown: " + err.Error()
	case m.Attributes[string(types.MessageSystemAttributeNameDeadLetterQueueSourceArn)] != "":
		l.Reason = "moved here by SQS's redrive policy"
	default:
		l.Reason = "unknown: no room for it, or not put here by guesthand"
	}
	return l
}

// entryOf names a dead letter so that names sort by the time it was sent.
func entryOf(m *types.Message) string {
	return fmt.Sprintf("%013s.%s", m.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)], deref(m.MessageId))
}
