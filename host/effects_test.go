package host_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/memdriver"
	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/host/ledger"
)

// OpenBucket lets hosts on the rig's broker keep values.
func (s shared) OpenBucket(ctx context.Context, o drivers.BucketOptions) (drivers.Bucket, error) {
	kv, ok := s.Driver.(drivers.KeyValue)
	if !ok {
		return nil, drivers.ErrUnsupported
	}
	return kv.OpenBucket(ctx, o)
}

// sending is a queue q whose messages are sent on to queue out, which nobody but the test reads.
const sending = quick + `
[queues.out]
broker = "b"
handler = "nobody"
[queues.other]
broker = "b"
handler = "nobody"
[handlers.a]
send = ["q", "out", "other"]
kv = {}
timeout = "5s"
[handlers.b]
kv = { max_keys = 2 }
[handlers.c]
`

func (r *rig) installEffects(jobs ...string) {
	for _, job := range jobs {
		hosttest.Install(r.t, filepath.Join(r.dir, "plugins"), job, hosttest.Effects(r.t))
	}
}

// trap is an operation that reads beyond the guest's memory.
func trap() string {
	b := []byte(hosttest.Op('s', "q x", 0, ""))
	copy(b[11:], "\xff\xff\xff\xff")
	return string(b)
}

// reader opens a queue of the rig beside the host.
func (r *rig) reader(name string) drivers.Queue {
	r.t.Helper()
	q, err := r.driver.(*memdriver.Driver).Join("reader").OpenQueue(r.t.Context(), drivers.QueueOptions{Name: name, Lease: time.Hour})
	if err != nil {
		r.t.Fatal(err)
	}
	return q
}

func (r *rig) receive(q drivers.Queue, n int) []*drivers.Delivery {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var all []*drivers.Delivery
	for len(all) < n {
		ds, err := q.Receive(ctx, n-len(all))
		if err != nil {
			r.t.Fatalf("receive: %v after %d of %d", err, len(all), n)
		}
		all = append(all, ds...)
	}
	return all
}

// empty wants a queue without messages.
func (r *rig) empty(q drivers.Queue) {
	r.t.Helper()
	c, err := q.Counts(r.t.Context())
	if err != nil || c.Depth != 0 {
		r.t.Errorf("%d messages there, %v; want none", c.Depth, err)
	}
}

func TestFollowUps(t *testing.T) {
	r := newRig(t, sending)
	r.installEffects("a")
	h := r.start()
	out, other := r.reader("out"), r.reader("other")
	began := time.Now()
	id := h.send("a", hosttest.Op('s', "out first\nX: 1", 0, "one")+hosttest.Op('s', "other second\nDelay: 1s", 0, "two")+
		hosttest.Op('s', "out third\nKey: k\ntraceparent: its-own", 0, "")+hosttest.Op('s', "out fourth\nKey: k", 0, "dropped"),
		"traceparent", "00-abc-def-01", "Y", "the parent's")
	h.end(id)
	got := r.receive(out, 2)
	for i, want := range []drivers.Message{
		{ID: id + ".0", Job: "first", Payload: []byte("one"), Headers: drivers.Header{"X": {"1"}, "traceparent": {"00-abc-def-01"}}},
		{ID: id + ".2", Job: "third", Headers: drivers.Header{"traceparent": {"its-own"}, abi.HeaderKey: {"k"}}},
	} {
		d := got[i]
		want.Headers[abi.HeaderParent], want.Headers[abi.HeaderID], want.Headers[abi.HeaderJob] = []string{id}, []string{want.ID}, []string{want.Job}
		if d.ID != want.ID || d.Job != want.Job || string(d.Payload) != string(want.Payload) || !reflect.DeepEqual(d.Headers, want.Headers) {
			t.Errorf("got %s %s %q %v, want %+v", d.ID, d.Job, d.Payload, d.Headers, want)
		}
	}
	d := r.receive(other, 1)[0]
	if d.ID != id+".1" || time.Since(began) < time.Second {
		t.Errorf("%s came after %s, want a second", d.ID, time.Since(began))
	}
	if c, err := out.Counts(t.Context()); err != nil || c.Depth != 2 {
		t.Errorf("%d messages, %v; the fourth has the third's key", c.Depth, err)
	}
}

// Nothing is sent for a run that did not succeed, whatever it came to.
func TestFollowUpsOfFailures(t *testing.T) {
	r := newRig(t, sending)
	r.installEffects("a")
	h := r.start()
	send := hosttest.Op('s', "out never", 0, "")
	for name, payload := range map[string]string{
		"retry": send + hosttest.Op('r', "", 1, ""), "permanent": send + hosttest.Op('r', "", 12, ""),
		"reject": send + hosttest.Op('r', "", 13, ""), "delay, then permanent": send + hosttest.Op('t', "", 1, "") + hosttest.Op('r', "", 12, ""),
		"trap": send + trap(),
	} {
		rows := h.end(h.send("a", payload))
		if rows[len(rows)-1].Settlement == ledger.Acked {
			t.Errorf("%s: %s", name, outcomes(rows))
		}
	}
	r.empty(r.reader("out"))
}

