package rabbitdriver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/rabbitdriver"
	"github.com/guesthand/guesthand/drivers/rabbitdriver/rabbittest"
)

func retry(d *drivers.Delivery, delay time.Duration) drivers.Settlement {
	c := d.Carry
	c.Failures++
	return drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: c, Delay: delay}
}

// publish sends as a foreign producer, and waits until the message is in the queue.
func publish(t testing.TB, url, queue string, m amqp.Publishing) {
	t.Helper()
	ch := channel(t, url)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	c, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, true, false, m)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := c.WaitContext(t.Context()); !ok || err != nil {
		t.Fatalf("confirmed %t, %v", ok, err)
	}
}

// celery/celery#9867, rabbitmq/rabbitmq-server#11159: a copy that carries x-death is taken for one
// that goes in circles, and dropped.
func TestCopyLeavesBrokerHeaders(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), drivers.QueueOptions{})
	send(t, q, drivers.Message{ID: "m", Job: "job"})
	for i := range 3 {
		d := take(t, q, 1)[0]
		if d.Carry.Failures != i {
			t.Fatalf("round %d: %+v", i, d.Carry.Tally)
		}
		settle(t, q, retry(d, time.Second))
	}
	ack(t, q, take(t, q, 1)...)

	// A foreign one that brings it is retried all the same, and the copy is clean.
	publish(t, n.URL, "guesthand."+queueName(t), amqp.Publishing{
		Headers: amqp.Table{"x-death": []any{amqp.Table{"queue": "guesthand." + queueName(t), "reason": "expired", "count": int64(9)}}, "X-Mine": "1"},
	})
	settle(t, q, retry(take(t, q, 1)[0], time.Second))
	d := take(t, q, 1)[0]
	if v := d.Headers["X-Mine"]; len(v) != 1 || v[0] != "1" {
		t.Errorf("headers %v", d.Headers)
	}
	// What the broker wrote on the way from the hold queue is not in the copy of the copy.
	settle(t, q, retry(d, 0))
	d = take(t, q, 1)[0]
	if _, there := d.Headers["x-death"]; there {
		t.Errorf("the copy carries x-death: %v", d.Headers)
	}
	ack(t, q, d)
}

// rabbitmq/rabbitmq-server#11937: a delivery limit takes messages away before the policy is done.
// Only stalls use it up, since each retry is a new message to the broker.
func TestDeliveryLimit(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	name := "limited-" + queueName(t)
	ch := channel(t, n.URL)
	if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 3}); err != nil {
		t.Fatal(err)
	}
	d := opened(t, n.URL, rabbitdriver.Options{})
	q := openQueue(t, d, drivers.QueueOptions{Name: queueName(t), Create: true, Names: map[string]string{"queue": name}})
	l := q.Info().DeliveryLimit
	if l.Deliveries != 3 || !l.PerCopy || !strings.Contains(l.Setting, "delivery-limit of queue "+name) {
		t.Errorf("limit %+v", l)
	}
	warned := false
	for _, f := range q.Info().Findings {
		warned = warned || f.Warning && strings.Contains(f.Text, name) && strings.Contains(f.Text, "dead-letter exchange")
	}
	if !warned {
		t.Errorf("no warning of a limit without a dead-letter exchange: %+v", q.Info().Findings)
	}
	send(t, q, drivers.Message{ID: "m", Job: "job"})
	for range 6 {
		settle(t, q, retry(take(t, q, 1)[0], 0))
	}
	if m := take(t, q, 1)[0]; m.Carry.Failures != 6 || m.Carry.Stalls != 0 {
		t.Errorf("tally %+v", m.Carry.Tally)
	}
}

// What others made is judged, and used as it is.
func TestForeignQueue(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	name := "foreign-" + queueName(t)
	ch := channel(t, n.URL)
	args := amqp.Table{"x-message-ttl": 3600_000, "x-dead-letter-exchange": "amq.fanout", "x-max-length": 500}
	if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), drivers.QueueOptions{Name: queueName(t), Create: true, Names: map[string]string{"queue": name}})
	if q.Info().Caps != rabbitdriver.ClassicCaps() || q.Info().Retention != time.Hour {
		t.Errorf("info %+v", q.Info())
	}
	var all []string
	for _, f := range q.Info().Findings {
		all = append(all, f.Text)
	}
	text := strings.Join(all, "\n")
	for _, want := range []string{"classic queue", "1h0m0s", "amq.fanout", "above 500", "consumer_timeout"} {
		if !strings.Contains(text, want) {
			t.Errorf("no word of %q in\n%s", want, text)
		}
	}
}

