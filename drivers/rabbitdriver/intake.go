package rabbitdriver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/drivers"
)

// maxConsumers is how many consumers a channel adds up its credit from, before they are
// replaced by one.
const maxConsumers = 8

// intake is a queue's channel on one connection, from its opening to its end. Every delivery
// belongs to one, and with it the lease ends.
type intake struct {
	q  *queue
	s  *session
	ch *amqp.Channel
	// gone is closed when the channel has ended.
	gone chan struct{}
	// rpc is held over requests, which the library cannot tell apart on one channel.
	rpc sync.Mutex
	// acking is held while acknowledgements are computed and written: one that comes late
	// names what is acknowledged already, which closes the channel.
	acking sync.Mutex
	proof  proof
	ending sync.WaitGroup // the goroutines that read from the channel

	mu        sync.Mutex
	buf       []arrival
	consumers []*consumer
	prefetch  int // of the last Qos
	base      uint64
	slots     []slot    // of the delivery tags from base on
	open      int       // messages that are not settled, buf included
	moved     time.Time // when a message came last, or went and made room for another
}

// arrival is a message that waits for Receive.
type arrival struct {
	m  amqp.Delivery
	at time.Time
}

// consumer is one subscription of a channel. The broker keeps up to prefetch messages with it.
type consumer struct {
	tag      string
	prefetch int
	unacked  int           // that arrived
	ended    chan struct{} // closed when nothing arrives any more
}

// slot is the state of a delivery tag.
type slot struct {
	state slotState
	from  *consumer
	t     *token // once it was decoded
}

type slotState uint8

const (
	slotUnseen slotState = iota // not arrived yet: another consumer's may be earlier
	slotOpen
	slotDone
)

// openIntake opens a channel for consuming.
func (q *queue) openIntake(ctx context.Context, s *session) (*intake, error) {
	ch, err := s.channel(ctx)
	if err != nil {
		return nil, err
	}
	in := &intake{q: q, s: s, ch: ch, gone: make(chan struct{}), base: 1}
	closes, cancels := ch.NotifyClose(make(chan *amqp.Error, 1)), ch.NotifyCancel(make(chan string, maxConsumers))
	in.ending.Go(func() { in.watch(closes, cancels) })
	return in, nil
}

// watch drains what the library tells about the channel, until its end.
func (in *intake) watch(closes <-chan *amqp.Error, cancels <-chan string) {
	defer in.q.wake()
	defer close(in.gone)
	for {
		select {
		case tag, ok := <-cancels:
			if !ok {
				cancels = nil
				continue
			}
			// The queue was deleted, or moved, or the consumer was too slow for it. A new
			// channel finds out, and what this one holds comes again.
			in.q.log.Warn("RabbitMQ has ended a consumer, opening another", "consumer", tag)
			go in.s.closeChannel(in.ch)
		case err, ok := <-closes:
			if ok && err != nil && in.s.alive() {
				in.q.log.Warn("RabbitMQ has closed the queue's channel; what was held is handed out anew", "error", err)
			}
			return
		}
	}
}

func (in *intake) isGone() bool {
	select {
	case <-in.gone:
		return true
	default:
		return false
	}
}

// bounded runs a request on the channel, alone.
func (in *intake) bounded(request func() error) error {
	in.rpc.Lock()
	defer in.rpc.Unlock()
	timer := time.AfterFunc(callWait, in.s.kill)
	defer timer.Stop()
	return request()
}

// consume adds a consumer for n messages.
func (in *intake) consume(n int) error {
	n = min(n, 65535)
	c := &consumer{tag: "guesthand-" + newID(), prefetch: n, ended: make(chan struct{})}
	in.mu.Lock()
	in.consumers = append(in.consumers, c)
	in.prefetch, in.moved = n, time.Now()
	in.mu.Unlock()
	return in.bounded(func() error {
		if err := in.ch.Qos(n, 0, false); err != nil {
			return err
		}
		messages, err := in.ch.Consume(in.q.n.work, c.tag, false, false, false, false, nil)
		if err == nil {
			in.ending.Go(func() { in.forward(c, messages) })
		}
		return err
	})
}

// cancelAll ends the consumers, if nothing is on its way to them: they have no credit left, or
// nothing moved for the time given. What arrives for a consumer that is cancelled goes back, and
// quorum queues before 4.3 count that as if a worker had died. It is false where that is still
// to be waited for. What has arrived is in buf when it returns.
func (in *intake) cancelAll(quiet time.Duration) (bool, error) {
	in.acking.Lock() // an acknowledgement would let messages come
	defer in.acking.Unlock()
	in.mu.Lock()
	if in.credit() > 0 && time.Since(in.moved) < quiet {
		in.mu.Unlock()
		return false, nil
	}
	cs := in.consumers
	in.consumers = nil
	in.mu.Unlock()
	for _, c := range cs {
		if err := in.bounded(func() error { return in.ch.Cancel(c.tag, false) }); err != nil {
			return false, err
		}
		select { // the library hands on what it has
		case <-c.ended:
		case <-in.gone:
		}
	}
	return true, nil
}

