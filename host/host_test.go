package host_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/memdriver"
	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/host/ledger"
)

// patience bounds every wait; nothing is expected to take a tenth of it.
const patience = 30 * time.Second

// rig is a broker that outlives hosts, and the directory they share.
type rig struct {
	t      testing.TB
	dir    string
	config string
	driver drivers.Driver
	wrap   func(drivers.Queue) drivers.Queue
	logs   *logBuffer
}

// running is one host at work.
type running struct {
	*host.Host
	t    testing.TB
	stop func() // drains and closes
}

const baseConfig = `
plugins = "plugins"
data    = "data"
drain   = "10s"
[brokers.b]
driver = "memory"
[admin]
listen = "none"
`

func newRig(t testing.TB, queues string) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), config: baseConfig + queues, logs: &logBuffer{}}
	if err := os.Mkdir(filepath.Join(r.dir, "plugins"), 0o700); err != nil {
		t.Fatal(err)
	}
	hosttest.ShareCache(t, filepath.Join(r.dir, "data"))
	d, err := memdriver.Open(t.Context(), memdriver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.driver = d
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the host's log:\n%s", r.logs)
		}
	})
	return r
}

func (r *rig) install(job string) {
	hosttest.Install(r.t, filepath.Join(r.dir, "plugins"), job, hosttest.Puppet(r.t))
}

func (r *rig) parse() *config.Config {
	r.t.Helper()
	c, err := config.Parse(filepath.Join(r.dir, "config.toml"), []byte(r.config), os.LookupEnv)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// start runs a host until the test ends or stop is called.
func (r *rig) start() *running {
	r.t.Helper()
	open := func(context.Context, config.Broker, host.OpenOptions) (drivers.Driver, error) {
		return shared{r.driver, r.wrap}, nil
	}
	h, err := host.New(r.t.Context(), host.Options{Config: r.parse(), Openers: map[string]host.Opener{"memory": open},
		Logger: slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	run := &running{Host: h, t: r.t}
	run.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, h.Close(context.Background())); err != nil {
			r.t.Errorf("stop: %v", err)
		}
	})
	r.t.Cleanup(run.stop)
	return run
}

// shared lets several hosts use one memory broker, one after the other or together.
type shared struct {
	drivers.Driver
	wrap func(drivers.Queue) drivers.Queue
}

func (s shared) OpenQueue(ctx context.Context, o drivers.QueueOptions) (drivers.Queue, error) {
	q, err := s.Driver.OpenQueue(ctx, o)
	if err == nil && s.wrap != nil {
		q = s.wrap(q)
	}
	return q, err
}
func (shared) Close(context.Context) error { return nil }

// send sends one message to queue q and returns its id.
func (h *running) send(job, payload string, headers ...string) string {
	h.t.Helper()
	m := drivers.Message{Job: job, Payload: []byte(payload), Headers: drivers.Header{}}
	for i := 0; i+1 < len(headers); i += 2 {
		m.Headers.Set(headers[i], headers[i+1])
	}
	ids, errs, err := h.Send(h.t.Context(), "q", []drivers.Message{m})
	if err = errors.Join(append(errs, err)...); err != nil {
		h.t.Fatal(err)
	}
	return ids[0]
}

// history is a message's rows, oldest first.
func (h *running) history(id string) []ledger.Row {
	h.t.Helper()
	rows, err := h.Runs(h.t.Context(), ledger.Filter{ID: id})
	if err != nil {
		h.t.Fatal(err)
	}
	slices.SortStableFunc(rows, func(a, b ledger.Row) int { return a.Attempt - b.Attempt })
	return rows
}

// end waits until a message has ended and returns its history.
func (h *running) end(id string) []ledger.Row {
	h.t.Helper()
	var rows []ledger.Row
	hosttest.Eventually(h.t, patience, "the end of message "+id, func() bool {
		rows = h.history(id)
		return slices.ContainsFunc(rows, func(r ledger.Row) bool {
			return r.Settlement == ledger.Acked || r.Settlement == ledger.DeadLtr || r.Settlement == ledger.Rejected
		})
	})
	return rows
}

