package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	sdk "github.com/guesthand/guesthand/abi/guest"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/egress"
	"github.com/guesthand/guesthand/host/engine"
)

// guest is one module of the conformance handler. What it does is described where its sources
// are, in abi/guest/conformance.
type guest struct {
	name    string // the committed module's file, without .wasm, or what is built with Go
	dialect engine.Dialect
	golang  bool
	// The language's own words for panic and bounds.
	panicText, boundsText string
	// cannot says of rows why this language has no way to express them.
	cannot map[string]string
	// exceptions is what an error without a mark adds to its text in a language whose crashes
	// are exceptions too: the place. A crash then is an ordinary return.
	exceptions string
	build      func() ([]byte, error) // instead of a committed module
}

// Rows that a language may be unable to express, and why.
var (
	noErrors = map[string]string{
		"wrapped mark":                 "WAT has no error values to wrap",
		"wrapped no mark":              "WAT has no error values to wrap",
		"wrapped no cause":             "WAT has no error values to wrap",
		"outermost mark":               "WAT has no error values to wrap",
		"mark taken back":              "WAT has no error values to wrap",
		"decoded":                      "WAT has no SDK and no typed decoding",
		"not decoded":                  "WAT has no SDK and no typed decoding",
		"nothing decoded":              "WAT has no SDK and no typed decoding",
		"Retry-After":                  "WAT has no SDK to read the header",
		"Retry-After date":             "WAT has no SDK to read the header",
		"Retry-After over months":      "WAT has no SDK to read the header",
		"Retry-After over February":    "WAT has no SDK to read the header",
		"Retry-After over a leap year": "WAT has no SDK to read the header",
		"Retry-After past":             "WAT has no SDK to read the header",
		"Retry-After junk":             "WAT has no SDK to read the header",
		"Retry-After huge":             "WAT has no SDK to read the header",
		"http 503, date":               "WAT has no SDK to read a date",
		"send broken":                  "WAT has no SDK to look at a header's value",
	}
)

var guests = []guest{
	{name: "go/native", dialect: engine.Native, golang: true, panicText: "panic: boom", boundsText: "index out of range [6] with length 1"},
	{name: "go/command", dialect: engine.Command, golang: true, panicText: "panic: boom", boundsText: "index out of range [6] with length 1"},
	{name: "c", dialect: engine.Native, panicText: "boom", boundsText: "handler.c:171: index < 1 does not hold"},
	{name: "c-command", dialect: engine.Command, panicText: "boom", boundsText: "handler.c:171: index < 1 does not hold"},
	{name: "rust", dialect: engine.Native, panicText: "panicked at 'boom', handler.rs:", boundsText: "index out of bounds: the len is 1 but the index is 6', handler.rs:"},
	{name: "rust-nostd", dialect: engine.Native, panicText: "panicked at 'boom', nostd.rs:", boundsText: "index out of bounds: the len is 1 but the index is 6', nostd.rs:"},
	{name: "rust-command", dialect: engine.Command, panicText: "panicked at 'boom', handler.rs:", boundsText: "index out of bounds: the len is 1 but the index is 6', handler.rs:"},
	{name: "assemblyscript", dialect: engine.Native, panicText: "trap: abort: boom at handler.ts:", boundsText: "Index out of range at ~lib/array.ts:"},
	{name: "assemblyscript-command", dialect: engine.Command, panicText: "trap: abort: boom at handler.ts:", boundsText: "Index out of range at ~lib/array.ts:"},
	{name: "zig", dialect: engine.Native, panicText: "boom", boundsText: "index out of bounds"},
	{name: "zig-command", dialect: engine.Command, panicText: "boom", boundsText: "index out of bounds"},
	{name: "javascript", dialect: engine.Native, build: buildJavaScript, exceptions: " (handler.js:",
		panicText: "boom at crash (handler.js:", boundsText: "TypeError: cannot read property 'length' of undefined at bounds (handler.js:",
		cannot: map[string]string{"trap": "a script has no way to trap"}},
	{name: "wat", dialect: engine.Native, panicText: "boom", boundsText: "trap: out of bounds memory access", cannot: noErrors},
}

// fate is what a row expects of a run.
type fate struct {
	word   string // "success"
	delay  time.Duration
	text   string // the error text, whole where it was returned, else in it
	output string
}

type conformanceRow struct {
	name, payload string
	headers       drivers.Header
	cfg           string // "": plain, "granted", "hasty"
	want          fate
	cause         abi.Cause                          // Returned where empty
	texts         func(g guest) string               // instead of want.text
	check         func(t *testing.T, r conformedRun) // what want cannot say
}

