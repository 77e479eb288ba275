package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/memdriver"
	"github.com/guesthand/guesthand/host/engine"
	"github.com/guesthand/guesthand/host/hosttest"
)

// op is one operation of testdata/effects.wat.
func op(letter byte, a string, n int64, b string) string { return hosttest.Op(letter, a, n, b) }

// code is what the first operation of a run returned.
func code(t *testing.T, r engine.Result) int32 {
	t.Helper()
	if r.End.Cause != abi.Returned || len(r.Output) < 4 {
		t.Fatalf("%+v", r)
	}
	return int32(binary.LittleEndian.Uint32(r.Output))
}

func bucket(t *testing.T, o drivers.BucketOptions) drivers.Bucket {
	t.Helper()
	d, err := memdriver.Open(t.Context(), memdriver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o.Name = "b"
	b, err := d.OpenBucket(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func runEffects(m *engine.Module, b drivers.Bucket, payload string) engine.Result {
	return m.Run(&engine.Call{Input: engine.Input{ID: "id-1", Payload: []byte(payload), Bucket: b}})
}

func TestKV(t *testing.T) {
	m := load(t, newEngine(t, engine.Options{}), wat(t, "effects"), engine.Config{})
	b := bucket(t, drivers.BucketOptions{MaxKeys: 2, MaxBytes: 10000})
	long := strings.Repeat("long ", 500)
	for i, step := range []struct {
		op   string
		want int32
	}{
		{op('g', "a", 0, ""), abi.ErrAbsent},
		{op('d', "a", 0, ""), abi.ErrAbsent},
		{op('c', "a", 0, "one"), 0},
		{op('c', "a", 0, "two"), 1},
		{op('g', "a", 0, ""), 3},
		{op('p', "a", 0, long), 0},
		{op('g', "a", 0, ""), int32(len(long))}, // its full size, though only 1016 bytes fit
		{op('p', "b", math.MaxInt64, ""), 0},
		{op('g', "b", 0, ""), 0},
		{op('p', "c", 0, ""), abi.ErrTooLarge}, // two keys are all
		{op('d', "b", 0, ""), 0},
		{op('p', "c", 0, strings.Repeat("x", 10000)), abi.ErrTooLarge},
		{op('p', "", 0, "v"), abi.ErrMalformed},
		{op('g', strings.Repeat("k", 257), 0, ""), abi.ErrMalformed},
		{op('d', strings.Repeat("k", 257), 0, ""), abi.ErrMalformed},
		{op('p', "c", -1, "v"), abi.ErrMalformed},
		{op('c', strings.Repeat("\xff", 256), 1, "v"), 0},
	} {
		r := runEffects(m, b, step.op)
		if got := code(t, r); got != step.want {
			t.Fatalf("step %d: %d, want %d", i, got, step.want)
		}
	}
	if r := runEffects(m, b, op('g', "a", 0, "")); string(r.Output[4:]) != long[:1016] {
		t.Errorf("got %.20q", r.Output[4:])
	}
	if v, err := b.Get(t.Context(), []byte("a")); err != nil || string(v) != long {
		t.Errorf("stored %.20q, %v", v, err)
	}
}

func TestKVNotGranted(t *testing.T) {
	m := load(t, newEngine(t, engine.Options{}), wat(t, "effects"), engine.Config{})
	for _, letter := range []byte("gpcd") {
		if got := code(t, runEffects(m, nil, op(letter, "a", 0, ""))); got != abi.ErrNotGranted {
			t.Errorf("%c: %d", letter, got)
		}
	}
}

// troubled is a bucket whose broker fails, or does not answer at all.
type troubled struct {
	drivers.Bucket
	err  error
	hang bool
}

func (b troubled) Get(ctx context.Context, _ []byte) ([]byte, error) {
	if b.hang {
		derived, cancel := context.WithCancel(ctx) // as drivers do
		defer cancel()
		<-derived.Done()
		return nil, derived.Err()
	}
	return nil, b.err
}

func TestKVErrors(t *testing.T) {
	var log bytes.Buffer
	e := newEngine(t, engine.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	m := load(t, e, wat(t, "effects"), engine.Config{})
	for _, tt := range []struct {
		err  error
		want int32
	}{
		{errors.New("connection refused"), abi.ErrUnavailable},
		{fmt.Errorf("get: %w", context.DeadlineExceeded), abi.ErrTimedOut}, // the driver's own
		{fmt.Errorf("get: %w", drivers.ErrClosed), abi.ErrUnavailable},
		{fmt.Errorf("get: %w", drivers.ErrUnsupported), abi.ErrNotGranted},
	} {
		log.Reset()
		get := op('g', "a", 0, "")
		if got := code(t, runEffects(m, troubled{err: tt.err}, get+get)); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.err, got, tt.want)
		}
		lines, want := strings.Count(log.String(), "\n"), 1
		if tt.want == abi.ErrNotGranted {
			want = 0
		}
		if lines != want {
			t.Errorf("%v: %d lines logged, want %d: %s", tt.err, lines, want, log.String())
		}
	}
}

// A broker that does not answer is waited for until the deadline or until the run is stopped.
func TestKVWaits(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "effects"), engine.Config{Timeout: 200 * time.Millisecond})
	if r := runEffects(m, troubled{hang: true}, op('g', "a", 0, "")); r.End.Cause != abi.Timeout || r.Duration > 5*time.Second {
		t.Errorf("%+v", r)
	}
	m = load(t, e, wat(t, "effects"), engine.Config{Timeout: time.Hour})
	var call engine.Call
	for _, cause := range []abi.Cause{abi.LeaseLost, abi.Interrupted, abi.Cancelled} {
		call.Reset(engine.Input{Payload: []byte(op('g', "a", 0, "")), Bucket: troubled{hang: true}})
		timer := time.AfterFunc(20*time.Millisecond, func() { call.Stop(cause) })
		if r := m.Run(&call); r.End.Cause != cause {
			t.Errorf("%s: %+v", cause, r)
		}
		timer.Stop()
	}
	healthy(t, e)
}