// rabbitmq/rabbitmq-website#2207: one message that kills its workers takes its neighbours along.
// They count the stalls too, and are marked as merely held.
func TestPoisonMarksNeighboursHeld(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	const rounds = 6
	first := opened(t, n.URL, rabbitdriver.Options{})
	send(t, openQueue(t, first, drivers.QueueOptions{}), drivers.Message{ID: "poison", Job: "job"}, drivers.Message{ID: "a", Job: "job"}, drivers.Message{ID: "b", Job: "job"})
	for range rounds {
		d := open(t, n.URL, rabbitdriver.Options{})
		take(t, openQueue(t, d, drivers.QueueOptions{Name: queueName(t), Create: true}), 3)
		d.Abandon()
	}
	q := openQueue(t, first, drivers.QueueOptions{Name: queueName(t), Create: true})
	for _, d := range take(t, q, 3) {
		if !d.Held || d.Carry.Stalls != rounds || d.Stalled != 1 {
			t.Errorf("%s: held %t, stalls %d, stalled %d", d.ID, d.Held, d.Carry.Stalls, d.Stalled)
		}
		if d.ID == "poison" {
			settle(t, q, drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Carry: d.Carry, Death: &drivers.Death{Reason: "max stalls"}})
			continue
		}
		// Put back first, as a host does with suspects that were merely held, it keeps its stalls
		// and is not told of them again.
		settle(t, q, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: d.Carry})
		again := take(t, q, 1)[0]
		if again.Stalled != 0 || again.Held || again.Carry.Stalls != rounds {
			t.Errorf("%s: stalled %d, held %t, stalls %d", again.ID, again.Stalled, again.Held, again.Carry.Stalls)
		}
		ack(t, q, again)
	}
}

// On a classic queue each stall is counted once, though the broker says only that a message was
// handed out before.
func TestClassicStalls(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	o := drivers.QueueOptions{Name: queueName(t), Create: true, Names: map[string]string{"type": "classic"}}
	d := open(t, n.URL, rabbitdriver.Options{})
	q := openQueue(t, d, o)
	send(t, q, drivers.Message{ID: "m", Job: "job"})
	take(t, q, 1)
	for stalls := 1; stalls <= 3; stalls++ {
		d.Abandon()
		d = open(t, n.URL, rabbitdriver.Options{})
		q = openQueue(t, d, o)
		m := take(t, q, 1)[0]
		if m.Carry.Stalls != stalls || m.Stalled != 1 || !m.Held || !m.Redelivered {
			t.Fatalf("stalls %d, stalled %d, held %t, redelivered %t; want %d", m.Carry.Stalls, m.Stalled, m.Held, m.Redelivered, stalls)
		}
	}
	closeAll(t, d) // gives it back, uncounted
	q = openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), o)
	if m := take(t, q, 1)[0]; m.Carry.Stalls != 3 || m.Stalled != 0 {
		t.Errorf("given back with stalls %d, stalled %d", m.Carry.Stalls, m.Stalled)
	}
}

// rabbitmq/rabbitmq-server#3032, EasyNetQ/EasyNetQ#1695: the broker closes the channel under a long
// handler, or ends the consumer without a word. The lease is lost, and consuming goes on.
func TestConsumerTimeout(t *testing.T) {
	t.Parallel()
	n := tuned.get(t)
	q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), drivers.QueueOptions{})
	send(t, q, drivers.Message{ID: "m", Job: "job"})
	d := take(t, q, 1)
	eventually(t, func() error {
		err := q.Renew(t.Context(), d)[0]
		if errors.Is(err, drivers.ErrLeaseLost) {
			return nil
		}
		return fmt.Errorf("renewed: %v", err)
	})
	if err := q.Settle(t.Context(), []drivers.Settlement{{Delivery: d[0], Verdict: drivers.Ack}})[0]; !errors.Is(err, drivers.ErrLeaseLost) {
		t.Errorf("late acknowledgement: %v", err)
	}
	again := take(t, q, 1)
	if again[0].ID != "m" || again[0].Carry.Stalls != 1 {
		t.Errorf("%s, stalls %d", again[0].ID, again[0].Carry.Stalls)
	}
	ack(t, q, again...)
}

