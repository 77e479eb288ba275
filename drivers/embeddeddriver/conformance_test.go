package embeddeddriver_test

import (
	"context"
	"sync"
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/embeddeddriver"
)

// store is an embedded broker that several workers of one process share: it starts with the
// first and ends with the last.
type store struct {
	dir string

	mu    sync.Mutex
	d     *embeddeddriver.Driver
	users int
}

// share is one worker's part: it closes what it opened.
type share struct {
	s *store
	*embeddeddriver.Driver

	mu     sync.Mutex
	queues []drivers.Queue
	closed bool
}

func (s *store) open(t *testing.T, worker string, _ drivertest.Tuning) drivers.Driver {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		d, err := embeddeddriver.Open(t.Context(), embeddeddriver.Options{Dir: s.dir, Worker: worker})
		if err != nil {
			t.Fatal(err)
		}
		s.d = d
	}
	s.users++
	return &share{s: s, Driver: s.d}
}

func (d *share) OpenQueue(ctx context.Context, o drivers.QueueOptions) (drivers.Queue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, drivers.ErrClosed
	}
	q, err := d.Driver.OpenQueue(ctx, o)
	if err == nil {
		d.queues = append(d.queues, q)
	}
	return q, err
}

func (d *share) Ping(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return drivers.ErrClosed
	}
	return d.Driver.Ping(ctx)
}

func (d *share) Close(ctx context.Context) error {
	d.mu.Lock()
	again := d.closed
	d.closed = true
	d.mu.Unlock()
	if again {
		return nil
	}
	for _, q := range d.queues {
		if err := q.Close(ctx); err != nil {
			return err
		}
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if d.s.users--; d.s.users > 0 {
		return nil
	}
	return d.s.d.Close(ctx)
}

func TestConformance(t *testing.T) {
	shared := &store{dir: t.TempDir()}
	drivertest.Run(t, func(t *testing.T, exclusive bool) *drivertest.Harness {
		s := shared
		if exclusive {
			s = &store{dir: t.TempDir()}
		}
		return &drivertest.Harness{Caps: embeddeddriver.Caps(), Open: s.open}
	})
}
