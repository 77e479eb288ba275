package cfdriver_test

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/cfdriver"
	"github.com/guesthand/guesthand/drivers/cfdriver/cftest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Nearly all of a test's time is waiting for whole seconds to pass.
	if p := flag.Lookup("test.parallel"); p != nil {
		_ = flag.Set("test.parallel", "48") // a number is fine
	}
	os.Exit(m.Run())
}

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// options reach a server, with polls that tests need not wait for.
func options(url string, o cfdriver.Options) cfdriver.Options {
	o.URL, o.Account = url, cftest.Account
	if o.Token == "" {
		o.Token = cftest.Token
	}
	if o.FirstPoll == 0 {
		o.FirstPoll, o.LastPoll = 10*time.Millisecond, 100*time.Millisecond
	}
	if o.Logger == nil && testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return o
}

// open opens a driver that the test closes.
func open(t testing.TB, url string, o cfdriver.Options) *cfdriver.Driver {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d, err := cfdriver.Open(ctx, options(url, o))
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

// foreign opens every queue under a name that does not mark it as ours.
type foreign struct{ *cfdriver.Driver }

func (f foreign) OpenQueue(ctx context.Context, o drivers.QueueOptions) (drivers.Queue, error) {
	o.Names = map[string]string{cfdriver.NameQueue: "theirs-" + o.Name}
	return f.Driver.OpenQueue(ctx, o)
}

// bench is a server, a driver and a queue for one test.
type bench struct {
	testing.TB
	s *cftest.Server
	d *cfdriver.Driver
	q drivers.Queue
	// name is the queue's at the server.
	name string
}

// setting is how a test wants its bench.
type setting struct {
	cfdriver.Options
	lease   time.Duration
	foreign bool
}

const deadName = "dead-guesthand-q"

func newBench(t testing.TB, o setting) *bench {
	t.Helper()
	return benchOn(t, cftest.Start(t), o)
}

// benchOn is another worker on a server.
func benchOn(t testing.TB, s *cftest.Server, o setting) *bench {
	t.Helper()
	b := &bench{TB: t, s: s, d: open(t, s.URL, o.Options), name: "guesthand-q"}
	t.Cleanup(func() { closeAll(t, b.d) })
	var d drivers.Driver = b.d
	if o.foreign {
		d, b.name = foreign{b.d}, "theirs-q"
	}
	q, err := d.OpenQueue(context.Background(), drivers.QueueOptions{Name: "q", Lease: o.lease, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	b.q = q
	return b
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

func (b *bench) dead() drivers.DeadLetters { return b.q.(drivers.DeadLetters) }

func ack(d *drivers.Delivery) drivers.Settlement {
	return drivers.Settlement{Delivery: d, Verdict: drivers.Ack}
}

func requeue(d *drivers.Delivery, c drivers.Carry, delay time.Duration) drivers.Settlement {
	return drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: c, Delay: delay}
}

func bury(d *drivers.Delivery) drivers.Settlement {
	return drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Carry: d.Carry, Death: &drivers.Death{Reason: "it died", Outcome: "permanent"}}
}

// depth waits until that many are unfinished.
func (b *bench) depth(n int) {
	b.Helper()
	var c drivers.Counts
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var err error
		if c, err = b.q.Counts(context.Background()); err == nil && c.Depth == n {
			return
		}
	}
	b.Fatalf("counts %+v, want depth %d", c, n)
}

// logged collects the texts of log records.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
