package rabbitdriver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/drivers"
)

// window is how many publications wait for their confirmation at most, by one caller.
const window = 256

// refusals is how often a message is offered that the broker refuses, and refusalWait the
// first pause between.
const (
	refusals    = 5
	refusalWait = 50 * time.Millisecond
)

var (
	errUnroutable  = errors.New("the broker has no such queue")
	errRefused     = errors.New("the broker refused the message")
	errUnconfirmed = errors.New("the broker's confirmation did not arrive")
	errBlocked     = errors.New("the broker takes no messages now")
)

// publication is a message on its way to a queue, through the default exchange.
type publication struct {
	queue string
	msg   amqp.Publishing
	err   error
	// optional ones may reach nobody.
	optional bool
	done     chan struct{}
}

// publisher publishes with confirmations, over one channel for the whole driver.
type publisher struct {
	d *Driver

	// sending is held while numbers are drawn and messages written, so that both agree.
	sending sync.Mutex
	mu      sync.Mutex
	cur     *outlet
	running sync.WaitGroup
}

// outlet is a channel's life.
type outlet struct {
	s  *session
	ch *amqp.Channel

	mu      sync.Mutex
	pending map[uint64]*publication
	ended   error // no more; why
}

func newPublisher(d *Driver) *publisher { return &publisher{d: d} }

// wait returns when the publisher's goroutines are done, which needs the connection to be.
func (p *publisher) wait() { p.running.Wait() }

// publish sends all and returns when each has its result, or ctx has ended: then those without
// an answer have an error, and may have arrived all the same. What the broker refuses it has
// not stored; a queue that was made a moment ago may do that, so it is asked again.
func (p *publisher) publish(ctx context.Context, ps []*publication) {
	for try := range refusals {
		for left := ps; len(left) > 0; {
			n := min(window, len(left))
			p.publishSome(ctx, left[:n])
			left = left[n:]
		}
		var refused []*publication
		for _, m := range ps {
			if errors.Is(m.err, errRefused) {
				refused = append(refused, m)
			}
		}
		if len(refused) == 0 || try == refusals-1 {
			return
		}
		pause(ctx, refusalWait<<try)
		if ctx.Err() != nil {
			return
		}
		for _, m := range refused {
			m.err, m.done = nil, nil
		}
		ps = refused
	}
}

func (p *publisher) publishSome(ctx context.Context, ps []*publication) {
	o, err := p.outlet(ctx)
	if err == nil {
		err = p.write(ctx, o, ps)
	}
	for _, m := range ps {
		if m.done == nil { // it was not written
			m.err = err
			continue
		}
		select {
		case <-m.done:
		case <-ctx.Done():
			o.abandon(m, fmt.Errorf("%w: %w", errUnconfirmed, ctx.Err()))
		case <-o.s.ended:
			<-m.done // the outlet ends with its session
		}
	}
}

// write hands messages to the broker. The ones that it does not get to have no done channel.
// Writing may wait for the socket, so the connection is closed where that takes too long.
func (p *publisher) write(ctx context.Context, o *outlet, ps []*publication) error {
	timer := time.AfterFunc(callWait, o.s.kill)
	defer timer.Stop()
	p.sending.Lock()
	defer p.sending.Unlock()
	for _, m := range ps {
		if err := ctx.Err(); err != nil {
			return err
		}
		tag := o.ch.GetNextPublishSeqNo()
		if !o.expect(tag, m) {
			return errUnconfirmed
		}
		if _, err := o.ch.PublishWithDeferredConfirm("", m.queue, !m.optional, false, m.msg); err != nil {
			o.forget(tag)
			m.done = nil
			return err
		}
	}
	return nil
}

// outlet returns the channel in use, or opens one.
func (p *publisher) outlet(ctx context.Context) (*outlet, error) {
	s, err := p.d.publishing.get(ctx)
	if err != nil {
		return nil, err
	}
	if why := s.blocked.Load(); why != nil {
		return nil, fmt.Errorf("%w: %s", errBlocked, *why)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cur != nil && p.cur.s == s && p.cur.usable() {
		return p.cur, nil
	}
	ch, err := s.channel(ctx)
	if err != nil {
		return nil, err
	}
	o := &outlet{s: s, ch: ch, pending: map[uint64]*publication{}}
	returns := ch.NotifyReturn(make(chan amqp.Return, window))
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, window))
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	p.running.Go(func() { o.listen(returns, confirms, closes) })
	if err := s.call(ctx, func() error { return ch.Confirm(false) }); err != nil {
		go s.closeChannel(ch)
		return nil, err
	}
	p.cur = o
	return o, nil
}

func (o *outlet) usable() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended == nil
}

// expect notes a publication before it is written.
func (o *outlet) expect(tag uint64, m *publication) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended != nil {
		return false
	}
	m.done = make(chan struct{})
	o.pending[tag] = m
	return true
}

func (o *outlet) forget(tag uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.pending, tag)
}

// abandon gives a publication its error, unless the answer came just now.
func (o *outlet) abandon(m *publication, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for tag, other := range o.pending {
		if other == m {
			delete(o.pending, tag)
			m.err = err
			close(m.done)
		}
	}
}

// listen settles publications until the channel ends. The library puts a return into its
// channel before the confirmation of the same message, so whoever reads a confirmation finds
// every return that belongs to it.
func (o *outlet) listen(returns <-chan amqp.Return, confirms <-chan amqp.Confirmation, closes <-chan *amqp.Error) {
	for {
		select {
		case r, ok := <-returns:
			if !ok {
				returns = nil
				continue
			}
			o.returned(&r)
		case c, ok := <-confirms:
			if !ok {
				err, told := <-closes
				if !told {
					err = nil
				}
				o.end(err)
				return
			}
			for drained := false; !drained; {
				select {
				case r, ok := <-returns:
					if drained = !ok; ok {
						o.returned(&r)
					} else {
						returns = nil
					}
				default:
					drained = true
				}
			}
			o.confirmed(c)
		}
	}
}

// returned marks what could not be routed. A return does not name the publication; its queue
// and message id do well enough, since a wrong error costs a repetition only.
func (o *outlet) returned(r *amqp.Return) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range o.pending {
		if m.queue == r.RoutingKey && m.msg.MessageId == r.MessageId {
			m.err = fmt.Errorf("%w: %s (%s)", errUnroutable, m.queue, r.ReplyText)
		}
	}
}

func (o *outlet) confirmed(c amqp.Confirmation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.pending[c.DeliveryTag]
	if m == nil {
		return
	}
	delete(o.pending, c.DeliveryTag)
	if !c.Ack && m.err == nil {
		m.err = errRefused
	}
	close(m.done)
}

// end gives all that have no answer an error. A channel that the broker closes for a
// precondition met a message that is too large: nothing else that is published here can be
// refused like that. It is the largest of those on their way.
func (o *outlet) end(why *amqp.Error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = errUnconfirmed
	var largest *publication
	if why != nil {
		o.ended = fmt.Errorf("%w: %w", errUnconfirmed, why)
		if why.Code == amqp.PreconditionFailed {
			for _, m := range o.pending {
				if largest == nil || len(m.msg.Body) > len(largest.msg.Body) {
					largest = m
				}
			}
		}
	}
	for tag, m := range o.pending {
		delete(o.pending, tag)
		m.err = o.ended
		if m == largest {
			m.err = fmt.Errorf("%d bytes: %w: %w", len(m.msg.Body), drivers.ErrTooLarge, why)
		}
		close(m.done)
	}
}