// dead is a message's only dead letter.
func (h *running) dead(id string) drivers.DeadLetter {
	h.t.Helper()
	d, err := h.Dead(h.t.Context(), "q")
	if err != nil {
		h.t.Fatal(err)
	}
	letters, err := d.GetDead(h.t.Context(), id)
	if err != nil || len(letters) != 1 {
		h.t.Fatalf("dead letters of %s: %d, %v", id, len(letters), err)
	}
	return letters[0]
}

// outcomes are "word/settlement" of each row.
func outcomes(rows []ledger.Row) string {
	var words []string
	for _, r := range rows {
		words = append(words, r.Outcome+"/"+r.Settlement)
	}
	return strings.Join(words, " ")
}

// logBuffer collects log lines from many goroutines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

const quick = `
[queues.q]
broker = "b"
concurrency = 4
retry = { max_attempts = 3, base = "10ms", max = "20ms" }
`

func TestOutcomes(t *testing.T) {
	r := newRig(t, quick+"[handlers.puppet]\ntimeout = \"1s\"\n")
	r.install("puppet")
	h := r.start()
	tests := []struct {
		name, payload string
		want          string // outcomes
		reason        string // of the dead letter; "" for none
		failures      int
		delays        int
	}{
		{"success", "0", "success/acked", "", 0, 0},
		{"empty payload", "", "success/acked", "", 0, 0},
		{"retry, then success", "1|0", "retry/retried success/acked", "", 0, 0},
		{"retries spent", "1;upstream said 503", "retry/retried retry/retried retry/dead",
			"max attempts (3) exhausted after failure 3: retry: upstream said 503", 3, 0},
		{"retry-after", "10 20|0", "retry-after/retried success/acked", "", 0, 0},
		{"delay", "11 20|11 20|0", "delay/delayed delay/delayed success/acked", "", 0, 0},
		{"pause", "14 20|0", "pause/delayed success/acked", "", 0, 0},
		{"permanent", "12;no such customer", "permanent/dead", "permanent: no such customer", 1, 0},
		{"reject", "13;not mine", "reject/rejected", "", 0, 0},
		{"unknown code", "77|0", "retry/retried success/acked", "", 0, 0},
		{"a negative number", "-1|0", "retry/retried success/acked", "", 0, 0},
		{"256 is no success", "256|0", "retry/retried success/acked", "", 0, 0},
		{"a delay of 2^55 ms, which shifts out to a negative one", "10 36028797018963968|0", "retry-after/retried success/acked", "", 0, 0},
		{"a delay over a year", "11 36028797018963967|0", "retry/retried success/acked", "", 0, 0},
		{"delays spend no attempt", "11 1|1|11 1|1|11 1|1", "delay/delayed retry/retried delay/delayed retry/retried delay/delayed retry/dead",
			"max attempts (3) exhausted after failure 3: retry", 3, 3},
		{"trap", "trap", "retry/retried retry/retried retry/dead", "max attempts (3) exhausted after failure 3: trap", 3, 0},
		{"timeout", "loop|0", "retry/retried success/acked", "", 0, 0},
		{"exit", "exit 0|0", "retry/retried success/acked", "", 0, 0},
		{"a forged interruption", "exit 4294967295|0", "retry/retried success/acked", "", 0, 0},
		{"a forged timeout", "exit 4026531839|0", "retry/retried success/acked", "", 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := h.send("puppet", tt.payload)
			rows := h.end(id)
			if got := outcomes(rows); got != tt.want {
				t.Errorf("outcomes %q, want %q\n%+v", got, tt.want, rows)
			}
			for i, row := range rows {
				if row.Attempt != i+1 || row.Digest == "" || row.Job != "puppet" || row.Queue != "q" {
					t.Errorf("row %d: %+v", i, row)
				}
			}
			if tt.reason == "" {
				return
			}
			l := h.dead(id)
			if !strings.HasPrefix(l.Reason, tt.reason) {
				t.Errorf("reason %q, want %q", l.Reason, tt.reason)
			}
			if l.Tally.Failures != tt.failures || l.Tally.Delays != tt.delays || l.LastAttempt() != len(rows) {
				t.Errorf("tally %+v, attempt %d", l.Tally, l.LastAttempt())
			}
			if string(l.Payload) != tt.payload || l.Digest != rows[0].Digest || len(l.Errors) != tt.failures {
				t.Errorf("letter %+v", l)
			}
		})
	}
}

