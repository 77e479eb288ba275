package rabbitdriver

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// maxShort is the most bytes of AMQP's short strings: header names and properties.
const maxShort = 255

// headerRoom bounds a message's headers: the broker takes them in one frame of 128 KiB only,
// and the other properties need some of it.
const headerRoom = 131072 - 8 - 14 - 9*(maxShort+1) - 16

const (
	headerDeliveries = "x-delivery-count" // of a quorum queue: earlier deliveries that ended with their worker
	headerAcquired   = "x-acquired-count" // the same from 4.3 on, with this delivery
)

// brokerHeaders mean something to the broker: it routes by CC and BCC, reads x-death to find
// circles, and writes the others.
var brokerHeaders = map[string]bool{
	"CC": true, "BCC": true, "x-death": true, "x-delay": true, "x-received-from": true,
	"x-first-death-exchange": true, "x-first-death-queue": true, "x-first-death-reason": true,
	"x-last-death-exchange": true, "x-last-death-queue": true, "x-last-death-reason": true,
	"x-opt-deaths": true, "x-stream-offset": true, headerDeliveries: true, headerAcquired: true,
}

// travels tells whether a header goes into copies as it came.
func travels(name string) bool { return !brokerHeaders[name] && name != headerTally }

// headerOf shows a table as headers: text as it is, several values of an array one by one.
func headerOf(t amqp.Table) drivers.Header {
	h := make(drivers.Header, len(t))
	for name, v := range t {
		if name == headerTally {
			continue
		}
		list, many := v.([]any)
		if !many {
			h[name] = []string{textOf(v)}
			continue
		}
		values := make([]string, len(list))
		for i, e := range list {
			values[i] = textOf(e)
		}
		h[name] = values
	}
	return h
}

// textOf shows a value that AMQP has a type for.
func textOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case nil:
		return ""
	case []byte:
		if utf8.Valid(v) {
			return string(v)
		}
		return base64.StdEncoding.EncodeToString(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case amqp.Table, []any:
		if b, err := json.Marshal(v); err == nil {
			return string(b)
		}
	}
	return fmt.Sprint(v)
}

// tableOf is headerOf's reverse.
func tableOf(h drivers.Header) amqp.Table {
	t := make(amqp.Table, len(h)+3)
	for name, values := range h {
		switch len(values) {
		case 0:
		case 1:
			t[name] = values[0]
		default:
			list := make([]any, len(values))
			for i, v := range values {
				list[i] = v
			}
			t[name] = list
		}
	}
	return t
}

// sizeOf is how many bytes a value takes in a frame.
func sizeOf(v any) int {
	switch v := v.(type) {
	case string:
		return 5 + len(v)
	case []byte:
		return 5 + len(v)
	case []any:
		n := 5
		for _, e := range v {
			n += sizeOf(e)
		}
		return n
	case amqp.Table:
		n := 5
		for name, e := range v {
			n += 1 + len(name) + sizeOf(e)
		}
		return n
	}
	return 9 // the longest of the fixed ones
}

// set writes a header, in place of every other spelling of its name.
func set(t amqp.Table, name string, value any) {
	maps.DeleteFunc(t, func(k string, _ any) bool { return strings.EqualFold(k, name) })
	t[name] = value
}

// short is a property's value where it fits.
func short(s string) string {
	if len(s) <= maxShort {
		return s
	}
	return ""
}

// copyOf is the original without what must not travel: the broker's headers, the sender's
// user (which the broker would compare with ours), the time to live (which would end a wait
// early) and the priority (which would let a failing message go first).
func (t *token) copyOf() amqp.Publishing {
	m := amqp.Publishing{
		Headers: make(amqp.Table, len(t.props.Headers)+2), ContentType: t.props.ContentType,
		ContentEncoding: t.props.ContentEncoding, DeliveryMode: amqp.Persistent,
		CorrelationId: t.props.CorrelationId, ReplyTo: t.props.ReplyTo, MessageId: t.props.MessageId,
		Timestamp: t.props.Timestamp, Type: t.props.Type, AppId: t.props.AppId, Body: t.props.Body,
	}
	for name, v := range t.props.Headers {
		if travels(name) {
			m.Headers[name] = v
		}
	}
	return m
}

