package main

import (
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/host/engine/extismtest"
	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/host/ledger"
)

// A plug-in built with Extism's own development kit serves a queue: its outcomes, its settings
// and its error text are those of any handler.
func TestExtismServesAQueue(t *testing.T) {
	s := newSite(t, embedded+`
[queues.q]
broker = "b"
retry = { max_attempts = 2, base = "10ms" }
[handlers.letters]
config = { color = "blue" }
[handlers.calls]
function = "run"
memory = "16MiB"
[admin]
listen = "none"
`)
	s.put("letters.wasm", extismtest.Plugin)
	s.put("calls.wasm", extismtest.Interpreter)
	p := s.start()
	for _, tt := range []struct {
		job, payload, out, talk string
		status                  int
	}{
		{"letters", "upper\nhello", "HELLO", "", 0},
		{"letters", "config\ncolor", "blue", "", 0},
		{"letters", "config\nqueue", "q", "", 0},
		{"letters", "config\nattempt", "1", "", 0},
		{"letters", "permanent\nno such order", "", "ended in permanent: permanent: no such order", 1},
		{"letters", "abort\nboom", "", "max attempts (2) exhausted after failure 2: trap: boom (trap: unreachable in", 1},
		{"letters", "mistaken\noops", "", "max attempts (2) exhausted after failure 2: retry: oops", 1},
		{"letters", "http\nhttps://example.com/", "", "http_request: not granted", 1},
		{"calls", string(extismtest.Script{}.Text(0, "x").Op('O', 0, 1).Return(0)), "", "", 0},
		{"calls", string(extismtest.Script{}.Op('A').Word(1 << 16).Op('!')), "", "memory limit of 16 MiB reached", 1},
		{"calls", string(extismtest.Script{}.Op('^')), "", "call depth of 10000 exceeded", 1},
	} {
		s.write("payload", tt.payload)
		out, talk, status := s.do("send", "q", tt.job, "--payload", "@payload", "--wait", "--timeout", "2m")
		if out != tt.out || status != tt.status || !strings.Contains(talk, tt.talk) {
			t.Errorf("%s %q: status %d, %q, %q", tt.job, tt.payload, status, out, talk)
		}
	}
	// A delay is no failure, and its length the plug-in's.
	id := strings.TrimSpace(s.must("send", "q", "letters", "--payload", "later\nsoon"))
	hosttest.Eventually(t, patience, "a second run", func() bool { return len(s.runs("--id", id)) > 1 })
	for _, run := range s.runs("--id", id) {
		if run.Outcome != "delay" || run.Code != 11 || run.Delay != 2*time.Second || run.Error != "soon" || run.Settlement != ledger.Delayed {
			t.Errorf("%+v", run)
		}
	}
	p.stop()
}

func TestExtismOnTheCommandLine(t *testing.T) {
	s := newSite(t, embedded+"\n[queues.q]\nbroker = \"b\"\n[handlers.letters]\nconfig = { color = \"blue\" }\n")
	s.put("letters.wasm", extismtest.Plugin)
	v := lines[invocation](t, s.must("invoke", "plugins/letters.wasm", "--payload", "config\ncolor", "--json"))[0]
	if v.Result != "blue" || v.Dialect != "extism" || v.Outcome != "success" {
		t.Errorf("%+v", v)
	}
	if out := s.must("inspect", "plugins/letters.wasm"); !strings.Contains(out, "\ndialect    extism\nentry      handle\n") {
		t.Error(out)
	}
	s.put("two.wasm", testdata(t, "host/engine/testdata/extism_two.wasm"))
	out, _, status := s.do("inspect", "plugins/two.wasm", "--json")
	found := lines[inspection](t, out)[0]
	if status != exitNotFine || found.Entry != "" || !strings.Contains(found.Refused, `function = "first" under [handlers.JOB]`) {
		t.Errorf("status %d: %s", status, out)
	}
}
