package natsdriver_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/natsdriver"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
)

func open(t testing.TB, s *natstest.Server, o natsdriver.Options) *natsdriver.Driver {
	t.Helper()
	if o.URL == "" {
		o.URL = s.URL
	}
	d, err := natsdriver.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// client is a plain connection, as others have one.
func client(t testing.TB, s *natstest.Server) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

func publish(t testing.TB, s *natstest.Server, m *nats.Msg) {
	t.Helper()
	nc, js := client(t, s)
	defer nc.Close()
	if _, err := js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

func openQueue(t testing.TB, d *natsdriver.Driver, o drivers.QueueOptions) drivers.Queue {
	t.Helper()
	if o.Name == "" {
		o.Name = "q"
	}
	o.Create = true
	q, err := d.OpenQueue(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func closeAll(t testing.TB, c interface{ Close(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
}

func send(t testing.TB, q drivers.Queue, ms ...drivers.Message) {
	t.Helper()
	for _, err := range q.Send(t.Context(), ms) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func receive(t testing.TB, q drivers.Queue, n int) []*drivers.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var got []*drivers.Delivery
	for len(got) < n {
		ds, err := q.Receive(ctx, n-len(got))
		if err != nil {
			t.Fatalf("%d of %d received: %v", len(got), n, err)
		}
		got = append(got, ds...)
	}
	return got
}