// carrying is a copy with a record. Where the two do not fit together the oldest errors stay
// behind.
func (t *token) carrying(r record) (amqp.Publishing, error) {
	m := t.copyOf()
	if r.ID == "" && t.ownID {
		r.ID = t.id
	}
	if r.Job == "" && t.ownJob {
		r.Job = t.job
	}
	if r.Enqueued == 0 {
		r.Enqueued = t.enqueued.UnixMilli()
	}
	for {
		text, err := r.text()
		if err != nil {
			return m, err
		}
		m.Headers[headerTally] = text
		if sizeOf(m.Headers) <= headerRoom {
			return m, nil
		}
		if len(r.Errors) == 0 {
			return m, fmt.Errorf("headers of %d bytes: %w", sizeOf(m.Headers), drivers.ErrTooLarge)
		}
		r.Errors = r.Errors[1:]
	}
}

// token is what a delivery is to this driver.
type token struct {
	q     *queue
	in    *intake
	tag   uint64
	d     *drivers.Delivery
	state tokenState
	props amqp.Delivery // with a body of our own
	rec   *record       // what the message carried; nil for nothing

	id, job       string
	ownID, ownJob bool // not to be found in a copy
	enqueued      time.Time
	stored        drivers.Verdict // what was published for it already, 0 for nothing
}

// item is a delivery and its token in one allocation.
type item struct {
	d drivers.Delivery
	t token
}

// newItem decodes a message. An error is the tally's.
func (q *queue) newItem(in *intake, m *amqp.Delivery, at time.Time) (*item, error) {
	it := &item{}
	t, d := &it.t, &it.d
	t.q, t.in, t.tag, t.d, t.props = q, in, m.DeliveryTag, d, *m
	rec, err := readRecord(m.Headers)
	t.rec = rec
	d.Token, d.Received = t, at
	d.Payload = append([]byte(nil), m.Body...)
	d.Headers = headerOf(m.Headers)
	d.ReplyTo = m.ReplyTo
	d.Redelivered = m.Redelivered
	t.enqueued = at
	if !m.Timestamp.IsZero() {
		t.enqueued = m.Timestamp
	}
	if rec != nil {
		d.Carry = rec.carry()
		d.Redelivered = d.Redelivered || rec.Out
		d.Stalled, d.Held = rec.Fresh, rec.Fresh > 0
		if rec.Enqueued > 0 {
			t.enqueued = time.UnixMilli(rec.Enqueued)
		}
	}
	if n := deliveries(m); n > 0 {
		d.Carry.Stalls += n
		d.Stalled, d.Held = 1, true // the delivery before this one told of the others
	}
	d.EnqueuedAt = t.enqueued
	q.name(t, m)
	d.ID, d.Job = t.id, t.job
	return it, err
}

// deliveries is how often a quorum queue saw this copy's worker die.
func deliveries(m *amqp.Delivery) int {
	n := number(m.Headers[headerDeliveries])
	if a := number(m.Headers[headerAcquired]); a > 0 {
		n = max(n, a-1)
	}
	return n
}

func number(v any) int {
	switch v := v.(type) {
	case int64:
		return int(v)
	case int32:
		return int(v)
	case int16:
		return int(v)
	case int8:
		return int(v)
	case uint8:
		return int(v)
	case uint16:
		return int(v)
	case uint32:
		return int(v)
	}
	return 0
}

// name finds id, job and the address for an answer.
func (q *queue) name(t *token, m *amqp.Delivery) {
	var id, job, ceID, ceType string
	for name, v := range m.Headers {
		if len(name) < len(abi.HeaderCEID) {
			continue
		}
		switch {
		case strings.EqualFold(name, abi.HeaderID):
			id = firstText(v)
		case strings.EqualFold(name, abi.HeaderJob):
			job = firstText(v)
		case strings.EqualFold(name, abi.HeaderCEID):
			ceID = firstText(v)
		case strings.EqualFold(name, abi.HeaderCEType):
			ceType = firstText(v)
		case strings.EqualFold(name, abi.HeaderReplyTo) && t.d.ReplyTo == "":
			t.d.ReplyTo = firstText(v)
		}
	}
	for _, s := range []string{id, ceID, m.MessageId} {
		if t.id == "" {
			t.id = s
		}
	}
	for _, s := range []string{job, ceType, m.Type} {
		if t.job == "" {
			t.job = s
		}
	}
	if t.job == "" {
		t.ownJob = true
		if t.rec != nil {
			t.job = t.rec.Job
		} else if m.Exchange != "" {
			t.job = m.RoutingKey
		}
	}
	if t.id == "" {
		t.ownID = true
		if t.rec != nil {
			t.id = t.rec.ID
		}
		if t.id == "" {
			t.id = newID()
		}
	}
}

func firstText(v any) string {
	if list, ok := v.([]any); ok {
		if len(list) == 0 {
			return ""
		}
		v = list[0]
	}
	return textOf(v)
}

func atoiOrZero(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
