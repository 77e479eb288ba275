package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/egress"
	"github.com/guesthand/guesthand/host/engine"
	"github.com/guesthand/guesthand/host/hosttest"
)

// web answers in place of a client, and keeps what it was asked.
type web struct {
	response *egress.Response
	err      error
	hang     bool

	mu    sync.Mutex
	asked []egress.Request
}

func (w *web) Do(ctx context.Context, r egress.Request) (*egress.Response, error) {
	w.mu.Lock()
	w.asked = append(w.asked, r)
	w.mu.Unlock()
	if w.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return w.response, w.err
}

// asks runs the guest that makes a request.
func asks(t *testing.T, m *engine.Module, in engine.Input, times byte, head, header, body string) hosttest.Answer {
	t.Helper()
	in.Payload = []byte(hosttest.Asking(times, head, header, body))
	r := m.Run(&engine.Call{Input: in})
	a, ok := hosttest.Answered(r.Output)
	if !ok || r.End.Cause != abi.Returned {
		t.Fatalf("%+v", r)
	}
	return a
}

func TestHTTP(t *testing.T) {
	long := strings.Repeat("body ", 1000)
	w := &web{response: &egress.Response{Status: 200, Body: []byte(long), Header: http.Header{
		"X-One": {"1"}, "X-List": {"a", "b"}, "Set-Cookie": {"a=1, 2", "b=3"}, "X-Empty": {""}, "X-Long": {strings.Repeat("v", 2000)}}}}
	m := load(t, newEngine(t, engine.Options{}), wat(t, "http"), engine.Config{HTTP: w})
	for _, tt := range []struct {
		name, value string
		size        int32
	}{
		{"X-One", "1", 1}, {"x-one", "1", 1}, {"X-LIST", "a, b", 4}, {"set-cookie", "a=1, 2\nb=3", 10},
		{"X-Empty", "", 0}, {"X-None", "", abi.ErrAbsent}, {"", "", abi.ErrAbsent}, {"a b", "", abi.ErrAbsent},
	} {
		a := asks(t, m, engine.Input{}, 1, "POST https://a.example/p?q\nA: 1\r\nB:2\n\nA:  3 ", tt.name, "sent")
		if want := (hosttest.Answer{Status: 200, HeaderSize: tt.size, Size: 5000, Header: tt.value, Body: long}); a != want {
			t.Errorf("%q: %.60v", tt.name, a)
		}
	}
	want := egress.Request{Method: "POST", URL: "https://a.example/p?q", Header: http.Header{"A": {"1", "3"}, "B": {"2"}}, Body: []byte("sent")}
	if !reflect.DeepEqual(w.asked[0], want) {
		t.Errorf("asked %+v", w.asked[0])
	}
	// More than the guest has room for: the full size, and what fits.
	if a := asks(t, m, engine.Input{}, 1, "GET https://a.example/", "X-Long", ""); a.HeaderSize != 2000 || !strings.HasPrefix(a.Header, strings.Repeat("v", 1024)) {
		t.Errorf("%d, %d bytes", a.HeaderSize, len(a.Header))
	}
}

