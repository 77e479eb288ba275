package sqsdriver_test

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/sqsdriver"
	"github.com/guesthand/guesthand/drivers/sqsdriver/sqstest"
)

func TestMain(m *testing.M) {
	sqstest.Credentials()
	flag.Parse()
	// Nearly all of a test's time is waiting for whole seconds to pass.
	if p := flag.Lookup("test.parallel"); p != nil {
		_ = flag.Set("test.parallel", "24") // a number is fine
	}
	os.Exit(m.Run())
}

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// open opens a driver that the test closes.
func open(t testing.TB, url string, o sqsdriver.Options) *sqsdriver.Driver {
	t.Helper()
	o.Endpoint = url
	if o.Wait == 0 {
		o.Wait = time.Second
	}
	if o.Logger == nil && testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d, err := sqsdriver.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func closeAll(t testing.TB, d drivers.Driver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := d.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// fifo opens every queue as a FIFO queue.
type fifo struct{ *sqsdriver.Driver }

func (f fifo) OpenQueue(ctx context.Context, o drivers.QueueOptions) (drivers.Queue, error) {
	o.Names = map[string]string{sqsdriver.NameQueue: "guesthand_" + o.Name + ".fifo"}
	return f.Driver.OpenQueue(ctx, o)
}

// bench is a server, a driver and a queue for one test.
type bench struct {
	testing.TB
	s *sqstest.Server
	d *sqsdriver.Driver
	q drivers.Queue
}

// setting is how a test wants its bench.
type setting struct {
	sqsdriver.Options
	lease time.Duration
	fifo  bool
	url   string // in place of the server's
}

func newBench(t testing.TB, o setting) *bench {
	t.Helper()
	s := sqstest.Start(t)
	s.WaitSecond(100 * time.Millisecond)
	return benchOn(t, s, o)
}

// benchOn is another worker on a server.
func benchOn(t testing.TB, s *sqstest.Server, o setting) *bench {
	t.Helper()
	url := s.URL
	if o.url != "" {
		url = o.url
	}
	b := &bench{TB: t, s: s, d: open(t, url, o.Options)}
	t.Cleanup(func() { closeAll(t, b.d) })
	b.q = b.open(drivers.QueueOptions{Lease: o.lease}, o.fifo)
	return b
}

func (b *bench) open(o drivers.QueueOptions, isFIFO bool) drivers.Queue {
	b.Helper()
	o.Name, o.Create = "q", true
	var d drivers.Driver = b.d
	if isFIFO {
		d = fifo{b.d}
	}
	q, err := d.OpenQueue(context.Background(), o)
	if err != nil {
		b.Fatal(err)
	}
	return q
}

func (b *bench) send(ms ...drivers.Message) {
	b.Helper()
	for i, err := range b.q.Send(context.Background(), ms) {
		if err != nil {
			b.Fatalf("send %s: %v", ms[i].ID, err)
		}
	}
}

func (b *bench) sendIDs(ids ...string) {
	b.Helper()
	for _, id := range ids {
		b.send(drivers.Message{ID: id, Job: "job", Payload: []byte(id)})
	}
}

// take receives exactly n.
func (b *bench) take(n int) []*drivers.Delivery {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var got []*drivers.Delivery
	for len(got) < n {
		ds, err := b.q.Receive(ctx, n-len(got))
		if err != nil {
			b.Fatalf("receive %d of %d: %v", len(got), n, err)
		}
		got = append(got, ds...)
	}
	return got
}

// nothing fails where a message comes within d.
func (b *bench) nothing(d time.Duration) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if ds, err := b.q.Receive(ctx, 1); err == nil {
		b.Fatalf("received %s", ds[0].ID)
	}
}

func (b *bench) settle(ss ...drivers.Settlement) []error {
	b.Helper()
	return b.q.Settle(context.Background(), ss)
}

// mustSettle settles without an error.
func (b *bench) mustSettle(ss ...drivers.Settlement) {
	b.Helper()
	for i, err := range b.settle(ss...) {
		if err != nil {
			b.Fatalf("%s of %s: %v", ss[i].Verdict, ss[i].Delivery.ID, err)
		}
	}
}

func ack(d *drivers.Delivery) drivers.Settlement {
	return drivers.Settlement{Delivery: d, Verdict: drivers.Ack}
}

// empty waits until nothing unfinished is left.
func (b *bench) empty() {
	b.Helper()
	var c drivers.Counts
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var err error
		if c, err = b.q.Counts(context.Background()); err == nil && c.Depth == 0 {
			return
		}
	}
	b.Fatalf("counts %+v, want depth 0", c)
}
