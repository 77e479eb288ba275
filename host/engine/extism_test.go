package engine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/egress"
	"github.com/guesthand/guesthand/host/engine"
	"github.com/guesthand/guesthand/host/engine/extismtest"
)

// word is a number as the interpreter's trace holds it.
func word(n uint64) string { return string(binary.LittleEndian.AppendUint64(nil, n)) }

// block is a block of a trace.
func block(text string) string { return word(uint64(len(text))) + text }

// A plug-in made with the AssemblyScript development kit as npm has it.
func TestExtismPlugin(t *testing.T) {
	tests := []struct {
		name, payload string
		word, text    string
		delay         time.Duration
		output        string
	}{
		{"output", "upper\nhello", "success", "", 0, "HELLO"},
		{"no output", "forget", "success", "", 0, ""},
		{"setting", "config\ncolor", "success", "", 0, "blue"},
		{"setting over attribute", "config\nqueue", "success", "", 0, "mine"},
		{"setting by its whole name", "config\nconfig.color", "success", "", 0, "blue"},
		{"no setting", "config\nsize", "permanent", "no setting size", 0, ""},
		{"id", "config\nid", "success", "", 0, "id-1"},
		{"job", "config\njob", "success", "", 0, "orders"},
		{"attempt", "config\nattempt", "success", "", 0, "4"},
		{"failures", "config\nfailures", "success", "", 0, "1"},
		{"max_attempts", "config\nmax_attempts", "success", "", 0, "5"},
		{"enqueued_at", "config\nenqueued_at", "success", "", 0, "1700000000123"},
		{"headers", "config\nheaders", "success", "", 0, "X-Tag"},
		{"header", "config\nheader.x-tag", "success", "", 0, "one"},
		{"no header", "config\nheader.none", "permanent", "no setting header.none", 0, ""},
		{"secret", "config\nsecret.KEY", "success", "", 0, "s3cret"},
		{"secret by its bare name", "config\nKEY", "permanent", "no setting KEY", 0, ""},
		{"log", "log\nhello", "success", "", 0, ""},
		{"retry", "what", "retry", "unknown verb what", 0, ""},
		{"retry-after", "wait\nbusy", "retry-after", "busy", 30 * time.Second, ""},
		{"delay", "later\nsoon", "delay", "soon", 2 * time.Second, ""},
		{"permanent", "permanent\nbad \u5927", "permanent", "bad \u5927", 0, ""},
		{"an error and code 0", "mistaken\noops", "retry", "oops", 0, ""},
		{"http", "http\nhttps://example.com/", "retry", "http_request: not granted: the handler has no http in the configuration", 0, ""},
		{"exception", "abort\nboom", "retry", "boom (trap: unreachable in ", 0, ""},
	}
	e := newEngine(t, engine.Options{})
	m := load(t, e, extismtest.Plugin, engine.Config{
		Job: "orders", Values: map[string]string{"color": "blue", "queue": "mine"}, Secrets: map[string]string{"KEY": "s3cret"},
	})
	in := engine.Input{
		ID: "id-1", Job: "orders", Queue: "default", MaxAttempts: 5, EnqueuedAt: time.UnixMilli(1700000000123),
		Tally: drivers.Tally{Failures: 1, Delays: 2}, Headers: drivers.Header{"X-Tag": {"one", "two"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in.Payload = []byte(tt.payload)
			r := m.Run(&engine.Call{Input: in})
			if r.End.Word() != tt.word || r.End.Outcome.Delay != tt.delay || !strings.HasPrefix(r.End.Text, tt.text) ||
				(tt.text == "") != (r.End.Text == "") {
				t.Errorf("got  %+v\nwant %s %s %q", r.End, tt.word, tt.delay, tt.text)
			}
			if string(r.Output) != tt.output {
				t.Errorf("output %q, want %q", r.Output, tt.output)
			}
			healthy(t, e)
		})
	}
	if info := m.Info(); info.Dialect != engine.Extism || info.Entry != "handle" {
		t.Errorf("%+v", info)
	}
}

