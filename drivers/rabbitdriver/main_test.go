package rabbitdriver_test

import (
	"context"
	"flag"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/rabbitdriver"
	"github.com/guesthand/guesthand/drivers/rabbitdriver/rabbittest"
)

// TestMain lets many tests wait at once: they share nodes, whose start takes seconds, and
// each other's restarts.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("32"); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	for _, n := range []*sharedNode{&plain, &restartable, &tuned} {
		n.end()
	}
	os.Exit(code)
}

// The nodes that tests share: one that nobody disturbs, one that is restarted, and one with
// small limits.
var (
	plain       sharedNode
	restartable sharedNode
	tuned       = sharedNode{o: rabbittest.Options{
		Config: "max_message_size = 262144\nconsumer_timeout = 2000",
		Erlang: "-rabbit channel_tick_interval 500",
	}}
)

type sharedNode struct {
	o    rabbittest.Options
	once sync.Once
	node *rabbittest.Node
	err  error
}

func (s *sharedNode) get(t testing.TB) *rabbittest.Node {
	t.Helper()
	if _, err := rabbittest.Find(); err != nil {
		t.Skip(err)
	}
	s.start()
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.node
}

func (s *sharedNode) start() { s.once.Do(func() { s.node, s.err = rabbittest.New(s.o) }) }

func (s *sharedNode) end() {
	if s.node != nil {
		_ = s.node.Remove() // the process ends now
	}
}

func open(t testing.TB, url string, o rabbitdriver.Options) *rabbitdriver.Driver {
	t.Helper()
	o.URL = url
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d, err := rabbitdriver.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// opened is open, closed at the end of the test.
func opened(t testing.TB, url string, o rabbitdriver.Options) *rabbitdriver.Driver {
	t.Helper()
	d := open(t, url, o)
	t.Cleanup(func() { closeAll(t, d) })
	return d
}

func closeAll(t testing.TB, c interface{ Close(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// queueName makes the test's name a queue's.
func queueName(t testing.TB) string {
	name := strings.ToLower(strings.NewReplacer("/", "-", "Test", "").Replace(t.Name()))
	return name[max(0, len(name)-40):]
}

func openQueue(t testing.TB, d drivers.Driver, o drivers.QueueOptions) drivers.Queue {
	t.Helper()
	if o.Name == "" {
		o.Name, o.Create = queueName(t), true
	}
	q, err := d.OpenQueue(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func send(t testing.TB, q drivers.Queue, ms ...drivers.Message) {
	t.Helper()
	for i, err := range q.Send(t.Context(), ms) {
		if err != nil {
			t.Fatalf("send %d: %v", i, err)
		}
	}
}

func take(t testing.TB, q drivers.Queue, n int) (ds []*drivers.Delivery) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(ds) < n {
		more, err := q.Receive(ctx, n-len(ds))
		if err != nil {
			t.Fatalf("receive %d, have %d: %v", n, len(ds), err)
		}
		ds = append(ds, more...)
	}
	return ds
}

func settle(t testing.TB, q drivers.Queue, ss ...drivers.Settlement) {
	t.Helper()
	for i, err := range q.Settle(t.Context(), ss) {
		if err != nil {
			t.Fatalf("settle %d: %v", i, err)
		}
	}
}

func ack(t testing.TB, q drivers.Queue, ds ...*drivers.Delivery) {
	t.Helper()
	ss := make([]drivers.Settlement, len(ds))
	for i, d := range ds {
		ss[i] = drivers.Settlement{Delivery: d, Verdict: drivers.Ack}
	}
	settle(t, q, ss...)
}

// channel is a channel of the plain client library.
func channel(t testing.TB, url string) *amqp.Channel {
	t.Helper()
	c, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // the node may be gone already
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// eventually polls until ok, which returns what is not yet right.
func eventually(t testing.TB, ok func() error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
