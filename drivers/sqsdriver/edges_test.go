package sqsdriver_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/sqsdriver"
	"github.com/guesthand/guesthand/drivers/sqsdriver/sqstest"
)

// native sends with the SDK, as a foreign producer does.
func (b *bench) native(queue string, in *sqs.SendMessageInput) {
	b.Helper()
	c := client(b, b.s.URL)
	in.QueueUrl = urlOf(b, c, queue)
	if _, err := c.SendMessage(context.Background(), in); err != nil {
		b.Fatal(err)
	}
}

// receiveNative receives one message as a foreign consumer does.
func (b *bench) receiveNative(queue string) types.Message {
	b.Helper()
	c := client(b, b.s.URL)
	out, err := c.ReceiveMessage(context.Background(), &sqs.ReceiveMessageInput{
		QueueUrl: urlOf(b, c, queue), MessageAttributeNames: []string{"All"}, WaitTimeSeconds: 20,
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})
	if err != nil || len(out.Messages) != 1 {
		b.Fatalf("%+v, %v", out, err)
	}
	return out.Messages[0]
}

func text(kind, v string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String(kind), StringValue: aws.String(v)}
}

func requeued(d *drivers.Delivery, c drivers.Carry) drivers.Settlement {
	return drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: c}
}

// A foreign message with all ten attributes keeps them, types included, over retries and in
// its dead letter.
func TestTenForeignAttributes(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	in := &sqs.SendMessageInput{MessageBody: aws.String("body"), MessageAttributes: map[string]types.MessageAttributeValue{
		"n": text("Number", "42"), "custom": text("String.acme", "x"),
		"bin": {DataType: aws.String("Binary"), BinaryValue: []byte{0xff, 0}},
	}}
	for i := range 7 {
		in.MessageAttributes[fmt.Sprint("a", i)] = text("String", fmt.Sprint("value ", i))
	}
	want := map[string]types.MessageAttributeValue{}
	for k, v := range in.MessageAttributes {
		want[k] = v
	}
	b.native("guesthand_q", in)
	carry := drivers.Carry{Tally: drivers.Tally{Failures: 1}}
	for range 2 {
		d := b.take(1)[0]
		for name, v := range map[string]string{"n": "42", "custom": "x", "a6": "value 6", "bin": base64.StdEncoding.EncodeToString([]byte{0xff, 0})} {
			if got, _ := d.Headers.Get(name); got != v {
				t.Errorf("header %s is %q, want %q", name, got, v)
			}
		}
		b.mustSettle(requeued(d, carry))
	}
	m := b.receiveNative("guesthand_q")
	if len(m.MessageAttributes) > 10 || aws.ToString(m.Body) != "body" {
		t.Errorf("copied as %q with %d attributes", aws.ToString(m.Body), len(m.MessageAttributes))
	}
	for name, v := range m.MessageAttributes {
		if w, known := want[name]; known && (aws.ToString(w.DataType) != aws.ToString(v.DataType) || !bytes.Equal(w.BinaryValue, v.BinaryValue)) {
			t.Errorf("attribute %s copied as %s", name, aws.ToString(v.DataType))
		}
	}
}

// Headers that SQS has no place for are packed, and the most useful ones stay readable.
func TestPackedHeaders(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	h := drivers.Header{"X-Empty": {""}, "x!odd~name": {"v"}, "AWS.reserved": {"r"}, "X-Many": {"a", "b"}, "X-Nonchar": {"a\ufffeb\uffff"}}
	for i := range 20 {
		h[fmt.Sprint("X-", i)] = []string{"v"}
	}
	b.send(drivers.Message{ID: "id", Job: "job", Headers: h, Payload: []byte("p")})
	_, attrs := b.s.Bodies("guesthand_q")
	if a := attrs[0]; len(a) != 10 || a["Guesthand-Job"] != "job" || a["Guesthand-Id"] != "id" || a["Guesthand-Packed"] == "" {
		t.Errorf("attributes %v", a)
	}
	d := b.take(1)[0]
	for name, values := range h {
		if !slices.Equal(d.Headers[name], values) {
			t.Errorf("header %s is %q, want %q", name, d.Headers[name], values)
		}
	}
	for _, name := range []string{"Guesthand-Packed", "guesthand-encoding"} {
		if err := b.q.Send(t.Context(), []drivers.Message{{Job: "job", Headers: drivers.Header{name: {"x"}}}})[0]; !errors.Is(err, drivers.ErrInvalid) {
			t.Errorf("header %s: %v, want ErrInvalid", name, err)
		}
	}
}

