package rabbitdriver_test

import (
	"context"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/rabbitdriver"
	"github.com/guesthand/guesthand/drivers/rabbitdriver/rabbittest"
)

func TestConformance(t *testing.T) { drivertest.Run(t, harness("quorum")) }

func TestConformanceClassic(t *testing.T) { drivertest.Run(t, harness("classic")) }

// typed opens queues of a kind that the suite does not name.
type typed struct {
	*rabbitdriver.Driver
	kind string
}

func (d typed) OpenQueue(ctx context.Context, o drivers.QueueOptions) (drivers.Queue, error) {
	o.Names = map[string]string{"type": d.kind}
	return d.Driver.OpenQueue(ctx, o)
}

func harness(kind string) drivertest.Opener {
	var mu sync.Mutex
	proxies := map[drivers.Driver]*rabbittest.Proxy{}
	return func(t *testing.T, exclusive bool) *drivertest.Harness {
		n := plain.get(t)
		h := &drivertest.Harness{Caps: rabbitdriver.Caps(), OwnInFlight: true, Hammer: 600}
		if exclusive {
			n = restartable.get(t)
			turns.join(t)
			h.Restart = func(t *testing.T) { turns.wait(t, n.Restart) }
			h.Kill = func(t *testing.T) { turns.wait(t, func() error { return killUp(n) }) }
			h.Disconnect = func(_ *testing.T, d drivers.Driver) {
				mu.Lock()
				defer mu.Unlock()
				proxies[d].Cut()
			}
		}
		h.Open = func(t *testing.T, worker string, o drivertest.Tuning) drivers.Driver {
			url, p := n.URL, (*rabbittest.Proxy)(nil)
			if exclusive {
				p = rabbittest.Through(t, n)
				url = p.URL
			}
			d := typed{open(t, url, rabbitdriver.Options{Worker: worker, MaxDelay: o.MaxDelay}), kind}
			mu.Lock()
			defer mu.Unlock()
			proxies[d] = p
			return d
		}
		h.Die = func(_ *testing.T, d drivers.Driver) { d.(typed).Abandon() }
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