func TestForgedExitsAreExits(t *testing.T) {
	r := newRig(t, quick)
	r.install("puppet")
	h := r.start()
	for _, code := range []string{"4294967295", "4026531839", "0", "1"} {
		rows := h.end(h.send("puppet", "exit "+code+"|0"))
		if rows[0].Cause != "exit" || rows[0].Code != -1 {
			t.Errorf("exit %s: %+v", code, rows[0])
		}
	}
}

func TestTenDelaysThenFailures(t *testing.T) {
	r := newRig(t, strings.Replace(quick, "max_attempts = 3", "max_attempts = 2", 1))
	r.install("puppet")
	h := r.start()
	id := h.send("puppet", strings.Repeat("11 1|", 10)+"1|1")
	rows := h.end(id)
	if want := strings.Repeat("delay/delayed ", 10) + "retry/retried retry/dead"; outcomes(rows) != want {
		t.Errorf("outcomes %s", outcomes(rows))
	}
	if l := h.dead(id); !strings.Contains(l.Reason, "max attempts (2) exhausted after failure 2") || l.LastAttempt() != 12 {
		t.Errorf("%q, attempt %d", l.Reason, l.LastAttempt())
	}
}

func TestReplayGoesOnCounting(t *testing.T) {
	r := newRig(t, quick)
	r.install("puppet")
	h := r.start()
	id := h.send("puppet", "1|1|1|1|0")
	h.end(id)
	d, err := h.Dead(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.ReplayDead(t.Context(), h.dead(id).Entry); err != nil {
		t.Fatal(err)
	}
	hosttest.Eventually(t, patience, "the replay's success", func() bool {
		return outcomes(h.history(id)) == "retry/retried retry/retried retry/dead retry/retried success/acked"
	})
	if rows := h.history(id); rows[4].Attempt != 5 || string(rows[4].Result) != "attempt 5" {
		t.Errorf("last row %+v", rows[4])
	}
}

func TestStateIsCarried(t *testing.T) {
	r := newRig(t, strings.Replace(quick, "max_attempts = 3", "max_attempts = 10", 1))
	r.install("puppet")
	h := r.start()
	rows := h.end(h.send("puppet", "state"))
	if want := "retry/retried retry/retried retry/retried success/acked"; outcomes(rows) != want {
		t.Errorf("outcomes %s, want %s", outcomes(rows), want)
	}
}

func TestNoRetryConfigured(t *testing.T) {
	r := newRig(t, "[queues.q]\nbroker = \"b\"\n")
	r.install("puppet")
	h := r.start()
	id := h.send("puppet", "1;once")
	h.end(id)
	if l := h.dead(id); l.Reason != "max attempts (1) exhausted after failure 1: retry: once" {
		t.Errorf("reason %q", l.Reason)
	}
}

func TestProducerLowersTheBudget(t *testing.T) {
	r := newRig(t, quick)
	r.install("puppet")
	h := r.start()
	tests := []struct{ header, value, payload, want string }{
		{"Guesthand-Max-Attempts", "2", "1", "retry/retried retry/dead"},
		{"guesthand-max-attempts", "2", "1", "retry/retried retry/dead"},
		{"Guesthand-Max-Attempts", "9", "1", "retry/retried retry/retried retry/dead"},
		{"Guesthand-Max-Attempts", "nonsense", "1", "retry/retried retry/retried retry/dead"},
		{"Guesthand-Max-Attempts", "0", "1", "retry/retried retry/retried retry/dead"},
		{"Guesthand-Max-Delays", "1", "11 1", "delay/delayed delay/dead"},
	}
	for _, tt := range tests {
		rows := h.end(h.send("puppet", tt.payload, tt.header, tt.value))
		if outcomes(rows) != tt.want {
			t.Errorf("%s: %s: %s, want %s", tt.header, tt.value, outcomes(rows), tt.want)
		}
	}
	if !strings.Contains(r.logs.String(), "nonsense") {
		t.Error("nonsense in a header is not logged")
	}
}

func TestUnknownJob(t *testing.T) {
	r := newRig(t, strings.Replace(quick, "retry", "unknown_job = { wait = \"20ms\", tries = 3 }\nretry", 1))
	r.install("puppet")
	h := r.start()
	for _, job := range []string{"nobody", "../../etc/passwd", "Ünknown Job", strings.Repeat("x", 300)} {
		id := h.send(job, "0")
		h.end(id)
		l := h.dead(id)
		if !strings.Contains(l.Reason, "no handler") || l.LastAttempt() != 0 || l.Job != job {
			t.Errorf("%q: %q, attempt %d, job %q", job, l.Reason, l.LastAttempt(), l.Job)
		}
	}
}

func TestHandlerAddedReplacedRemoved(t *testing.T) {
	r := newRig(t, strings.Replace(quick, "retry", "unknown_job = { wait = \"20ms\", tries = 0 }\nretry", 1))
	h := r.start()
	id := h.send("late", "0")
	hosttest.Eventually(t, patience, "the log to say so", func() bool { return strings.Contains(r.logs.String(), "no handler") })
	r.install("late")
	if rows := h.end(id); outcomes(rows) != "success/acked" || rows[0].Attempt != 1 {
		t.Errorf("%+v", rows)
	}
	if err := os.Remove(filepath.Join(r.dir, "plugins", "late.wasm")); err != nil {
		t.Fatal(err)
	}
	hosttest.Eventually(t, patience, "the handler to go", func() bool {
		s, err := h.Handlers(t.Context())
		return err == nil && len(s) == 0
	})
	gone := h.send("late", "0")
	hosttest.Eventually(t, patience, "the message to be put back", func() bool {
		qs, err := h.Queues(t.Context())
		return err == nil && qs[0].Depth == 1 && qs[0].Delayed == 1
	})
	if rows := h.history(gone); len(rows) != 0 {
		t.Errorf("a message without a handler has runs: %+v", rows)
	}
}

func TestPayloadOverTheLimit(t *testing.T) {
	r := newRig(t, quick+"[handlers.puppet]\npayload = \"1KiB\"\n")
	r.install("puppet")
	h := r.start()
	id := h.send("puppet", strings.Repeat("0", 1025))
	h.end(id)
	l := h.dead(id)
	if l.Reason != "payload of 1025 bytes is over the limit of 1024" || l.LastAttempt() != 0 || len(l.Payload) != 1025 {
		t.Errorf("%q, attempt %d, %d bytes", l.Reason, l.LastAttempt(), len(l.Payload))
	}
	if rows := h.end(h.send("puppet", strings.Repeat("0", 1000))); outcomes(rows) != "success/acked" {
		t.Errorf("at the limit: %s", outcomes(rows))
	}
}

func TestDrainLetsRunsFinish(t *testing.T) {
	r := newRig(t, quick)
	r.install("puppet")
	h := r.start()
	id := h.send("puppet", "sleep 300")
	hosttest.Eventually(t, patience, "the run to start", func() bool { return inFlight(h) == 1 })
	h.stop()
	again := r.start()
	if rows := again.end(id); outcomes(rows) != "success/acked" || rows[0].Attempt != 1 {
		t.Errorf("%+v", rows)
	}
}

func inFlight(h *running) int {
	qs, err := h.Queues(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return qs[0].InFlight
}

func TestInterruptionSpendsNoAttempt(t *testing.T) {
	r := newRig(t, strings.Replace(quick, "max_attempts = 3", "max_attempts = 1", 1))
	r.config = strings.Replace(r.config, `drain   = "10s"`, `drain = "100ms"`, 1)
	r.install("puppet")
	h := r.start()
	id := h.send("puppet", "sleep 60000|1;second")
	for range 3 {
		h.send("puppet", "sleep 60000|0")
	}
	hosttest.Eventually(t, patience, "the slots to be full", func() bool { return inFlight(h) == 4 })
	waiting := h.send("puppet", "0") // never starts here
	h.stop()
	again := r.start()
	if rows := again.end(waiting); outcomes(rows) != "success/acked" || rows[0].Attempt != 1 {
		t.Errorf("what never started: %+v", rows)
	}
	rows := again.end(id)
	if outcomes(rows) != "interrupted/retried retry/dead" {
		t.Fatalf("%s: %+v", outcomes(rows), rows)
	}
	if l := again.dead(id); l.Tally.Interruptions != 1 || l.Tally.Failures != 1 || l.Tally.Stalls != 0 || l.LastAttempt() != 2 {
		t.Errorf("tally %+v", l.Tally)
	}
}

// failing makes the first settlements fail.
type failing struct {
	drivers.Queue
	mu   sync.Mutex
	left int
}

func (f *failing) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left > 0 {
		f.left--
		errs := make([]error, len(ss))
		for i := range errs {
			errs[i] = errors.New("broker is away")
		}
		return errs
	}
	return f.Queue.Settle(ctx, ss)
}

func TestSettlementIsTriedAgain(t *testing.T) {
	r := newRig(t, quick)
	r.wrap = func(q drivers.Queue) drivers.Queue { return &failing{Queue: q, left: 3} }
	r.install("puppet")
	h := r.start()
	for _, payload := range []string{"0", "1|0", "12"} {
		id := h.send("puppet", payload)
		for _, row := range h.end(id) {
			if row.Settlement == ledger.Failed || row.Outcome == "stalled" {
				t.Errorf("%+v", row)
			}
		}
	}
}

// losing says of every renewal that the lease is gone.
type losing struct {
	drivers.Queue
	mu      sync.Mutex
	settled []drivers.Settlement
}

func (l *losing) Info() drivers.Info {
	i := l.Queue.Info()
	i.Lease = 300 * time.Millisecond
	return i
}

func (l *losing) Renew(_ context.Context, ds []*drivers.Delivery) []error {
	errs := make([]error, len(ds))
	for i := range errs {
		errs[i] = drivers.ErrLeaseLost
	}
	return errs
}

func (l *losing) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	l.mu.Lock()
	l.settled = append(l.settled, ss...)
	l.mu.Unlock()
	return l.Queue.Settle(ctx, ss)
}

