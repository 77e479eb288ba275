package examplestest_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/egress"
	"github.com/guesthand/guesthand/host/engine"
)

// languages are the endings of the sample handlers that exist in several.
var languages = map[string]string{"go": "", "rust": "-rust", "javascript": "-javascript"}

// answering is a server with one answer, which keeps what it was asked.
type answering struct {
	egress.Response
	asked egress.Request
}

func (a *answering) Do(_ context.Context, r egress.Request) (*egress.Response, error) {
	a.asked = r
	answer := a.Response
	return &answer, nil
}

func expect(t *testing.T, r engine.Result, word string, delay time.Duration, text, output string) {
	t.Helper()
	if r.End.Word() != word || r.End.Cause != abi.Returned || r.End.Outcome.Delay != delay || r.End.Text != text || string(r.Output) != output {
		t.Errorf("%s after %s: %q, result %q\nwant %s after %s: %q, result %q",
			r.End.Word(), r.End.Outcome.Delay, r.End.Text, r.Output, word, delay, text, output)
	}
}

func TestPoller(t *testing.T) {
	for language, ending := range languages {
		t.Run(language, func(t *testing.T) {
			server := &answering{Response: egress.Response{Status: 202}}
			m := load(t, "poller"+ending, engine.Config{HTTP: server})
			poll := func(state []byte) engine.Result {
				return run(m, engine.Input{Payload: []byte("https://example.com/42"), State: state})
			}
			var state []byte
			for n := range 11 {
				r := poll(state)
				expect(t, r, "delay", 10*time.Second<<n, "not ready at poll "+strconv.Itoa(n+1), "")
				state = r.State
			}
			if server.asked.URL != "https://example.com/42" || server.asked.Method != "GET" {
				t.Errorf("asked %+v", server.asked)
			}
			expect(t, poll(state), "permanent", 0, "not ready after 12 polls", "")
			server.Status, server.Header = 503, http.Header{"Retry-After": {"30"}}
			expect(t, poll(state), "retry-after", 30*time.Second, "the server answered 503", "")
			server.Status, server.Body = 200, []byte("done")
			expect(t, poll(state), "success", 0, "", "done")
			expect(t, run(m, engine.Input{}), "permanent", 0, "the payload is to be the URL of a status", "")
		})
	}
}

func TestWebhook(t *testing.T) {
	for language, ending := range languages {
		t.Run(language, func(t *testing.T) {
			server := &answering{}
			m := load(t, "webhook"+ending, engine.Config{HTTP: server, Values: map[string]string{"url": "https://example.com/hook"}})
			for _, tt := range []struct {
				status     int
				retryAfter string
				word       string
				delay      time.Duration
			}{
				{status: 200, word: "success"},
				{status: 204, word: "success"},
				{status: 400, word: "permanent"},
				{status: 410, word: "permanent"},
				{status: 408, word: "retry"},
				{status: 500, word: "retry"},
				{status: 503, word: "retry"},
				{status: 503, retryAfter: "45", word: "retry-after", delay: 45 * time.Second},
				{status: 429, retryAfter: "7", word: "retry-after", delay: 7 * time.Second},
			} {
				server.Status, server.Header = tt.status, http.Header{}
				if tt.retryAfter != "" {
					server.Header.Set("Retry-After", tt.retryAfter)
				}
				text := ""
				if tt.word != "success" {
					text = "the server answered " + strconv.Itoa(tt.status)
				}
				r := run(m, engine.Input{ID: "id-1", Payload: []byte("{}"), Headers: drivers.Header{"content-type": {"application/json"}}})
				expect(t, r, tt.word, tt.delay, text, "")
			}
			asked := server.asked
			if asked.Method != "POST" || asked.URL != "https://example.com/hook" || string(asked.Body) != "{}" ||
				asked.Header.Get("Content-Type") != "application/json" || asked.Header.Get("Idempotency-Key") != "id-1" {
				t.Errorf("asked %+v", asked)
			}
			run(m, engine.Input{})
			if got := server.asked.Header.Get("Content-Type"); got != "application/octet-stream" {
				t.Errorf("content type %q", got)
			}
			unset := load(t, "webhook"+ending, engine.Config{HTTP: server})
			expect(t, run(unset, engine.Input{}), "retry", 0, "config.url is not set", "")
		})
	}
}

func TestValidator(t *testing.T) {
	for language, ending := range languages {
		t.Run(language, func(t *testing.T) {
			m := load(t, "validator"+ending, engine.Config{Values: map[string]string{"required": "id, email"}})
			for payload, missing := range map[string]string{
				`{"id": 1, "email": null}`:                                        "",
				` {"id":[1.5e-3,-0,{"x":"\u00e9\ud83d\ude00\n"}],"email":"a@b"} `: "",
				`{"\u0069d": true, "email": false}`:                               "",
				`{"id": 1}`:                                                       "email",
				`{}`:                                                              "id, email",
				`{"a": {"id": 1, "email": 2}}`:                                    "id, email",
			} {
				r := run(m, engine.Input{Payload: []byte(payload)})
				if missing != "" {
					expect(t, r, "permanent", 0, "missing: "+missing, "")
				} else {
					expect(t, r, "success", 0, "", payload)
				}
			}
			for _, payload := range []string{
				"", "x", "[]", "1", "null", `"id"`, `{"id"}`, `{"id": 1,}`, `{"id": 01}`, `{"id": 1.}`, `{"id": .5}`, `{"id": +1}`, `{"id": 1e}`,
				`{"id": tru}`, `{"id": "a`, `{"id": "\x"}`, `{"id": "\u12"}`, "{\"id\": \"\n\"}", `{"id": 1} {}`, `{"id": [1 2]}`, `{'id': 1}`,
				`{"id": ` + strings.Repeat("[", 20000),
			} {
				r := run(m, engine.Input{Payload: []byte(payload)})
				if r.End.Word() != "permanent" || r.End.Cause != abi.Returned || !strings.HasPrefix(r.End.Text, "decode the payload: ") {
					t.Errorf("%.40q: %s, %q", payload, r.End.Word(), r.End.Text)
				}
			}
		})
	}
}
