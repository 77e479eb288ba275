package host

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/engine"
)

// outbox is the queues that follow-up messages go to. It does not change once the host is open.
type outbox map[string]target

type target struct {
	queue      drivers.Queue
	keys       bool
	maxPayload int
}

func (o outbox) add(name string, q drivers.Queue) {
	info := q.Info()
	o[name] = target{q, info.Caps.Keys, info.MaxPayload}
}

// Check implements engine.Outbox.
func (o outbox) Check(queue string, m *drivers.Message) error {
	t, ok := o[queue]
	switch {
	case !ok:
		return &UnknownQueueError{Name: queue}
	case m.Key != "" && !t.keys:
		return fmt.Errorf("queue %s: a key is %w", queue, drivers.ErrUnsupported)
	case t.maxPayload > 0 && len(m.Payload) > t.maxPayload:
		return fmt.Errorf("queue %s: %w", queue, drivers.ErrTooLarge)
	}
	return nil
}

// parcel is what goes to one queue.
type parcel struct {
	to string
	q  drivers.Queue
	ms []drivers.Message
}

// follow publishes what a successful run wants to be sent. Unless all of it is confirmed, the
// run has not succeeded, and end says what it came to instead: what a broker refuses for good
// is the handler's failure; a broker that is away for longer than a settlement may take is
// nobody's, and the message runs again without having spent an attempt. A crash in between, or
// after a part was published, repeats messages: their ids are the same each time.
func (a *attempt) follow() (end abi.End, ok bool) {
	parcels := a.pack(time.Now())
	until := a.q.settle.deadline()
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		err := publish(ctx, parcels)
		if err == nil {
			return abi.End{}, true
		}
		text := "message_send: " + err.Error()
		switch {
		case refusedForGood(err):
			return abi.End{Cause: abi.Limit, Text: text}, false
		case errors.Is(err, drivers.ErrClosed), !time.Now().Add(wait).Before(until):
			a.q.log.Error("follow-up messages could not be sent, the message will run again", keyID, a.h.d.ID, keyJob, a.job, keyError, err)
			return abi.End{Cause: abi.Interrupted, Text: text}, false
		}
		time.Sleep(wait)
	}
}

// pack gives the messages ids, their parent and its trace, and sorts them by queue. Delays
// count from now.
func (a *attempt) pack(now time.Time) []parcel {
	var parcels []parcel
	at := map[string]int{}
	for i, s := range a.result.Sends {
		m := s.Message
		m.ID = a.h.d.ID + "." + strconv.Itoa(i)
		m.Headers = m.Headers.Clone()
		m.Headers.Set(abi.HeaderParent, a.h.d.ID)
		if trace, ok := a.h.call.Headers.Get(abi.HeaderTraceparent); ok { // as the run saw it
			if _, own := m.Headers.Get(abi.HeaderTraceparent); !own {
				m.Headers.Set(abi.HeaderTraceparent, trace)
			}
		}
		if s.Delay > 0 {
			m.NotBefore = now.Add(s.Delay)
		}
		k, known := at[s.Queue]
		if !known {
			k, at[s.Queue] = len(parcels), len(parcels)
			parcels = append(parcels, parcel{to: s.Queue, q: a.q.host.outbox[s.Queue].queue})
		}
		parcels[k].ms = append(parcels[k].ms, m)
	}
	return parcels
}

// publish sends what is still there, and leaves what was not confirmed.
func publish(ctx context.Context, parcels []parcel) (first error) {
	for i := range parcels {
		p := &parcels[i]
		if len(p.ms) == 0 {
			continue
		}
		left := p.ms[:0:0]
		for k, err := range p.q.Send(ctx, p.ms) {
			if err == nil {
				continue
			}
			left = append(left, p.ms[k])
			if first == nil {
				first = fmt.Errorf("%s to queue %s: %w", p.ms[k].Job, p.to, err)
			}
		}
		p.ms = left
	}
	return first
}

var _ engine.Outbox = outbox(nil)