func TestLostLeaseStopsTheGuestAndSettlesNothing(t *testing.T) {
	r := newRig(t, quick)
	var q *losing
	r.wrap = func(dq drivers.Queue) drivers.Queue { q = &losing{Queue: dq}; return q }
	r.install("puppet")
	h := r.start()
	for _, payload := range []string{"loop", "sleep 60000"} {
		id := h.send("puppet", payload)
		hosttest.Eventually(t, patience, "the run to be stopped", func() bool { return len(h.history(id)) == 1 })
		if row := h.history(id)[0]; row.Outcome != "lease-lost" || row.Settlement != ledger.None || row.Code != -1 {
			t.Errorf("%s: %+v", payload, row)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.settled) != 0 {
		t.Errorf("settled %v", q.settled)
	}
}

func TestHandlerConcurrency(t *testing.T) {
	r := newRig(t, quick+"[handlers.narrow]\nconcurrency = 1\n")
	r.install("narrow")
	r.install("puppet")
	h := r.start()
	var ids []string
	for range 3 {
		ids = append(ids, h.send("narrow", "sleep 100"))
	}
	h.end(h.send("puppet", "0"))
	for _, id := range ids {
		h.end(id)
	}
	var rows []ledger.Row
	for _, id := range ids {
		rows = append(rows, h.history(id)...)
	}
	slices.SortFunc(rows, func(a, b ledger.Row) int { return a.Started.Compare(b.Started) })
	for i := 1; i < len(rows); i++ {
		if rows[i].Started.Before(rows[i-1].Started.Add(100 * time.Millisecond)) {
			t.Errorf("runs overlap: %s and %s", rows[i-1].Started, rows[i].Started)
		}
		if rows[i].Attempt != 1 {
			t.Errorf("waiting for a slot counted: %+v", rows[i])
		}
	}
}

func TestHandlerRate(t *testing.T) {
	r := newRig(t, quick+"[handlers.slow]\nrate = \"5/s\"\n")
	r.install("slow")
	h := r.start()
	began := time.Now()
	var ids []string
	for range 8 { // five at once, three more within 600 ms
		ids = append(ids, h.send("slow", "0"))
	}
	for _, id := range ids {
		if rows := h.end(id); outcomes(rows) != "success/acked" {
			t.Errorf("%s", outcomes(rows))
		}
	}
	if took := time.Since(began); took < 550*time.Millisecond {
		t.Errorf("8 runs at 5/s took %s", took)
	}
}

func TestOneLoopDoesNotStopTheOthers(t *testing.T) {
	r := newRig(t, quick+"[handlers.bad]\ntimeout = \"2s\"\n")
	r.install("bad")
	r.install("puppet")
	h := r.start()
	bad := h.send("bad", "loop|0")
	hosttest.Eventually(t, patience, "the loop to run", func() bool { return inFlight(h) == 1 })
	for range 200 {
		h.end(h.send("puppet", "0"))
	}
	if rows := h.end(bad); outcomes(rows) != "retry/retried success/acked" || rows[0].Cause != "timeout" {
		t.Errorf("%+v", rows)
	}
}

func TestReload(t *testing.T) {
	r := newRig(t, quick)
	r.install("puppet")
	h := r.start()
	r.config = strings.Replace(r.config, "max_attempts = 3", "max_attempts = 2", 1)
	applied, restart, errs := h.Reload(t.Context(), r.parse())
	if len(errs) != 0 || len(restart) != 0 || !slices.ContainsFunc(applied, func(s string) bool { return strings.Contains(s, "retry") }) {
		t.Fatalf("applied %v, restart %v, errors %v", applied, restart, errs)
	}
	if rows := h.end(h.send("puppet", "1")); outcomes(rows) != "retry/retried retry/dead" {
		t.Errorf("%s", outcomes(rows))
	}
	r.config = strings.Replace(r.config, "concurrency = 4", "concurrency = 5", 1)
	if _, restart, _ := h.Reload(t.Context(), r.parse()); len(restart) != 1 || !strings.Contains(restart[0], "concurrency") {
		t.Errorf("restart %v", restart)
	}
}

func TestManyMessages(t *testing.T) {
	r := newRig(t, strings.Replace(quick, "concurrency = 4", "concurrency = 16", 1))
	r.install("puppet")
	h := r.start()
	const n = 3000
	ms := make([]drivers.Message, n)
	for i := range ms {
		payload := "0"
		switch {
		case i%10 == 1:
			payload = "1|0"
		case i%50 == 2:
			payload = "12"
		}
		ms[i] = drivers.Message{Job: "puppet", Payload: []byte(payload)}
	}
	_, errs, err := h.Send(t.Context(), "q", ms)
	if err = errors.Join(append(errs, err)...); err != nil {
		t.Fatal(err)
	}
	hosttest.Eventually(t, 4*patience, "the queue to be empty", func() bool {
		qs, err := h.Queues(t.Context())
		return err == nil && qs[0].Depth == 0
	})
	qs, err := h.Queues(t.Context())
	if err != nil || qs[0].Dead != n/50 {
		t.Errorf("%+v, %v; want %d dead", qs, err, n/50)
	}
	rows, err := h.Runs(t.Context(), ledger.Filter{Outcome: "stalled"})
	if err != nil || len(rows) != 0 {
		t.Errorf("stalls: %v, %v", rows, err)
	}
}
