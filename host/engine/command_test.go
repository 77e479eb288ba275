package engine_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/engine"
)

func TestCommand(t *testing.T) {
	exit := func(code uint32) string {
		return "x" + string([]byte{byte(code), byte(code >> 8), byte(code >> 16), byte(code >> 24)})
	}
	tests := []struct {
		name, payload string
		cause         abi.Cause
		outcome       abi.Outcome
		text, output  string
	}{
		{"returns", "", abi.Returned, abi.Outcome{Kind: abi.Success}, "", ""},
		{"copies", "c" + strings.Repeat("x", 500), abi.Returned, abi.Outcome{Kind: abi.Success}, "", strings.Repeat("x", 500)},
		{"exit 0", exit(0), abi.Returned, abi.DecodeExit(0), "", ""},
		{"exit 1", exit(1), abi.Returned, abi.DecodeExit(1), "", ""},
		{"exit 12", exit(12), abi.Returned, abi.DecodeExit(12), "", ""},
		{"exit retry-after 30 s", exit(10 | 30<<8), abi.Returned, abi.Outcome{Kind: abi.RetryAfter, Code: 10, Delay: 30 * time.Second}, "", ""},
		{"forged cancellation", exit(0xffffffff), abi.Returned, abi.DecodeExit(0xffffffff), "unknown outcome code 255", ""},
		{"forged timeout", exit(0xefffffff), abi.Returned, abi.DecodeExit(0xefffffff), "unknown outcome code 255", ""},
		{"trap", "u", abi.Trap, abi.Outcome{}, "trap: unreachable in _start", ""},
		{"loop", "l", abi.Timeout, abi.Outcome{}, "deadline of 100ms exceeded", ""},
		{"1 GiB to stdout", "o", abi.Limit, abi.Outcome{}, "result limit of 1 MiB exceeded", ""},
		{"argv", "A", abi.Returned, abi.Outcome{Kind: abi.Success}, "", "resize\x00"},
		{"memory full, then fine", "g\x00", abi.Returned, abi.DecodeExit(0), "", ""},
		{"memory full, then retry", "g\x01", abi.Returned, abi.DecodeExit(1), "", ""},
		{"memory full, then a crash", "g\x02", abi.Memory, abi.Outcome{}, "memory limit of 64 MiB reached", ""},
		{"go panic", "epanic: boom\n\ngoroutine 1 [running]:\nmain.main()\n", abi.Returned, abi.DecodeExit(2),
			"unknown outcome code 2: panic: boom", ""},
		{"rust panic", "e\nthread 'main' panicked at src/main.rs:2:5:\nboom\nnote: run with `RUST_BACKTRACE=1`\n", abi.Returned, abi.DecodeExit(2),
			"unknown outcome code 2: thread 'main' panicked at src/main.rs:2:5: boom", ""},
		{"last line", "efirst\nsecond\n\n", abi.Returned, abi.DecodeExit(2), "unknown outcome code 2: second", ""},
	}
	e := newEngine(t, engine.Options{})
	cfg := engine.Config{Job: "resize", Timeout: time.Minute}
	patient := load(t, e, wat(t, "command"), cfg)
	cfg.Timeout = 100 * time.Millisecond
	hasty := load(t, e, wat(t, "command"), cfg)
	if err := patient.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := patient
			if tt.cause == abi.Timeout {
				m = hasty
			}
			r := run(m, tt.payload)
			if r.End.Cause != tt.cause || r.End.Outcome != tt.outcome || r.End.Text != tt.text {
				t.Errorf("got  %+v\nwant %s %+v %q", r.End, tt.cause, tt.outcome, tt.text)
			}
			if tt.cause == abi.Returned && string(r.Output) != tt.output {
				t.Errorf("output %q, want %q", r.Output, tt.output)
			}
			healthy(t, e)
		})
	}
}

