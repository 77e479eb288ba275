package natsdriver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/natsdriver"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
)

// logBuffer keeps what is logged.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func logTo() (*slog.Logger, *logBuffer) {
	l := &logBuffer{}
	return slog.New(slog.NewTextHandler(l, nil)), l
}

// opened is a driver that is closed with the test, and its queue q.
func opened(t *testing.T, s *natstest.Server, o natsdriver.Options, qo drivers.QueueOptions) drivers.Queue {
	t.Helper()
	d := open(t, s, o)
	t.Cleanup(func() { closeAll(t, d) })
	return openQueue(t, d, qo)
}

func settle(t *testing.T, q drivers.Queue, ss ...drivers.Settlement) {
	t.Helper()
	for i, err := range q.Settle(t.Context(), ss) {
		if err != nil {
			t.Fatalf("%s of %s: %v", ss[i].Verdict, ss[i].Delivery.ID, err)
		}
	}
}

func requeue(d *drivers.Delivery, tally drivers.Tally) drivers.Settlement {
	return drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: drivers.Carry{Tally: tally}}
}

func bury(d *drivers.Delivery) drivers.Settlement {
	return drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Carry: d.Carry, Death: &drivers.Death{Reason: "test"}}
}

func ack(d *drivers.Delivery) drivers.Settlement {
	return drivers.Settlement{Delivery: d, Verdict: drivers.Ack}
}

// nothing fails where a message comes within d.
func nothing(t *testing.T, q drivers.Queue, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if ds, err := q.Receive(ctx, 10); len(ds) > 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%d messages, %v", len(ds), err)
	}
}

// eventually waits for the server's own figures.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time: " + what)
		}
	}
}

func TestOldServerIsRefused(t *testing.T) {
	s := natstest.StartWith(t, natstest.Options{Binary: natstest.Old(t)})
	_, err := natsdriver.Open(t.Context(), natsdriver.Options{URL: s.URL})
	if err == nil || !strings.Contains(err.Error(), natsdriver.MinimumServer) || !strings.Contains(err.Error(), "2.9.") {
		t.Fatalf("got %v, want an error that names both versions", err)
	}
}

func TestOpenWithoutServer(t *testing.T) {
	_, err := natsdriver.Open(t.Context(), natsdriver.Options{URL: "nats://user:secret@127.0.0.1:1"})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || strings.Contains(err.Error(), "secret") {
		t.Fatalf("got %v, want the address without the password", err)
	}
}