// conformedRun is a run with what was seen around it.
type conformedRun struct {
	engine.Result
	log []slog.Record
}

var binary256 = func() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}()

func returned(word string, text string) fate { return fate{word: word, text: text} }
func wait(word string, d time.Duration, text string) fate {
	return fate{word: word, delay: d, text: text}
}
func output(s string) fate { return fate{word: "success", output: s} }

var conformance = []conformanceRow{
	{name: "empty payload", payload: "", want: output("empty")},
	{name: "echo", payload: "echo\nhello\nworld", want: output("hello\nworld")},
	{name: "echo nothing", payload: "echo\n", want: output("")},
	{name: "echo binary", payload: "echo\n" + binary256, want: output(binary256)},
	{name: "1 MiB payload", payload: "sum\n" + strings.Repeat("\xff", 1<<20-4), want: output(strconv.Itoa(255 * (1<<20 - 4)))},

	{name: "retry", payload: "fail\nretry\n0\nno luck", want: returned("retry", "no luck")},
	{name: "retry-after", payload: "fail\nretry-after\n30000\nbusy", want: wait("retry-after", 30*time.Second, "busy")},
	{name: "retry-after backoff", payload: "fail\nretry-after\n0\nbusy", want: wait("retry-after", 0, "busy")},
	{name: "delay", payload: "fail\ndelay\n21600000\nwaiting for settlement", want: wait("delay", 6*time.Hour, "waiting for settlement")},
	{name: "delay 0", payload: "fail\ndelay\n0\nsoon", want: wait("delay", 0, "soon")},
	{name: "delay rounded up", payload: "fail\ndelay\n1500\nsoon", want: wait("delay", 1500*time.Millisecond, "soon")},
	{name: "permanent", payload: "fail\npermanent\n0\nbad order", want: returned("permanent", "bad order")},
	{name: "reject", payload: "fail\nreject\n0\nnot ours", want: returned("reject", "not ours")},
	{name: "pause", payload: "fail\npause\n60000\nclosed", want: wait("pause", time.Minute, "closed")},
	{name: "text in UTF-8", payload: "fail\npermanent\n0\nzu groß – 大", want: returned("permanent", "zu groß – 大")},
	{name: "unmarked error", payload: "fail\nplain\n0\noops", want: returned("retry", "oops")},
	{name: "permanent, no cause", payload: "fail\npermanent\n0\n", want: returned("permanent", "")},
	{name: "reject, no cause", payload: "fail\nreject\n0\n", want: returned("reject", "")},
	{name: "retry-after, no cause", payload: "fail\nretry-after\n2000\n", want: wait("retry-after", 2*time.Second, "")},
	{name: "delay, no cause", payload: "fail\ndelay\n2000\n", want: wait("delay", 2*time.Second, "")},
	{name: "over 365 days", payload: "fail\ndelay\n31536001000\nlong", want: returned("retry", ""), texts: func(g guest) string {
		if g.dialect == engine.Command {
			return "does not fit a command's exit code"
		}
		return "delay of 31536001000 ms is over the limit of 365 days: long"
	}},

	{name: "wrapped mark", payload: "wrap\nretry-after\n30000\nbusy", want: wait("retry-after", 30*time.Second, "outer: busy")},
	{name: "wrapped no mark", payload: "wrap\nplain\n0\noops", want: returned("retry", "outer: oops")},
	{name: "wrapped no cause", payload: "wrap\npermanent\n0\n", want: returned("permanent", "outer: permanent")},
	{name: "outermost mark", payload: "remark", want: wait("retry-after", 5*time.Second, "outer: inner")},
	{name: "mark taken back", payload: "unmark", want: returned("retry", "outer: inner")},

	{name: "decoded", payload: "41", headers: drivers.Header{"decode": {"yes"}}, want: output("42")},
	{name: "not decoded", payload: "4x", headers: drivers.Header{"decode": {"yes"}}, want: returned("permanent", "decode the payload: ")},
	{name: "nothing decoded", payload: "", headers: drivers.Header{"decode": {"yes"}}, want: returned("permanent", "decode the payload: ")},

	{name: "attributes", payload: "attributes", headers: drivers.Header{"X-Tag": {"first", "second"}, "other": {""}, "traceparent": {"00-ab-cd-01"}},
		want: output("id=id-1\njob=conform\nqueue=default\nattempt=25\nfailures=2\ndelays=3\nstalls=4\ninterruptions=5\n" +
			"max_attempts=7\nenqueued_at=1700000000123\ndeadline=later\nheaders=X-Tag,other,traceparent\nheader=first\nconfig=" + longValue +
			"\nsecret=s3cret\nsection=hello\ntraceparent=00-ab-cd-01\nnone=absent\n")},
	{name: "result", payload: "result", want: output("onetwo")},
	{name: "result at its limit", payload: "big\n1048576", want: output(strings.Repeat("x", 1<<20))},
	{name: "result over its limit", payload: "big\n1048577", want: fate{word: "retry", text: "write the result: too large"}},
	{name: "log", payload: "log", want: output(""), check: checkLog},
	{name: "remaining", payload: "remaining", check: checkRemaining},
	{name: "state", payload: "state", want: wait("delay", time.Second, ""), check: checkState},
	{name: "state over its limit", payload: "state-big", want: returned("retry", "write the state: too large")},

	{name: "Retry-After", payload: "retry-after\n120\n", want: output("120000")},
	{name: "Retry-After date", payload: "retry-after\nThu, 29 Feb 2024 00:00:30 GMT\nWed, 28 Feb 2024 23:59:00 GMT", want: output("90000")},
	{name: "Retry-After over months", payload: "retry-after\nThu, 01 Aug 2024 12:00:00 GMT\nWed, 31 Jul 2024 11:59:59 GMT", want: output("86401000")},
	{name: "Retry-After over February", payload: "retry-after\nSun, 01 Mar 2026 00:00:00 GMT\nSat, 31 Jan 2026 00:00:00 GMT", want: output("2505600000")},
	{name: "Retry-After over a leap year", payload: "retry-after\nSun, 01 Dec 2024 00:00:00 GMT\nSun, 31 Dec 2023 23:59:50 GMT", want: output("28944010000")},
	{name: "Retry-After past", payload: "retry-after\nWed, 28 Feb 2024 00:00:30 GMT\nWed, 28 Feb 2024 23:59:00 GMT", want: output("0")},
	{name: "Retry-After junk", payload: "retry-after\n-5\n", want: output("0")},
	{name: "Retry-After huge", payload: "retry-after\n999999999999\n", want: output("31536000000")},

	{name: "http, not granted", payload: "http\nhttps://example.com/", want: returned("retry", "GET https://example.com/: not granted")},
	{name: "http", payload: "http\nhttps://example.com/ok", cfg: "granted", want: output("200 yes, it is body")},
	{name: "http 429", payload: "http\nhttps://example.com/429", cfg: "granted", want: wait("retry-after", 2*time.Minute, "the server answered 429")},
	{name: "http 503, date", payload: "http\nhttps://example.com/503-date", cfg: "granted", want: wait("retry-after", 90*time.Second, "the server answered 503")},
	{name: "http 503", payload: "http\nhttps://example.com/503", cfg: "granted", want: returned("retry", "the server answered 503")},
	{name: "http 404, with Retry-After", payload: "http\nhttps://example.com/404", cfg: "granted", want: returned("retry", "the server answered 404")},
	{name: "http, nobody there", payload: "http\nhttps://nobody.example/", cfg: "granted", want: returned("retry", "GET https://nobody.example/: not available")},
	{name: "kv, not granted", payload: "kv", want: output(strings.TrimSuffix(strings.Repeat("not granted,", 8), ","))},
	{name: "kv", payload: "kv", cfg: "granted", want: output("absent,created,exists,1,ok,3,ok,absent")},
	{name: "send, not granted", payload: "send", want: output("not granted")},
	{name: "send", payload: "send", cfg: "granted", want: output("ok"), check: checkSend},
	{name: "send broken", payload: "send-broken", cfg: "granted", want: output("malformed")},

	{name: "panic", payload: "panic", want: fate{word: "retry"}, cause: abi.Trap, texts: func(g guest) string { return g.panicText }},
	{name: "out of bounds", payload: "bounds", want: fate{word: "retry"}, cause: abi.Trap, texts: func(g guest) string { return g.boundsText }},
	{name: "trap", payload: "trap", want: fate{word: "retry", text: "trap: "}, cause: abi.Trap},
	{name: "loop", payload: "loop", cfg: "hasty", want: fate{word: "retry", text: "deadline of 500ms exceeded"}, cause: abi.Timeout},
	{name: "grow", payload: "grow", want: fate{word: "retry", text: "memory limit of 64 MiB reached"}, cause: abi.Memory},
	{name: "unknown", payload: "fly", want: returned("permanent", "unknown operation fly")},
}