// Variables live as long as the instance.
func TestExtismVariables(t *testing.T) {
	for mode, want := range map[engine.Instances]string{engine.Fresh: "1 1 1", engine.Reuse: "1 2 3"} {
		e := newEngine(t, engine.Options{})
		m := load(t, e, extismtest.Plugin, engine.Config{Instances: mode})
		var got []string
		for range 3 {
			got = append(got, string(run(m, "count").Output))
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %s, want %s", mode, text, want)
		}
		if mode == engine.Reuse {
			run(m, "forget")
			if again := run(m, "count"); string(again.Output) != "1" {
				t.Errorf("after its removal: %q", again.Output)
			}
		}
	}
}

// What each kernel call answers.
func TestExtismKernel(t *testing.T) {
	var s extismtest.Script
	const far = 0xfffffff0
	tests := []struct {
		name   string
		script extismtest.Script
		want   string // the trace
	}{
		{"blocks", s.Set(1, 100).Op('a', 0, 1).Op('l', 0).Op('u', 0).Add(2, 0, 1).Op('l', 2), word(1) + word(100) + word(100) + word(0)},
		{"empty block", s.Op('a', 0, 1).Op('l', 0), word(0) + word(0)},
		{"new blocks are zero", s.Set(1, 3).Op('a', 0, 1).Op('t', 0), word(1) + block("\x00\x00\x00")},
		{"bytes", s.Text(0, "hello").Op('t', 0), block("hello")},
		{"words", s.Set(1, 8).Op('a', 0, 1).Set(2, 0x0807060504030201).Op('Q', 0, 2).Op('q', 0).Op('t', 0),
			word(1) + word(0x0807060504030201) + block("\x01\x02\x03\x04\x05\x06\x07\x08")},
		{"freed twice", s.Text(0, "hello").Op('f', 0).Op('f', 0).Op('l', 0).Text(1, "again").Text(2, "other").Op('t', 1).Op('t', 2),
			word(0) + block("again") + block("other")},
		{"freed in the middle", s.Text(0, "hello").Add(1, 0, 1).Op('f', 1).Op('t', 0), block("hello")},
		{"out of range", s.Set(0, far).Op('b', 0).Op('B', 0, 1).Op('l', 0).Op('f', 0).Set(0, 1<<40).Op('b', 0).Op('u', 0).Op('f', 0),
			word(0) + word(0) + word(0) + word(0)},
		{"below the first block", s.Text(1, "x").Set(0, 1).Op('B', 0, 7).Op('b', 0).Op('l', 0), word(0) + word(0)},
		{"too large a block", s.Set(1, 1<<63).Op('a', 0, 1).Set(1, ^uint64(0)).Op('a', 0, 1), word(0) + word(0)},
		{"input", s.Op('x', 0).Set(0, 1<<40).Op('x', 0).Op('X', 0), word('x') + word(0) + word(0)},
		{"input's block", s.Op('o', 0).Op('b', 0).Op('B', 0, 'y').Op('x', 1).Op('f', 0).Op('n').Op('x', 1), word(1) + word('o') + word('y') + word(0) + word(0)},
		{"another input", s.Text(0, "other").Set(1, 3).Op('I', 0, 1).Op('n').Op('x', 2).Op('X', 2).Set(1, far).Op('I', 0, 1).Op('n'),
			word(3) + word('o') + word('o'|'t'<<8|'h'<<16) + word(3)},
		{"error", s.Op('g').Text(0, "x").Op('E', 0).Op('g').Set(0, far).Op('E', 0).Op('g').Set(0, 0).Op('E', 0).Op('g'),
			word(0) + word(1) + word(1) + word(0)},
		{"setting", s.Text(0, "color").Op('c', 1, 0).Op('l', 0), word(1) + block("blue") + word(5)},
		{"empty setting", s.Text(0, "empty").Op('c', 1, 0), word(0) + word(0)},
		{"no setting", s.Text(0, "none").Op('c', 1, 0).Op('c', 1, 2), word(0) + word(0) + word(0) + word(0)},
		{"variables", s.Text(0, "n").Text(1, "one").Op('V', 0, 1).Op('l', 0).Op('l', 1).Text(0, "n").Op('v', 1, 0).
			Text(0, "n").Set(1, 0).Op('V', 0, 1).Text(0, "n").Op('v', 1, 0),
			word(0) + word(0) + word(1) + block("one") + word(0) + word(0)},
		{"no response", s.Op('H').Op('K'), word(0) + word(0)},
		{"log level", s.Op('G'), word(2)},
		{"reset", s.Text(0, "x").Op('E', 0).Op('Z').Op('l', 0).Op('g').Op('n'), word(0) + word(0) + word(0)},
	}
	e := newEngine(t, engine.Options{Logger: slog.New(slog.DiscardHandler)})
	m := load(t, e, extismtest.Interpreter, engine.Config{Values: extismtest.Settings, Instances: engine.Reuse})
	logger := slog.New(slog.NewTextHandler(&strings.Builder{}, nil))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := m.Run(&engine.Call{Input: engine.Input{Payload: tt.script.Trace().Return(0), Logger: logger}})
			if string(r.Output) != tt.want {
				t.Errorf("%+v\ngot  %q\nwant %q", r.End, r.Output, tt.want)
			}
		})
	}
}