func TestNames(t *testing.T) {
	s := natstest.Start(t)
	d := open(t, s, natsdriver.Options{})
	t.Cleanup(func() { closeAll(t, d) })
	for _, c := range []struct {
		o    drivers.QueueOptions
		want string
	}{
		{drivers.QueueOptions{Name: "dead"}, "rename the queue"},
		{drivers.QueueOptions{Name: "a.b"}, "name"},
		{drivers.QueueOptions{Name: ""}, "name"},
		{drivers.QueueOptions{Name: "q", Names: map[string]string{"steam": "x"}}, `"steam"`},
		{drivers.QueueOptions{Name: "q", Names: map[string]string{"stream": ""}}, "empty"},
		{drivers.QueueOptions{Name: "q", Names: map[string]string{"stream": "a.b"}}, "stream"},
		{drivers.QueueOptions{Name: "q", Names: map[string]string{"subject": "a..b"}}, "subject"},
		{drivers.QueueOptions{Name: "q", Names: map[string]string{"dead_stream": "guesthand_q"}}, "both"},
	} {
		c.o.Create = true
		if _, err := d.OpenQueue(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}

// TestConsumerMadeAgain: a new consumer counts deliveries from one again, and the tally
// says what is true.
func TestConsumerMadeAgain(t *testing.T) {
	s := natstest.Start(t)
	log, said := logTo()
	q := opened(t, s, natsdriver.Options{Logger: log}, drivers.QueueOptions{})
	send(t, q, drivers.Message{ID: "m", Job: "job"}, drivers.Message{ID: "other", Job: "job"})
	ds := receive(t, q, 2)
	settle(t, q, requeue(ds[0], drivers.Tally{Failures: 1, Delays: 2}), requeue(ds[1], drivers.Tally{}))
	_, js := client(t, s)
	if err := js.DeleteConsumer(t.Context(), "guesthand_q", "guesthand"); err != nil {
		t.Fatal(err)
	}
	for _, d := range receive(t, q, 2) {
		want := drivers.Tally{}
		if d.ID == "m" {
			want = drivers.Tally{Failures: 1, Delays: 2}
		}
		if d.Carry.Tally != want || d.Stalled != 0 {
			t.Errorf("%s: %+v, stalled %d", d.ID, d.Carry.Tally, d.Stalled)
		}
		settle(t, q, ack(d))
	}
	if !strings.Contains(said.String(), "made again") {
		t.Errorf("nothing said about it: %s", said)
	}
}

// TestStreamMadeAgain: sequence numbers repeat, and neither tallies, dead letters nor the
// memory of acknowledged messages are mixed up.
func TestStreamMadeAgain(t *testing.T) {
	s := natstest.Start(t)
	q := opened(t, s, natsdriver.Options{}, drivers.QueueOptions{})
	_, js := client(t, s)
	for round := range 3 {
		ids := []string{fmt.Sprint("dead", round), fmt.Sprint("acked", round), fmt.Sprint("failed", round)}
		for _, id := range ids {
			eventually(t, "send "+id, func() bool {
				return q.Send(t.Context(), []drivers.Message{{ID: id, Job: "job"}})[0] == nil
			})
		}
		ds := receive(t, q, 3)
		for i, d := range ds {
			if d.ID != ids[i] || d.Carry.Attempt() != 1 {
				t.Fatalf("round %d: got %s with %+v", round, d.ID, d.Carry.Tally)
			}
		}
		settle(t, q, bury(ds[0]), ack(ds[1]), requeue(ds[2], drivers.Tally{Failures: 5}))
		if err := js.DeleteStream(t.Context(), "guesthand_q"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if got, err := q.Receive(ctx, 1); err == nil && got[0].ID != ids[2] {
			t.Errorf("received %s", got[0].ID)
		}
		cancel()
	}
	dead, err := q.(drivers.DeadLetters).ListDead(t.Context(), "", 10)
	if err != nil || len(dead) != 3 {
		t.Fatalf("%d dead letters, %v", len(dead), err)
	}
	for i, d := range dead {
		if d.ID != fmt.Sprint("dead", i) {
			t.Errorf("dead letter %d is %s", i, d.ID)
		}
	}
}

// foreign makes a stream as others have one.
func foreign(t *testing.T, s *natstest.Server, c jetstream.StreamConfig) jetstream.JetStream {
	t.Helper()
	_, js := client(t, s)
	if _, err := js.CreateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return js
}

var orders = drivers.QueueOptions{Names: map[string]string{"stream": "ORDERS"}}

func TestForeignStream(t *testing.T) {
	s := natstest.Start(t)
	js := foreign(t, s, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, MaxAge: time.Hour, MaxMsgs: 1000})
	q := opened(t, s, natsdriver.Options{}, orders)
	for _, m := range []*nats.Msg{
		{Subject: "orders.eu.new", Data: []byte("1")},
		{Subject: "orders.x", Data: []byte("2"), Header: nats.Header{"ce-type": {"order.paid"}, "ce-id": {"e1"}}},
		{Subject: "orders.x", Data: []byte("3"), Header: nats.Header{"Guesthand-Job": {"resize"}, "ce-type": {"other"}}},
	} {
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	ds := receive(t, q, 3)
	var got []string
	for _, d := range ds {
		got = append(got, d.ID+" "+d.Job)
	}
	if want := []string{"ORDERS:1 eu.new", "e1 order.paid", "ORDERS:3 resize"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	settle(t, q, ack(ds[0]), bury(ds[1]), requeue(ds[2], drivers.Tally{Failures: 1}))
	again := receive(t, q, 1)[0]
	if again.Carry.Failures != 1 || again.Job != "resize" {
		t.Errorf("%+v", again)
	}
	dl := q.(drivers.DeadLetters)
	dead, err := dl.GetDead(t.Context(), "e1")
	if err != nil || len(dead) != 1 || dead[0].Job != "order.paid" {
		t.Fatalf("dead letters %+v, %v", dead, err)
	}
	if err := dl.ReplayDead(t.Context(), dead[0].Entry); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, q, 1)[0]; d.ID != "e1" || d.Job != "order.paid" || string(d.Payload) != "2" {
		t.Errorf("replayed: %+v", d)
	}
	info := q.Info()
	if info.Retention != time.Hour {
		t.Errorf("retention %s", info.Retention)
	}
	for _, want := range []string{"older than 1h0m0s", "reaches its limits", "retention limits"} {
		if !slices.ContainsFunc(info.Findings, func(f drivers.Finding) bool { return strings.Contains(f.Text, want) }) {
			t.Errorf("no finding with %q in %+v", want, info.Findings)
		}
	}
	stream, err := js.Stream(t.Context(), "ORDERS")
	if err != nil || stream.CachedInfo().Config.MaxMsgs != 1000 {
		t.Errorf("the stream was altered: %v", err)
	}
}

// TestForeignConsumerGone: on a stream that keeps everything a new consumer would run all of
// it again.
func TestForeignConsumerGone(t *testing.T) {
	s := natstest.Start(t)
	js := foreign(t, s, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	q := opened(t, s, natsdriver.Options{}, orders)
	send(t, q, drivers.Message{ID: "m", Job: "job"})
	settle(t, q, ack(receive(t, q, 1)[0]))
	if err := js.DeleteConsumer(t.Context(), "ORDERS", "guesthand"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if ds, err := q.Receive(ctx, 1); err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "start sequence") {
		t.Errorf("%d messages, %v", len(ds), err)
	}
	d := open(t, s, natsdriver.Options{})
	t.Cleanup(func() { closeAll(t, d) })
	o := orders
	o.Name, o.Create = "q", true
	if _, err := d.OpenQueue(t.Context(), o); err == nil || !strings.Contains(err.Error(), "start sequence") {
		t.Errorf("opened again: %v", err)
	}
}

// TestForgottenAcks: a killed server forgets what a limits stream's consumer acknowledged in its
// last moments; this host does not run it again.
func TestForgottenAcks(t *testing.T) {
	s := natstest.Start(t)
	foreign(t, s, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	o := orders
	o.Lease = 2 * time.Second
	q := opened(t, s, natsdriver.Options{}, o)
	ms := make([]drivers.Message, 200)
	for i := range ms {
		ms[i] = drivers.Message{ID: fmt.Sprint(i), Job: "job"}
	}
	send(t, q, ms...)
	var ss []drivers.Settlement
	for _, d := range receive(t, q, len(ms)) {
		ss = append(ss, ack(d))
	}
	settle(t, q, ss...)
	s.Kill()
	s.Restart()
	eventually(t, "empty queue", func() bool {
		nothing(t, q, 200*time.Millisecond)
		c, err := q.Counts(t.Context())
		return err == nil && c.Depth == 0
	})
}

func TestForeignConsumerFindings(t *testing.T) {
	s := natstest.Start(t)
	js := foreign(t, s, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	if _, err := js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{
		Durable: "theirs", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 7 * time.Second,
		MaxDeliver: 4, BackOff: []time.Duration{3 * time.Second, 9 * time.Second}, MaxAckPending: 20,
	}); err != nil {
		t.Fatal(err)
	}
	q := opened(t, s, natsdriver.Options{}, drivers.QueueOptions{Names: map[string]string{"stream": "ORDERS", "consumer": "theirs"}})
	if l := q.Info().Lease; l != 3*time.Second {
		t.Errorf("lease %s", l)
	}
	if got, want := q.Info().DeliveryLimit, (drivers.DeliveryLimit{Deliveries: 4, Setting: "max_deliver of consumer theirs"}); got != want {
		t.Errorf("delivery limit %+v, want %+v", got, want)
	}
	for _, want := range []string{"back-off", "max_ack_pending", "lease"} {
		if !slices.ContainsFunc(q.Info().Findings, func(f drivers.Finding) bool { return f.Warning && strings.Contains(f.Text, want) }) {
			t.Errorf("no warning with %q in %+v", want, q.Info().Findings)
		}
	}
}

// TestNewerTally: what a newer host wrote is neither read nor replaced.
func TestNewerTally(t *testing.T) {
	s := natstest.Start(t)
	log, said := logTo()
	q := opened(t, s, natsdriver.Options{Logger: log}, drivers.QueueOptions{})
	send(t, q, drivers.Message{ID: "m", Job: "job"})
	settle(t, q, drivers.Settlement{Delivery: receive(t, q, 1)[0], Verdict: drivers.Requeue, Delay: 500 * time.Millisecond})
	_, js := client(t, s)
	kv, err := js.KeyValue(t.Context(), "guesthand-tally_q")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := kv.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	key := keys[slices.IndexFunc(keys, func(k string) bool { return !strings.HasSuffix(k, "birth") })]
	newer := []byte(`{"v":2,"f":"seven"}`)
	if _, err := kv.Put(t.Context(), key, newer); err != nil {
		t.Fatal(err)
	}
	nothing(t, q, 2*time.Second)
	e, err := kv.Get(t.Context(), key)
	if err != nil || !bytes.Equal(e.Value(), newer) {
		t.Errorf("the tally is now %s, %v", e.Value(), err)
	}
	if !strings.Contains(said.String(), "newer version") {
		t.Errorf("nothing said about it: %s", said)
	}
}

// TestTallyIsRemoved: a finished message leaves nothing in the bucket.
func TestTallyIsRemoved(t *testing.T) {
	s := natstest.Start(t)
	q := opened(t, s, natsdriver.Options{}, drivers.QueueOptions{})
	_, js := client(t, s)
	ends := []func(*drivers.Delivery) drivers.Settlement{ack, bury, func(d *drivers.Delivery) drivers.Settlement {
		return drivers.Settlement{Delivery: d, Verdict: drivers.Reject, Reason: "no"}
	}}
	for _, end := range ends {
		send(t, q, drivers.Message{Job: "job"})
		settle(t, q, requeue(receive(t, q, 1)[0], drivers.Tally{Failures: 1}))
		settle(t, q, end(receive(t, q, 1)[0]))
		info, err := js.Stream(t.Context(), "KV_guesthand-tally_q")
		if err != nil {
			t.Fatal(err)
		}
		if n := info.CachedInfo().State.Msgs; n != 1 { // the birth mark
			t.Errorf("%d records are left", n)
		}
	}
}

// TestUnaskedIsGivenBack: what arrives for a worker that stopped asking goes to another, and
// counts nothing.
func TestUnaskedIsGivenBack(t *testing.T) {
	s := natstest.Start(t)
	a := opened(t, s, natsdriver.Options{}, drivers.QueueOptions{})
	b := opened(t, s, natsdriver.Options{}, drivers.QueueOptions{})
	send(t, a, drivers.Message{ID: "first", Job: "job"})
	ds, err := a.Receive(t.Context(), 50)
	if err != nil || len(ds) != 1 {
		t.Fatalf("%d messages, %v", len(ds), err)
	}
	ms := make([]drivers.Message, 20)
	for i := range ms {
		ms[i] = drivers.Message{ID: fmt.Sprint(i), Job: "job"}
	}
	send(t, a, ms...)
	for _, d := range receive(t, b, len(ms)) {
		if d.Carry.Attempt() != 1 || d.Stalled != 0 {
			t.Errorf("%s: %+v, stalled %d", d.ID, d.Carry.Tally, d.Stalled)
		}
		settle(t, b, ack(d))
	}
}

// TestLongDelayHops: with a small limit a long delay takes several steps, none of which counts.
func TestLongDelayHops(t *testing.T) {
	s := natstest.Start(t)
	q := opened(t, s, natsdriver.Options{MaxDelay: 200 * time.Millisecond}, drivers.QueueOptions{})
	if got := q.Info().Caps.MaxDelay; got != 200*time.Millisecond {
		t.Errorf("Caps.MaxDelay %s", got)
	}
	start := time.Now()
	send(t, q, drivers.Message{ID: "sent", Job: "job", NotBefore: start.Add(time.Second)}, drivers.Message{ID: "delayed", Job: "job"})
	want := drivers.Tally{Delays: 1}
	st := requeue(receive(t, q, 1)[0], want)
	st.Delay = time.Second
	settle(t, q, st)
	for _, d := range receive(t, q, 2) {
		if early := time.Until(start.Add(time.Second)); early > 5*time.Millisecond {
			t.Errorf("%s came %s early", d.ID, early)
		}
		if d.ID == "sent" {
			want = drivers.Tally{}
		}
		if d.ID == "delayed" {
			want = drivers.Tally{Delays: 1}
		}
		if d.Carry.Tally != want || d.Stalled != 0 {
			t.Errorf("%s: %+v, stalled %d", d.ID, d.Carry.Tally, d.Stalled)
		}
	}
}

// TestBrokenHeaders: a header block that is none neither loops nor is lost.
func TestBrokenHeaders(t *testing.T) {
	s := natstest.Start(t)
	q := opened(t, s, natsdriver.Options{}, drivers.QueueOptions{})
	raw(t, s, "guesthand.q.job", "NATS/1.0\r\nno colon here\r\n\r\n", "payload")
	d := receive(t, q, 1)[0]
	if d.Broken == "" || string(d.Payload) != "payload" || d.Job != "job" {
		t.Fatalf("%+v", d)
	}
	settle(t, q, bury(d))
	dead, err := q.(drivers.DeadLetters).ListDead(t.Context(), "", 10)
	if err != nil || len(dead) != 1 || string(dead[0].Payload) != "payload" || dead[0].Job != "job" || dead[0].ID != d.ID {
		t.Fatalf("%+v, %v", dead, err)
	}
	if err := q.(drivers.DeadLetters).ReplayDead(t.Context(), dead[0].Entry); err != nil {
		t.Fatal(err)
	}
	if again := receive(t, q, 1)[0]; again.Broken != "" || again.ID != d.ID || string(again.Payload) != "payload" {
		t.Fatalf("%+v", again)
	}
}

// raw publishes bytes no client library would send.
func raw(t *testing.T, s *natstest.Server, subject, header, payload string) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := fmt.Fprintf(c, "CONNECT {\"headers\":true,\"verbose\":false}\r\nHPUB %s %d %d\r\n%s%s\r\nPING\r\n",
		subject, len(header), len(header)+len(payload), header, payload); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	b := make([]byte, 4096)
	for !strings.Contains(got.String(), "PONG") {
		n, err := c.Read(b)
		if err != nil {
			t.Fatalf("%v after %q", err, got.String())
		}
		got.Write(b[:n])
	}
}

func TestSendRefusesCommands(t *testing.T) {
	s := natstest.Start(t)
	q := opened(t, s, natsdriver.Options{}, drivers.QueueOptions{})
	for _, name := range []string{"Nats-Rollup", "nats-expected-stream", "NATS-Msg-Id"} {
		err := q.Send(t.Context(), []drivers.Message{{Job: "job", Headers: drivers.Header{name: {"all"}}}})[0]
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRestartedServerKeepsTallies: a killed server may count deliveries from one again, for
// hosts that were there as for those that come later.
func TestRestartedServerKeepsTallies(t *testing.T) {
	s := natstest.Start(t)
	q := opened(t, s, natsdriver.Options{}, drivers.QueueOptions{Lease: 2 * time.Second})
	ms := make([]drivers.Message, 100)
	for i := range ms {
		ms[i] = drivers.Message{ID: fmt.Sprint(i), Job: "job"}
	}
	send(t, q, ms...)
	for failures := range 4 {
		if failures == 2 { // a host that was not there when the server was killed
			q = opened(t, s, natsdriver.Options{}, drivers.QueueOptions{Lease: 2 * time.Second})
		}
		var ss []drivers.Settlement
		for _, d := range receive(t, q, len(ms)) {
			if d.Carry.Failures != failures {
				t.Errorf("%s: %+v, want %d failures", d.ID, d.Carry.Tally, failures)
			}
			ss = append(ss, requeue(d, drivers.Tally{Failures: failures + 1}))
		}
		settle(t, q, ss...)
		s.Kill()
		s.Restart()
	}
}

// TestAckOverABrokenConnection: what was swallowed on the way to the server is not confirmed, and
// what is confirmed is gone there.
func TestAckOverABrokenConnection(t *testing.T) {
	s := natstest.Start(t)
	p := natstest.Through(t, s)
	q := opened(t, s, natsdriver.Options{URL: p.URL}, drivers.QueueOptions{})
	watch := opened(t, s, natsdriver.Options{}, drivers.QueueOptions{})
	for range 20 {
		ms := make([]drivers.Message, 64)
		for i := range ms {
			ms[i] = drivers.Message{ID: fmt.Sprint(i), Job: "job"}
		}
		send(t, watch, ms...)
		var ss []drivers.Settlement
		for _, d := range receive(t, q, len(ms)) {
			ss = append(ss, ack(d))
		}
		p.Swallow()
		done := make(chan []error, 1)
		go func() { done <- q.Settle(t.Context(), ss) }()
		time.AfterFunc(20*time.Millisecond, p.Cut)
		failed := slices.DeleteFunc(<-done, func(err error) bool { return err == nil })
		c, err := watch.Counts(t.Context())
		if err != nil || c.Depth > len(failed) {
			t.Fatalf("%d settlements failed, and the server still has %+v, %v", len(failed), c, err)
		}
		eventually(t, "settled", func() bool {
			return !slices.ContainsFunc(q.Settle(t.Context(), ss), func(err error) bool { return err != nil })
		})
	}
}
