package sqstest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxBytes      = 1 << 20
	maxVisibility = 43200
	// dedupeWindow is how long a FIFO queue remembers a deduplication id and an attempt id.
	dedupeWindow = 5 * time.Minute
)

type message struct {
	entry
	id       string
	sent     time.Time
	first    time.Time // received
	count    int
	sequence string
	visible  time.Time // not before; in flight while receipt is set and this is ahead
	delayed  bool
	receipt  string // the newest
	since    time.Time
	deleted  bool
	source   string // the queue that SQS moved it from
}

func (m *message) inFlight(now time.Time) bool { return m.receipt != "" && now.Before(m.visible) }

type queue struct {
	s        *Server
	name     string
	url, arn string
	fifo     bool
	attrs    map[string]string
	messages []*message
	receipts map[string]*message // also of old handles
	dedupe   map[string]dedupe
	attempts map[string]attempt
	sequence int
	gone     []*message // deleted, for faults that hand them out again
}

type dedupe struct {
	at  time.Time
	id  string
	seq string
}

type attempt struct {
	at time.Time
	ms []*message
}

func (q *queue) number(key string, otherwise int) int {
	if n, err := strconv.Atoi(q.attrs[key]); err == nil {
		return n
	}
	return otherwise
}

func (q *queue) maxSize() int { return q.number("MaximumMessageSize", maxBytes) }

func (q *queue) attributes(now time.Time) map[string]string {
	a := maps.Clone(q.attrs)
	ready, flight, delayed := 0, 0, 0
	for _, m := range q.messages {
		switch {
		case m.inFlight(now):
			flight++
		case m.delayed && now.Before(m.visible):
			delayed++
		default:
			ready++
		}
	}
	a["QueueArn"] = q.arn
	a["ApproximateNumberOfMessages"] = strconv.Itoa(ready)
	a["ApproximateNumberOfMessagesNotVisible"] = strconv.Itoa(flight)
	a["ApproximateNumberOfMessagesDelayed"] = strconv.Itoa(delayed)
	if q.fifo {
		a["FifoQueue"] = "true"
	}
	return a
}

// send takes a message that was checked.
func (q *queue) send(e *entry, now time.Time) map[string]string {
	res := map[string]string{"Id": e.Id, "MD5OfMessageBody": digest(e.MessageBody)}
	if d := digestOf(e.MessageAttributes); d != "" {
		res["MD5OfMessageAttributes"] = d
	}
	if q.fifo {
		if d, ok := q.dedupe[e.MessageDeduplicationId]; ok && now.Sub(d.at) < dedupeWindow {
			res["MessageId"], res["SequenceNumber"] = d.id, d.seq
			return res
		}
	}
	q.s.serial++
	m := &message{entry: *e, sent: now, visible: now, id: fmt.Sprintf("%08x-0000-4000-8000-%012x", q.s.serial, q.s.serial)}
	delay := q.number("DelaySeconds", 0)
	if e.DelaySeconds != nil {
		delay = *e.DelaySeconds
	}
	if delay > 0 {
		m.delayed, m.visible = true, now.Add(time.Duration(delay)*time.Second)
	}
	if q.fifo {
		q.sequence++
		m.sequence = fmt.Sprintf("%020d", q.sequence)
		q.dedupe[e.MessageDeduplicationId] = dedupe{now, m.id, m.sequence}
		res["SequenceNumber"] = m.sequence
	}
	q.messages = append(q.messages, m)
	res["MessageId"] = m.id
	return res
}

// take hands out messages. Those received too often move to the dead letter queue.
func (q *queue) take(n int, visibility time.Duration, attemptID string, now time.Time) []received {
	if a, ok := q.attempts[attemptID]; ok && attemptID != "" && now.Sub(a.at) < dedupeWindow {
		return q.again(a.ms, visibility, now)
	}
	locked := map[string]bool{}
	if q.fifo {
		for _, m := range q.messages {
			if m.inFlight(now) {
				locked[m.MessageGroupId] = true
			}
		}
	}
	limit, target := q.redrive()
	var taken []*message
	var moved []*message
	for _, m := range q.messages {
		if len(taken) == n {
			break
		}
		if now.Before(m.visible) {
			if q.fifo {
				locked[m.MessageGroupId] = true
			}
			continue
		}
		if q.fifo && locked[m.MessageGroupId] {
			continue
		}
		if target != nil && m.count >= limit {
			moved = append(moved, m)
			continue
		}
		taken = append(taken, m)
	}
	for _, m := range moved {
		q.remove(m)
		m.receipt, m.source, m.visible = "", q.arn, now
		target.messages = append(target.messages, m)
	}
	out := make([]received, len(taken))
	for i, m := range taken {
		m.count++
		m.since, m.delayed = now, false
		if m.first.IsZero() {
			m.first = now
		}
		out[i] = q.handOut(m, visibility, now)
	}
	if attemptID != "" && len(taken) > 0 {
		q.attempts[attemptID] = attempt{now, taken}
	}
	return out
}

