package memdriver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/memdriver"
)

func open(t *testing.T, o memdriver.Options) *memdriver.Driver {
	t.Helper()
	d, err := memdriver.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

func openQueue(t *testing.T, d drivers.Driver, o drivers.QueueOptions) drivers.Queue {
	t.Helper()
	if o.Name == "" {
		o.Name = "q"
	}
	q, err := d.OpenQueue(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func send(t *testing.T, q drivers.Queue, ids ...string) {
	t.Helper()
	ms := make([]drivers.Message, len(ids))
	for i, id := range ids {
		ms[i] = drivers.Message{ID: id, Job: "job", Payload: []byte(id)}
	}
	for i, err := range q.Send(t.Context(), ms) {
		if err != nil {
			t.Fatalf("send %s: %v", ids[i], err)
		}
	}
}

func receive(t *testing.T, q drivers.Queue, n int) []*drivers.Delivery {
	t.Helper()
	var got []*drivers.Delivery
	for len(got) < n {
		ds, err := q.Receive(t.Context(), n-len(got))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ds...)
	}
	return got
}

func settle(t *testing.T, q drivers.Queue, s drivers.Settlement) {
	t.Helper()
	if err := q.Settle(t.Context(), []drivers.Settlement{s})[0]; err != nil {
		t.Fatalf("%s: %v", s.Verdict, err)
	}
}

func ids(ds []*drivers.Delivery) string {
	var s []string
	for _, d := range ds {
		s = append(s, d.ID)
	}
	return strings.Join(s, " ")
}

// Time is exact in memory, which no other broker can promise.
func TestDelayAndLeaseAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, memdriver.Options{Lease: 10 * time.Second})
		a, b := openQueue(t, d, drivers.QueueOptions{}), openQueue(t, d.Join("b"), drivers.QueueOptions{})
		start := time.Now()
		send(t, a, "m")
		m := receive(t, a, 1)[0]
		settle(t, a, drivers.Settlement{Delivery: m, Verdict: drivers.Requeue, Delay: 400 * 24 * time.Hour})
		receive(t, a, 1)
		if got := time.Since(start); got != 400*24*time.Hour {
			t.Errorf("delivered after %s", got)
		}
		start = time.Now()
		m = receive(t, b, 1)[0]
		if got := time.Since(start); got != 10*time.Second || m.Carry.Stalls != 1 || m.Stalled != 1 {
			t.Errorf("lease over after %s, stalls %d, stalled %d", got, m.Carry.Stalls, m.Stalled)
		}
	})
}

// A receiver that sleeps until a lease ends must notice a delay that ends sooner.
func TestSleeperSeesLaterDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, memdriver.Options{})
		a, b := openQueue(t, d, drivers.QueueOptions{}), openQueue(t, d.Join("b"), drivers.QueueOptions{})
		send(t, a, "held", "delayed")
		ms := receive(t, a, 2)
		arrived := make(chan time.Time, 1)
		go func() {
			if ds, err := b.Receive(t.Context(), 1); err == nil && ds[0].ID == "delayed" {
				arrived <- time.Now()
			}
		}()
		synctest.Wait()
		start := time.Now()
		settle(t, a, drivers.Settlement{Delivery: ms[1], Verdict: drivers.Requeue, Delay: time.Second})
		if got := (<-arrived).Sub(start); got != time.Second {
			t.Errorf("delivered after %s", got)
		}
	})
}

func TestOrder(t *testing.T) {
	d := open(t, memdriver.Options{})
	a := openQueue(t, d, drivers.QueueOptions{})
	send(t, a, "1", "2", "3", "4")
	got := receive(t, a, 2)
	if ids(got) != "1 2" {
		t.Fatalf("got %s", ids(got))
	}
	settle(t, a, drivers.Settlement{Delivery: got[0], Verdict: drivers.Requeue})
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := openQueue(t, d, drivers.QueueOptions{})
	if got := ids(receive(t, b, 4)); got != "2 3 4 1" {
		t.Errorf("got %s, want what was given back first and what was requeued last", got)
	}
}

func TestBounds(t *testing.T) {
	d := open(t, memdriver.Options{MaxMessages: 2, MaxPayload: 10, MaxBytes: 15})
	q := openQueue(t, d, drivers.QueueOptions{})
	errs := q.Send(t.Context(), []drivers.Message{
		{Job: "j", Payload: make([]byte, 11)},
		{Job: "j", Payload: make([]byte, 10)},
		{Job: "j", Payload: make([]byte, 10)},
		{Job: "j", Payload: make([]byte, 5)},
		{Job: "j"},
		{},
	})
	for i, want := range []string{
		"payload of 11 bytes, limit 10: message too large for the broker",
		"",
		"queue q is full: it would hold more than 15 bytes, the most allowed in memory",
		"",
		"queue q is full: it holds 2 messages, the most allowed in memory",
		"message without a job: invalid message",
	} {
		if got := fmt.Sprint(errs[i]); want != got && (want != "" || errs[i] != nil) {
			t.Errorf("message %d: %s, want %q", i, got, want)
		}
	}
	if !errors.Is(errs[0], drivers.ErrTooLarge) {
		t.Errorf("%v is not ErrTooLarge", errs[0])
	}
	for _, m := range receive(t, q, 2) {
		settle(t, q, drivers.Settlement{Delivery: m, Verdict: drivers.Ack})
	}
	send(t, q, "fits", "again")
}

func TestDeadBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		d := open(t, memdriver.Options{DeadMax: 5, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		q := openQueue(t, d, drivers.QueueOptions{DeadMax: 10, DeadKeep: time.Hour})
		if f := q.Info().Findings; len(f) != 1 || !f[0].Warning || !strings.Contains(f[0].Text, "keeps 5") {
			t.Errorf("findings %v", f)
		}
		for i := range 9 {
			send(t, q, fmt.Sprint(i))
			settle(t, q, drivers.Settlement{Delivery: receive(t, q, 1)[0], Verdict: drivers.Dead,
				Death: &drivers.Death{Reason: "because", Time: time.Now()}})
		}
		if c, _ := q.Counts(t.Context()); c.Dead != 5 {
			t.Errorf("%d dead letters", c.Dead)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings for a burst, want 1:\n%s", n, &log)
		}
		time.Sleep(time.Hour)
		if c, _ := q.Counts(t.Context()); c.Dead != 0 {
			t.Errorf("%d dead letters after dead.keep", c.Dead)
		}
		if err := q.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`count=1 max=5`, `count=3 max=5`, `older than dead.keep" queue=q count=5`} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("no %q in\n%s", want, &log)
			}
		}
	})
}

func TestKeyWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := openQueue(t, open(t, memdriver.Options{}), drivers.QueueOptions{})
		keyed := func() {
			if err := q.Send(t.Context(), []drivers.Message{{Job: "j", Key: "k"}})[0]; err != nil {
				t.Fatal(err)
			}
		}
		depth := func() int {
			c, err := q.Counts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return c.Depth
		}
		keyed()
		time.Sleep(2*time.Minute - 1)
		keyed()
		if depth() != 1 {
			t.Error("not dropped within the window")
		}
		time.Sleep(time.Nanosecond)
		keyed()
		if depth() != 2 {
			t.Error("dropped after the window")
		}
	})
}

func TestTwoBrokersShareNothing(t *testing.T) {
	send(t, openQueue(t, open(t, memdriver.Options{}), drivers.QueueOptions{}), "m")
	c, err := openQueue(t, open(t, memdriver.Options{}), drivers.QueueOptions{}).Counts(t.Context())
	if err != nil || c.Depth != 0 {
		t.Errorf("counts %v, %v", c, err)
	}
}

func TestRefusals(t *testing.T) {
	if _, err := memdriver.Open(t.Context(), memdriver.Options{MaxMessages: -1}); err == nil || !strings.Contains(err.Error(), "MaxMessages") {
		t.Errorf("negative bound: %v", err)
	}
	d := open(t, memdriver.Options{})
	for _, o := range []drivers.QueueOptions{{}, {Name: "q", Lease: -1}, {Name: "q", DeadMax: -1}} {
		if _, err := d.OpenQueue(t.Context(), o); err == nil {
			t.Errorf("opened with %+v", o)
		}
	}
	q := openQueue(t, d, drivers.QueueOptions{SendOnly: true})
	if _, err := q.Receive(t.Context(), 1); err == nil {
		t.Error("received from a queue for sending")
	}
	foreign := &drivers.Delivery{ID: "x"}
	if err := q.Settle(t.Context(), []drivers.Settlement{{Delivery: foreign, Verdict: drivers.Ack}})[0]; err == nil {
		t.Error("settled a foreign delivery")
	}
}

func BenchmarkSendReceiveAck(b *testing.B) {
	d, err := memdriver.Open(b.Context(), memdriver.Options{})
	if err != nil {
		b.Fatal(err)
	}
	q, err := d.OpenQueue(b.Context(), drivers.QueueOptions{Name: "q"})
	if err != nil {
		b.Fatal(err)
	}
	ms := make([]drivers.Message, 16)
	for i := range ms {
		ms[i] = drivers.Message{Job: "job", Payload: make([]byte, 1<<10)}
	}
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(ms) {
		q.Send(b.Context(), ms)
		ds, err := q.Receive(b.Context(), len(ms))
		if err != nil {
			b.Fatal(err)
		}
		ss := make([]drivers.Settlement, len(ds))
		for i, d := range ds {
			ss[i] = drivers.Settlement{Delivery: d, Verdict: drivers.Ack}
		}
		q.Settle(b.Context(), ss)
	}
}

// What waits can be dropped by its id, ready or delayed; what a worker has cannot.
func TestDropWaiting(t *testing.T) {
	d, err := memdriver.Open(t.Context(), memdriver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(t.Context())
	q, err := d.OpenQueue(t.Context(), drivers.QueueOptions{Name: "q", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range q.Send(t.Context(), []drivers.Message{{ID: "held", Job: "j"}, {ID: "ready", Job: "j", Payload: []byte("p")},
		{ID: "ready", Job: "j"}, {ID: "later", Job: "j", NotBefore: time.Now().Add(time.Hour)}}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if ds, err := q.Receive(t.Context(), 1); err != nil || ds[0].ID != "held" {
		t.Fatal(ds, err)
	}
	c := q.(drivers.Canceller)
	for id, want := range map[string]int{"held": 0, "ready": 2, "later": 1, "nosuch": 0} {
		ds, err := c.DropWaiting(t.Context(), id)
		if len(ds) != want || (want == 0) != errors.Is(err, drivers.ErrNotFound) {
			t.Errorf("%s: %d dropped, %v", id, len(ds), err)
		}
	}
	if n, err := q.Counts(t.Context()); err != nil || n.Depth != 1 || n.InFlight != 1 {
		t.Errorf("left: %+v, %v", n, err)
	}
}
