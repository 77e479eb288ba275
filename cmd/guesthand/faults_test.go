package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/host/ledger"
	"github.com/guesthand/guesthand/host/plugindir"
)

const faultConfig = `
%s
[queues.q]
broker = "b"
lease = "5s"
unknown_job = { wait = "100ms", tries = 1 }
[limits]
timeout = "2s"
payload = "1KiB"
[admin]
listen = "none"
`

// retried is a configuration whose queue tries twice.
func retried(config string) string {
	return strings.Replace(config, "[limits]", "retry = { max_attempts = 2, base = \"10ms\" }\n[limits]", 1)
}

// post is what curl does with the API: the body as it stands, the headers with it.
func (s *site) post(path string, header http.Header, body string) (status int, answer string) {
	s.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(s.dir, "data", "guesthand.sock"))
	}}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header = header
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// posted is post where the message is taken; it returns its id.
func (s *site) posted(job string, header http.Header, body string) string {
	s.t.Helper()
	status, answer := s.post("/v1/queues/q/jobs/"+job, header, body)
	var sent struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal([]byte(answer), &sent); err != nil || status != http.StatusAccepted || sent.ID == "" {
		s.t.Fatalf("status %d: %s", status, answer)
	}
	return sent.ID
}

// letterOf is a message's only dead letter.
func (s *site) letterOf(id string) drivers.DeadLetter {
	s.t.Helper()
	letters := of(s.dead("q"), id)
	if len(letters) != 1 {
		s.t.Fatalf("message %s has %d dead letters", id, len(letters))
	}
	return letters[0]
}

func TestPayloads(t *testing.T) {
	eachBroker(t, func(t *testing.T, broker string) {
		s := newSite(t, fmt.Sprintf(faultConfig, broker))
		s.puppet("puppet")
		s.start()

		// Over the handler's limit: never run, and kept whole.
		long := strings.Repeat("0123456789abcdef", 64) + "!"
		id := s.send(long)
		s.idle()
		l := s.letterOf(id)
		if l.Reason != "payload of 1025 bytes is over the limit of 1024" || string(l.Payload) != long || l.LastAttempt() != 0 || l.Tally != (drivers.Tally{}) {
			t.Errorf("%s, tally %+v, attempt %d, %d bytes", l.Reason, l.Tally, l.LastAttempt(), len(l.Payload))
		}
		if r := s.one(id); r.Settlement != ledger.DeadLtr || r.Cause != "limit" || !r.Started.IsZero() {
			t.Errorf("%+v", r)
		}
		if id := s.send(long[:1024]); s.lastOf(id).Cause == "limit" {
			t.Error("a payload as long as the limit is over it")
		}

		// Over the broker's: not taken, and the sender is told.
		s.write("large", strings.Repeat("x", 10<<20))
		_, talk, status := s.do("send", "q", "puppet", "--payload", "@large")
		if status != exitUsage || !strings.Contains(talk, "payload of 10485760 bytes, the server takes") {
			t.Errorf("status %d: %s", status, talk)
		}

		// Nothing at all is a message like any other.
		if out := s.must("send", "q", "puppet", "--payload", "", "--wait"); out != "attempt 1" {
			t.Errorf("0 bytes by send: %q", out)
		}
		if r := s.lastOf(s.posted("puppet", nil, "")); r.Outcome != "success" || r.Attempt != 1 {
			t.Errorf("0 bytes by POST: %+v", r)
		}
	})
}

// lastOf waits until nothing is left to do and returns a message's last run.
func (s *site) lastOf(id string) ledger.Row {
	s.t.Helper()
	s.idle()
	rows := s.runs("--id", id)
	if len(rows) == 0 {
		s.t.Fatalf("message %s has no run", id)
	}
	return rows[0]
}

// A header that is no UTF-8 is refused at our own doors, with its name; what others put
// into the broker is run and kept all the same.
func TestHeadersThatAreNoText(t *testing.T) {
	eachBroker(t, func(t *testing.T, broker string) {
		s := newSite(t, fmt.Sprintf(faultConfig, broker))
		s.puppet("puppet")
		s.start()
		status, answer := s.post("/v1/queues/q/jobs/puppet", http.Header{"X-Name": {"caf\xe9"}}, "0")
		if status != http.StatusBadRequest || !strings.Contains(answer, "X-Name") || !strings.Contains(answer, "UTF-8") {
			t.Errorf("POST: status %d: %s", status, answer)
		}
		_, talk, code := s.do("send", "q", "puppet", "--header", "X-Name=caf\xe9")
		if code != exitUsage || !strings.Contains(talk, "X-Name") || !strings.Contains(talk, "UTF-8") {
			t.Errorf("send: status %d: %s", code, talk)
		}
		if q := s.queue("q"); q.Depth != 0 {
			t.Errorf("taken all the same: %+v", q)
		}
	})
}

