package host_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/memdriver"
	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/config"
)

// patient is a broker that answers with ctx's end, and mute, one that waits for it.
type patient struct {
	drivers.Driver
	mute bool
}

func (p patient) answer(ctx context.Context) error {
	if p.mute {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (p patient) Ping(ctx context.Context) error { return p.answer(ctx) }

func (p patient) OpenQueue(ctx context.Context, o drivers.QueueOptions) (drivers.Queue, error) {
	q, err := p.Driver.OpenQueue(ctx, o)
	return &stub{Queue: q, counts: func(ctx context.Context, _ drivers.Queue) (drivers.Counts, error) {
		return drivers.Counts{}, p.answer(ctx)
	}}, err
}

// A broker that does not answer must not make the others look as if they did not.
func TestOneMuteBroker(t *testing.T) {
	r := newRig(t, `
[brokers.a]
driver = "memory"
[brokers.z]
driver = "memory"
[queues.first]
broker = "a"
[queues.q]
broker = "b"
[queues.zlast]
broker = "z"
`)
	opener := func(_ context.Context, b config.Broker, _ host.OpenOptions) (drivers.Driver, error) {
		d, err := memdriver.Open(t.Context(), memdriver.Options{})
		return patient{d, b.Name == "b"}, err
	}
	h, err := host.New(t.Context(), host.Options{Config: r.parse(), Openers: map[string]host.Opener{"memory": opener}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if why := h.Unready(ctx); len(why) != 1 || !strings.Contains(why[0], "broker b does not answer") {
		t.Errorf("not ready because of %q", why)
	}
	ctx, cancel = context.WithTimeout(t.Context(), patience)
	defer cancel()
	qs, err := h.Queues(ctx)
	if err != nil || len(qs) != 3 || ctx.Err() != nil {
		t.Fatalf("%v, %v, %v", qs, err, ctx.Err())
	}
	for _, q := range qs {
		if (q.Error != "") != (q.Queue == "q") {
			t.Errorf("%s: %q", q.Queue, q.Error)
		}
	}
}
