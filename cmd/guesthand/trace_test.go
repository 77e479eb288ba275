package main

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/guesthand/guesthand/host/hosttest"
)

// spans is a collector: it takes OTLP over HTTP and keeps what comes.
type spans struct {
	*httptest.Server
	mu    sync.Mutex
	all   []*trace.Span
	auth  map[string]bool
	asked string // its path
}

func collect(t *testing.T) *spans {
	c := &spans{auth: map[string]bool{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			var err error
			if body, err = gzip.NewReader(r.Body); err != nil {
				t.Error(err)
				return
			}
		}
		b, err := io.ReadAll(body)
		var req collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(b, &req)
		}
		if err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asked, c.auth[r.Header.Get("Authorization")] = r.URL.Path, true
		for _, rs := range req.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				c.all = append(c.all, ss.Spans...)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// of are the spans of one trace, in the order of their starts.
func (c *spans) of(id string) (some []*trace.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.all {
		if hex.EncodeToString(s.TraceId) == id {
			some = append(some, s)
		}
	}
	slices.SortStableFunc(some, func(a, b *trace.Span) int { return int(int64(a.StartTimeUnixNano) - int64(b.StartTimeUnixNano)) })
	return some
}

func named(some []*trace.Span, name string) *trace.Span {
	for _, s := range some {
		if s.Name == name {
			return s
		}
	}
	return &trace.Span{}
}

func attribute(s *trace.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			if v, ok := a.Value.Value.(*common.AnyValue_IntValue); ok {
				return fmt.Sprint(v.IntValue)
			}
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// One trace leads from the producer's traceparent over receipt and run to the request that the
// handler makes, and to the settlement.
func TestTrace(t *testing.T) {
	c := collect(t)
	var mu sync.Mutex
	var seen string // the traceparent that the handler's server got
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = r.Header.Get("traceparent")
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	t.Setenv("OTLP_AUTH", "Bearer sesame")
	s := newSite(t, fmt.Sprintf("[brokers.b]\ndriver = \"memory\"\n[queues.q]\nbroker = \"b\"\nretry = { max_attempts = 1 }\n"+
		"[handlers.ask.http]\nallow = [%q]\nallow_private = [\"127.0.0.0/8\"]\n[admin]\nlisten = \"none\"\n"+
		"[trace]\nendpoint = %q\nsample = 0.0\nheaders = { Authorization = \"env:OTLP_AUTH\" }\n", server.URL, c.URL))
	s.puppet("puppet")
	hosttest.Install(t, s.dir+"/plugins", "ask", hosttest.HTTP(t))
	p := s.start()
	const asked, died = "0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319c"
	const parent = "b7ad6b7169203331"
	id := s.posted("ask", http.Header{"Traceparent": {"00-" + asked + "-" + parent + "-01"}},
		hosttest.Asking(1, "GET "+server.URL+"/secret?token=hunter2", "", ""))
	s.posted("puppet", http.Header{"Traceparent": {"00-" + died + "-" + parent + "-01"}}, "12")
	s.posted("puppet", http.Header{}, "0") // nobody asked for it, and the ratio is 0
	hosttest.Eventually(t, patience, "three runs", func() bool { return len(s.runs()) == 3 })
	p.stop() // sends what is left

	some := c.of(asked)
	names := make([]string, len(some))
	for i, sp := range some {
		names[i] = sp.Name
	}
	slices.Sort(names)
	if want := "GET,ack q,process q,receive q,run ask"; strings.Join(names, ",") != want {
		t.Fatalf("spans %q, want %s", names, want)
	}
	process, run, get := named(some, "process q"), named(some, "run ask"), named(some, "GET")
	settle := named(some, "ack q")
	for _, link := range []struct {
		child  *trace.Span
		parent string
	}{{process, parent}, {named(some, "receive q"), hex.EncodeToString(process.SpanId)}, {run, hex.EncodeToString(process.SpanId)},
		{get, hex.EncodeToString(run.SpanId)}, {settle, hex.EncodeToString(process.SpanId)}} {
		if got := hex.EncodeToString(link.child.ParentSpanId); got != link.parent {
			t.Errorf("%s is below %s, want %s", link.child.Name, got, link.parent)
		}
	}
	for key, want := range map[string]string{"messaging.system": "memory", "messaging.destination.name": "q", "messaging.message.id": id,
		"messaging.operation.type": "process", "guesthand.job": "ask", "guesthand.attempt": "1", "guesthand.outcome": "success"} {
		if got := attribute(process, key); got != want {
			t.Errorf("process: %s is %q, want %q", key, got, want)
		}
	}
	if got := attribute(settle, "messaging.operation.type"); got != "settle" {
		t.Errorf("the last span is %s, of type %q", settle.Name, got)
	}
	if got := attribute(get, "http.response.status_code"); got != "418" || get.Status.Code != trace.Status_STATUS_CODE_ERROR {
		t.Errorf("GET: status %s, %v", got, get.Status)
	}
	mu.Lock()
	if want := "00-" + asked + "-" + hex.EncodeToString(run.SpanId) + "-01"; seen != want {
		t.Errorf("the handler's server saw %q, want %q", seen, want)
	}
	mu.Unlock()
	if dead := named(c.of(died), "process q"); dead.Status.GetCode() != trace.Status_STATUS_CODE_ERROR || dead.Status.Message != "permanent" {
		t.Errorf("a dead letter's span: %v", dead)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) != 9 {
		t.Errorf("%d spans, want 5 and 4 and none of the third message", len(c.all))
	}
	if !c.auth["Bearer sesame"] || len(c.auth) != 1 || c.asked != "/v1/traces" {
		t.Errorf("it was asked at %s with %v", c.asked, c.auth)
	}
	for _, sp := range c.all {
		if strings.Contains(sp.String(), "hunter2") {
			t.Errorf("a span shows a secret: %s", sp)
		}
	}
}

// A collector that is away holds nothing up.
func TestTraceWithoutACollector(t *testing.T) {
	s := newSite(t, plainConfig+"[trace]\nendpoint = \"http://"+freeAddress(t)+"\"\n")
	s.puppet("puppet")
	p := s.start()
	s.must("send", "q", "puppet", "--payload", "0", "--wait")
	p.stop()
	if p.count("traces are not taken")+p.count("the last traces were not taken") == 0 {
		t.Error("it says nothing of it")
	}
}