// servers answers requests by their URL.
type servers struct{}

func (servers) Do(_ context.Context, r egress.Request) (*egress.Response, error) {
	answer := func(status int, header ...string) (*egress.Response, error) {
		h := http.Header{}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return &egress.Response{Status: status, Header: h, Body: []byte("body")}, nil
	}
	if r.Method != "GET" || len(r.Body) > 0 {
		return answer(405)
	}
	switch strings.TrimPrefix(r.URL, "https://example.com/") {
	case "ok":
		return answer(200, "X-Test", "yes, it is")
	case "429":
		return answer(429, "Retry-After", "120")
	case "503-date":
		return answer(503, "Retry-After", "Thu, 29 Feb 2024 00:00:30 GMT", "Date", "Wed, 28 Feb 2024 23:59:00 GMT")
	case "503":
		return answer(503)
	case "404":
		return answer(404, "Retry-After", "120")
	}
	return nil, fmt.Errorf("%w: no such host", egress.ErrUnavailable)
}

var longValue = strings.Repeat("longer than any first buffer ", 40)

func checkLog(t *testing.T, r conformedRun) {
	want := []struct {
		level slog.Level
		text  string
	}{{slog.LevelDebug, "debug"}, {slog.LevelInfo, "info"}, {slog.LevelWarn, "warn"}, {slog.LevelError, "error"}}
	if len(r.log) != len(want) {
		t.Fatalf("%d log lines, want %d: %v", len(r.log), len(want), r.log)
	}
	for i, w := range want {
		if r.log[i].Level != w.level || r.log[i].Message != w.text {
			t.Errorf("line %d: %s %q", i, r.log[i].Level, r.log[i].Message)
		}
	}
}

