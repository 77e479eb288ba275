package drivertest_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/memdriver"
)

// lesser is a broker in memory that can do less than memdriver, and more than vanish with
// its process, so that the suite's other branches run without a real broker.
type lesser struct {
	*memdriver.Driver
	b      *lesserBroker
	tuning drivertest.Tuning
}

type lesserBroker struct {
	caps drivers.Caps
	mem  *memdriver.Driver

	mu       sync.Mutex
	created  map[string]bool
	rejected map[string][]drivers.Tally
}

func (d *lesser) OpenQueue(ctx context.Context, o drivers.QueueOptions) (drivers.Queue, error) {
	d.b.mu.Lock()
	defer d.b.mu.Unlock()
	if !o.Create && !d.b.created[o.Name] {
		return nil, errors.New("no queue " + o.Name)
	}
	q, err := d.Driver.OpenQueue(ctx, o)
	if err != nil {
		return nil, err
	}
	d.b.created[o.Name] = true
	return &lesserQueue{Queue: q, DeadLetters: q.(drivers.DeadLetters), d: d, name: o.Name}, nil
}

type lesserQueue struct {
	drivers.Queue
	drivers.DeadLetters
	d    *lesser
	name string
}

func (q *lesserQueue) Info() drivers.Info {
	info := q.Queue.Info()
	info.Caps = q.d.b.caps
	if q.d.tuning.MaxDelay > 0 {
		info.Caps.MaxDelay = q.d.tuning.MaxDelay
	}
	return info
}

func (q *lesserQueue) Counts(ctx context.Context) (drivers.Counts, error) {
	c, err := q.Queue.Counts(ctx)
	c.InFlight, c.Delayed = c.InFlight+c.Delayed, 0
	return c, err
}

func (q *lesserQueue) Send(ctx context.Context, ms []drivers.Message) []error {
	errs := make([]error, len(ms))
	for i, m := range ms {
		if errs[i] = drivers.ErrUnsupported; m.Key == "" {
			errs[i] = q.Queue.Send(ctx, ms[i:i+1])[0]
		}
	}
	return errs
}

// Settle keeps what was rejected.
func (q *lesserQueue) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	errs := q.Queue.Settle(ctx, ss)
	for i, s := range ss {
		if s.Verdict == drivers.Reject && errs[i] == nil {
			q.d.b.mu.Lock()
			q.d.b.rejected[q.name] = append(q.d.b.rejected[q.name], s.Carry.Tally)
			q.d.b.mu.Unlock()
		}
	}
	return errs
}

// native sends with no headers but those given, though memdriver adds its own.
func (b *lesserBroker) native(t *testing.T, queue string, payload []byte, h drivers.Header) {
	q, err := b.mem.OpenQueue(t.Context(), drivers.QueueOptions{Name: queue, SendOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	m := drivers.Message{Job: "subject", Headers: h, Payload: payload}
	for _, name := range []string{abi.HeaderCEID, abi.HeaderID} {
		if v, ok := h.Get(name); ok {
			m.ID = v
		}
	}
	for _, name := range []string{abi.HeaderCEType, abi.HeaderJob} {
		if v, ok := h.Get(name); ok {
			m.Job = v
		}
	}
	if err := q.Send(t.Context(), []drivers.Message{m})[0]; err != nil {
		t.Fatal(err)
	}
	if err := q.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestSuiteOnLesserBroker(t *testing.T) {
	drivertest.RunSynctest(t, func(t *testing.T, _ bool) *drivertest.Harness {
		mem, err := memdriver.Open(t.Context(), memdriver.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		b := &lesserBroker{mem: mem, created: map[string]bool{}, rejected: map[string][]drivers.Tally{}}
		b.caps = memdriver.Caps()
		b.caps.Durable, b.caps.Keys, b.caps.Fenced, b.caps.RejectCounted = true, false, false, true
		b.caps.MaxDelay = abi.MaxDelay
		nothing := func(*testing.T) {}
		return &drivertest.Harness{
			Caps: b.caps,
			Open: func(_ *testing.T, worker string, o drivertest.Tuning) drivers.Driver {
				return &lesser{Driver: mem.Join(worker), b: b, tuning: o}
			},
			Restart: nothing, Kill: nothing, Disconnect: func(*testing.T, drivers.Driver) {},
			Native:          b.native,
			Rejected:        func(_ *testing.T, queue string) []drivers.Tally { return b.rejected[queue] },
			DelayedInFlight: true,
		}
	})
}