// forward takes a consumer's messages from the library, which holds them without a bound of
// its own: the consumer's prefetch is the bound.
func (in *intake) forward(c *consumer, messages <-chan amqp.Delivery) {
	defer close(c.ended)
	for m := range messages {
		in.arrive(c, &m)
	}
}

func (in *intake) arrive(c *consumer, m *amqp.Delivery) {
	in.mu.Lock()
	at := int(m.DeliveryTag - in.base)
	for len(in.slots) <= at {
		in.slots = append(in.slots, slot{})
	}
	in.slots[at] = slot{state: slotOpen, from: c}
	in.open++
	c.unacked++
	now := time.Now()
	in.moved = now
	in.buf = append(in.buf, arrival{m: *m, at: now})
	first := len(in.buf) == 1
	in.mu.Unlock()
	if first {
		in.q.signal()
		in.q.stir()
	}
}

// take removes up to n arrivals.
func (in *intake) take(n int) []arrival {
	in.mu.Lock()
	defer in.mu.Unlock()
	n = min(n, len(in.buf))
	if n == 0 {
		return nil
	}
	out := in.buf[:n:n]
	if in.buf = in.buf[n:]; len(in.buf) == 0 {
		in.buf = nil
	}
	return out
}

// untake puts arrivals back, to the front.
func (in *intake) untake(as []arrival) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.buf = append(as[:len(as):len(as)], in.buf...)
}

// hold notes the tokens of what is handed out.
func (in *intake) hold(ds []*drivers.Delivery) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, d := range ds {
		t := d.Token.(*token)
		if s := in.slot(t.tag); s != nil {
			s.t = t
		}
	}
}

func (in *intake) slot(tag uint64) *slot {
	if tag < in.base || tag-in.base >= uint64(len(in.slots)) {
		return nil
	}
	return &in.slots[tag-in.base]
}

// heldTokens is everything that was handed out and is not settled.
func (in *intake) heldTokens() (ts []*token) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for i := range in.slots {
		if s := &in.slots[i]; s.state == slotOpen && s.t != nil {
			ts = append(ts, s.t)
		}
	}
	return ts
}

// credit is how many messages may still come unasked.
func (in *intake) credit() (n int) {
	for _, c := range in.consumers {
		n += max(0, c.prefetch-c.unacked)
	}
	return n
}

// done marks a tag as settled, and reports whether it was not yet: to settle one twice would
// close the channel. in.mu is held.
func (in *intake) done(tag uint64) bool {
	s := in.slot(tag)
	if s == nil || s.state != slotOpen {
		return false
	}
	s.state, s.t = slotDone, nil
	s.from.unacked--
	in.open--
	return true
}

// ack acknowledges tags: a run of all that are open from the first on as one, the others one
// by one. It changes the slice. The broker does not answer; see prove.
func (in *intake) ack(tags []uint64) error {
	in.acking.Lock()
	defer in.acking.Unlock()
	in.mu.Lock()
	tags = slices.DeleteFunc(tags, func(tag uint64) bool { return !in.done(tag) })
	in.moved = time.Now()
	n := 0
	for n < len(in.slots) && in.slots[n].state == slotDone {
		n++
	}
	in.base += uint64(n)
	in.slots = in.slots[n:]
	base := in.base
	in.mu.Unlock()

	var last uint64 // of the run
	run := 0
	timer := time.AfterFunc(callWait, in.s.kill)
	defer timer.Stop()
	for _, tag := range tags {
		if tag < base {
			last = max(last, tag)
			run++
			continue
		}
		if err := in.ch.Ack(tag, false); err != nil {
			return err
		}
	}
	if run == 0 {
		return nil
	}
	return in.ch.Ack(last, run > 1)
}

// reject turns a message away for good.
func (in *intake) reject(tag uint64) error {
	in.acking.Lock()
	defer in.acking.Unlock()
	in.mu.Lock()
	open := in.done(tag)
	in.mu.Unlock()
	if !open {
		return nil
	}
	timer := time.AfterFunc(callWait, in.s.kill)
	defer timer.Stop()
	return in.ch.Reject(tag, false)
}

// proof lets many wait for one request that the broker answers after everything written
// before it on the same channel.
type proof struct {
	mu      sync.Mutex
	running bool
	next    *wave
}

type wave struct {
	done chan struct{}
	err  error
}

// prove returns when the broker has read all that was written to the channel.
func (in *intake) prove(ctx context.Context) error {
	p := &in.proof
	p.mu.Lock()
	w := p.next
	if w == nil {
		w = &wave{done: make(chan struct{})}
		p.next = w
	}
	if !p.running {
		p.running = true
		go in.proveAll()
	}
	p.mu.Unlock()
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return fmt.Errorf("no answer on the queue's channel: %w", ctx.Err())
	}
}

func (in *intake) proveAll() {
	p := &in.proof
	for {
		p.mu.Lock()
		w := p.next
		p.next = nil
		if w == nil {
			p.running = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		// What it sets is what the last consumer was opened with.
		w.err = in.bounded(func() error {
			in.mu.Lock()
			n := in.prefetch
			in.mu.Unlock()
			return in.ch.Qos(n, 0, false)
		})
		close(w.done)
	}
}