// What the guest is told, and the operator.
func TestHTTPErrors(t *testing.T) {
	var log bytes.Buffer
	e := newEngine(t, engine.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	w := &web{}
	m := load(t, e, wat(t, "http"), engine.Config{HTTP: w})
	for _, tt := range []struct {
		err  error
		want int32
	}{
		{fmt.Errorf("%w: a.example is not in http.allow", egress.ErrNotGranted), abi.ErrNotGranted},
		{fmt.Errorf("%w: over", egress.ErrTooLarge), abi.ErrTooLarge},
		{fmt.Errorf("%w: refused", egress.ErrUnavailable), abi.ErrUnavailable},
		{errors.New("something else"), abi.ErrUnavailable},
		{fmt.Errorf("%w: no URL", egress.ErrMalformed), abi.ErrMalformed},
		{fmt.Errorf("%w: slow", egress.ErrTimedOut), abi.ErrTimedOut},
	} {
		log.Reset()
		w.err = tt.err
		a := asks(t, m, engine.Input{ID: "id-1"}, 3, "GET https://a.example/path?token=secret", "X", "")
		if a != (hosttest.Answer{Status: tt.want, HeaderSize: abi.ErrAbsent}) {
			t.Errorf("%v: %+v", tt.err, a)
		}
		line := log.String()
		if strings.Count(line, "\n") != 1 || !strings.Contains(line, "level=WARN") || !strings.Contains(line, "host=a.example") ||
			!strings.Contains(line, "id=id-1") || !strings.Contains(line, tt.err.Error()) || strings.Contains(line, "secret") {
			t.Errorf("%v: logged %s", tt.err, line)
		}
	}
}

func TestHTTPHeads(t *testing.T) {
	w := &web{response: &egress.Response{Status: 204}}
	m := load(t, newEngine(t, engine.Options{}), wat(t, "http"), engine.Config{HTTP: w})
	for _, head := range []string{"", "GET", " https://a.example", "GET\nhttps://a.example", "GET https://a.example\nno colon",
		strings.Repeat("M", 33) + " https://a.example"} {
		if a := asks(t, m, engine.Input{}, 1, head, "", ""); a.Status != abi.ErrMalformed {
			t.Errorf("%.40q: %d", head, a.Status)
		}
	}
	if len(w.asked) > 0 {
		t.Errorf("asked %+v", w.asked)
	}
}

func TestHTTPNotGranted(t *testing.T) {
	var log bytes.Buffer
	e := newEngine(t, engine.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	m := load(t, e, wat(t, "http"), engine.Config{})
	want := hosttest.Answer{Status: abi.ErrNotGranted, HeaderSize: abi.ErrNotGranted, Size: abi.ErrNotGranted}
	if a := asks(t, m, engine.Input{}, 2, "GET https://a.example/", "X", ""); a != want {
		t.Errorf("%+v", a)
	}
	if n := strings.Count(log.String(), "has no http in the configuration"); n != 1 {
		t.Errorf("logged %s", log.String())
	}
}

func TestHTTPCalls(t *testing.T) {
	w := &web{response: &egress.Response{Status: 200}}
	m := load(t, newEngine(t, engine.Options{}), wat(t, "http"), engine.Config{HTTP: w, HTTPCalls: 3})
	for range 2 { // the next run has as many again
		if a := asks(t, m, engine.Input{}, 3, "GET https://a.example/", "", ""); a.Status != 200 {
			t.Errorf("%+v", a)
		}
	}
	if a := asks(t, m, engine.Input{}, 4, "GET https://a.example/", "", ""); a.Status != abi.ErrTooLarge || len(w.asked) != 9 {
		t.Errorf("%+v after %d", a, len(w.asked))
	}
}

// A response is gone with the run, and with a request that has none.
func TestHTTPLatest(t *testing.T) {
	w := &web{response: &egress.Response{Status: 200, Header: http.Header{"X": {"v"}}, Body: []byte("body")}}
	m := load(t, newEngine(t, engine.Options{}), wat(t, "http"), engine.Config{HTTP: w})
	var c engine.Call
	for _, head := range []string{"GET https://a.example/", "malformed"} {
		c.Reset(engine.Input{Payload: []byte(hosttest.Asking(1, head, "X", ""))})
		a, _ := hosttest.Answered(m.Run(&c).Output)
		if (a.Body == "body") != (a.Status == 200) || (a.HeaderSize == 1) != (a.Status == 200) {
			t.Errorf("%s: %+v", head, a)
		}
	}
}

func TestHTTPTrace(t *testing.T) {
	w := &web{response: &egress.Response{Status: 200}}
	m := load(t, newEngine(t, engine.Options{}), wat(t, "http"), engine.Config{HTTP: w})
	in := engine.Input{Headers: drivers.Header{"traceparent": {"00-host"}, "tracestate": {"s=1"}}}
	asks(t, m, in, 1, "GET https://a.example/", "", "")
	asks(t, m, in, 1, "GET https://a.example/\nTraceparent: 00-guest", "", "")
	asks(t, m, engine.Input{}, 1, "GET https://a.example/", "", "")
	for i, want := range []http.Header{{"Traceparent": {"00-host"}, "Tracestate": {"s=1"}}, {"Traceparent": {"00-guest"}}, {}} {
		if !reflect.DeepEqual(w.asked[i].Header, want) {
			t.Errorf("%d: sent %v, want %v", i, w.asked[i].Header, want)
		}
	}
}

// A server that does not answer is waited for until the deadline or until the run is stopped.
func TestHTTPWaits(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	client := egress.New(egress.Options{Allow: allow(t, server.URL), Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	defer client.Close()
	payload := []byte(hosttest.Asking(1, "GET "+server.URL, "", ""))
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "http"), engine.Config{HTTP: client, Timeout: 200 * time.Millisecond})
	if r := m.Run(&engine.Call{Input: engine.Input{Payload: payload}}); r.End.Cause != abi.Timeout || r.Duration > 5*time.Second {
		t.Errorf("%+v", r)
	}
	m = load(t, e, wat(t, "http"), engine.Config{HTTP: client, Timeout: time.Hour})
	var call engine.Call
	for _, cause := range []abi.Cause{abi.LeaseLost, abi.Interrupted, abi.Cancelled} {
		call.Reset(engine.Input{Payload: payload})
		timer := time.AfterFunc(20*time.Millisecond, func() { call.Stop(cause) })
		if r := m.Run(&call); r.End.Cause != cause {
			t.Errorf("%s: %+v", cause, r)
		}
		timer.Stop()
	}
	healthy(t, e)
}

func allow(t testing.TB, text string) []egress.Target {
	t.Helper()
	target, err := egress.ParseTarget(text)
	if err != nil {
		t.Fatal(err)
	}
	return []egress.Target{target}
}

func TestHTTPDebugLine(t *testing.T) {
	var log bytes.Buffer
	e := newEngine(t, engine.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	m := load(t, e, wat(t, "http"), engine.Config{Job: "j", HTTP: &web{response: &egress.Response{Status: 429}}})
	asks(t, m, engine.Input{ID: "id-1"}, 1, "GET https://user:pass@A.example:8443/path?token=secret\nAuthorization: secret", "", "")
	for _, want := range []string{"level=DEBUG msg=http_send job=j id=id-1 method=GET host=A.example:8443 status=429 duration="} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in %s", want, log.String())
		}
	}
	for _, hidden := range []string{"secret", "pass", "path"} {
		if strings.Contains(log.String(), hidden) {
			t.Errorf("%s in %s", hidden, log.String())
		}
	}
}

// BenchmarkHTTPSend is http_send on loopback, 16 in flight, with plain net/http in turns on the
// same server: the ratio of their times is what counts, since the machine is shared.
func BenchmarkHTTPSend(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 1024)) }))
	defer server.Close()
	client := egress.New(egress.Options{Allow: allow(b, server.URL), Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	defer client.Close()
	m := load(b, newEngine(b, engine.Options{}), wat(b, "http"), engine.Config{HTTP: client, Instances: engine.Reuse})
	payload := []byte(hosttest.Asking(1, "POST "+server.URL+"/\nContent-Type: text/plain", "Date", strings.Repeat("x", 1024)))
	ours := func(n int) {
		var c engine.Call
		for range n {
			c.Reset(engine.Input{Payload: payload})
			if a, _ := hosttest.Answered(m.Run(&c).Output); a.Status != 200 || len(a.Body) != 1024 {
				b.Errorf("%+v", a)
				return
			}
		}
	}
	plain := http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	defer plain.CloseIdleConnections()
	body := strings.Repeat("x", 1024)
	theirs := func(n int) {
		for range n {
			if err := post(&plain, server.URL, body); err != nil {
				b.Error(err)
				return
			}
		}
	}
	inFlight(ours, 64) // connections are there
	inFlight(theirs, 64)
	var sum [2]time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		for i, f := range []func(int){ours, theirs} {
			start := time.Now()
			inFlight(f, 800)
			sum[i] += time.Since(start)
		}
	}
	b.ReportMetric(float64(sum[0])/float64(sum[1]), "ratio")
	b.ReportMetric(float64(sum[0].Nanoseconds())/float64(rounds*800), "ns/http_send")
	b.ReportMetric(float64(sum[1].Nanoseconds())/float64(rounds*800), "ns/plain")
}

// inFlight makes n requests, 16 at a time.
func inFlight(f func(n int), n int) {
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() { f(n / 16) })
	}
	wg.Wait()
}

func post(c *http.Client, url, body string) error {
	res, err := c.Post(url, "text/plain", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var got bytes.Buffer
	if _, err := got.ReadFrom(res.Body); err != nil || got.Len() != 1024 {
		return fmt.Errorf("%d bytes, %w", got.Len(), err)
	}
	return nil
}