// Bytes that XML does not have are base64, and foreign consumers can tell.
func TestBodyCharacters(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	for payload, encoding := range map[string]string{
		"plain\t\r\n déjà 世界 🎉": "", "nul\x00": "base64", "esc\x1b": "base64", "\xff": "base64", "a\ufffe": "base64", "\uffff": "base64", "": "empty",
	} {
		b.send(drivers.Message{ID: "m", Job: "job", Payload: []byte(payload)})
		bodies, attrs := b.s.Bodies("guesthand_q")
		if attrs[0]["Guesthand-Encoding"] != encoding {
			t.Errorf("%q: encoding %q, want %q", payload, attrs[0]["Guesthand-Encoding"], encoding)
		}
		if encoding == "" && bodies[0] != payload || encoding == "base64" && bodies[0] != base64.StdEncoding.EncodeToString([]byte(payload)) {
			t.Errorf("%q: body %q", payload, bodies[0])
		}
		d := b.take(1)[0]
		if string(d.Payload) != payload || d.Broken != "" {
			t.Errorf("%q came as %q, %s", payload, d.Payload, d.Broken)
		}
		b.mustSettle(ack(d))
	}
}

func TestBrokenEnvelopes(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	for name, a := range map[string]map[string]types.MessageAttributeValue{
		"base64":   {"Guesthand-Encoding": text("String", "base64")},
		"encoding": {"Guesthand-Encoding": text("String", "zstd")},
		"packed":   {"Guesthand-Packed": text("String", "{")},
	} {
		b.native("guesthand_q", &sqs.SendMessageInput{MessageBody: aws.String("!raw"), MessageAttributes: a})
		d := b.take(1)[0]
		if d.Broken == "" || string(d.Payload) != "!raw" {
			t.Errorf("%s: broken %q, payload %q", name, d.Broken, d.Payload)
		}
		b.mustSettle(drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Death: &drivers.Death{Reason: d.Broken}})
	}
	ls, err := b.q.(drivers.DeadLetters).ListDead(t.Context(), "", 10)
	if err != nil || len(ls) != 3 {
		t.Fatalf("%d dead letters, %v", len(ls), err)
	}
	for _, l := range ls {
		if string(l.Payload) != "!raw" || l.Reason == "" {
			t.Errorf("dead letter %+v", l)
		}
	}
}

// Counts that a newer version packed are left to newer workers.
func TestNewerVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	log := &logged{}
	b := newBench(t, setting{lease: time.Second, Options: sqsdriver.Options{Logger: log.logger()}})
	b.native("guesthand_q", &sqs.SendMessageInput{MessageBody: aws.String("m"),
		MessageAttributes: map[string]types.MessageAttributeValue{"Guesthand-Packed": text("String", `{"v":2,"f":"other"}`)}})
	b.nothing(1500 * time.Millisecond)
	if _, attrs := b.s.Bodies("guesthand_q"); attrs[0]["Guesthand-Packed"] != `{"v":2,"f":"other"}` || !strings.Contains(log.text(), "newer version") {
		t.Errorf("attributes %v, logged %q", attrs, log.text())
	}
}

// A foreign body of the whole mebibyte has no room for anything else: it is kept in place over
// a retry, and its dead letter is the payload alone.
func TestWholeMebibyte(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	body := strings.Repeat("x", 1<<20)
	b.native("guesthand_q", &sqs.SendMessageInput{MessageBody: aws.String(body)})
	d := b.take(1)[0]
	carry := drivers.Carry{Tally: drivers.Tally{Failures: 1}, State: []byte("s"), Errors: []drivers.RunError{{Text: "t"}}}
	start := time.Now()
	s := requeued(d, carry)
	s.Delay = time.Second
	b.mustSettle(s)
	d = b.take(1)[0]
	if took := time.Since(start); took < time.Second {
		t.Errorf("came after %s", took)
	}
	if d.Carry.Tally != carry.Tally || string(d.Carry.State) != "s" || string(d.Payload) != body {
		t.Errorf("came with %+v and %d bytes", d.Carry, len(d.Payload))
	}
	b.mustSettle(drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Carry: carry, Death: &drivers.Death{Reason: "r"}})
	dl := b.q.(drivers.DeadLetters)
	ls, err := dl.ListDead(t.Context(), "", 10)
	if err != nil || len(ls) != 1 || string(ls[0].Payload) != body {
		t.Fatalf("%d dead letters, %v", len(ls), err)
	}
	if err := dl.ReplayDead(t.Context(), ls[0].Entry); err != nil {
		t.Fatal(err)
	}
	d = b.take(1)[0]
	if string(d.Payload) != body {
		t.Errorf("replayed with %d bytes", len(d.Payload))
	}
	b.mustSettle(ack(d))
	b.empty()
}