// EasyNetQ/EasyNetQ#1695: a queue that is deleted ends its consumer while the channel lives on.
func TestQueueDeleted(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), drivers.QueueOptions{})
	got := make(chan []*drivers.Delivery, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ds, err := q.Receive(ctx, 1)
		if err != nil {
			t.Error(err)
		}
		got <- ds
	}()
	ch := channel(t, n.URL)
	eventually(t, func() error {
		state, err := ch.QueueDeclarePassive("guesthand."+queueName(t), true, false, false, false, nil)
		if err == nil && state.Consumers == 0 {
			err = errors.New("no consumer yet")
		}
		return err
	})
	if _, err := ch.QueueDelete("guesthand."+queueName(t), false, false, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return q.Send(t.Context(), []drivers.Message{{ID: "m", Job: "job"}})[0] })
	ds := <-got
	if len(ds) != 1 || ds[0].ID != "m" {
		t.Fatalf("received %v", ds)
	}
	ack(t, q, ds...)
}

// R5: the broker confirms what it could not route. Mandatory messages come back first.
func TestUnroutableIsAnError(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), drivers.QueueOptions{})
	send(t, q, drivers.Message{ID: "m", Job: "job"})
	d := take(t, q, 1)[0]
	if _, err := channel(t, n.URL).QueueDelete("guesthand.dead."+queueName(t), false, false, false); err != nil {
		t.Fatal(err)
	}
	dead := drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Death: &drivers.Death{Reason: "r"}}
	if err := q.Settle(t.Context(), []drivers.Settlement{dead})[0]; err == nil || !strings.Contains(err.Error(), "guesthand.dead."+queueName(t)) {
		t.Fatalf("buried in a queue that is not there: %v", err)
	}
	// The message is still ours.
	ack(t, q, d)
}

// R4: a hold queue that expires takes its messages along, so ours never do.
func TestHoldQueuesLive(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	for _, kind := range []string{"quorum", "classic"} {
		q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), drivers.QueueOptions{Name: kind + "-hold", Create: true, Names: map[string]string{"type": kind}})
		send(t, q, drivers.Message{ID: "m", Job: "job", NotBefore: time.Now().Add(time.Hour)})
		args := amqp.Table{"x-queue-type": kind, "x-message-ttl": int64(2048_000), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "guesthand." + kind + "-hold"}
		if kind == "quorum" {
			args["x-dead-letter-strategy"], args["x-overflow"] = "at-least-once", "reject-publish"
		}
		// The broker compares every argument it knows with what the queue has.
		if _, err := channel(t, n.URL).QueueDeclare("guesthand.hold."+kind+"-hold.2048s", true, false, false, false, args); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// rabbitmq/rabbitmq-dotnet-client#200, R1: a delivery tag of an earlier channel settles another
// message of the new one.
func TestStaleTagSettlesNothing(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	p := rabbittest.Through(t, n)
	q := openQueue(t, opened(t, p.URL, rabbitdriver.Options{}), drivers.QueueOptions{})
	send(t, q, drivers.Message{ID: "1", Job: "job"}, drivers.Message{ID: "2", Job: "job"})
	old := take(t, q, 2)
	p.Cut()
	now := take(t, q, 2) // with the same tags, maybe in another order
	for _, d := range old {
		if err := q.Settle(t.Context(), []drivers.Settlement{{Delivery: d, Verdict: drivers.Ack}})[0]; !errors.Is(err, drivers.ErrLeaseLost) {
			t.Errorf("stale acknowledgement: %v", err)
		}
	}
	settle(t, q, retry(now[0], 0), retry(now[1], 0))
	for _, d := range take(t, q, 2) {
		if d.Carry.Failures != 1 || d.Carry.Stalls != 1 {
			t.Errorf("%s: %+v", d.ID, d.Carry.Tally)
		}
		ack(t, q, d)
	}
}