func TestForeignHeaders(t *testing.T) {
	server := natstest.Start(t)
	s := newSite(t, retried(fmt.Sprintf(faultConfig, fmt.Sprintf("[brokers.b]\ndriver = \"nats\"\nurl = %q\n", server.URL))))
	s.puppet("puppet")
	s.start()
	nc, err := nats.Connect(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	publish := func(id, payload, more string) {
		t.Helper()
		m := nats.NewMsg("guesthand.q.puppet")
		m.Header = nats.Header{"Guesthand-Id": {id}, "X-Name": {"caf\xe9"}, more: {"\xfe"}}
		m.Data = []byte(payload)
		answer, err := nc.RequestMsg(m, patience)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(answer.Data, []byte(`"stream"`)) {
			t.Fatalf("%s", answer.Data)
		}
	}
	publish("good", "1;again|headers", "X-More")
	publish("bad", "12;hopeless|0", "X-More")
	publish("typed", "0", "ce-type")
	s.idle()

	rows := s.runs("--id", "good")
	if len(rows) != 2 || rows[0].Outcome != "success" || !strings.Contains(string(rows[0].Result), "X-Name=caf") {
		t.Errorf("%+v", rows)
	}
	for id, reason := range map[string]string{"bad": "permanent: hopeless", "typed": "no handler"} {
		if l := s.letterOf(id); !strings.Contains(l.Reason, reason) || !strings.HasPrefix(l.Headers["X-Name"][0], "caf") || len(l.Payload) == 0 {
			t.Errorf("%+v", l)
		}
	}
	s.must("dead", "replay", "q", "bad")
	s.idle()
	if rows := s.runs("--id", "bad"); len(rows) != 2 || rows[0].Outcome != "success" || rows[0].Attempt != 2 {
		t.Errorf("replayed: %+v", rows)
	}
}

// Of a thousand headers a native handler reads every one; a command gets 64 of them, which
// the log says once.
func TestThousandHeaders(t *testing.T) {
	eachBroker(t, func(t *testing.T, broker string) {
		s := newSite(t, fmt.Sprintf(faultConfig, broker))
		s.puppet("puppet")
		hosttest.Install(t, filepath.Join(s.dir, "plugins"), "command", testdata(t, "host/engine/testdata/command.wasm"))
		p := s.start()
		header := http.Header{}
		for i := range 1000 {
			header.Set(fmt.Sprintf("X-Number-%d", i), fmt.Sprint("value ", i))
		}
		native := s.posted("puppet", header, "headers")
		commands := []string{s.posted("command", header, "E"), s.posted("command", header, "E")}

		result := string(s.lastOf(native).Result)
		for i := range 1000 {
			if !strings.Contains(result, fmt.Sprintf("X-Number-%d=value %d\n", i, i)) {
				t.Fatalf("number %d is missing of %d bytes", i, len(result))
			}
		}
		for _, id := range commands {
			r := s.lastOf(id)
			if n := strings.Count("\x00"+string(r.Result), "\x00GUESTHAND_HEADER_X_NUMBER_"); r.Outcome != "success" || n < 50 || n > 64 {
				t.Errorf("%d headers in the environment: %s %s", n, r.Outcome, r.Error)
			}
		}
		if n := p.count("not every header, setting or secret fits into a command's environment"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

// A job's name is a name, whatever is in it: it leads to no file outside the directory, and
// the message is kept.
func TestJobNamesOfPaths(t *testing.T) {
	eachBroker(t, func(t *testing.T, broker string) {
		s := newSite(t, fmt.Sprintf(faultConfig, broker))
		if err := os.Mkdir(s.plugin("sub"), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{s.dir, s.plugin("sub"), filepath.Join(s.dir, "plugins")} {
			hosttest.Install(t, dir, "v", lettered(t, 'A'))
		}
		s.start()
		ids := map[string]string{}
		for _, job := range []string{"../v", "sub/v", "./v", "v.wasm", "/etc/passwd", "..", "v/", `..\v`, "v\u2028", "*", ">", "a b", "%2e%2e%2fv", "v%00"} {
			ids[job] = strings.TrimSpace(s.must("send", "q", job))
		}
		ids["../../v"] = s.posted("..%2F..%2Fv", nil, "")
		s.idle()
		for job, id := range ids {
			if l := s.letterOf(id); l.Job != job || !strings.Contains(l.Reason, "no handler") {
				t.Errorf("%q: %+v", job, l)
			}
		}
		if n := len(s.runs("--outcome", "success")); n != 0 {
			t.Errorf("%d were run", n)
		}
	})
}

// Numbers from a handler that are no outcome, or no delay that could be meant.
func TestOddReturnValues(t *testing.T) {
	s := newSite(t, retried(fmt.Sprintf(faultConfig, embedded)))
	s.puppet("puppet")
	s.start()
	tests := []struct {
		payload, outcome, err string
		attempts              int
	}{
		{"-1|0", "retry", "unknown outcome code 255", 2},
		{"-256|0", "retry", "outcome 0 with delay bits", 2},
		{"-9223372036854775808|0", "retry", "outcome 0 with delay bits", 2},
		{"256|0", "retry", "outcome 0 with delay bits", 2},
		{"7|0", "retry", "unknown outcome code 7", 2},
		// The longest that fits; 2^55 itself is the sign: a negative delay, which counts as none.
		{"11 36028797018963967|0", "retry", "delay of 36028797018963967 ms is over the limit of 365 days", 2},
		{"11 36028797018963968|0", "delay", "", 2},
		{"10 36028797018963968|0", "retry-after", "", 2},
		{"10 -5|0", "retry-after", "", 2},
	}
	ids := make([]string, len(tests))
	for i, tt := range tests {
		ids[i] = s.send(tt.payload)
	}
	s.idle()
	for i, tt := range tests {
		rows := s.runs("--id", ids[i])
		if len(rows) != tt.attempts || rows[0].Outcome != "success" || rows[1].Outcome != tt.outcome || rows[1].Error != tt.err {
			t.Errorf("%s: %+v", tt.payload, rows)
		}
	}
	_, talk, status := s.do("send", "q", "puppet", "--delay", "36028797018963968ms")
	if status != exitUsage || !strings.Contains(talk, "36028797018963968ms") || !strings.Contains(talk, "292 years") {
		t.Errorf("send --delay: status %d: %s", status, talk)
	}
	code, answer := s.post("/v1/queues/q/jobs/puppet?delay=36028797018963968ms", nil, "0")
	if code != http.StatusBadRequest || !strings.Contains(answer, "292 years") {
		t.Errorf("POST: status %d: %s", code, answer)
	}
}

// Handlers that never stop writing end by their limits, the log stays bounded, and others
// are served meanwhile.
func TestHandlersThatWriteWithoutEnd(t *testing.T) {
	s := newSite(t, fmt.Sprintf(faultConfig, embedded))
	s.puppet("puppet")
	dir := filepath.Join(s.dir, "plugins")
	hosttest.Install(t, dir, "command", testdata(t, "host/engine/testdata/command.wasm"))
	hosttest.Install(t, dir, "hazard", testdata(t, "host/engine/testdata/hazard.wasm"))
	p := s.start()
	send := func(job, payload string) string {
		return strings.TrimSpace(s.must("send", "q", job, "--payload", payload))
	}
	output, logs := send("command", "o"), send("hazard", "p")
	if out := s.must("send", "q", "puppet", "--payload", "0", "--wait"); out != "attempt 1" {
		t.Errorf("the healthy one: %q", out)
	}
	s.idle()
	if r := s.one(output); r.Outcome != "retry" || r.Cause != "limit" || !strings.Contains(r.Error, "result") || !strings.Contains(r.Error, "1 MiB") {
		t.Errorf("endless output: %+v", r)
	}
	if r := s.one(logs); r.Outcome != "retry" || r.Cause != "timeout" {
		t.Errorf("endless logs: %+v", r)
	}
	const longest = 256 << 10 / len("out of patience")
	if n := p.count("out of patience"); n > longest {
		t.Errorf("%d log records of one run", n)
	}
	if n := len(s.dead("q")); n != 2 {
		t.Errorf("%d dead letters", n)
	}
}

// A module that does not come back from its start is refused with the reason, and keeps
// neither the host nor others waiting; its messages are put back.
func TestModuleThatNeverStarts(t *testing.T) {
	s := newSite(t, fmt.Sprintf(faultConfig, embedded))
	s.puppet("puppet")
	loop := testdata(t, "host/engine/testdata/init_loop.wasm")
	hosttest.Install(t, filepath.Join(s.dir, "plugins"), "early", loop)
	p := s.start()
	const why = "start: deadline of 2s exceeded"
	if h := s.refused("early", why); h.State != plugindir.Broken {
		t.Errorf("%+v", h)
	}
	s.put("late.wasm", loop)
	id := strings.TrimSpace(s.must("send", "q", "early"))
	if out := s.must("send", "q", "puppet", "--payload", "0", "--wait"); out != "attempt 1" {
		t.Errorf("the healthy one: %q", out)
	}
	s.refused("late", why)
	if p.count("plugin refused") != 2 {
		t.Errorf("the log:\n%s", p.tail())
	}
	s.rename("early.wasm", lettered(t, 'A'))
	if r := s.lastOf(id); r.Outcome != "success" || r.Attempt != 1 {
		t.Errorf("%+v", r)
	}
}

// The second host on a data directory waits for the first one's end, and goes with a
// sentence when that does not come.
func TestTwoHosts(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		s := newSite(t, fmt.Sprintf(faultConfig, embedded))
		first := s.start()
		begun := time.Now()
		_, talk, status := s.do("run")
		want := fmt.Sprintf("is in use by process %d; stop it, or give each its own dir", first.cmd.Process.Pid)
		if status != exitUnreachable || !strings.Contains(talk, want) {
			t.Errorf("status %d, want %q: %s", status, want, talk)
		}
		if waited := time.Since(begun); waited < lockWait {
			t.Errorf("it waited %s", waited)
		}
		if q := s.queue("q"); q.Error != "" {
			t.Errorf("the first one afterwards: %+v", q)
		}
		second := s.launch()
		time.Sleep(200 * time.Millisecond) // it waits for the lock, and says nothing of it
		first.stop()
		second.waitFor(`"msg":"ready"`)
	})
	t.Run("nats", func(t *testing.T) {
		server := natstest.Start(t)
		s := newSite(t, fmt.Sprintf(awayConfig, server.URL))
		s.start()
		_, talk, status := s.do("run")
		if status != exitNotFine || !strings.Contains(talk, "guesthand.sock") || !strings.Contains(talk, "another host") {
			t.Errorf("status %d: %s", status, talk)
		}
		if q := s.queue("q"); q.Error != "" {
			t.Errorf("the first one afterwards: %+v", q)
		}
	})
}

// A ledger that cannot be read is set aside and a new one begun: it is only a record.
func TestCorruptLedgerAtStart(t *testing.T) {
	s := newSite(t, fmt.Sprintf(faultConfig, embedded))
	s.puppet("puppet")
	garbage := strings.Repeat("this is no database. ", 500)
	s.write("data/ledger.db", garbage)
	p := s.start()
	if p.count("the ledger is damaged; it was set aside and a new one begun") != 1 {
		t.Errorf("the log:\n%s", p.tail())
	}
	if r := s.lastOf(s.send("0")); r.Outcome != "success" {
		t.Errorf("%+v", r)
	}
	files, err := filepath.Glob(filepath.Join(s.dir, "data", "ledger.db.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil && string(b) == garbage {
			return
		}
	}
	t.Errorf("the damaged file is gone: %v", files)
}

// A store that cannot be written ends the start, naming the place.
func TestStoreThatCannotBeWritten(t *testing.T) {
	locked := "locked/store"
	if os.Geteuid() == 0 {
		locked = "/proc/locked/store" // the superuser may write everywhere else
	}
	for _, tt := range []struct {
		name, dir, want string
		make            func(s *site)
	}{
		{"a file in its place", "store", "store", func(s *site) { s.write("store", "") }},
		{"a file above it", "file/store", "file", func(s *site) { s.write("file", "") }},
		{"no permission", locked, "locked", func(s *site) {
			if err := os.Mkdir(filepath.Join(s.dir, "locked"), 0o500); err != nil {
				s.t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t, fmt.Sprintf(faultConfig, strings.Replace(embedded, "data/broker", tt.dir, 1)))
			tt.make(s)
			for _, command := range [][]string{{"run"}, {"send", "q", "puppet"}} {
				_, talk, status := s.do(command...)
				if status != exitUnreachable || !strings.Contains(talk, "guesthand: broker b: ") || !strings.Contains(talk, tt.want) {
					t.Errorf("%v: status %d: %s", command, status, talk)
				}
			}
		})
	}
}