// Where there is a little room, the counts come first, then the newest errors, and of a death
// the reason.
func TestMetadataIsShedBeforePayload(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	body := strings.Repeat("x", 1<<20-1500)
	b.native("guesthand_q", &sqs.SendMessageInput{MessageBody: aws.String(body), MessageAttributes: map[string]types.MessageAttributeValue{"k": text("String", "v")}})
	carry := drivers.Carry{Tally: drivers.Tally{Failures: 4}}
	for i := range drivers.MaxErrors {
		carry.Errors = append(carry.Errors, drivers.RunError{Attempt: i, Text: strings.Repeat("e", drivers.MaxErrorText)})
	}
	b.mustSettle(requeued(b.take(1)[0], carry))
	d := b.take(1)[0]
	if d.Carry.Failures != 4 || len(d.Carry.Errors) == 0 || len(d.Carry.Errors) == drivers.MaxErrors || d.Carry.Errors[len(d.Carry.Errors)-1].Attempt != 4 {
		t.Errorf("carry %+v with %d errors", d.Carry.Tally, len(d.Carry.Errors))
	}
	death := &drivers.Death{Reason: strings.Repeat("r", 3000), Digest: strings.Repeat("d", 64), Worker: "w"}
	b.mustSettle(drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Carry: carry, Death: death})
	ls, err := b.q.(drivers.DeadLetters).ListDead(t.Context(), "", 10)
	if err != nil || len(ls) != 1 {
		t.Fatalf("%d dead letters, %v", len(ls), err)
	}
	if l := ls[0]; string(l.Payload) != body || l.Tally != carry.Tally || !strings.HasPrefix(l.Reason, "rrr") || l.Headers["k"] == nil || len(l.Errors) > 0 {
		t.Errorf("%d bytes, tally %+v, reason of %d bytes, %d errors, headers %v", len(l.Payload), l.Tally, len(l.Reason), len(l.Errors), l.Headers.Names())
	}
}

// Fair queues: a copy belongs to the tenant of its original.
func TestMessageGroupTravels(t *testing.T) {
	t.Parallel()
	for _, isFIFO := range []bool{false, true} {
		b := newBench(t, setting{fifo: isFIFO, Options: sqsdriver.Options{Store: store(t)}})
		b.send(drivers.Message{ID: "m", Job: "job", Headers: drivers.Header{sqsdriver.HeaderGroup: {"tenant-7"}}})
		has := func(what string, d *drivers.Delivery) {
			if g, _ := d.Headers.Get(sqsdriver.HeaderGroup); g != "tenant-7" {
				t.Errorf("%s has the group %q", what, g)
			}
		}
		d := b.take(1)[0]
		has("the message", d)
		b.mustSettle(requeued(d, drivers.Carry{Tally: drivers.Tally{Failures: 1}}))
		d = b.take(1)[0]
		has("its retry", d)
		b.mustSettle(drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Death: &drivers.Death{Reason: "r"}})
		dl := b.q.(drivers.DeadLetters)
		ls, err := dl.GetDead(t.Context(), "m")
		if err != nil {
			t.Fatal(err)
		}
		if err := dl.ReplayDead(t.Context(), ls[0].Entry); err != nil {
			t.Fatal(err)
		}
		d = b.take(1)[0]
		has("its replay", d)
		b.mustSettle(ack(d))
		if err := b.q.Send(t.Context(), []drivers.Message{{Job: "job", Headers: drivers.Header{sqsdriver.HeaderGroup: {"two words"}}}})[0]; !errors.Is(err, drivers.ErrInvalid) {
			t.Errorf("a group with a space: %v", err)
		}
	}
}

