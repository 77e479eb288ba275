package natsdriver_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/natsdriver"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
)

func TestReplies(t *testing.T) {
	s := natstest.Start(t)
	drivertest.RunReplies(t, func(t *testing.T) drivers.Driver {
		d := open(t, s, natsdriver.Options{})
		t.Cleanup(func() { closeAll(t, d) })
		return d
	})
}

// Whoever may send a message must not be able to make the host publish anywhere.
func TestReplyGoesToInboxesOnly(t *testing.T) {
	s := natstest.Start(t)
	d := open(t, s, natsdriver.Options{})
	t.Cleanup(func() { closeAll(t, d) })
	q := openQueue(t, d, drivers.QueueOptions{})
	nc, js := client(t, s)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	all, err := nc.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	replier := q.(drivers.Replier)
	for _, subject := range []string{"$JS.API.STREAM.DELETE.ORDERS", "$SYS.REQ.SERVER.PING", "$KV.b.k", "guesthand.q.job", "guesthand.dead.q.1",
		"orders.new", "a b", "a.*", ">", "a..b", "a\r\nPUB x 0", "a\x00", strings.Repeat("a", 5000)} {
		err := replier.Reply(t.Context(), &drivers.Delivery{ID: "a", ReplyTo: subject}, drivers.Reply{Outcome: "success", Payload: []byte("forged")})
		if !errors.Is(err, drivers.ErrInvalid) {
			t.Errorf("%.40q: %v, want ErrInvalid", subject, err)
		}
	}
	err = replier.Reply(t.Context(), &drivers.Delivery{ID: "a\nb", ReplyTo: "answers.here"}, drivers.Reply{Outcome: "success", Payload: []byte("fine")})
	if err != nil {
		t.Errorf("a subject of nobody's stream: %v", err)
	}
	for {
		m, err := all.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if string(m.Data) == "forged" {
			t.Errorf("published to %s", m.Subject)
		}
		if m.Subject == "answers.here" {
			break
		}
	}
	err = replier.Reply(t.Context(), &drivers.Delivery{ReplyTo: nats.NewInbox()}, drivers.Reply{Payload: make([]byte, 2<<20)})
	if !errors.Is(err, drivers.ErrTooLarge) {
		t.Errorf("a large reply: %v", err)
	}
}