func checkRemaining(t *testing.T, r conformedRun) {
	ms, err := strconv.Atoi(string(r.Output))
	if err != nil || ms <= 0 || ms > int(time.Minute.Milliseconds()) {
		t.Errorf("%q ms left", r.Output)
	}
}

func checkState(t *testing.T, r conformedRun) {
	if !r.StateWritten || string(r.State) != "abx" {
		t.Errorf("state %q, written %v", r.State, r.StateWritten)
	}
}

func checkSend(t *testing.T, r conformedRun) {
	if len(r.Sends) != 1 {
		t.Fatalf("%d sends", len(r.Sends))
	}
	s := r.Sends[0]
	if s.Queue != "next" || s.Message.Job != "conform" || s.Delay != 30*time.Second || s.Message.Key != "k1" ||
		string(s.Message.Payload) != "hello" || fmt.Sprint(s.Message.Headers) != "map[X-Test:[yes]]" {
		t.Errorf("%+v", s)
	}
}

// TestConformance runs one table over the handler in every language and dialect, on fresh
// instances and on reused ones.
func TestConformance(t *testing.T) {
	e := newEngine(t, engine.Options{CacheDir: t.TempDir()})
	for _, g := range guests {
		modes := []engine.Instances{engine.Fresh, engine.Reuse}
		if g.dialect == engine.Command {
			modes = modes[:1] // a command has no other
		}
		for _, mode := range modes {
			t.Run(g.name+"/"+string(mode), func(t *testing.T) { conform(t, e, g, mode) })
		}
	}
}