// Within a group a FIFO queue keeps its order over a retry, which holds up the group alone.
func TestOrderWithinGroup(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{fifo: true, Options: sqsdriver.Options{Store: store(t)}})
	for _, id := range []string{"a1", "a2", "b1", "b2"} {
		b.send(drivers.Message{ID: id, Job: "job", Headers: drivers.Header{sqsdriver.HeaderGroup: {id[:1]}}})
	}
	failed := false
	var got []string
	for len(got) < 4 {
		d := b.take(1)[0]
		if d.ID == "a1" && !failed {
			failed = true
			s := requeued(d, drivers.Carry{Tally: drivers.Tally{Failures: 1}})
			s.Delay = time.Second
			b.mustSettle(s)
			continue
		}
		got = append(got, d.ID)
		b.mustSettle(ack(d))
	}
	if slices.Index(got, "a1") > slices.Index(got, "a2") || slices.Index(got, "b1") > slices.Index(got, "b2") {
		t.Errorf("finished in the order %q", got)
	}
}

// A FIFO queue without a store says what it cannot do, and does the rest.
func TestFIFOWithoutStore(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{fifo: true})
	info := b.q.Info()
	if info.Caps != sqsdriver.FIFOCaps(false) || info.Caps.ExactCounts {
		t.Errorf("caps %+v", info.Caps)
	}
	if !slices.ContainsFunc(info.Findings, func(f drivers.Finding) bool {
		return f.Warning && strings.Contains(f.Text, "[store]") && strings.Contains(f.Text, "max_delays")
	}) {
		t.Errorf("findings %+v", info.Findings)
	}
	b.sendIDs("m")
	d := b.take(1)[0]
	if err := b.settle(requeued(d, drivers.Carry{Tally: drivers.Tally{Delays: 1}}))[0]; !errors.Is(err, drivers.ErrUnsupported) {
		t.Errorf("delay: %v, want ErrUnsupported", err)
	}
	failed := drivers.Carry{Tally: drivers.Tally{Failures: 1}}
	b.mustSettle(requeued(d, failed))
	d = b.take(1)[0]
	if d.Carry.Tally != failed.Tally {
		t.Errorf("this process's retry came with %+v", d.Carry.Tally)
	}
	b.mustSettle(requeued(d, failed))
	// Another process knows nothing of it: everything counts as stalled, so that a message
	// that kills its workers ends all the same.
	other := benchOn(t, b.s, setting{fifo: true})
	d = other.take(1)[0]
	if d.Carry.Tally != (drivers.Tally{Stalls: 2}) {
		t.Errorf("another process's delivery came with %+v", d.Carry.Tally)
	}
	other.mustSettle(ack(d))
}

// The redrive policy is judged, and a rejected message is left to it: uncounted, and in the
// dead letters in the end.
func TestRejectAndRedrive(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{lease: 2 * time.Second})
	if l := b.q.Info().DeliveryLimit; l.Deliveries != 20 || !l.PerCopy || !strings.Contains(l.Setting, "maxReceiveCount of queue guesthand_q") {
		t.Errorf("limit of a queue of ours %+v", l)
	}
	b.s.Set(t, "guesthand_q", "RedrivePolicy", `{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:123456789012:guesthand-dead_q","maxReceiveCount":"2"}`)
	q := b.open(drivers.QueueOptions{SendOnly: true}, false)
	if l := q.Info().DeliveryLimit; l.Deliveries != 2 {
		t.Errorf("limit %+v, want 2", l)
	}
	b.sendIDs("m")
	for n := range 2 {
		d := b.take(1)[0]
		if d.Carry.Tally != (drivers.Tally{}) || d.Redelivered != (n > 0) {
			t.Errorf("delivery %d: tally %+v, redelivered %t", n, d.Carry.Tally, d.Redelivered)
		}
		b.mustSettle(drivers.Settlement{Delivery: d, Verdict: drivers.Reject, Reason: "no"})
	}
	for end := time.Now().Add(patience); ; { // SQS moves it when it would be received
		b.nothing(300 * time.Millisecond)
		if c, err := b.q.Counts(t.Context()); err == nil && c.Dead == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("not moved")
		}
	}
	ls, err := b.q.(drivers.DeadLetters).ListDead(t.Context(), "", 10)
	if err != nil || len(ls) != 1 || ls[0].ID != "m" || string(ls[0].Payload) != "m" || !strings.Contains(ls[0].Reason, "redrive policy") {
		t.Errorf("dead letters %+v, %v", ls, err)
	}
}