func TestExtismCodes(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, extismtest.Interpreter, engine.Config{})
	for _, code := range []uint32{0, 1, 2, 10, 12, 13, 255, 256, 10 | 30<<8, 11 | 5<<8, 14 | 60<<8, 1 << 31, 1<<32 - 1} {
		r := run(m, string(extismtest.Script{}.Return(code)))
		if want := abi.DecodeExit(code); r.End.Cause != abi.Returned || r.End.Outcome != want || r.End.Text != want.Text {
			t.Errorf("%d: %+v, want %+v", code, r.End, want)
		}
	}
}

// Whatever a plug-in does to the kernel, its run comes to an end of the right cause.
func TestExtismHazards(t *testing.T) {
	var s extismtest.Script
	const timeout = 100 * time.Millisecond
	const overTime = "deadline of 100ms exceeded"
	const full = "memory limit of 16 MiB reached"
	tests := []struct {
		name   string
		script extismtest.Script
		cause  abi.Cause
		text   string
	}{
		{"trap", s.Op('!'), abi.Trap, "trap: unreachable in run"},
		{"error text, then a trap", s.Text(0, "no luck").Op('E', 0).Op('!'), abi.Trap, "no luck (trap: unreachable in run)"},
		{"loop", s.Op('@'), abi.Timeout, overTime},
		{"recursion", s.Op('^'), abi.Limit, "call depth of 10000 exceeded"},
		{"memory full, then fine", s.Op('M').Return(0), abi.Returned, ""},
		{"memory full, then a trap", s.Op('M').Op('!'), abi.Memory, full},
		{"blocks without end", s.Op('A').Word(1000).Return(0), abi.Returned, ""},
		{"bytes without end", s.Op('A').Word(1).Return(0), abi.Returned, ""},
		{"pages without end, then a trap", s.Op('A').Word(65536).Op('!'), abi.Memory, full},
		{"blocks, then memory", s.Op('A').Word(1 << 20).Op('M').Op('!'), abi.Memory, full},
		{"memory, then blocks", s.Op('M').Op('A').Word(1).Op('!'), abi.Memory, full},
		{"memory, then a setting", s.Text(0, "long").Op('M').Op('A').Word(20).Op('A').Word(1).Op('c', 1, 0), abi.Memory, full},
		{"a block of 4 GiB, then a trap", s.Set(0, 1<<32).Op('a', 1, 0).Op('!'), abi.Memory, full},
		{"allocates and frees", s.Op('W').Word(100000), abi.Timeout, overTime},
		{"load out of range", s.Set(0, 0xfffffff8).Op('q', 0), abi.Trap, "trap: out of bounds memory access in load_u64"},
		{"load over the end", s.Set(0, 1<<64-4).Op('q', 0), abi.Trap, "trap: out of bounds memory access in load_u64"},
		{"store out of range", s.Set(0, 1<<40).Op('Q', 0, 1), abi.Trap, "trap: out of bounds memory access in store_u64"},
		{"store at nothing", s.Op('Q', 0, 1), abi.Trap, "trap: out of bounds memory access in store_u64"},
		{"result over its limit", s.Set(0, 1<<20+1).Op('a', 1, 0).Op('O', 1, 0), abi.Limit, "result limit of 1 MiB exceeded"},
		{"result out of range", s.Set(0, 1<<40).Op('O', 0, 0).Set(1, 1<<63).Op('O', 1, 1).Return(0), abi.Returned, ""},
		{"variable over the limit", s.Text(0, "n").Set(2, 1<<20).Op('a', 1, 2).Op('V', 0, 1), abi.Limit, "limit of 1 MiB for variables exceeded"},
		{"logs without end", s.Text(0, "line").Op('Y'), abi.Timeout, overTime},
		{"no request", s.Op('h', 0, 1, 2), abi.Trap, "http_request: malformed: unexpected end of JSON input"},
		{"no grant", s.Text(1, `{"url":"https://example.com"}`).Op('h', 0, 1, 2), abi.Trap,
			"http_request: not granted: the handler has no http in the configuration"},
	}
	for _, mode := range []engine.Instances{engine.Fresh, engine.Reuse} {
		e := newEngine(t, engine.Options{Logger: slog.New(slog.DiscardHandler)})
		cfg := engine.Config{Memory: 16 << 20, Timeout: timeout, Instances: mode, Values: extismtest.Settings}
		hasty := load(t, e, extismtest.Interpreter, cfg)
		cfg.Timeout = time.Minute
		patient := load(t, e, extismtest.Interpreter, cfg)
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s/%s", mode, tt.name), func(t *testing.T) {
				m := patient
				if tt.cause == abi.Timeout {
					m = hasty
				}
				r := run(m, string(tt.script))
				if r.End.Cause != tt.cause || r.End.Text != tt.text {
					t.Errorf("got  %s %q\nwant %s %q", r.End.Cause, r.End.Text, tt.cause, tt.text)
				}
				if r.Memory > 16<<20 {
					t.Errorf("%d bytes of memory", r.Memory)
				}
				if again := run(patient, string(s.Text(0, "fine").Op('t', 0).Trace())); string(again.Output) != block("fine") {
					t.Errorf("the next run: %+v %q", again.End, again.Output)
				}
				healthy(t, e)
			})
		}
	}
}