// rabbitmq/amqp091-go#225, #18, #11, #21, #32: calls that wait for ever on a dead network, and
// channels that are not closed. Packets vanish, and nobody is told.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	p := rabbittest.Through(t, n)
	q := openQueue(t, opened(t, p.URL, rabbitdriver.Options{Heartbeat: time.Second}), drivers.QueueOptions{})
	send(t, q, drivers.Message{ID: "m", Job: "job"})
	d := take(t, q, 1)
	p.HalfOpen()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := q.Settle(ctx, []drivers.Settlement{{Delivery: d[0], Verdict: drivers.Ack}})[0]; err == nil {
		t.Error("acknowledged without an answer")
	}
	if err := q.Send(ctx, []drivers.Message{{ID: "n", Job: "job"}})[0]; err == nil {
		t.Error("sent without an answer")
	}
	if _, err := q.Counts(ctx); err == nil {
		t.Error("counted without an answer")
	}
	p.Heal() // for new connections
	eventually(t, func() error { return q.Send(t.Context(), []drivers.Message{{ID: "after", Job: "job"}})[0] })
	seen := map[string]bool{}
	for !seen["after"] || !seen["m"] { // the broker never saw the acknowledgement
		for _, d := range take(t, q, 1) {
			seen[d.ID] = true
			ack(t, q, d)
		}
	}
}

// rabbitmq/amqp091-go#394, #387: a Config that is used again has no credentials any more.
func TestReconnectsWithCredentials(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	p := rabbittest.Through(t, n)
	url := strings.Replace(p.URL, "guest:guest@", "", 1)
	q := openQueue(t, opened(t, url, rabbitdriver.Options{User: "guest", Password: "guest"}), drivers.QueueOptions{})
	for range 3 {
		p.Cut()
		eventually(t, func() error { return q.Send(t.Context(), []drivers.Message{{Job: "job"}})[0] })
		ack(t, q, take(t, q, 1)...)
	}
}

// A body at the broker's own limit dies with all of it: the letter's headers do not count.
func TestBodyAtTheLimit(t *testing.T) {
	t.Parallel()
	n := tuned.get(t)
	q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), drivers.QueueOptions{})
	body := bytes.Repeat([]byte("x"), 262144)
	headers := drivers.Header{"X-Long": {strings.Repeat("h", 100<<10)}, "X-Short": {"kept"}}
	send(t, q, drivers.Message{ID: "m", Job: "job", Payload: body, Headers: headers})
	if err := q.Send(t.Context(), []drivers.Message{{ID: "more", Job: "job", Payload: append(body, 'x')}})[0]; !errors.Is(err, drivers.ErrTooLarge) {
		t.Errorf("above the limit: %v", err)
	}
	d := take(t, q, 1)[0]
	var errs []drivers.RunError
	for range drivers.MaxErrors {
		errs = append(errs, drivers.RunError{Text: strings.Repeat("\x01", drivers.MaxErrorText), Outcome: "retry"})
	}
	settle(t, q, drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Carry: drivers.Carry{Errors: errs, Tally: drivers.Tally{Failures: 3}},
		Death: &drivers.Death{Reason: strings.Repeat("r", 8<<10), Outcome: "retry"}})
	ls, err := q.(drivers.DeadLetters).GetDead(t.Context(), "m")
	if err != nil || len(ls) != 1 {
		t.Fatalf("%d letters, %v", len(ls), err)
	}
	if l := ls[0]; !bytes.Equal(l.Payload, body) || l.Tally.Failures != 3 || l.Headers["X-Short"][0] != "kept" || !strings.HasPrefix(l.Reason, "rrr") {
		t.Errorf("letter of %d bytes, %+v, reason of %d bytes", len(l.Payload), l.Tally, len(l.Reason))
	}
}

// The broker's alarms stop publishers: sending is an error, and no work is begun whose retry
// could not be stored. Work that is done can still be acknowledged.
func TestBlocked(t *testing.T) {
	t.Parallel()
	n := rabbittest.Start(t, rabbittest.Options{})
	q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), drivers.QueueOptions{})
	send(t, q, drivers.Message{ID: "1", Job: "job"}, drivers.Message{ID: "2", Job: "job"})
	first := take(t, q, 1)
	if err := n.Ctl(t.Context(), "set_vm_memory_high_watermark", "0.0001"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.Send(ctx, []drivers.Message{{Job: "job", ID: "3"}})[0]; err == nil || !strings.Contains(err.Error(), "takes no messages") {
			return fmt.Errorf("sent: %v", err)
		}
		return nil
	})
	ack(t, q, first...)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if ds, err := q.Receive(ctx, 1); err == nil {
		t.Errorf("received %s while nothing could be stored", ds[0].ID)
	}
	if err := n.Ctl(t.Context(), "set_vm_memory_high_watermark", "0.4"); err != nil {
		t.Fatal(err)
	}
	ack(t, q, take(t, q, 1)...)
	eventually(t, func() error { return q.Send(t.Context(), []drivers.Message{{Job: "job"}})[0] })
}

