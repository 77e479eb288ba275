package rabbitdriver_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/rabbitdriver"
	"github.com/guesthand/guesthand/drivers/rabbitdriver/rabbittest"
)

// TestConformance runs the suite twice, side by side so that both share the restarts of their
// node: first with quorum queues, then, as the cases with #01, with classic ones.
func TestConformance(t *testing.T) {
	var starting sync.WaitGroup // before the first case: their goroutines are no leak
	for _, n := range []*sharedNode{&plain, &restartable, &tuned} {
		starting.Go(n.start)
	}
	starting.Wait()
	drivertest.Run(t, harness("quorum", rabbitdriver.Caps()))
	drivertest.Run(t, harness("classic", rabbitdriver.ClassicCaps()))
}

// typed opens queues of a kind that the suite does not name.
type typed struct {
	*rabbitdriver.Driver
	kind  string
	queue drivers.Queue // the last opened
}

func (d *typed) OpenQueue(ctx context.Context, o drivers.QueueOptions) (drivers.Queue, error) {
	o.Names = map[string]string{"type": d.kind}
	q, err := d.Driver.OpenQueue(ctx, o)
	d.queue = q
	return q, err
}

// settled waits until a queue has given back what it was not asked for: on a channel that ends,
// that would count as stalled.
func (d *typed) settled(t *testing.T) {
	t.Helper()
	last, since := -1, time.Now()
	eventually(t, func() error {
		c, err := d.queue.Counts(t.Context())
		if errors.Is(err, drivers.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if c.InFlight != last {
			last, since = c.InFlight, time.Now()
		}
		// Twice what the driver waits before it ends a consumer.
		if time.Since(since) < 2*time.Second {
			return fmt.Errorf("in flight %d", last)
		}
		return nil
	})
}

func harness(kind string, caps drivers.Caps) drivertest.Opener {
	var mu sync.Mutex
	proxies := map[drivers.Driver]*rabbittest.Proxy{}
	return func(t *testing.T, exclusive bool) *drivertest.Harness {
		n := plain.get(t)
		h := &drivertest.Harness{Caps: caps, OwnInFlight: true, StallsOfHeld: true, Hammer: 600}
		var last *typed // of this case's drivers
		if exclusive {
			n = restartable.get(t)
			turns.join(t)
			h.Restart = func(t *testing.T) {
				last.settled(t)
				turns.wait(t, n.Restart)
			}
			if kind == "quorum" { // a classic queue forgets some acknowledgements: TestClassicKilled
				h.Kill = func(t *testing.T) {
					last.settled(t)
					turns.wait(t, func() error { return killUp(n) })
				}
			}
			h.Disconnect = func(t *testing.T, d drivers.Driver) {
				mu.Lock()
				p := proxies[d]
				mu.Unlock()
				d.(*typed).settled(t)
				p.Cut()
				eventually(t, func() error { return d.Ping(t.Context()) })
			}
		}
		h.Open = func(t *testing.T, worker string, o drivertest.Tuning) drivers.Driver {
			url, p := n.URL, (*rabbittest.Proxy)(nil)
			if exclusive {
				p = rabbittest.Through(t, n)
				url = p.URL
			}
			d := &typed{Driver: open(t, url, rabbitdriver.Options{Worker: worker, MaxDelay: o.MaxDelay}), kind: kind}
			mu.Lock()
			defer mu.Unlock()
			proxies[d], last = p, d
			return d
		}
		h.Die = func(_ *testing.T, d drivers.Driver) { d.(*typed).Abandon() }
		h.Native = func(t *testing.T, queue string, payload []byte, h drivers.Header) {
			table := amqp.Table{}
			for name, values := range h {
				if table[name] = values[0]; len(values) > 1 {
					var list []any
					for _, v := range values {
						list = append(list, v)
					}
					table[name] = list
				}
			}
			if err := channel(t, n.URL).PublishWithContext(t.Context(), "", "guesthand."+queue, true, false, amqp.Publishing{Headers: table, Body: payload}); err != nil {
				t.Fatal(err)
			}
		}
		return h
	}
}

func killUp(n *rabbittest.Node) error {
	if err := n.Kill(); err != nil {
		return err
	}
	return n.Up()
}

// turns lets cases that run at once share the restarts of their node: one happens when
// all of them wait for one.
var turns restarts

type restarts struct {
	mu      sync.Mutex
	members int
	waiting []chan error
	how     func() error
}

// join makes the test one of those to wait for, until it ends.
func (r *restarts) join(t *testing.T) {
	r.mu.Lock()
	r.members++
	r.mu.Unlock()
	t.Cleanup(func() {
		r.mu.Lock()
		r.members--
		r.mu.Unlock()
		r.run(false)
	})
}

func (r *restarts) wait(t *testing.T, how func() error) {
	t.Helper()
	done := make(chan error, 1)
	r.mu.Lock()
	r.waiting, r.how = append(r.waiting, done), how
	r.mu.Unlock()
	go r.run(false)
	var err error
	select {
	case err = <-done:
	case <-time.After(time.Minute): // one of the others hangs
		go r.run(true)
		err = <-done
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (r *restarts) run(now bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 || len(r.waiting) < r.members && !now {
		return
	}
	err := r.how()
	for _, done := range r.waiting {
		done <- err
	}
	r.waiting = nil
}