// A reused instance finds neither the blocks of the message before nor their bytes.
func TestExtismReset(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, extismtest.Interpreter, engine.Config{Instances: engine.Reuse})
	var s extismtest.Script
	for _, size := range []uint64{100, 5 << 20} {
		fill := s.Set(1, size).Op('a', 0, 1).Add(2, 0, size-1).Op('B', 2, 7).Text(3, "secret")
		look := s.Set(1, size).Op('a', 0, 1).Add(2, 0, size-1).Op('b', 2).Set(1, 6).Op('a', 3, 1).Op('t', 3).Trace()
		if r := run(m, string(fill)); r.End.Word() != "success" {
			t.Fatalf("%+v", r.End)
		}
		if r := run(m, string(look)); string(r.Output) != word(1)+word(0)+word(1)+block("\x00\x00\x00\x00\x00\x00") {
			t.Errorf("%d bytes: %q", size, r.Output)
		}
	}
}

func TestExtismLog(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, extismtest.Interpreter, engine.Config{})
	var s extismtest.Script
	for _, op := range "01234" {
		s = s.Text(0, "line "+string(op)).Op(byte(op), 0).Op('l', 0)
	}
	var log records
	r := m.Run(&engine.Call{Input: engine.Input{ID: "id-1", Payload: s.Trace(), Logger: slog.New(&log)}})
	if string(r.Output) != strings.Repeat(word(0), 5) {
		t.Errorf("the lines' blocks were not freed: %q", r.Output)
	}
	var got []string
	for _, rec := range log.take() {
		got = append(got, fmt.Sprint(rec.Level, " ", rec.Message))
	}
	if text := strings.Join(got, "; "); text != "DEBUG line 0; DEBUG line 1; INFO line 2; WARN line 3; ERROR line 4" {
		t.Error(text)
	}
}

// server answers requests as it is told.
type server func(r egress.Request) (*egress.Response, error)

func (s server) Do(_ context.Context, r egress.Request) (*egress.Response, error) { return s(r) }

