package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/engine"
)

// withSection appends a custom section to a module. Name and data are short.
func withSection(wasm []byte, name, data string) []byte {
	body := append([]byte{byte(len(name))}, name+data...)
	return append(append(slices.Clone(wasm), 0, byte(len(body))), body...)
}

func TestAttributes(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, withSection(wat(t, "attribute"), "notes", "hello"), engine.Config{
		Job:     "configured",
		Values:  map[string]string{"quality": "85", "empty": ""},
		Secrets: map[string]string{"KEY": "s3cret"},
	})
	long := strings.Repeat("long ", 1000)
	enqueued := time.UnixMilli(1700000000123)
	in := engine.Input{
		ID: "id-1", Job: "resize", Queue: "default",
		Tally:       drivers.Tally{Failures: 2, Delays: 3, Stalls: 4, Interruptions: 5, Prior: 10},
		MaxAttempts: 7,
		EnqueuedAt:  enqueued,
		Headers: drivers.Header{
			"X-Tag": {"first", "second"}, "long": {long}, "traceparent": {"00-ab-cd-01"}, "bad": {"\xff\xfe"},
		},
	}
	tests := []struct{ name, want string }{
		{"id", "id-1"}, {"job", "resize"}, {"queue", "default"},
		{"attempt", "25"}, {"failures", "2"}, {"delays", "3"}, {"stalls", "4"}, {"interruptions", "5"},
		{"max_attempts", "7"}, {"enqueued_at", "1700000000123"},
		{"headers", "X-Tag\nbad\nlong\ntraceparent"},
		{"header.X-Tag", "first"}, {"header.x-tag", "first"}, {"header.LONG", long}, {"header.bad", "\xff\xfe"},
		{"config.quality", "85"}, {"config.empty", ""}, {"secret.KEY", "s3cret"}, {"section.notes", "hello"},
		{"traceparent", "00-ab-cd-01"},
		{"header.absent", "absent"}, {"config.absent", "absent"}, {"secret.absent", "absent"}, {"secret.key", "absent"},
		{"section.absent", "absent"}, {"ID", "absent"}, {"", "absent"}, {"config", "absent"}, {"header.", "absent"},
	}
	for _, tt := range tests {
		in.Payload = []byte(tt.name)
		r := m.Run(&engine.Call{Input: in})
		if len(r.Output) < 4 {
			t.Fatalf("%s: %+v", tt.name, r)
		}
		size, value := int32(binary.LittleEndian.Uint32(r.Output)), string(r.Output[4:])
		if size == abi.ErrAbsent && value == "" {
			value = "absent"
		} else if int(size) != len(tt.want) {
			t.Errorf("%s: size %d, want %d", tt.name, size, len(tt.want))
		}
		if value != tt.want {
			t.Errorf("%s: %.80q, want %.80q", tt.name, value, tt.want)
		}
	}
	in.Payload = []byte("deadline")
	r := m.Run(&engine.Call{Input: in})
	if want := fmt.Sprint(r.Started.Add(30 * time.Second).UnixMilli()); string(r.Output[4:]) != want {
		t.Errorf("deadline %s, want %s", r.Output[4:], want)
	}
	in.Payload, in.Headers, in.EnqueuedAt = []byte("traceparent"), nil, time.Time{}
	if r := m.Run(&engine.Call{Input: in}); int32(binary.LittleEndian.Uint32(r.Output)) != abi.ErrAbsent {
		t.Errorf("no traceparent: % x", r.Output)
	}
}

func TestState(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "state"), engine.Config{})
	step := func(state []byte, payload string) engine.Result {
		return m.Run(&engine.Call{Input: engine.Input{Payload: []byte(payload), State: state}})
	}
	r := step(nil, "one")
	if !r.StateWritten || string(r.State) != "one" || len(r.Output) != 0 || r.End.Outcome.Kind != abi.Delay {
		t.Errorf("first: %+v", r)
	}
	if r = step(r.State, "two"); string(r.Output) != "one" || string(r.State) != "two" {
		t.Errorf("second: %+v", r)
	}
	if r = step([]byte("old"), ""); !r.StateWritten || len(r.State) != 0 {
		t.Errorf("emptied: %+v", r)
	}
	if r = step(nil, "#\x00\x10\x00\x00"); !r.StateWritten || len(r.State) != 4096 {
		t.Errorf("4096 bytes: %+v", r.End)
	}
	// -3 comes back as a delay of 3 ms.
	if r = step([]byte("old"), "#\x01\x10\x00\x00"); r.StateWritten || r.End.Outcome.Delay != 3*time.Millisecond {
		t.Errorf("4097 bytes: %+v", r)
	}
}

func TestNotGranted(t *testing.T) {
	e := newEngine(t, engine.Options{})
	r := run(load(t, e, wat(t, "granted"), engine.Config{}), "")
	if want := bytes.Repeat([]byte{0xfe}, 9); !bytes.Equal(r.Output, want) {
		t.Errorf("answers % x, want -2 each; %+v", r.Output, r.End)
	}
}

func TestWhileStarting(t *testing.T) {
	var log records
	e := newEngine(t, engine.Options{Logger: slog.New(&log)})
	wasm := withSection(wat(t, "starting"), "x", "ab")
	m := load(t, e, wasm, engine.Config{
		Values: map[string]string{"a": "value"}, Secrets: map[string]string{"s": "x"},
	})
	r := run(m, "payload")
	want := []int8{-2, -2, -2, 5, -2, 2, -2, -2, -2, -2, -2}
	for i, w := range want {
		if i >= len(r.Output) || int8(r.Output[i]) != w {
			t.Fatalf("answers % x (%+v), want %v", r.Output, r.End, want)
		}
	}
	if r.StateWritten || r.End.Text != "" {
		t.Errorf("a start left something behind: %+v", r)
	}
	if got := log.take(); len(got) != 1 || got[0].Message != "id" || got[0].Level != slog.LevelWarn {
		t.Errorf("log: %v", got)
	}
}

// records is a log handler that keeps what it is given.
type records struct {
	mu   sync.Mutex
	list []slog.Record
}

func (r *records) Enabled(context.Context, slog.Level) bool { return true }
func (r *records) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *records) WithGroup(string) slog.Handler            { return r }
func (r *records) Handle(_ context.Context, rec slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, rec)
	return nil
}

func (r *records) take() []slog.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.list
	r.list = nil
	return l
}

// A guest's log is bounded in bytes, and in records even when they are empty.
func TestLogLimit(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "hazard"), engine.Config{Log: 1000, Timeout: 50 * time.Millisecond})
	for _, payload := range []string{"p", "P"} {
		var log records
		r := m.Run(&engine.Call{Input: engine.Input{Payload: []byte(payload), Logger: slog.New(&log)}})
		size := 0
		list := log.take()
		for _, rec := range list {
			size += len(rec.Message)
		}
		if size == 0 || size > 1000 || len(list) > 1000/16 {
			t.Errorf("%s: %d records, %d bytes", payload, len(list), size)
		}
		if r.LogDropped == 0 {
			t.Errorf("%s: nothing was counted as dropped", payload)
		}
	}
}

func TestErrorTextIsCut(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "hazard"), engine.Config{ErrorText: 6})
	if r := run(m, "T"); r.End.Text != "out of" {
		t.Errorf("%+v", r.End)
	}
}