// again repeats a receive whose answer was lost.
func (q *queue) again(ms []*message, visibility time.Duration, now time.Time) []received {
	var out []received
	for _, m := range ms {
		if m.inFlight(now) && !m.deleted {
			out = append(out, q.handOut(m, visibility, now))
		}
	}
	return out
}

func (q *queue) handOut(m *message, visibility time.Duration, now time.Time) received {
	q.s.serial++
	m.receipt = fmt.Sprintf("receipt-%d", q.s.serial)
	m.visible = now.Add(visibility)
	q.receipts[m.receipt] = m
	r := received{
		MessageId: m.id, ReceiptHandle: m.receipt, Body: m.MessageBody, MD5OfBody: digest(m.MessageBody),
		MessageAttributes: m.MessageAttributes, MD5OfMessageAttributes: digestOf(m.MessageAttributes),
		Attributes: map[string]string{
			"SenderId": "AIDA", "SentTimestamp": strconv.FormatInt(m.sent.UnixMilli(), 10),
			"ApproximateReceiveCount":          strconv.Itoa(m.count),
			"ApproximateFirstReceiveTimestamp": strconv.FormatInt(m.first.UnixMilli(), 10),
		},
	}
	set := func(name, value string) {
		if value != "" {
			r.Attributes[name] = value
		}
	}
	set("MessageGroupId", m.MessageGroupId)
	set("MessageDeduplicationId", m.MessageDeduplicationId)
	set("SequenceNumber", m.sequence)
	set("DeadLetterQueueSourceArn", m.source)
	if v, ok := m.MessageSystemAttributes["AWSTraceHeader"]; ok && v.StringValue != nil {
		set("AWSTraceHeader", *v.StringValue)
	}
	return r
}

func (q *queue) redrive() (int, *queue) {
	var p struct {
		DeadLetterTargetArn string
		MaxReceiveCount     any
	}
	if q.attrs["RedrivePolicy"] == "" || json.Unmarshal([]byte(q.attrs["RedrivePolicy"]), &p) != nil {
		return 0, nil
	}
	n, err := strconv.Atoi(fmt.Sprint(p.MaxReceiveCount))
	if err != nil {
		return 0, nil
	}
	for _, t := range q.s.queues {
		if t.arn == p.DeadLetterTargetArn {
			return n, t
		}
	}
	return 0, nil
}

func (q *queue) remove(m *message) {
	q.messages = slices.DeleteFunc(q.messages, func(o *message) bool { return o == m })
}

// delete does nothing for a handle that is not the newest, and says it succeeded; on a FIFO
// queue an expired one is refused.
func (q *queue) delete(handle string, now time.Time) *Error {
	m := q.receipts[handle]
	switch {
	case m == nil && !strings.HasPrefix(handle, "receipt-"):
		return &Error{"ReceiptHandleIsInvalid", "The input receipt handle is invalid.", 400}
	case m == nil || m.deleted || m.receipt != handle && !q.fifo:
		return nil
	case q.fifo && (m.receipt != handle || !now.Before(m.visible)):
		return invalid("Value " + handle + " for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.")
	}
	m.deleted = true
	q.remove(m)
	q.gone = append(q.gone, m)
	return nil
}

func (q *queue) changeVisibility(handle string, seconds *int, now time.Time) *Error {
	m := q.receipts[handle]
	switch {
	case seconds == nil:
		return &Error{"MissingParameter", "The request must contain the parameter VisibilityTimeout.", 400}
	case *seconds < 0 || *seconds > maxVisibility:
		return invalid("Value for parameter VisibilityTimeout is invalid. Reason: Must be between 0 and 43200.")
	case m == nil:
		return &Error{"ReceiptHandleIsInvalid", "The input receipt handle is invalid.", 400}
	case m.deleted || m.receipt != handle || !now.Before(m.visible):
		return &Error{"MessageNotInflight", "Message does not exist or is not available for visibility timeout change.", 400}
	}
	visible := now.Add(time.Duration(*seconds) * time.Second)
	if most := q.s.maxVisibility(); visible.Sub(m.since) > most {
		return invalid(fmt.Sprintf("Total VisibilityTimeout for the message is beyond the limit [%d seconds]", int(most.Seconds())))
	}
	m.visible = visible
	return nil
}
