package metrics_test

import (
	"context"
	"errors"
	"flag"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/guesthand/guesthand/host/metrics"
)

var update = flag.Bool("update", false, "write testdata/metrics.golden from what is scraped now")

type source struct{}

func (source) QueueStates(context.Context) []metrics.QueueState {
	return []metrics.QueueState{
		{Queue: "away", Err: errors.New("connection refused")},
		{Queue: "empty"},
		{Queue: "orders", Depth: 7, InFlight: 2, Delayed: 3, Dead: 1, Oldest: time.Now().Add(-time.Hour)},
	}
}

func (source) HandlerStates() []metrics.HandlerState {
	return []metrics.HandlerState{{Job: "resize", State: "ready", Dialect: "native", Instances: "fresh", Digest: "ab12"}}
}

func (source) LedgerDropped() int64 { return 4 }

// scrape counts something of everything and returns what a scrape shows.
func scrape(t *testing.T) string {
	t.Helper()
	m := metrics.New("v1.2.3")
	m.Watch(source{})
	q := m.Queue("orders")
	j := q.Job("resize")
	j.Ended("success")
	j.Ended("success")
	j.Ended("retry")
	j.Ran(20*time.Millisecond, 1<<20)
	j.Waited(-time.Second) // clocks differ
	j.Died()
	q.Job(metrics.Unknown).Ended("permanent")
	q.Start()
	q.LeaseLost.Inc()
	q.Renewed.Add(3)
	q.NotRenewed.Inc()
	q.SettleErrors.Inc()
	m.Reloaded("resize", true)
	m.Reloaded("resize", false)
	m.HTTPCall("resize", "2xx")
	m.Event("dead-lettered")
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

var (
	foreign = regexp.MustCompile(`(?m)^(# (HELP|TYPE) )?(go|process)_.*\n`)
	oldest  = regexp.MustCompile(`(queue_oldest_seconds\{queue="orders"\}) 36\d\d\.\d+`)
)

// TestGolden keeps names, labels and help texts from changing unnoticed: people's dashboards
// and alerts rest on them.
func TestGolden(t *testing.T) {
	got := oldest.ReplaceAllString(foreign.ReplaceAllString(scrape(t), ""), "$1 3600")
	const file = "testdata/metrics.golden"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("metrics changed; got\n%s", got)
	}
}

func TestConventions(t *testing.T) {
	problems, err := promlint.New(strings.NewReader(scrape(t))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestPromtool asks Prometheus' own checker.
func TestPromtool(t *testing.T) {
	tool := os.Getenv("GUESTHAND_TEST_PROMTOOL")
	if tool == "" {
		t.Skip("GUESTHAND_TEST_PROMTOOL names no promtool; make test sets it")
	}
	c := exec.Command(tool, "check", "metrics")
	c.Stdin = strings.NewReader(scrape(t))
	if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

func BenchmarkRun(b *testing.B) {
	q := metrics.New("").Queue("orders")
	b.ReportAllocs()
	for b.Loop() {
		j := q.Job("resize")
		j.Ended("success")
		j.Ran(time.Millisecond, 1<<20)
		j.Waited(time.Millisecond)
	}
}