func TestExtismHTTP(t *testing.T) {
	var s extismtest.Script
	var got egress.Request
	e := newEngine(t, engine.Options{Logger: slog.New(slog.DiscardHandler)})
	m := load(t, e, extismtest.Interpreter, engine.Config{HTTPCalls: 1, HTTP: server(func(r egress.Request) (*egress.Response, error) {
		got = r
		if r.URL == "https://example.com/down" {
			return nil, fmt.Errorf("%w: connection refused", egress.ErrUnavailable)
		}
		return &egress.Response{Status: 201, Header: http.Header{"X-Tag": {"a", "b"}}, Body: []byte("made")}, nil
	})})
	ask := func(request, body string) extismtest.Script {
		s := s.Text(1, request)
		if body != "" {
			s = s.Text(2, body)
		}
		return s.Op('h', 0, 1, 2).Op('l', 1).Op('H').Op('K')
	}
	r := run(m, string(ask(`{"url":"https://example.com/a","method":"post","headers":{"x-one":"1"}}`, "body").Trace()))
	if want := block("made") + word(0) + word(201) + block(`{"x-tag":"a,b"}`); string(r.Output) != want {
		t.Errorf("%+v\ngot  %q\nwant %q", r.End, r.Output, want)
	}
	if got.Method != "POST" || got.URL != "https://example.com/a" || got.Header.Get("X-One") != "1" || string(got.Body) != "body" {
		t.Errorf("%+v", got)
	}
	run(m, string(ask(`{"url":"https://example.com/a"}`, "")))
	if got.Method != "GET" || len(got.Body) != 0 {
		t.Errorf("%+v", got)
	}
	for request, want := range map[string]string{
		`{"url":"https://example.com/down"}`: "http_request: not available: connection refused",
		`{"url":`:                            "http_request: malformed: unexpected end of JSON input",
	} {
		if r := run(m, string(ask(request, ""))); r.End.Cause != abi.Trap || r.End.Text != want {
			t.Errorf("%s: %+v", request, r.End)
		}
	}
	twice := append(ask(`{"url":"https://example.com"}`, ""), ask(`{"url":"https://example.com"}`, "")...)
	if r := run(m, string(twice)); !strings.HasPrefix(r.End.Text, "http_request: too large: 1 requests") {
		t.Errorf("%+v", r.End)
	}
}

// Which export takes the messages.
func TestExtismEntry(t *testing.T) {
	tests := []struct {
		guest, function string
		entry           string
		refused         string
	}{
		{"extism_one", "", "run", ""},
		{"extism_one", "run", "run", ""},
		{"extism_one", "other", "", `function = "other": the plug-in exports no function of that name`},
		{"extism_one", "memory", "", `function = "memory": the plug-in exports no function of that name`},
		{"extism_one", "quiet", "quiet", ""},
		{"extism_one", "big", "", `function = "big" is () -> i64: () -> i32 or () -> () is needed`},
		{"extism_one", "_initialize", "", `function = "_initialize" is called when an instance starts, and cannot be the entry`},
		{"extism_two", "", "", `the plug-in exports 2 functions that may be meant: first, second: name one with function = "first" under [handlers.JOB]`},
		{"extism_two", "second", "second", ""},
		{"extism_start", "", "", `the plug-in exports no function () -> i32 but _start: function = "_start" under [handlers.JOB] runs that`},
		{"extism_start", "_start", "_start", ""},
		{"noop", "handle", "", `function = "handle" is for Extism plug-ins, and this is a native module: leave it out`},
	}
	e := newEngine(t, engine.Options{})
	for _, tt := range tests {
		t.Run(tt.guest+"/"+tt.function, func(t *testing.T) {
			m, err := e.Load(t.Context(), wat(t, tt.guest), engine.Config{Function: tt.function})
			var refused *engine.RefusedError
			if tt.refused != "" {
				if !errors.As(err, &refused) || refused.Reason != tt.refused {
					t.Errorf("got  %v\nwant %s", err, tt.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if info := m.Info(); info.Entry != tt.entry {
				t.Errorf("%+v", info)
			}
		})
	}
}

// An instance's start: constructors before the first message, and no message while it starts.
func TestExtismStart(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "extism_one"), engine.Config{Instances: engine.Reuse, Values: map[string]string{"k": "v"}})
	for range 2 {
		// _initialize stored the setting k and the input's length, then hs_init ran.
		if r := run(m, "hello"); string(r.Output) != "v\x00\x01\x05" {
			t.Errorf("%+v %q", r.End, r.Output)
		}
	}
	// A function without a result succeeds, unless it sets an error.
	m = load(t, e, wat(t, "extism_one"), engine.Config{Function: "quiet"})
	if r := run(m, ""); r.End.Word() != "success" {
		t.Errorf("%+v", r.End)
	}
	if r := run(m, "e"); r.End.Word() != "retry" || r.End.Text != "e" {
		t.Errorf("%+v", r.End)
	}
}

// A plug-in that is a program: its exit code is the outcome, and each message has its own
// memory.
func TestExtismProgram(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "extism_start"), engine.Config{Function: "_start", Instances: engine.Reuse})
	for range 2 {
		r := run(m, "\x0c")
		if r.End.Cause != abi.Returned || r.End.Word() != "permanent" || string(r.Output) != "\x01" {
			t.Errorf("%+v %q", r.End, r.Output)
		}
	}
	if r := run(m, "\x00"); r.End.Word() != "success" {
		t.Errorf("%+v", r.End)
	}
	if info := m.Info(); info.Instances != engine.Fresh {
		t.Errorf("%+v", info)
	}
	// In a plug-in that is none, it is an end of its own.
	m = load(t, e, wat(t, "extism_two"), engine.Config{Function: "second"})
	if r := run(m, ""); r.End.Cause != abi.Exit || r.End.Text != "proc_exit(0): an Extism plug-in returns its outcome from second" {
		t.Errorf("%+v", r.End)
	}
}