// outbox knows some queues: what they say to a message.
type outbox map[string]error

func (o outbox) Check(queue string, _ *drivers.Message) error { return o[queue] }

func TestMessageSend(t *testing.T) {
	m := load(t, newEngine(t, engine.Options{}), wat(t, "effects"),
		engine.Config{Send: []string{"q", "emails", "full", "plain", "gone"}, SendBytes: 100 << 10})
	box := outbox{"full": drivers.ErrTooLarge, "plain": drivers.ErrUnsupported, "gone": errors.New("no such queue")}
	message := func(m drivers.Message) *engine.Send { return &engine.Send{Queue: "q", Message: m} }
	for _, tt := range []struct {
		head string
		want int32
		send *engine.Send
	}{
		{"q job", 0, message(drivers.Message{Job: "job"})},
		{"q job\n", 0, message(drivers.Message{Job: "job"})},
		{"q com.acme Order\r\n", 0, message(drivers.Message{Job: "com.acme Order"})},
		{"q job\nA: 1\nB:2\n\nA:  3 \n", 0, message(drivers.Message{Job: "job", Headers: drivers.Header{"A": {"1", "3"}, "B": {"2"}}})},
		{"q job\ndelay: 1h30m\nKEY: k 1", 0, &engine.Send{Queue: "q", Delay: 90 * time.Minute, Message: drivers.Message{Job: "job", Key: "k 1"}}},
		{"q job\nDelay: 2d", 0, &engine.Send{Queue: "q", Delay: 48 * time.Hour, Message: drivers.Message{Job: "job"}}},
		{"q job\nDelay: 0s", 0, message(drivers.Message{Job: "job"})},
		{"q job\nGuesthand-Max-Attempts: 2", 0, message(drivers.Message{Job: "job", Headers: drivers.Header{"Guesthand-Max-Attempts": {"2"}}})},
		{"emails job", 0, &engine.Send{Queue: "emails", Message: drivers.Message{Job: "job"}}},
		{"other job", abi.ErrNotGranted, nil},
		{"Q job", abi.ErrNotGranted, nil},
		{"gone job", abi.ErrNotGranted, nil},
		{"full job", abi.ErrTooLarge, nil},
		{"plain job\nKey: k", abi.ErrMalformed, nil},
		{"", abi.ErrMalformed, nil},
		{"q", abi.ErrMalformed, nil},
		{"q ", abi.ErrMalformed, nil},
		{" job", abi.ErrMalformed, nil},
		{"q jo\x00b", abi.ErrMalformed, nil},
		{"q " + strings.Repeat("j", 256), abi.ErrMalformed, nil},
		{"q job\nno colon", abi.ErrMalformed, nil},
		{"q job\nbad name: v", abi.ErrMalformed, nil},
		{"q job\nA: \xff", abi.ErrMalformed, nil},
		{"q job\nKey:", abi.ErrMalformed, nil},
		{"q job\nDelay: soon", abi.ErrMalformed, nil},
		{"q job\nDelay: -1s", abi.ErrMalformed, nil},
		{"q job\nDelay: 366d", abi.ErrMalformed, nil},
		{"q job\nDelay: 99999999999999999999d", abi.ErrMalformed, nil},
		{"q job\nGuesthand-Id: forged", abi.ErrMalformed, nil},
		{"q job\nguesthand-reply-to: forged", abi.ErrMalformed, nil},
	} {
		payload := op('s', tt.head, 0, "body")
		r := m.Run(&engine.Call{Input: engine.Input{Payload: []byte(payload), Outbox: box}})
		if got := code(t, r); got != tt.want {
			t.Errorf("%.60q: %d, want %d", tt.head, got, tt.want)
		}
		var want []engine.Send
		if tt.send != nil {
			tt.send.Message.Payload = []byte("body")
			want = []engine.Send{*tt.send}
		}
		if !reflect.DeepEqual(r.Sends, want) {
			t.Errorf("%.60q: held %+v, want %+v", tt.head, r.Sends, want)
		}
	}
}