func conform(t *testing.T, e *engine.Engine, g guest, mode engine.Instances) {
	wasm := withSection(g.module(t), "conformance", "hello")
	cfg := engine.Config{
		Job: "conform", Timeout: time.Minute, Instances: mode,
		Values: map[string]string{"color": longValue}, Secrets: map[string]string{"key": "s3cret"},
	}
	modules := map[string]*engine.Module{"": load(t, e, wasm, cfg)}
	cfg.Send, cfg.HTTP = []string{"next"}, servers{}
	modules["granted"] = load(t, e, wasm, cfg)
	cfg.Timeout = 500 * time.Millisecond
	modules["hasty"] = load(t, e, wasm, cfg)
	for _, m := range modules {
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if info := modules[""].Info(); info.Dialect != g.dialect || !info.Metered {
		t.Errorf("%s, metered %v: %s", info.Dialect, info.Metered, info.Note)
	}
	known := map[string]bool{}
	for _, row := range conformance {
		known[row.name] = true
		if why := g.cannot[row.name]; why != "" {
			t.Logf("%s: not expressed: %s", row.name, why)
			continue
		}
		t.Run(row.name, func(t *testing.T) { row.run(t, g, modules[row.cfg]) })
	}
	for name := range g.cannot {
		if !known[name] {
			t.Errorf("an exception for a row that there is not: %s", name)
		}
	}
}

func (row conformanceRow) run(t *testing.T, g guest, m *engine.Module) {
	var log records
	in := engine.Input{
		ID: "id-1", Job: "conform", Queue: "default", Payload: []byte(row.payload), Headers: row.headers,
		Tally:       drivers.Tally{Failures: 2, Delays: 3, Stalls: 4, Interruptions: 5, Prior: 10},
		MaxAttempts: 7, EnqueuedAt: time.UnixMilli(1700000000123), State: []byte("ab"), Logger: slog.New(&log),
	}
	if row.cfg == "granted" {
		in.Bucket = bucket(t, drivers.BucketOptions{})
	}
	got := conformedRun{m.Run(&engine.Call{Input: in}), nil}
	got.log = log.take()
	row.expect(t, g, got)
	if row.check != nil {
		row.check(t, got)
	}
}

func (row conformanceRow) expect(t *testing.T, g guest, got conformedRun) {
	want, end := row.want, got.End
	if want.word == "" {
		want.word = "success"
	}
	if g.dialect == engine.Command { // exit codes hold seconds
		want.delay = (want.delay + time.Second - 1).Truncate(time.Second)
	}
	cause := row.cause
	if cause == "" || g.crashesByExit(row) {
		cause = abi.Returned
	}
	if end.Word() != want.word || end.Cause != cause || end.Outcome.Delay != want.delay {
		t.Errorf("%s after %s, cause %s: %q; want %s after %s, cause %s",
			end.Word(), end.Outcome.Delay, end.Cause, end.Text, want.word, want.delay, cause)
	}
	text := want.text
	if row.texts != nil {
		text = row.texts(g)
	}
	if g.exceptions != "" && (row.name == "unmarked error" || row.name == "wrapped no mark") {
		if !strings.Contains(end.Text, g.exceptions) {
			t.Errorf("error text %q names no place", end.Text)
		}
		end.Text, _, _ = strings.Cut(end.Text, " at ")
	}
	exact := row.cause == "" && row.texts == nil && !strings.HasSuffix(text, " ")
	if exact && end.Text != text || !strings.Contains(end.Text, text) {
		t.Errorf("error text %q, want %q", end.Text, text)
	}
	if row.cause == "" && want.word == "success" && row.name != "remaining" && !bytes.Equal(got.Output, []byte(want.output)) {
		t.Errorf("result of %d bytes %.300q\nwant %d bytes %.300q", len(got.Output), got.Output, len(want.output), want.output)
	}
}

// crashesByExit: a Go program that panics exits, with a code that is an ordinary retry, and a
// script throws.
func (g guest) crashesByExit(row conformanceRow) bool {
	return (g.name == "go/command" || g.exceptions != "") && (row.name == "panic" || row.name == "out of bounds")
}

// conformanceDir is where the handlers' sources and committed modules are.
const conformanceDir = "../../abi/guest/conformance"

func (g guest) module(t testing.TB) []byte {
	t.Helper()
	if g.golang {
		wasm, err := goConformance[g.dialect]()
		if err != nil {
			t.Fatal(err)
		}
		return wasm
	}
	if g.build != nil {
		wasm, err := g.build()
		if err != nil {
			t.Fatal(err)
		}
		return wasm
	}
	dir := conformanceDir
	if built := os.Getenv("GUESTHAND_CONFORMANCE"); built != "" { // make guests tries what it built
		dir = built
	}
	wasm, err := os.ReadFile(filepath.Join(dir, g.name+".wasm"))
	if err != nil {
		t.Fatal(err)
	}
	if len(wasm) > 200<<10 {
		t.Errorf("%s has %d bytes: committed modules are small", g.name, len(wasm))
	}
	return wasm
}

// buildJavaScript makes the module as guesthand build does.
func buildJavaScript() ([]byte, error) {
	script, err := os.ReadFile(conformanceDir + "/javascript/handler.js")
	return sdk.JavaScript("handler.js", script), err
}

var goConformance = map[engine.Dialect]func() ([]byte, error){
	engine.Native: sync.OnceValues(func() ([]byte, error) {
		return buildGo(conformanceDir+"/go/native", "-buildmode=c-shared")
	}),
	engine.Command: sync.OnceValues(func() ([]byte, error) { return buildGo(conformanceDir + "/go/command") }),
}

// buildGo compiles a guest with the Go that runs the tests.
func buildGo(dir string, flags ...string) ([]byte, error) {
	tmp, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	out := filepath.Join(tmp, "out.wasm")
	cmd := exec.Command("go", append(append([]string{"build", "-o", out}, flags...), ".")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0", "GOFLAGS=")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}
