package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/ledger"
	"github.com/guesthand/guesthand/host/plugindir"
)

// fake is a host with one queue, q.
type fake struct {
	mu      sync.Mutex
	sent    []drivers.Message
	sendErr error
	unready []string
	stuck   error
	rows    []ledger.Row
	letters []drivers.DeadLetter
	filter  ledger.Filter
	runsErr error
}

type unknownQueue string

func (u unknownQueue) Error() string { return fmt.Sprintf("no queue %q", string(u)) }
func (unknownQueue) NotFound() bool  { return true }

func (f *fake) Send(_ context.Context, queue string, ms []drivers.Message) ([]string, []error, error) {
	if queue != "q" {
		return nil, nil, unknownQueue(queue)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	ids, errs := make([]string, len(ms)), make([]error, len(ms))
	for i, m := range ms {
		if m.ID == "" {
			m.ID = strconv.Itoa(len(f.sent))
		}
		if ids[i], errs[i] = m.ID, f.sendErr; errs[i] == nil {
			f.sent = append(f.sent, m)
		}
	}
	return ids, errs, nil
}

func (f *fake) Queues(context.Context) ([]admin.QueueStatus, error) {
	return []admin.QueueStatus{{Queue: "q", Depth: 3}}, nil
}
func (f *fake) Handlers(context.Context) ([]plugindir.Status, error) { return nil, nil }
func (f *fake) Runs(_ context.Context, filter ledger.Filter) ([]ledger.Row, error) {
	f.filter = filter
	return f.rows, f.runsErr
}
func (f *fake) Pause(context.Context, admin.Pause) error          { return nil }
func (f *fake) Resume(_ context.Context, queue, job string) error { return nil }
func (f *fake) Overview(context.Context) admin.Overview           { return admin.Overview{Version: "v1"} }
func (f *fake) Setup() admin.Setup                                { return admin.Setup{File: "config.toml"} }
func (f *fake) Metrics() http.Handler                             { return http.NotFoundHandler() }
func (f *fake) Unready(context.Context) []string                  { return f.unready }
func (f *fake) Cancel(context.Context, string, string) error      { return nil }
func (f *fake) Alive() error                                      { return f.stuck }
func (f *fake) Dead(_ context.Context, queue string) (drivers.DeadLetters, error) {
	if queue != "q" {
		return nil, unknownQueue(queue)
	}
	return deadLetters{f}, nil
}

type deadLetters struct{ *fake }

func (d deadLetters) ListDead(_ context.Context, after string, limit int) ([]drivers.DeadLetter, error) {
	from := 0
	if after != "" {
		from = slices.IndexFunc(d.letters, func(l drivers.DeadLetter) bool { return l.Entry == after }) + 1
	}
	return d.letters[from:min(len(d.letters), from+limit)], nil
}

func (d deadLetters) GetDead(_ context.Context, id string) ([]drivers.DeadLetter, error) {
	for _, l := range d.letters {
		if l.Entry == id || l.ID == id {
			return []drivers.DeadLetter{l}, nil
		}
	}
	return nil, drivers.ErrNotFound
}
func (d deadLetters) ReplayDead(ctx context.Context, entry string) error {
	return d.DropDead(ctx, entry)
}
func (d deadLetters) DropDead(_ context.Context, entry string) error {
	n := len(d.letters)
	d.letters = slices.DeleteFunc(d.letters, func(l drivers.DeadLetter) bool { return l.Entry == entry })
	if len(d.letters) == n {
		return drivers.ErrNotFound
	}
	return nil
}

// serve answers for f on a loopback address and a socket until the test ends or stop is called.
func serve(t *testing.T, f *fake, token string) (address, socket string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(t.TempDir(), "s")
	u, err := admin.ListenSocket(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- admin.NewServer(f, token, slog.New(slog.DiscardHandler)).Serve(ctx, u, l) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return l.Addr().String(), socket, stop
}

func newServer(f *fake) *admin.Server { return admin.NewServer(f, "", slog.New(slog.DiscardHandler)) }

func request(t *testing.T, method, url, body string, headers map[string]string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range headers {
		if name == "Host" {
			r.Host = v
			continue
		}
		r.Header.Set(name, v)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestHealth(t *testing.T) {
	f := &fake{}
	address, _, _ := serve(t, f, "")
	if status, answer := request(t, "GET", "http://"+address+"/healthz", "", nil); status != 200 || !strings.Contains(answer, `"ok"`) {
		t.Errorf("status %d: %s", status, answer)
	}
	f.stuck = errors.New("queue q is stuck")
	if status, answer := request(t, "GET", "http://"+address+"/healthz", "", nil); status != 503 || !strings.Contains(answer, "queue q is stuck") {
		t.Errorf("stuck: status %d: %s", status, answer)
	}
}

func TestGuard(t *testing.T) {
	open, _, _ := serve(t, &fake{}, "")
	locked, _, _ := serve(t, &fake{}, "sesame")
	tests := []struct {
		name, address, path string
		headers             map[string]string
		want                int
	}{
		{"loopback needs no token", open, "/v1/queues", nil, 200},
		{"localhost is loopback", open, "/v1/queues", map[string]string{"Host": "localhost:7070"}, 200},
		{"so is ::1", open, "/v1/queues", map[string]string{"Host": "[::1]:7070"}, 200},
		{"a name that was bound to loopback", open, "/v1/queues", map[string]string{"Host": "evil.example:7070"}, 403},
		{"a name that only looks like it", open, "/v1/queues", map[string]string{"Host": "127.0.0.1.evil.example"}, 403},
		{"the page itself", open, "/v1/queues", map[string]string{"Origin": "http://" + open}, 200},
		{"another page", open, "/v1/queues", map[string]string{"Origin": "https://evil.example"}, 403},
		{"a page in a sandbox", open, "/v1/queues", map[string]string{"Origin": "null"}, 403},
		{"no token", locked, "/v1/queues", nil, 401},
		{"a wrong token", locked, "/v1/queues", map[string]string{"Authorization": "Bearer Sesame"}, 401},
		{"no bearer", locked, "/v1/queues", map[string]string{"Authorization": "sesame"}, 401},
		{"the token", locked, "/v1/queues", map[string]string{"Authorization": "Bearer sesame"}, 200},
		{"the token from another page", locked, "/v1/queues", map[string]string{"Authorization": "Bearer sesame", "Origin": "https://evil.example"}, 403},
		{"a probe has no token", locked, "/healthz", nil, 200},
		{"nor has the other", locked, "/readyz", nil, 200},
		{"a path like a probe's", locked, "/v1/../healthz/x", nil, 401},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, answer := request(t, "GET", "http://"+tt.address+tt.path, "", tt.headers); got != tt.want {
				t.Errorf("status %d, want %d: %s", got, tt.want, answer)
			}
		})
	}
}

func TestSocketAsksForNoToken(t *testing.T) {
	_, socket, _ := serve(t, &fake{}, "sesame")
	c, running := admin.DialSocket(t.Context(), socket)
	if !running {
		t.Fatal("nothing answers")
	}
	if qs, err := c.Queues(t.Context()); err != nil || len(qs) != 1 || qs[0].Depth != 3 {
		t.Errorf("%v, %v", qs, err)
	}
}

func TestReadyz(t *testing.T) {
	address, _, _ := serve(t, &fake{unready: []string{"stopping"}}, "")
	if status, answer := request(t, "GET", "http://"+address+"/readyz", "", nil); status != 503 || !strings.Contains(answer, "stopping") {
		t.Errorf("%d %s", status, answer)
	}
}

// curl is a producer.
func TestEnqueue(t *testing.T) {
	f := &fake{}
	address, _, _ := serve(t, f, "")
	before := time.Now()
	status, answer := request(t, "POST", "http://"+address+"/v1/queues/q/jobs/orders?delay=2h", `{"id": 1}`, map[string]string{
		"Content-Type": "application/x-www-form-urlencoded", "Ce-Source": "shop", "X-GitHub-Event": "push",
		"Idempotency-Key": "k1", "Guesthand-Id": "m1", "Guesthand-Max-Attempts": "2", "Guesthand-Job": "other",
		"Traceparent": "00-aa-bb-01", "Cookie": "secret", "Accept": "*/*",
	})
	if status != 202 || answer != `{"id":"m1"}`+"\n" {
		t.Fatalf("%d %s", status, answer)
	}
	m := f.sent[0]
	if m.ID != "m1" || m.Job != "orders" || m.Key != "k1" || string(m.Payload) != `{"id": 1}` {
		t.Errorf("%+v", m)
	}
	if d := m.NotBefore.Sub(before); d < 2*time.Hour || d > 2*time.Hour+time.Minute {
		t.Errorf("delay %s", d)
	}
	names := slices.Sorted(maps.Keys(m.Headers))
	if want := []string{"Ce-Source", "Content-Type", "Guesthand-Max-Attempts", "Traceparent", "X-Github-Event"}; !slices.Equal(names, want) {
		t.Errorf("headers %q, want %q", names, want)
	}
}

func TestEnqueueRefuses(t *testing.T) {
	f := &fake{}
	address, _, _ := serve(t, f, "")
	tests := []struct {
		name, path, body string
		err              error
		want             int
		text             string
	}{
		{"unknown queue", "/v1/queues/nosuch/jobs/j", "x", nil, 404, "nosuch"},
		{"a delay that is none", "/v1/queues/q/jobs/j?delay=soon", "x", nil, 400, "soon"},
		{"a negative delay", "/v1/queues/q/jobs/j?delay=-1s", "x", nil, 400, "-1s"},
		{"a large body", "/v1/queues/q/jobs/j", strings.Repeat("x", 32<<20+1), nil, 413, "33554432"},
		{"a broker that is away", "/v1/queues/q/jobs/j", "x", errors.New("no answer"), 502, "no answer"},
		{"too large for the broker", "/v1/queues/q/jobs/j", "x", drivers.ErrTooLarge, 413, "too large"},
		{"a header that cannot be", "/v1/queues/q/jobs/j", "x", drivers.ErrInvalid, 400, "invalid"},
		{"keys where there are none", "/v1/queues/q/jobs/j", "x", drivers.ErrUnsupported, 422, "not supported"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f.sendErr = tt.err
			status, answer := request(t, "POST", "http://"+address+tt.path, tt.body, nil)
			var e struct{ Error struct{ Text string } }
			if err := json.Unmarshal([]byte(answer), &e); err != nil || status != tt.want || !strings.Contains(e.Error.Text, tt.text) {
				t.Errorf("%d %s, %v", status, answer, err)
			}
			if len(f.sent) != 0 {
				t.Error("it was sent")
			}
		})
	}
}

func TestDelayAsInTheConfiguration(t *testing.T) {
	f := &fake{}
	address, _, _ := serve(t, f, "")
	for _, delay := range []string{"1d", "0s", "1h30m"} {
		if status, answer := request(t, "POST", "http://"+address+"/v1/queues/q/jobs/j?delay="+delay, "", nil); status != 202 {
			t.Errorf("%s: %d %s", delay, status, answer)
		}
	}
}

func TestSendRefuses(t *testing.T) {
	f := &fake{}
	address, _, _ := serve(t, f, "")
	for _, tt := range []struct {
		name, body string
		want       int
		text       string
	}{
		{"no JSON", "hello", 400, "invalid character"},
		{"nothing to send", `{"messages":[]}`, 400, "1 to 1000"},
		{"too many", `{"messages":[` + strings.TrimSuffix(strings.Repeat(`{"job":"j"},`, 1001), ",") + `]}`, 400, "1001"},
		{"a field that would be lost", `{"messages":[{"job":"j","payload":"hi"}]}`, 400, "payload"},
		{"a large body", `{"messages":[{"job":"` + strings.Repeat("x", 32<<20) + `"}]}`, 413, "33554432"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, answer := request(t, "POST", "http://"+address+"/v1/queues/q/messages", tt.body, nil)
			if status != tt.want || !strings.Contains(answer, tt.text) || len(f.sent) > 0 {
				t.Errorf("%d %s, %d sent", status, answer, len(f.sent))
			}
		})
	}
}