func TestCommandStderr(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "command"), engine.Config{})
	var log records
	r := m.Run(&engine.Call{Input: engine.Input{
		Payload: []byte("eone\r\ntwo\n\n\xff" + strings.Repeat("long", 5000)), Logger: slog.New(&log),
	}})
	var lines []string
	for _, rec := range log.take() {
		lines = append(lines, rec.Message)
	}
	if len(lines) != 5 || lines[0] != "one" || lines[1] != "two" || !strings.HasPrefix(lines[2], "\ufffdlong") {
		t.Errorf("%d lines, %.60q", len(lines), lines)
	}
	if n := len(r.End.Text); n > 5000 || n < 3000 {
		t.Errorf("error text of %d bytes", n)
	}
}

func environment(t *testing.T, m *engine.Module, in engine.Input) []string {
	t.Helper()
	in.Payload = []byte("E")
	r := m.Run(&engine.Call{Input: in})
	if r.End.Cause != abi.Returned || len(r.Output) == 0 {
		t.Fatalf("%+v", r)
	}
	return strings.Split(string(bytes.TrimSuffix(r.Output, []byte{0})), "\x00")
}

func TestCommandEnvironment(t *testing.T) {
	var log records
	e := newEngine(t, engine.Options{Logger: slog.New(&log)})
	m := load(t, e, wat(t, "command"), engine.Config{
		Job:     "resize",
		Values:  map[string]string{"image-quality": "85", "image.quality": "90", "nul": "a\x00b", "a=b": "x"},
		Secrets: map[string]string{"API_KEY": "s3cret"},
	})
	in := engine.Input{
		ID: "id-1", Job: "resize", Queue: "default", MaxAttempts: 5, EnqueuedAt: time.UnixMilli(1700000000123),
		Tally:   drivers.Tally{Failures: 1, Delays: 2},
		Headers: drivers.Header{"X-Tag": {"one", "two"}, "x.tag": {"three"}, "Bad": {"\xff"}, "traceparent": {"00-1-2-3"}},
	}
	got := environment(t, m, in)
	want := []string{
		"GUESTHAND_ID=id-1", "GUESTHAND_JOB=resize", "GUESTHAND_QUEUE=default", "GUESTHAND_TRACEPARENT=00-1-2-3",
		"GUESTHAND_ATTEMPT=4", "GUESTHAND_FAILURES=1", "GUESTHAND_DELAYS=2", "GUESTHAND_STALLS=0",
		"GUESTHAND_INTERRUPTIONS=0", "GUESTHAND_MAX_ATTEMPTS=5", "GUESTHAND_ENQUEUED_AT=1700000000123",
		"GUESTHAND_HEADER_BAD=\ufffd", "GUESTHAND_HEADER_X_TAG=one", "GUESTHAND_HEADER_TRACEPARENT=00-1-2-3",
		"GUESTHAND_CONFIG_IMAGE_QUALITY=85", "GUESTHAND_SECRET_API_KEY=s3cret",
	}
	got = slices.DeleteFunc(got, func(v string) bool { return strings.HasPrefix(v, "GUESTHAND_DEADLINE=") })
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	// Nothing leaks from one message to the next, and the warning comes once.
	in.Headers = nil
	for _, v := range environment(t, m, in) {
		if strings.Contains(v, "HEADER") || strings.Contains(v, "TRACEPARENT") {
			t.Errorf("left over: %s", v)
		}
	}
	if n := len(log.take()); n != 1 {
		t.Errorf("%d warnings about what was left out, want 1", n)
	}
}

func TestCommandManyHeaders(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "command"), engine.Config{Job: "resize"})
	many := drivers.Header{}
	for i := range 1000 {
		many[fmt.Sprintf("h%04d", i)] = []string{"v"}
	}
	count := 0
	for _, v := range environment(t, m, engine.Input{Headers: many}) {
		if strings.HasPrefix(v, "GUESTHAND_HEADER_") {
			count++
		}
	}
	if count != 64 {
		t.Errorf("%d headers, want 64", count)
	}
	large := drivers.Header{"a": {strings.Repeat("x", 10<<10)}, "b": {strings.Repeat("y", 10<<10)}}
	got := strings.Join(environment(t, m, engine.Input{Headers: large}), " ")
	if !strings.Contains(got, "HEADER_A=xxx") || strings.Contains(got, "HEADER_B=yyy") {
		t.Errorf("environment of %d bytes", len(got))
	}
}
