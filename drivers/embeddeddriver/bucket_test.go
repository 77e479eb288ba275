package embeddeddriver_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/embeddeddriver"
)

func openBroker(t testing.TB, dir string) *embeddeddriver.Driver {
	t.Helper()
	d, err := embeddeddriver.Open(t.Context(), embeddeddriver.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBroker(t, d) })
	return d
}

func closeBroker(t testing.TB, d *embeddeddriver.Driver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := d.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestBuckets(t *testing.T) {
	d := openBroker(t, t.TempDir())
	drivertest.RunBuckets(t, func(*testing.T) drivers.KeyValue { return d })
}

func TestReplies(t *testing.T) {
	d := openBroker(t, t.TempDir())
	drivertest.RunReplies(t, func(*testing.T) drivers.Driver { return d })
}

// Values are on the disk: they outlive the process.
func TestBucketsOutliveTheBroker(t *testing.T) {
	dir := t.TempDir()
	d := openBroker(t, dir)
	put := func(d *embeddeddriver.Driver, key string) {
		t.Helper()
		b, err := d.OpenBucket(t.Context(), drivers.BucketOptions{Name: "b", MaxKeys: 10, MaxBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Create(t.Context(), []byte(key), []byte("of "+key), time.Hour); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"first", key} {
			if v, err := b.Get(t.Context(), []byte(key)); err != nil || string(v) != "of "+key {
				t.Errorf("%s: %q, %v", key, v, err)
			}
		}
	}
	put(d, "first")
	closeBroker(t, d)
	put(openBroker(t, dir), "second")
}

// Who sends over the network is answered over the network.
func TestReplyToProducer(t *testing.T) {
	d, err := embeddeddriver.Open(t.Context(), embeddeddriver.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBroker(t, d) })
	q, err := d.OpenQueue(t.Context(), drivers.QueueOptions{Name: "q", Create: true, MaxOutstanding: 1})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("nats://" + d.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	inbox := nats.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg("guesthand.q.job")
	m.Header.Set(abi.HeaderReplyTo, inbox)
	if _, err := nc.RequestMsg(m, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	ds, err := q.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.(drivers.Replier).Reply(t.Context(), ds[0], drivers.Reply{Outcome: "success", Payload: []byte("done")}); err != nil {
		t.Fatal(err)
	}
	answer, err := sub.NextMsg(10 * time.Second)
	if err != nil || string(answer.Data) != "done" || answer.Header.Get(abi.HeaderOutcome) != "success" {
		t.Errorf("got %+v, %v", answer, err)
	}
}