// rabbitmq/rabbitmq-delayed-message-exchange#288: delayed messages that are lost with a node. Hold
// queues are durable, and a long delay takes several hops.
func TestDelayInThreeHops(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{MaxDelay: time.Second}), drivers.QueueOptions{})
	if got := q.Info().Caps.MaxDelay; got != time.Second {
		t.Fatalf("longest delay %s", got)
	}
	send(t, q, drivers.Message{ID: "m", Job: "job"})
	start := time.Now()
	settle(t, q, retry(take(t, q, 1)[0], 3*time.Second))
	d := take(t, q, 1)[0]
	if early := 3*time.Second - time.Since(start); early > 0 {
		t.Errorf("%s too early", early)
	}
	if d.Carry.Tally != (drivers.Tally{Failures: 1}) {
		t.Errorf("tally %+v", d.Carry.Tally)
	}
	ack(t, q, d)
}

// Two workers share a queue; what one held when it was killed comes to the other.
func TestWorkerKilled(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	a, b := open(t, n.URL, rabbitdriver.Options{}), opened(t, n.URL, rabbitdriver.Options{})
	qa, qb := openQueue(t, a, drivers.QueueOptions{}), openQueue(t, b, drivers.QueueOptions{})
	for i := range 20 {
		send(t, qa, drivers.Message{ID: fmt.Sprint(i), Job: "job"})
	}
	held := take(t, qa, 8)
	ack(t, qa, held[:4]...)
	ack(t, qb, take(t, qb, 12)...)
	a.Abandon()
	lost := map[string]bool{}
	for _, d := range held[4:] {
		lost[d.ID] = true
	}
	for _, d := range take(t, qb, 4) {
		if !lost[d.ID] || d.Carry.Stalls != 1 {
			t.Errorf("%s came with %d stalls", d.ID, d.Carry.Stalls)
		}
		delete(lost, d.ID)
		ack(t, qb, d)
	}
}

// Copies take along what an original had, but for what must not travel.
func TestCopyTable(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), drivers.QueueOptions{})
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	typed := amqp.Table{"int": int64(1) << 40, "small": int32(7), "bool": true, "time": at, "bytes": []byte{0xff}, "nested": amqp.Table{"a": "b"},
		"list": []any{"x", int64(2)}, "CC": []any{"elsewhere"}}
	publish(t, n.URL, "guesthand."+queueName(t), amqp.Publishing{
		Headers: typed, ContentType: "text/plain", ContentEncoding: "identity", CorrelationId: "c", ReplyTo: "answers", MessageId: "id",
		Type: "order", AppId: "app", UserId: "guest", Expiration: "600000", Priority: 5, Timestamp: at, Body: []byte("body"),
	})
	d := take(t, q, 1)[0]
	if d.ID != "id" || d.Job != "order" || d.ReplyTo != "answers" || !d.EnqueuedAt.Equal(at) || d.Headers["int"][0] != "1099511627776" {
		t.Errorf("delivery %+v", d)
	}
	settle(t, q, retry(d, 0))
	closeAll(t, q)
	m, ok, err := channel(t, n.URL).Get("guesthand."+queueName(t), true)
	if err != nil || !ok {
		t.Fatalf("%t, %v", ok, err)
	}
	got := fmt.Sprint(m.ContentType, m.ContentEncoding, m.CorrelationId, m.ReplyTo, m.MessageId, m.Type, m.AppId, m.UserId, m.Expiration, m.Priority, m.DeliveryMode, m.Timestamp.Unix(), string(m.Body))
	want := fmt.Sprint("text/plain", "identity", "c", "answers", "id", "order", "app", "", "", 0, 2, at.Unix(), "body")
	if got != want {
		t.Errorf("copy has %s,\nwant %s", got, want)
	}
	if _, there := m.Headers["CC"]; there || fmt.Sprint(m.Headers["int"], m.Headers["small"], m.Headers["bool"], m.Headers["bytes"], m.Headers["nested"], m.Headers["list"]) !=
		fmt.Sprint(typed["int"], typed["small"], typed["bool"], typed["bytes"], typed["nested"], typed["list"]) {
		t.Errorf("headers %v", m.Headers)
	}
}

