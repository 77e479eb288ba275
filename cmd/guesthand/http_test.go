package main

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/hosttest"
)

// web is a server that handlers ask, with TLS.
type web struct {
	*httptest.Server
	mu   sync.Mutex
	seen map[string][]http.Header // by path
}

func newWeb(s *site) *web {
	w := &web{seen: map[string][]http.Header{}}
	w.Server = httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seen[r.URL.Path] = append(w.seen[r.URL.Path], r.Header.Clone())
		first := len(w.seen[r.URL.Path]) == 1
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.URL.Path == "/busy" && first:
			rw.Header().Set("Retry-After", "1")
			rw.WriteHeader(http.StatusTooManyRequests)
		case r.URL.Path == "/wrong":
			rw.WriteHeader(http.StatusBadRequest)
		default:
			rw.Header().Set("X-Answer", "yes")
			fmt.Fprintf(rw, "got %s", body)
		}
	}))
	s.t.Cleanup(w.Close)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.Certificate().Raw})
	s.write("ca.pem", string(cert))
	return w
}

// sent is what header the requests for a path had, one for each.
func (w *web) sent(path, header string) (values []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.seen[path] {
		values = append(values, strings.Join(h.Values(header), "|"))
	}
	return values
}

const httpConfig = `
[brokers.b]
driver = "embedded"
dir = "data/broker"
[queues.q]
broker = "b"
retry = { max_attempts = 3, base = "10ms" }
[handlers.ask.http]
allow = ["%[1]s"]
allow_private = ["127.0.0.0/8"]
roots = "ca.pem"
inject = { "%[1]s" = { Authorization = "file:token" } }
[handlers.busy]
config = { url = "%[1]s/busy" }
http = { allow = ["%[1]s"], allow_private = ["127.0.0.1"], roots = "ca.pem" }
[handlers.wrong]
config = { url = "%[1]s/wrong" }
http = { allow = ["%[1]s"], allow_private = ["127.0.0.1"], roots = "ca.pem", inject = { "%[1]s" = { X-Api-Key = "file:token" } } }
[handlers.secret]
secrets = { KEY = "file:key" }
[handlers.puppet]
secrets = { KEY = "file:token" }
[log]
level = "debug"
[admin]
listen = "none"
`

// asked sends a request for the job ask to make, and waits for what came of it.
func (s *site) asked(head, header, body string) hosttest.Answer {
	s.t.Helper()
	s.write("payload", hosttest.Asking(1, head, header, body))
	out := s.must("send", "q", "ask", "--payload", "@payload", "--wait")
	a, ok := hosttest.Answered([]byte(strings.TrimSuffix(out, "\n")))
	if !ok {
		s.t.Fatalf("result %q", out)
	}
	return a
}

