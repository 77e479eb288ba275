package natsdriver_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/drivers/natsdriver"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
)

func open(t testing.TB, s *natstest.Server, o natsdriver.Options) *natsdriver.Driver {
	t.Helper()
	o.URL = s.URL
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