func TestListLimits(t *testing.T) {
	f := &fake{}
	address, _, _ := serve(t, f, "")
	for query, want := range map[string]int{"": 100, "?limit=7": 7, "?limit=100000": 1000} {
		if status, answer := request(t, "GET", "http://"+address+"/v1/runs"+query, "", nil); status != 200 || f.filter.Limit != want {
			t.Errorf("%q: %d %s, limit %d", query, status, answer, f.filter.Limit)
		}
	}
	for _, query := range []string{"?limit=0", "?limit=x", "?since=yesterday"} {
		if status, _ := request(t, "GET", "http://"+address+"/v1/runs"+query, "", nil); status != 400 {
			t.Errorf("%q: %d", query, status)
		}
	}
	f.runsErr = admin.ErrNoLedger
	if status, _ := request(t, "GET", "http://"+address+"/v1/runs", "", nil); status != 409 {
		t.Errorf("without a ledger: %d", status)
	}
}

// Dead letters can be as large as messages: a page of them must fit into memory.
func TestLargeDeadLetters(t *testing.T) {
	f := &fake{}
	for i := range 24 {
		f.letters = append(f.letters, drivers.DeadLetter{ID: strconv.Itoa(i), Entry: "e" + strconv.Itoa(i), Payload: bytes.Repeat([]byte{0xff}, 4<<20)})
	}
	address, socket, _ := serve(t, f, "")
	c, _ := admin.DialSocket(t.Context(), socket)
	d, err := c.Dead(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for after := ""; ; {
		page, err := d.ListDead(t.Context(), after, 100)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		size := 0
		for _, l := range page {
			got, after, size = append(got, l.ID), l.Entry, size+len(l.Payload)
		}
		if size > 64<<20 {
			t.Errorf("a page of %d bytes", size)
		}
	}
	if len(got) != 24 {
		t.Errorf("%d of 24 letters", len(got))
	}
	if status, _ := request(t, "GET", "http://"+address+"/v1/queues/nosuch/dead", "", nil); status != 404 {
		t.Errorf("unknown queue: %d", status)
	}
}

func TestDeadLetters(t *testing.T) {
	want := drivers.DeadLetter{ID: "a/b c", Entry: "12:34", Job: "j", Queue: "q", Payload: []byte("x\xff"), Died: time.Now().UTC()}
	f := &fake{letters: []drivers.DeadLetter{want, {ID: "b", Entry: "2"}}}
	_, socket, _ := serve(t, f, "")
	c, _ := admin.DialSocket(t.Context(), socket)
	d, err := c.Dead(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{want.ID, want.Entry} {
		ls, err := d.GetDead(t.Context(), id)
		if err != nil || len(ls) != 1 || ls[0].ID != want.ID || !bytes.Equal(ls[0].Payload, want.Payload) || !ls[0].Died.Equal(want.Died) {
			t.Errorf("%s: %+v, %v", id, ls, err)
		}
	}
	if err := d.DropDead(t.Context(), want.Entry); err != nil {
		t.Error(err)
	}
	if err := d.ReplayDead(t.Context(), "2"); err != nil {
		t.Error(err)
	}
	if err := d.ReplayDead(t.Context(), "2"); !errors.Is(err, drivers.ErrNotFound) {
		t.Errorf("gone: %v", err)
	}
	if _, err := d.GetDead(t.Context(), "2"); !errors.Is(err, drivers.ErrNotFound) {
		t.Errorf("gone: %v", err)
	}
}

// Somebody who connects and says nothing, or half of a request, must not make a stop fail.
func TestSlowClientsDoNotSpoilAStop(t *testing.T) {
	address, _, stop := serve(t, &fake{}, "")
	for _, text := range []string{"", "POST /v1/queues/q/jobs/j HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf"} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
	}
	request(t, "GET", "http://"+address+"/healthz", "", nil) // the others were accepted before
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestListenSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := admin.ListenSocket(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ListenSocket(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another host") {
		t.Errorf("a second host: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as after kill -9
	l.Close()
	again, err := admin.ListenSocket(t.Context(), path)
	if err != nil {
		t.Fatalf("over one left behind: %v", err)
	}
	again.Close()
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 120))
	if _, err := admin.ListenSocket(t.Context(), long); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("a long path: %v", err)
	}
}