func TestFindings(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{fifo: true, Options: sqsdriver.Options{Store: store(t)}})
	info := b.q.Info()
	if info.Retention != 14*24*time.Hour || info.DeliveryLimit.Deliveries != 1000 || info.DeliveryLimit.PerCopy {
		t.Errorf("FIFO: retention %s, limit %+v", info.Retention, info.DeliveryLimit)
	}
	std := newBench(t, setting{})
	std.s.Set(t, "guesthand_q", "DelaySeconds", "7")
	std.s.Set(t, "guesthand_q", "RedrivePolicy", "")
	q := std.open(drivers.QueueOptions{DeadKeep: 30 * 24 * time.Hour, DeadMax: 5}, false)
	all := ""
	for _, f := range q.Info().Findings {
		all += strconv.FormatBool(f.Warning) + " " + f.Text + "\n"
	}
	for _, want := range []string{"true queue guesthand_q delays every message by 7s", "false queue guesthand_q has no redrive policy",
		"false dead.keep is 720h0m0s, but SQS drops", "false dead.max is 5"} {
		if !strings.Contains(all, want) {
			t.Errorf("findings lack %q:\n%s", want, all)
		}
	}
	std.s.Set(t, "guesthand-dead_q", "MessageRetentionPeriod", "86400")
	q = std.open(drivers.QueueOptions{DeadKeep: 48 * time.Hour}, false)
	if fs := q.Info().Findings; !slices.ContainsFunc(fs, func(f drivers.Finding) bool { return f.Warning && strings.Contains(f.Text, "after 24h0m0s") }) {
		t.Errorf("findings %+v", fs)
	}
	if _, err := std.d.OpenQueue(t.Context(), drivers.QueueOptions{Name: "long", Create: true, Lease: 7 * time.Hour}); err == nil || !strings.Contains(err.Error(), "12 hours") {
		t.Errorf("lease of 7 h: %v", err)
	}
	for key, value := range map[string]string{"stream": "x", "queue": "has space", "dead_queue": "guesthand_n"} {
		if _, err := std.d.OpenQueue(t.Context(), drivers.QueueOptions{Name: "n", Names: map[string]string{key: value}}); err == nil {
			t.Errorf("names %s = %q accepted", key, value)
		}
	}
}