// journal is what a broker was asked for, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, ", ")
}

// journaled writes down sends, replies and settlements. before may refuse one.
type journaled struct {
	drivers.Queue
	drivers.DeadLetters
	j      *journal
	name   string
	before func(what string) error
}

func (q *journaled) ask(format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	if q.before != nil {
		if err := q.before(what); err != nil {
			q.j.add("%s: %v", what, err)
			return err
		}
	}
	q.j.add("%s", what)
	return nil
}

func (q *journaled) Send(ctx context.Context, ms []drivers.Message) []error {
	if q.name == "q" { // the test's own
		return q.Queue.Send(ctx, ms)
	}
	if err := q.ask("send %d to %s", len(ms), q.name); err != nil {
		return fail(len(ms), err)
	}
	return q.Queue.Send(ctx, ms)
}

func (q *journaled) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	errs := make([]error, len(ss))
	for i, s := range ss {
		if errs[i] = q.ask("%s", s.Verdict); errs[i] == nil {
			errs[i] = q.Queue.Settle(ctx, ss[i:i+1])[0]
		}
	}
	return errs
}

func (q *journaled) Reply(ctx context.Context, d *drivers.Delivery, r drivers.Reply) error {
	if err := q.ask("reply %s %q", r.Outcome, r.Payload); err != nil {
		return err
	}
	return q.Queue.(drivers.Replier).Reply(ctx, d, r)
}

// journal makes the rig's hosts write down what they ask for.
func (r *rig) journal(before func(what string) error) *journal {
	j := &journal{}
	r.wrap = func(q drivers.Queue) drivers.Queue {
		return &journaled{Queue: q, DeadLetters: q.(drivers.DeadLetters), j: j, name: queueName(q), before: before}
	}
	return j
}

// queueName asks a memory queue for its name, which its errors tell.
func queueName(q drivers.Queue) string {
	_, err := q.Receive(context.Background(), 0)
	return strings.TrimSuffix(strings.TrimPrefix(err.Error(), "receive "), ": asked for 0 messages")
}

