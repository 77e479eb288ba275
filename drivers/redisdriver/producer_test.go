package redisdriver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/redisdriver"
	"github.com/guesthand/guesthand/drivers/redisdriver/redistest"
)

// TestProducer enqueues as docs/drivers/redis.md tells other languages to, word for word as
// for redis-cli.
func TestProducer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	q := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{Name: "orders"})
	c := client(t, s).Conn()
	t.Cleanup(func() { _ = c.Close() })
	cli := func(line string) {
		t.Helper()
		var args []any
		for _, w := range strings.Split(line, " ") {
			args = append(args, strings.Trim(w, "'"))
		}
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	cli(`MULTI`)
	cli(`HSET guesthand:{orders}:m:7f3a job resize payload {"width":100} headers {"X-Trace":["a","b"],"X-One":"c"}`)
	cli(`RPUSH guesthand:{orders}:ready 7f3a`)
	cli(`PUBLISH guesthand:{orders}:wake x`)
	cli(`EXEC`)
	d := receive(t, q, 1)[0]
	if d.ID != "7f3a" || d.Job != "resize" || string(d.Payload) != `{"width":100}` || d.Broken != "" ||
		fmt.Sprint(d.Headers["X-Trace"], d.Headers["X-One"]) != "[a b] [c]" {
		t.Errorf("received %+v", d)
	}
	if age := time.Since(d.EnqueuedAt); age < 0 || age > patience {
		t.Errorf("enqueued at %s", d.EnqueuedAt)
	}
	settle(t, q, drivers.Ack, d)

	due := time.Now().Add(500 * time.Millisecond)
	cli(`MULTI`)
	cli(`HSET guesthand:{orders}:m:7f3b job resize payload later`)
	cli(fmt.Sprintf(`ZADD guesthand:{orders}:delayed %d 7f3b`, due.UnixMilli()+1))
	cli(`EXEC`)
	d = receive(t, q, 1)[0]
	if early := time.Until(due); d.ID != "7f3b" || early > 0 {
		t.Errorf("received %s, %s early", d.ID, early)
	}
	settle(t, q, drivers.Ack, d)
	hasCounts(t, q, drivers.Counts{})
}

// TestProducerNotBefore: the header alone delays, too.
func TestProducerNotBefore(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	q := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
	due := time.Now().Add(700 * time.Millisecond)
	enqueue(t, s, "q", []byte("p"), drivers.Header{abi.HeaderNotBefore: {due.Format(time.RFC3339Nano)}})
	d := receive(t, q, 1)[0]
	if early := time.Until(due); early > 0 {
		t.Errorf("came %s early", early)
	}
	if d.Carry.Tally != stall(0) {
		t.Errorf("tally %+v", d.Carry.Tally)
	}
	settle(t, q, drivers.Ack, d)
}

// TestBrokenProducer: what cannot be decoded is handed out as broken, with its payload, and
// what is listed without a message, or twice, harms nobody.
func TestBrokenProducer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	q := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
	c := client(t, s)
	raw(t, c, "hset", "guesthand:{q}:m:bad", "payload", "\xff", "headers", "{nonsense")
	raw(t, c, "hset", "guesthand:{q}:m:odd", "payload", "p", "headers", `{"X-N":[7]}`)
	raw(t, c, "hset", "guesthand:{q}:m:bare", "job", "j")
	raw(t, c, "rpush", "guesthand:{q}:ready", "missing", "bad", "bad", "odd", "bare")
	ds := receive(t, q, 3)
	for _, d := range ds {
		if (d.Broken != "") != (d.ID != "bare") {
			t.Errorf("%s: broken %q", d.ID, d.Broken)
		}
	}
	if string(ds[0].Payload) != "\xff" || ds[2].Job != "j" || ds[2].Headers == nil {
		t.Errorf("payload %q, job %q", ds[0].Payload, ds[2].Job)
	}
	settle(t, q, drivers.Dead, ds[:2]...)
	settle(t, q, drivers.Ack, ds[2])
	empty(t, q, 100*time.Millisecond)
	hasCounts(t, q, drivers.Counts{Dead: 2})
}

func TestReply(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	q := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
	c := client(t, s)
	r := q.(drivers.Replier)
	ask := func(id, to string) *drivers.Delivery {
		t.Helper()
		send(t, q, drivers.Message{ID: id, Headers: drivers.Header{abi.HeaderReplyTo: {to}}})
		d := receive(t, q, 1)[0]
		settle(t, q, drivers.Ack, d)
		if d.ReplyTo != to {
			t.Errorf("%s: reply to %q, want %q", id, d.ReplyTo, to)
		}
		return d
	}
	const to = "guesthand:reply:7f3a"
	d := ask("m", to)
	for _, p := range []string{"fine", "\xff"} {
		if err := r.Reply(t.Context(), d, drivers.Reply{Outcome: "success", Payload: []byte(p)}); err != nil {
			t.Fatal(err)
		}
	}
	if ttl, ok := raw(t, c, "pttl", to).(int64); !ok || ttl <= 0 {
		t.Errorf("the reply stays for ever: %d", ttl)
	}
	for _, want := range []map[string]string{
		{"id": "m", "outcome": "success", "payload": "fine"},
		{"id": "m", "outcome": "success", "payload_base64": "/w=="},
	} {
		answer := raw(t, c, "brpop", to, 1).([]any)
		var got map[string]string
		if err := json.Unmarshal([]byte(answer[1].(string)), &got); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("answer %v, %v, want %v", got, err, want)
		}
	}
	// Nobody can make the host write elsewhere, or more than a hundred.
	for _, elsewhere := range []string{"guesthand:{q}:ready", "session:1", "guesthand:reply:"} {
		d := ask("x", elsewhere)
		if err := r.Reply(t.Context(), d, drivers.Reply{}); !errors.Is(err, drivers.ErrInvalid) {
			t.Errorf("reply to %q: %v", elsewhere, err)
		}
		if n := raw(t, c, "exists", elsewhere); elsewhere != "guesthand:{q}:ready" && n != int64(0) {
			t.Errorf("%q was written", elsewhere)
		}
	}
	raw(t, c, "set", "guesthand:reply:text", "x")
	if err := r.Reply(t.Context(), ask("y", "guesthand:reply:text"), drivers.Reply{}); !errors.Is(err, drivers.ErrInvalid) {
		t.Errorf("reply to a key that is no list: %v", err)
	}
	for range 120 {
		if err := r.Reply(t.Context(), d, drivers.Reply{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := raw(t, c, "llen", to); n != int64(100) {
		t.Errorf("%v answers under one key", n)
	}
	hasCounts(t, q, drivers.Counts{})
}