func TestReply(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	ch := channel(t, n.URL)
	answers, err := ch.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), drivers.QueueOptions{})
	err = ch.PublishWithContext(t.Context(), "", "guesthand."+queueName(t), true, false, amqp.Publishing{
		ReplyTo: "amq.rabbitmq.reply-to", CorrelationId: "c7", MessageId: "m", Type: "job"})
	if err != nil {
		t.Fatal(err)
	}
	d := take(t, q, 1)[0]
	settle(t, q, retry(d, 0)) // the address outlives a retry
	d = take(t, q, 1)[0]
	if err := q.(drivers.Replier).Reply(t.Context(), d, drivers.Reply{Outcome: "success", Payload: []byte("42")}); err != nil {
		t.Fatal(err)
	}
	a := <-answers
	if a.CorrelationId != "c7" || string(a.Body) != "42" || a.Headers[abi.HeaderOutcome] != "success" {
		t.Errorf("answer %q to %q, %v", a.Body, a.CorrelationId, a.Headers)
	}
	ack(t, q, d)
	// Nobody there is no error.
	send(t, q, drivers.Message{Job: "job", Headers: drivers.Header{abi.HeaderReplyTo: {"nobody-here"}}})
	d = take(t, q, 1)[0]
	if err := q.(drivers.Replier).Reply(t.Context(), d, drivers.Reply{Outcome: "success"}); err != nil {
		t.Errorf("reply to nobody: %v", err)
	}
	// Nor may an address be a queue of handlers.
	d.ReplyTo = "guesthand.other"
	if err := q.(drivers.Replier).Reply(t.Context(), d, drivers.Reply{Outcome: "success"}); !errors.Is(err, drivers.ErrInvalid) {
		t.Errorf("reply to a queue of ours: %v", err)
	}
	ack(t, q, d)
}

// A foreign producer's own not-before time holds, and is over once it was kept.
func TestForeignNotBefore(t *testing.T) {
	t.Parallel()
	n := plain.get(t)
	q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), drivers.QueueOptions{})
	due := time.Now().Add(1500 * time.Millisecond)
	publish(t, n.URL, "guesthand."+queueName(t), amqp.Publishing{Type: "job", MessageId: "m", Headers: amqp.Table{abi.HeaderNotBefore: due.Format(time.RFC3339Nano)}})
	d := take(t, q, 1)[0]
	if early := time.Until(due); early > 5*time.Millisecond {
		t.Errorf("%s too early", early)
	}
	settle(t, q, retry(d, 0))
	ack(t, q, take(t, q, 1)...)
}

// A broker that is killed hands out again what a classic queue had acknowledged a moment ago, but
// loses nothing, delayed messages and dead letters included.
func TestClassicKilled(t *testing.T) {
	t.Parallel()
	n := restartable.get(t)
	turns.join(t)
	q := openQueue(t, opened(t, n.URL, rabbitdriver.Options{}), drivers.QueueOptions{Name: queueName(t), Create: true, Names: map[string]string{"type": "classic"}})
	left := map[string]bool{"delayed": true}
	for i := range 30 {
		send(t, q, drivers.Message{ID: fmt.Sprint(i), Job: "job"})
		left[fmt.Sprint(i)] = true
	}
	send(t, q, drivers.Message{ID: "delayed", Job: "job", NotBefore: time.Now().Add(2 * time.Second)})
	ds := take(t, q, 10)
	for _, d := range ds[:8] {
		delete(left, d.ID)
	}
	ack(t, q, ds[:7]...)
	settle(t, q, drivers.Settlement{Delivery: ds[7], Verdict: drivers.Dead, Death: &drivers.Death{Reason: "r"}})
	turns.wait(t, func() error { return killUp(n) })
	for len(left) > 0 {
		for _, d := range take(t, q, 1) {
			delete(left, d.ID)
			_ = q.Settle(t.Context(), []drivers.Settlement{{Delivery: d, Verdict: drivers.Ack}}) // it may be lost again
		}
	}
	eventually(t, func() error {
		_, err := q.(drivers.DeadLetters).GetDead(t.Context(), ds[7].ID)
		return err
	})
}