// Handlers ask a server: with a result, with Retry-After, with headers that only the host
// knows. What is planted is found nowhere but on the server, and is read again at SIGHUP.
func TestHTTP(t *testing.T) {
	s := newSite(t, "")
	w := newWeb(s)
	s.write("config.toml", fmt.Sprintf(httpConfig, w.URL))
	planted := []string{"hunter2-first-planted", "hunter2-second-planted"}
	s.write("token", planted[0])
	s.write("key", "first key")
	plugins := filepath.Join(s.dir, "plugins")
	hosttest.Install(t, plugins, "ask", hosttest.HTTP(t))
	s.puppet("puppet")
	for job, file := range map[string]string{"busy": "plugins/examples/webhook/webhook.wasm", "wrong": "plugins/examples/webhook/webhook.wasm",
		"secret": "host/engine/testdata/attribute.wasm"} {
		wasm, err := os.ReadFile(filepath.Join(hosttest.Root(), filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		hosttest.Install(t, plugins, job, wasm)
	}
	p := s.start()

	if a := s.asked("POST "+w.URL+"/ok\nAuthorization: mine", "X-Answer", "text"); a.Status != 200 || a.Body != "got text" || a.Header != "yes" {
		t.Errorf("answer %+v", a)
	}
	if a := s.asked("GET "+w.URL+"/read", "Authorization", ""); a.Status != 200 || a.HeaderSize != abi.ErrAbsent {
		t.Errorf("the injected header reads as %+v", a)
	}
	if a := s.asked("GET https://refused.example/?q=query-planted", "", ""); a.Status != abi.ErrNotGranted {
		t.Errorf("a host that is not allowed: %+v", a)
	}
	if p.count(`"level":"WARN","msg":"http_send","job":"ask"`) != 1 || p.count("not granted: refused.example is not in http.allow") != 1 {
		t.Errorf("no clear line in the log:\n%s", p.tail())
	}
	busy := s.sendTo("q", "busy", "text")
	wrong := s.sendTo("q", "wrong", "text")
	trap := s.sendTo("q", "puppet", "trap")
	s.idle()
	if rows := s.runs("--id", busy); len(rows) != 2 || rows[0].Outcome != "success" || rows[1].Outcome != "retry-after" || rows[1].Delay != time.Second {
		t.Errorf("after Retry-After: %+v", rows)
	}
	if l := of(s.dead("q"), wrong); len(l) != 1 || !strings.Contains(l[0].Reason, "400") || !slices.Equal(w.sent("/wrong", "X-Api-Key"), planted[:1]) {
		t.Errorf("after 400: %+v, sent %v", l, w.sent("/wrong", "X-Api-Key"))
	}
	secret := func() string { return s.must("send", "q", "secret", "--payload", "secret.KEY", "--wait") }
	if out := secret(); !strings.Contains(out, "first key") {
		t.Errorf("secret.KEY is %q", out)
	}

	s.write("token", planted[1])
	s.write("key", "second key")
	p.signal(syscall.SIGHUP)
	p.waitFor(`"msg":"reloaded"`)
	if a := s.asked("GET "+w.URL+"/ok", "", ""); a.Status != 200 || !slices.Equal(w.sent("/ok", "Authorization"), planted) {
		t.Errorf("%+v, sent %v", a, w.sent("/ok", "Authorization"))
	}
	if out := secret(); !strings.Contains(out, "second key") {
		t.Errorf("after SIGHUP secret.KEY is %q", out)
	}
	hosttest.Eventually(t, patience, "the calls to be counted", func() bool {
		text, err := s.get("/metrics")
		return err == nil && strings.Contains(text, `guesthand_http_calls_total{job="ask",result="2xx"} 3`) &&
			strings.Contains(text, `guesthand_http_calls_total{job="ask",result="refused"} 1`) &&
			strings.Contains(text, `guesthand_http_calls_total{job="busy",result="4xx"} 1`)
	})

	everywhere := p.all() + s.shown(wrong, trap)
	p.stop()
	everywhere += p.all() + s.stored()
	for _, hidden := range planted {
		if i := strings.Index(everywhere, hidden); i >= 0 {
			t.Errorf("%s is in %q", hidden, everywhere[max(0, i-200):i+100])
		}
	}
	// The message itself holds the URL, and so does the store; the log need not.
	if strings.Contains(p.all(), "query-planted") {
		t.Error("a URL's query is in the log")
	}
	if !strings.Contains(everywhere, "refused.example") || !strings.Contains(everywhere, wrong) {
		t.Error("the search does not find what is there")
	}
}

// all is the whole log.
func (p *process) all() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// shown is what commands and the API tell.
func (s *site) shown(ids ...string) string {
	var b strings.Builder
	commands := [][]string{{"runs"}, {"queues"}, {"check"}, {"dead", "list", "q"}}
	for _, id := range ids {
		commands = append(commands, []string{"dead", "show", "q", id}, []string{"runs", "--id", id})
	}
	for _, args := range commands {
		for _, more := range [][]string{nil, {"--json"}} {
			out, talk, _ := s.do(append(slices.Clone(args), more...)...)
			b.WriteString(out + talk)
		}
	}
	paths := []string{"/", "/metrics", "/healthz", "/readyz", "/v1/overview", "/v1/setup", "/v1/queues", "/v1/handlers", "/v1/runs", "/v1/queues/q/dead"}
	for _, id := range ids {
		paths = append(paths, "/v1/messages/"+id)
	}
	for _, path := range paths {
		text, err := s.get(path)
		if err != nil {
			s.t.Errorf("%s: %v", path, err)
		}
		b.WriteString(text)
	}
	return b.String()
}

// stored is what is in the data directory, compiled modules aside.
func (s *site) stored() string {
	s.t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(filepath.Join(s.dir, "data"), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		b.Write(data)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return b.String()
}

// invoke makes the requests that the configuration grants, and no others.
func TestInvokeHTTP(t *testing.T) {
	s := newSite(t, "")
	w := newWeb(s)
	s.write("config.toml", fmt.Sprintf(httpConfig, w.URL))
	s.write("token", "hunter2-planted")
	s.write("key", "key")
	hosttest.Install(t, s.dir, "ask", hosttest.HTTP(t))
	s.write("payload", hosttest.Asking(1, "GET "+w.URL+"/", "X-Answer", ""))
	for job, want := range map[string]int32{"ask": 200, "other": abi.ErrNotGranted} {
		out, talk, status := s.do("invoke", "ask.wasm", "--job", job, "--payload", "@payload", "--json")
		v := lines[invocation](t, out)
		if status != 0 || len(v) != 1 {
			t.Fatalf("status %d: %s%s", status, out, talk)
		}
		a, ok := hosttest.Answered(v[0].output(t))
		if !ok || a.Status != want {
			t.Errorf("%s: %+v", job, a)
		}
		if strings.Contains(out+talk, "hunter2") {
			t.Errorf("the token is shown: %s%s", out, talk)
		}
	}
	if got := w.sent("/", "Authorization"); !slices.Equal(got, []string{"hunter2-planted"}) {
		t.Errorf("sent %v", got)
	}
}

// inspect says what a module has to be granted.
func TestInspectNeeds(t *testing.T) {
	s := newSite(t, "")
	for name, want := range map[string][]string{"http": {"http"}, "granted": {"http", "kv", "send"}, "effects": {"kv", "send"}, "noop": {}} {
		file := filepath.Join(hosttest.Root(), "host", "engine", "testdata", name+".wasm")
		if v := lines[inspection](t, s.must("inspect", file, "--json")); !slices.Equal(v[0].Needs, want) {
			t.Errorf("%s needs %v", name, v[0].Needs)
		}
		line := "\nneeds      " + strings.Join(want, ", ") + ", granted under [handlers.JOB]\n"
		if out := s.must("inspect", file); strings.Contains(out, line) != (len(want) > 0) {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// output is the run's result, whichever way it was printed.
func (v invocation) output(t *testing.T) []byte {
	t.Helper()
	if v.ResultBase64 == "" {
		return []byte(v.Result)
	}
	b, err := base64.StdEncoding.DecodeString(v.ResultBase64)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
