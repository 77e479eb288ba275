package examplestest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/engine"
	"github.com/guesthand/guesthand/plugins/examples/examplestest"
)

// cache keeps a module that two tests load from being compiled twice.
var cache string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "guesthand-examples-")
	if err != nil {
		panic(err)
	}
	cache = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// load makes a sample handler ready to run.
func load(t *testing.T, job string, c engine.Config) *engine.Module {
	t.Helper()
	e, err := engine.New(engine.Options{CacheDir: cache, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	c.Job = job
	m, err := e.Load(t.Context(), examplestest.Wasm(t, job), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

func run(m *engine.Module, in engine.Input) engine.Result {
	return m.Run(&engine.Call{Input: in})
}

const items = `"items": [{"sku": "tea", "qty": 2, "price": 3.55}, {"sku": "cup", "qty": 1, "price": 0.1}]`

func TestOrdersOutcomes(t *testing.T) {
	m := load(t, "orders", engine.Config{Timeout: 2 * time.Second})
	hour := time.Now().Add(time.Hour)
	tests := []struct {
		name, payload string
		tally         drivers.Tally
		word          string
		code          int
		cause         abi.Cause
		delay         time.Duration
		text          string // in the error text
	}{
		{name: "good", payload: `{"id": "1", ` + items + `}`, word: "success", code: 0, cause: abi.Returned},
		{name: "past not_before", payload: `{"id": "1", "not_before": "2020-01-01T00:00:00Z", ` + items + `}`, word: "success", code: 0, cause: abi.Returned},
		{name: "retry", payload: `{"id": "1", "simulate": "retry", ` + items + `}`, word: "retry", code: 1, cause: abi.Returned, text: "did not answer"},
		{name: "busy", payload: `{"id": "1", "simulate": "busy", "wait": "30s", ` + items + `}`, word: "retry-after", code: 10, cause: abi.Returned, delay: 30 * time.Second, text: "busy"},
		{name: "not before", payload: fmt.Sprintf(`{"id": "1", "not_before": %q, %s}`, hour.Format(time.RFC3339Nano), items), word: "delay", code: 11, cause: abi.Returned, delay: time.Hour, text: "not to be handled before"},
		{name: "not JSON", payload: `{"id": `, word: "permanent", code: 12, cause: abi.Returned, text: "decode the payload: "},
		{name: "no payload", payload: ``, word: "permanent", code: 12, cause: abi.Returned, text: "decode the payload: "},
		{name: "no id", payload: `{` + items + `}`, word: "permanent", code: 12, cause: abi.Returned, text: "it has no id"},
		{name: "no items", payload: `{"id": "1"}`, word: "permanent", code: 12, cause: abi.Returned, text: `bad order "1": it has no items`},
		{name: "bad quantity", payload: `{"id": "1", "items": [{"sku": "tea", "qty": 0, "price": 1}]}`, word: "permanent", code: 12, cause: abi.Returned, text: "item 1 (tea): quantity 0"},
		{name: "unknown simulation", payload: `{"id": "1", "simulate": "fun", ` + items + `}`, word: "permanent", code: 12, cause: abi.Returned, text: `"fun"`},
		{name: "reject", payload: `{"id": "1", "simulate": "reject", ` + items + `}`, word: "reject", code: 13, cause: abi.Returned, text: "another shop"},
		{name: "pause", payload: `{"id": "1", "simulate": "pause", "wait": "1m", ` + items + `}`, word: "pause", code: 14, cause: abi.Returned, delay: time.Minute, text: "closed"},
		{name: "panic", payload: `{"id": "1", "simulate": "panic", ` + items + `}`, word: "retry", code: -1, cause: abi.Trap, text: "nil pointer"},
		{name: "trap", payload: `{"id": "1", "simulate": "trap", ` + items + `}`, word: "retry", code: -1, cause: abi.Trap},
		{name: "loop", payload: `{"id": "1", "simulate": "loop", ` + items + `}`, word: "retry", code: -1, cause: abi.Timeout},
		{name: "still failing", payload: `{"id": "1", "simulate": "retry", "times": 2, ` + items + `}`, tally: drivers.Tally{Failures: 1}, word: "retry", code: 1, cause: abi.Returned},
		{name: "recovered", payload: `{"id": "1", "simulate": "retry", "times": 2, ` + items + `}`, tally: drivers.Tally{Failures: 1, Delays: 1}, word: "success", code: 0, cause: abi.Returned},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := run(m, engine.Input{Payload: []byte(tt.payload), Tally: tt.tally})
			if r.End.Word() != tt.word || r.End.CodeOrNone() != tt.code || r.End.Cause != tt.cause {
				t.Fatalf("got %s, code %d, cause %s: %s", r.End.Word(), r.End.CodeOrNone(), r.End.Cause, r.End.Text)
			}
			if !strings.Contains(r.End.Text, tt.text) {
				t.Errorf("error text %q, want %q in it", r.End.Text, tt.text)
			}
			if d := r.End.Outcome.Delay; d > tt.delay || d < tt.delay-time.Minute {
				t.Errorf("delay %s, want about %s", d, tt.delay)
			}
			if tt.word == "success" {
				want := fmt.Sprintf(`{"order":"1","items":3,"total":7.2,"attempt":%d}`, tt.tally.Attempt())
				if string(r.Output) != want {
					t.Errorf("result %s, want %s", r.Output, want)
				}
			}
		})
	}
}

func TestWordcount(t *testing.T) {
	m := load(t, "wordcount", engine.Config{})
	tests := []struct {
		name, payload string
		code          int
		want          string // the result, or the error text
	}{
		{"text", "The quick fox.\nthe lazy dog – über", 0,
			`{"bytes":37,"characters":34,"words":8,"lines":2,"commonest":[{"word":"the","count":2},{"word":"dog","count":1},{"word":"fox","count":1},{"word":"lazy","count":1},{"word":"quick","count":1}]}`},
		{"nothing", "", 0, `{"bytes":0,"characters":0,"words":0,"lines":0,"commonest":[]}`},
		{"not UTF-8", "a\xff", 12, "the input is not UTF-8 text"},
		{"a zero byte", "a\x00b", 12, "the input is not UTF-8 text"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := run(m, engine.Input{Payload: []byte(tt.payload)})
			got := strings.TrimSpace(string(r.Output))
			if tt.code != 0 {
				got = r.End.Text
			}
			if r.End.CodeOrNone() != tt.code || got != tt.want {
				t.Errorf("code %d, %s; want %d, %s", r.End.CodeOrNone(), got, tt.code, tt.want)
			}
		})
	}
}

func TestPing(t *testing.T) {
	m := load(t, "ping", engine.Config{Result: 70_000})
	large := strings.Repeat("x", 100_000)
	for payload, want := range map[string]string{
		"": "pong", "hello": "pong hello", large: "pong " + large[:1<<16],
	} {
		r := run(m, engine.Input{Payload: []byte(payload)})
		if r.End.CodeOrNone() != 0 || string(r.Output) != want {
			t.Errorf("payload of %d bytes: code %d, %.40q", len(payload), r.End.CodeOrNone(), r.Output)
		}
	}
	m = load(t, "ping", engine.Config{Result: 8})
	if r := run(m, engine.Input{Payload: []byte("hello")}); r.End.CodeOrNone() != 12 {
		t.Errorf("a result over its limit: %+v", r.End)
	}
}

func TestGithubRefusesOtherInput(t *testing.T) {
	m := load(t, "github", engine.Config{})
	for _, payload := range []string{"", "zen", "[]", "null", `{"action": "opened"`} {
		r := run(m, engine.Input{Payload: []byte(payload)})
		if r.End.CodeOrNone() != 12 || !strings.HasPrefix(r.End.Text, "decode the payload: ") {
			t.Errorf("%q: code %d, %s", payload, r.End.CodeOrNone(), r.End.Text)
		}
	}
	r := run(m, engine.Input{
		Payload: []byte(`{"action": "was_new", "sender": {"login": "octocat"}, "repository": {"full_name": "a/b", "html_url": "u"}}`),
		Headers: drivers.Header{"x-github-event": {"brand_new"}},
	})
	want := `{"event":"brand_new","action":"was_new","repo":"a/b","sender":"octocat","text":"was new","url":"u"}`
	if r.End.CodeOrNone() != 0 || string(r.Output) != want {
		t.Errorf("an unknown event: code %d, %s", r.End.CodeOrNone(), r.Output)
	}
}

// TestGithubPayloads runs every delivery that GitHub's own examples have.
func TestGithubPayloads(t *testing.T) {
	payloads := examplestest.Payloads(t)
	if len(payloads) < 300 {
		t.Fatalf("only %d payloads", len(payloads))
	}
	m := load(t, "github", engine.Config{})
	told := map[string]bool{}
	for _, p := range payloads {
		r := run(m, engine.Input{Payload: p.Body, Headers: drivers.Header{"X-GitHub-Event": {p.Event}}})
		if r.End.CodeOrNone() != 0 {
			t.Errorf("%s: code %d, %s: %s", p.Name, r.End.CodeOrNone(), r.End.Cause, r.End.Text)
			continue
		}
		var s struct{ Event, Sender, Text string }
		if err := json.Unmarshal(r.Output, &s); err != nil {
			t.Errorf("%s: %v: %s", p.Name, err, r.Output)
		}
		if s.Event != p.Event || s.Text == "" {
			t.Errorf("%s: %s", p.Name, r.Output)
		}
		if strings.Contains(string(p.Body), `"sender":`) && s.Sender == "" {
			t.Errorf("%s: no sender: %s", p.Name, r.Output)
		}
		told[s.Event+": "+s.Text] = true
	}
	for _, want := range []string{
		"create: tag simple-tag created",
		"deployment_status: master to production: success",
		"fork: forked to Octocoders/Hello-World",
		"issue_comment: #1 Spelling error in the README file: You are totally right! I'll get this fixed today.",
		"ping: Non-blocking is better than blocking.",
		"public: public",
		"pull_request_review: #2 Update the README with new information.: commented",
		"workflow_job: Test workflow: in progress",
	} {
		if !told[want] {
			t.Errorf("no summary %q", want)
		}
	}
}