func TestOrderAtSuccess(t *testing.T) {
	r := newRig(t, sending)
	j := r.journal(nil)
	r.installEffects("a")
	h := r.start()
	h.end(h.send("a", hosttest.Op('s', "out x", 0, "")+hosttest.Op('s', "other x", 0, "")+hosttest.Op('s', "out x", 0, ""), abi.HeaderReplyTo, "memory:0"))
	want := `send 2 to out, send 1 to other, reply success "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", ack`
	if got := j.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// What a broker does not take at once is sent again, and nothing is acknowledged before.
func TestFollowUpsAreRetried(t *testing.T) {
	r := newRig(t, sending)
	var mu sync.Mutex
	refusals := 3
	j := r.journal(func(what string) error {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasPrefix(what, "send 1 to other") && refusals > 0 {
			refusals--
			return errors.New("away")
		}
		return nil
	})
	r.installEffects("a")
	h := r.start()
	rows := h.end(h.send("a", hosttest.Op('s', "out x", 0, "")+hosttest.Op('s', "other x", 0, "")))
	want := "send 1 to out, send 1 to other: away, send 1 to other: away, send 1 to other: away, send 1 to other, ack"
	if got := j.String(); got != want || outcomes(rows) != "success/acked" {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A message that the broker refuses for good is the handler's failure.
func TestFollowUpsThatAreRefused(t *testing.T) {
	r := newRig(t, sending)
	j := r.journal(func(what string) error {
		if what == "send 1 to out" {
			return fmt.Errorf("out: %w", drivers.ErrInvalid)
		}
		return nil
	})
	r.installEffects("a")
	h := r.start()
	id := h.send("a", hosttest.Op('s', "out x", 0, ""))
	if got, want := outcomes(h.end(id)), "retry/retried retry/retried retry/dead"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if want := "max attempts (3) exhausted after failure 3: limit: message_send: x to queue out: out: invalid message"; h.dead(id).Reason != want {
		t.Errorf("reason %q, want %q", h.dead(id).Reason, want)
	}
	if strings.Contains(j.String(), "ack") {
		t.Errorf("acknowledged: %s", j)
	}
}

// A broker that is gone blames nobody: the message runs again and has spent no attempt.
func TestFollowUpsWithoutBroker(t *testing.T) {
	r := newRig(t, sending)
	var mu sync.Mutex
	away := true
	r.journal(func(what string) error {
		mu.Lock()
		defer mu.Unlock()
		if away && strings.HasPrefix(what, "send") {
			away = false
			return drivers.ErrClosed
		}
		return nil
	})
	r.installEffects("a")
	h := r.start()
	rows := h.end(h.send("a", hosttest.Op('s', "out x", 0, "")))
	if got, want := outcomes(rows), "interrupted/retried success/acked"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !strings.Contains(rows[0].Error, "message_send: x to queue out: closed") {
		t.Errorf("error %q", rows[0].Error)
	}
	if ds := r.receive(r.reader("out"), 1); ds[0].Headers[abi.HeaderParent][0] != rows[0].ID {
		t.Errorf("%+v", ds[0])
	}
}

// waiting is a bucket whose broker does not answer.
type waiting struct{ drivers.Driver }

func (w waiting) OpenBucket(ctx context.Context, _ drivers.BucketOptions) (drivers.Bucket, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Without the lease a run's messages are another worker's to send.
func TestFollowUpsOfALostLease(t *testing.T) {
	r := newRig(t, sending)
	r.driver = waiting{r.driver}
	r.with(stub{lease: 300 * time.Millisecond, renew: func(_ context.Context, _ drivers.Queue, ds []*drivers.Delivery) []error {
		return fail(len(ds), drivers.ErrLeaseLost)
	}})
	r.installEffects("a")
	h := r.start()
	id := h.send("a", hosttest.Op('s', "out x", 0, "")+hosttest.Op('g', "k", 0, ""))
	var rows []ledger.Row
	hosttest.Eventually(t, patience, "the run to end", func() bool { rows = h.history(id); return len(rows) > 0 })
	if rows[0].Outcome != "lease-lost" {
		t.Errorf("%+v", rows)
	}
	r.driver = r.driver.(waiting).Driver
	r.empty(r.reader("out"))
}

func TestReplies(t *testing.T) {
	r := newRig(t, strings.Replace(sending, "[handlers.a]", "[handlers.a]\npayload = \"1KiB\"", 1)+"\n[queues.tries]\nbroker = \"b\"\nunknown_job = { wait = \"10ms\", tries = 1 }\nretry = {}\n")
	r.installEffects("a", "c")
	h := r.start()
	i, err := r.driver.(drivers.Inboxes).OpenInbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	ret := func(n int64) string { return hosttest.Op('r', "", n, "") }
	for _, tt := range []struct{ name, queue, job, payload, outcome, text string }{
		{"success", "q", "a", hosttest.Op('g', "absent", 0, ""), "success", "\xff\xff\xff\xff"},
		{"permanent", "q", "a", ret(12), "permanent", "permanent"},
		{"retries spent", "q", "a", ret(1), "retry", "max attempts (3) exhausted after failure 3: retry"},
		{"reject", "q", "a", ret(13), "reject", ""},
		{"delay first", "q", "a", hosttest.Op('t', "", 2, ""), "success", "\x02\x00\x00\x00"},
		{"trap", "q", "a", trap(), "retry", "max attempts (3) exhausted after failure 3: trap"},
		{"unrun", "q", "a", strings.Repeat("x", 2000), "permanent", "payload of 2000 bytes is over the limit of 1024"},
		{"no handler", "tries", "absent", "", "permanent", "absent"},
	} {
		m := drivers.Message{Job: tt.job, Payload: []byte(tt.payload), Headers: drivers.Header{abi.HeaderReplyTo: {i.Address()}}}
		ids, errs, err := h.Send(t.Context(), tt.queue, []drivers.Message{m})
		if err = errors.Join(append(errs, err)...); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		got, err := i.Next(ctx)
		cancel()
		if err != nil || got.ID != ids[0] || got.Outcome != tt.outcome || !strings.Contains(string(got.Payload), tt.text) {
			t.Errorf("%s: %+v %q, %v; want %s %q", tt.name, got, got.Payload, err, tt.outcome, tt.text)
		}
	}
}

// An answer that cannot be given keeps nothing from ending, and is not given before it is true.
func TestRepliesInTrouble(t *testing.T) {
	r := newRig(t, sending)
	var mu sync.Mutex
	settled := 0
	j := r.journal(func(what string) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case strings.HasPrefix(what, "reply"):
			return fmt.Errorf("no such address: %w", drivers.ErrInvalid)
		case what == "dead":
			if settled++; settled <= 2 {
				return errors.New("away")
			}
		}
		return nil
	})
	r.installEffects("a")
	h := r.start()
	rows := h.end(h.send("a", "", abi.HeaderReplyTo, "nonsense"))
	if outcomes(rows) != "success/acked" {
		t.Errorf("%+v", rows)
	}
	h.end(h.send("a", hosttest.Op('r', "", 12, ""), abi.HeaderReplyTo, "nonsense"))
	want := `reply success "": no such address: invalid message, ack, dead: away, dead: away, dead, reply permanent "permanent": no such address: invalid message`
	if got := j.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// stuck takes replies and never comes back before it must.
type stuck struct{ *journaled }

func (q stuck) Reply(ctx context.Context, _ *drivers.Delivery, _ drivers.Reply) error {
	<-ctx.Done()
	return ctx.Err()
}

// Replies that get stuck hold up the settlements behind them for a moment only.
func TestStuckReplies(t *testing.T) {
	r := newRig(t, sending)
	r.wrap = func(q drivers.Queue) drivers.Queue {
		return stuck{&journaled{Queue: q, DeadLetters: q.(drivers.DeadLetters), j: &journal{}, name: queueName(q)}}
	}
	r.installEffects("a")
	h := r.start()
	var ids []string
	for range 40 {
		ids = append(ids, h.send("a", hosttest.Op('r', "", 12, ""), abi.HeaderReplyTo, "memory:0"))
	}
	deadline := time.Now().Add(patience)
	for _, id := range ids {
		if got := outcomes(h.end(id)); got != "permanent/dead" || time.Now().After(deadline) {
			t.Fatalf("%s: %s, %s too late", id, got, time.Since(deadline))
		}
	}
}

func codes(t *testing.T, rows []ledger.Row) []int32 {
	t.Helper()
	return hosttest.Results(rows[len(rows)-1].Result)
}

func TestValues(t *testing.T) {
	r := newRig(t, sending+"[queues.second]\nbroker = \"b\"\nretry = {}\n")
	r.installEffects("a", "b", "c")
	h := r.start()
	run := func(job string, ops ...string) []int32 { return codes(t, h.end(h.send(job, strings.Join(ops, "")))) }
	op := hosttest.Op
	for i, tt := range []struct {
		got, want []int32
	}{
		{run("a", op('c', "k", 0, "v"), op('c', "k", 0, "w"), op('p', "l", 0, "")), []int32{0, 1, 0}},
		{run("a", op('c', "k", 0, "w")), []int32{1}},
		// One handler does not see another's, and has its own quota.
		{run("b", op('g', "k", 0, ""), op('c', "k", 0, ""), op('c', "l", 0, ""), op('c', "m", 0, "")), []int32{-1, 0, 0, -3}},
		// Without kv there is nothing.
		{run("c", op('g', "k", 0, ""), op('p', "k", 0, ""), op('c', "k", 0, ""), op('d', "k", 0, "")), []int32{-2, -2, -2, -2}},
		{run("a", op('d', "k", 0, ""), op('d', "k", 0, ""), op('g', "k", 0, "")), []int32{0, -1, -1}},
	} {
		if !slices.Equal(tt.got, tt.want) {
			t.Errorf("%d: %v, want %v", i, tt.got, tt.want)
		}
	}
	// Another host on the broker sees the same, and a new quota holds after a reload.
	h.stop()
	again := r.start()
	if got := codes(t, again.end(again.send("a", op('c', "l", 0, "")))); !slices.Equal(got, []int32{1}) {
		t.Errorf("after a restart: %v", got)
	}
	r.config = strings.Replace(r.config, "max_keys = 2", "max_keys = 3", 1)
	if _, restart, errs := again.Reload(t.Context(), r.parse()); len(restart) > 0 || len(errs) > 0 {
		t.Fatalf("reload: %v, %v", restart, errs)
	}
	if got := codes(t, again.end(again.send("b", op('c', "m", 0, "")+op('c', "n", 0, "")))); !slices.Equal(got, []int32{0, -3}) {
		t.Errorf("after the reload: %v", got)
	}
}

// A broker that keeps no values grants none.
func TestValuesWithoutKeyValue(t *testing.T) {
	r := newRig(t, sending)
	r.driver = struct{ drivers.Driver }{r.driver}
	r.installEffects("a")
	h := r.start()
	if got := codes(t, h.end(h.send("a", hosttest.Op('g', "k", 0, "")))); !slices.Equal(got, []int32{abi.ErrNotGranted}) {
		t.Errorf("got %v", got)
	}
}

// A message's state counts its own delays, and none of it is left for the next message.
func TestStateCountsDelays(t *testing.T) {
	r := newRig(t, sending)
	r.installEffects("c")
	h := r.start()
	for range 2 {
		rows := h.end(h.send("c", hosttest.Op('t', "", 5, "")))
		if got := codes(t, rows); !slices.Equal(got, []int32{5}) || len(rows) != 6 {
			t.Errorf("counted %v in %d runs", got, len(rows))
		}
	}
}