func TestMessageSendLimits(t *testing.T) {
	e := newEngine(t, engine.Options{})
	one := op('s', "q job", 0, strings.Repeat("x", 95)) // 100 bytes
	m := load(t, e, wat(t, "effects"), engine.Config{Send: []string{"q"}, Sends: 3})
	r := run(m, one+one+one+one)
	if len(r.Sends) != 3 || int32(binary.LittleEndian.Uint32(r.Output[12:])) != abi.ErrTooLarge {
		t.Errorf("%d held, output % x", len(r.Sends), r.Output)
	}
	m = load(t, e, wat(t, "effects"), engine.Config{Send: []string{"q"}, SendBytes: 250})
	if r := run(m, one+one+one); len(r.Sends) != 2 || int32(binary.LittleEndian.Uint32(r.Output[8:])) != abi.ErrTooLarge {
		t.Errorf("%d held, output % x", len(r.Sends), r.Output)
	}
	m = load(t, e, wat(t, "effects"), engine.Config{})
	if r := run(m, one); code(t, r) != abi.ErrNotGranted || r.Sends != nil {
		t.Errorf("without an allow list: %+v", r)
	}
}

// What one run held is not the next one's.
func TestMessageSendReset(t *testing.T) {
	m := load(t, newEngine(t, engine.Options{}), wat(t, "effects"), engine.Config{Send: []string{"q"}})
	var call engine.Call
	call.Reset(engine.Input{Payload: []byte(op('s', "q job", 0, "first"))})
	first := m.Run(&call)
	call.Reset(engine.Input{Payload: []byte(op('s', "q job", 0, "second") + op('r', "", 1, ""))})
	second := m.Run(&call)
	if len(first.Sends) != 1 || string(first.Sends[0].Message.Payload) != "first" ||
		len(second.Sends) != 1 || second.End.Outcome.Kind != abi.Retry {
		t.Errorf("%+v\n%+v", first, second)
	}
}