// A queue may be given by its URL, and one that is deleted under a worker is made again.
func TestQueueByURLAndDeleted(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	c := client(t, b.s.URL)
	url := urlOf(t, c, "guesthand_q")
	q, err := b.d.OpenQueue(t.Context(), drivers.QueueOptions{Name: "other", Names: map[string]string{"queue": *url, "dead_queue": "guesthand-dead_q"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Send(t.Context(), []drivers.Message{{ID: "m", Job: "job"}})[0]; err != nil {
		t.Fatal(err)
	}
	b.mustSettle(ack(b.take(1)[0]))
	if _, err := c.DeleteQueue(t.Context(), &sqs.DeleteQueueInput{QueueUrl: url}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := q.Receive(ctx, 1); err == nil || !strings.Contains(err.Error(), "was deleted") {
		t.Errorf("receive of a deleted queue that is not ours to make: %v", err)
	}
	received := make(chan error, 1)
	go func() {
		ds, err := b.q.Receive(ctx, 1)
		if err == nil && ds[0].ID != "again" {
			err = fmt.Errorf("received %s", ds[0].ID)
		}
		received <- err
	}()
	for end := time.Now().Add(patience); b.q.Send(ctx, []drivers.Message{{ID: "again", Job: "job"}})[0] != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the queue was not made again")
		}
	}
	if err := <-received; err != nil {
		t.Error(err)
	}
}

// Two hosts on a FIFO queue agree on the counts, which the store has.
func TestStoreIsShared(t *testing.T) {
	t.Parallel()
	s, kv := sqstest.Start(t), store(t)
	s.WaitSecond(100 * time.Millisecond)
	a := benchOn(t, s, setting{fifo: true, lease: 3 * time.Second, Options: sqsdriver.Options{Store: kv}})
	b := benchOn(t, s, setting{fifo: true, lease: 3 * time.Second, Options: sqsdriver.Options{Store: kv}})
	a.sendIDs("m")
	carry := drivers.Carry{Tally: drivers.Tally{Failures: 1, Delays: 2, Interruptions: 3}}
	a.mustSettle(requeued(a.take(1)[0], carry))
	b.take(1)
	b.d.Abandon()
	d := a.take(1)[0]
	carry.Stalls = 1
	if d.Carry.Tally != carry.Tally || d.Stalled != 1 {
		t.Errorf("tally %+v, stalled %d, want %+v and 1", d.Carry.Tally, d.Stalled, carry.Tally)
	}
	a.mustSettle(ack(d))
}

// A worker that does not know that it lost its lease does not overwrite newer counts.
func TestStaleCountsAreRefused(t *testing.T) {
	t.Parallel()
	s, kv := sqstest.Start(t), store(t)
	s.WaitSecond(100 * time.Millisecond)
	a := benchOn(t, s, setting{fifo: true, lease: time.Hour, Options: sqsdriver.Options{Store: kv}})
	b := benchOn(t, s, setting{fifo: true, lease: time.Hour, Options: sqsdriver.Options{Store: kv}})
	a.sendIDs("m")
	old := a.take(1)[0]
	s.Expire("guesthand_q.fifo")
	newer := drivers.Carry{Tally: drivers.Tally{Failures: 2}}
	b.mustSettle(requeued(b.take(1)[0], newer))
	if err := a.settle(requeued(old, drivers.Carry{Tally: drivers.Tally{Failures: 1}}))[0]; !errors.Is(err, drivers.ErrLeaseLost) {
		t.Errorf("stale requeue: %v", err)
	}
	d := b.take(1)[0]
	if d.Carry.Tally != newer.Tally {
		t.Errorf("tally %+v, want %+v", d.Carry.Tally, newer.Tally)
	}
	b.mustSettle(ack(d))
}

// Counts in the store that nobody can read do not stop their message.
func TestUnreadableCountsInStore(t *testing.T) {
	t.Parallel()
	kv := &spoiled{KeyValue: store(t)}
	b := newBench(t, setting{fifo: true, Options: sqsdriver.Options{Store: kv}})
	b.sendIDs("m")
	b.mustSettle(requeued(b.take(1)[0], drivers.Carry{Tally: drivers.Tally{Failures: 1}}))
	d := b.take(1)[0]
	if d.Carry.Tally != (drivers.Tally{Stalls: 1}) {
		t.Errorf("tally %+v", d.Carry.Tally)
	}
	b.mustSettle(ack(d))
	b.empty()
}

// A store that is away holds its messages up and loses nothing.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	kv := &spoiled{KeyValue: store(t)}
	b := newBench(t, setting{fifo: true, Options: sqsdriver.Options{Store: kv}})
	b.sendIDs("m")
	d := b.take(1)[0]
	kv.away.Store(true)
	failed := drivers.Carry{Tally: drivers.Tally{Failures: 1}}
	if err := b.settle(requeued(d, failed))[0]; !errors.Is(err, errAway) {
		t.Fatalf("requeue without its counts: %v", err)
	}
	kv.away.Store(false)
	kv.clean.Store(true)
	b.mustSettle(requeued(d, failed))
	kv.away.Store(true)
	b.nothing(300 * time.Millisecond)
	kv.away.Store(false)
	d = b.take(1)[0]
	if d.Carry.Tally != failed.Tally {
		t.Errorf("tally %+v, want %+v", d.Carry.Tally, failed.Tally)
	}
	b.mustSettle(ack(d))
}

var errAway = errors.New("away")

// spoiled is a store whose values are cut short unless clean, and which may be away.
type spoiled struct {
	drivers.KeyValue
	away, clean atomic.Bool
}

func (s *spoiled) OpenBucket(ctx context.Context, o drivers.BucketOptions) (drivers.Bucket, error) {
	b, err := s.KeyValue.OpenBucket(ctx, o)
	return spoiledBucket{b, s}, err
}

type spoiledBucket struct {
	drivers.Bucket
	s *spoiled
}

func (b spoiledBucket) Get(ctx context.Context, key []byte) ([]byte, error) {
	if b.s.away.Load() {
		return nil, errAway
	}
	v, err := b.Bucket.Get(ctx, key)
	if !b.s.clean.Load() {
		v = v[:len(v)/2]
	}
	return v, err
}

func (b spoiledBucket) Put(ctx context.Context, key, value []byte, ttl time.Duration) error {
	if b.s.away.Load() {
		return errAway
	}
	return b.Bucket.Put(ctx, key, value, ttl)
}