// A plug-in may use the native calls beside the kernel's.
func TestExtismWithNativeCalls(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "extism_two"), engine.Config{Function: "first"})
	if r := run(m, "abc"); r.End.Word() != "success" || string(r.Output) != "native" {
		t.Errorf("%+v %q", r.End, r.Output)
	}
}

// Messages that run at the same time find nothing of each other.
func TestExtismSideBySide(t *testing.T) {
	for _, mode := range []engine.Instances{engine.Fresh, engine.Reuse} {
		e := newEngine(t, engine.Options{})
		m := load(t, e, extismtest.Interpreter, engine.Config{Instances: mode, MaxIdle: 2})
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := range 50 {
					text := fmt.Sprintf("worker %d, message %d", worker, i)
					var s extismtest.Script
					s = s.Text(0, text).Op('t', 0).Text(1, "n").Text(2, text).Op('V', 1, 2).Text(1, "n").Op('v', 3, 1).Trace()
					if r := run(m, string(s)); string(r.Output) != block(text)+word(1)+block(text) {
						t.Errorf("%s: %+v %q", text, r.End, r.Output)
					}
				}
			})
		}
		wg.Wait()
	}
}

// Where the rewriter does not understand a module, wazero's own check ends its runs.
func TestExtismUnmetered(t *testing.T) {
	var s extismtest.Script
	e := newEngine(t, engine.Options{Logger: slog.New(slog.DiscardHandler)})
	engine.NotUnderstood(e)
	m := load(t, e, extismtest.Interpreter, engine.Config{Timeout: 200 * time.Millisecond, Memory: 16 << 20, Instances: engine.Reuse})
	for _, tt := range []struct {
		script extismtest.Script
		cause  abi.Cause
	}{
		{s.Op('@'), abi.Timeout},
		{s.Op('W').Word(1000), abi.Timeout},
		{s.Op('A').Word(1 << 20).Op('!'), abi.Memory},
		{s.Text(0, "fine").Op('t', 0).Trace(), abi.Returned},
	} {
		if r := run(m, string(tt.script)); r.End.Cause != tt.cause {
			t.Errorf("%q: %+v", tt.script, r.End)
		}
	}
}

// FuzzExtism: no input of the interpreter, and so no order of kernel calls, harms the host.
func FuzzExtism(f *testing.F) {
	for seed := range uint64(20) {
		f.Add([]byte(extismtest.Random(rand.New(rand.NewPCG(seed, 0)))))
	}
	e := newEngine(f, engine.Options{Logger: slog.New(slog.DiscardHandler)})
	m := load(f, e, extismtest.Interpreter, engine.Config{Memory: 4 << 20, Timeout: 200 * time.Millisecond, Instances: engine.Reuse})
	f.Fuzz(func(t *testing.T, script []byte) {
		r := run(m, string(script))
		if r.End.Cause == "" || strings.Contains(r.End.Text, "host error") || strings.Contains(r.End.Text, "runtime error") {
			t.Errorf("%+v", r.End)
		}
		if r.Memory > 4<<20 {
			t.Errorf("%d bytes of memory", r.Memory)
		}
	})
}
