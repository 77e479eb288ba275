// Package metrics counts what a host does and shows it in Prometheus' text form. Names follow
// its conventions: base units, _total for counters. Labels are bounded: queues and handlers of
// the configuration and the plug-in directory, outcomes of the specification, and "unknown"
// for a job without a handler, whatever producers make up.
//
// Counting costs the hot path a few atomic additions: the series of a queue and job are
// resolved once and kept.
package metrics

import (
	"cmp"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Unknown is the job label of messages without a handler.
const Unknown = "unknown"

const namespace = "guesthand"

// Buckets of runs and of waits, seconds: a run may take microseconds, a wait may take hours.
var (
	runBuckets  = []float64{.0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
	waitBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 43200}
)

// Metrics are one host's. Its methods may be called concurrently.
type Metrics struct {
	registry *prometheus.Registry

	runs, leaseLost, renewals, renewalErrors, settleErrors *prometheus.CounterVec
	deadLetters, reloads, httpCalls                        *prometheus.CounterVec
	events                                                 *prometheus.CounterVec
	runSeconds, waitSeconds                                *prometheus.HistogramVec
	inFlight, memory                                       *prometheus.GaugeVec
}

// New makes them. version is the host's own, for guesthand_build_info.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.runs = m.counter("runs_total", "Runs that ended, by outcome.", "queue", "job", "outcome")
	m.leaseLost = m.counter("lease_lost_total", "Leases that ended under a message.", "queue")
	m.renewals = m.counter("renewals_total", "Leases that were renewed.", "queue")
	m.renewalErrors = m.counter("renewal_errors_total", "Renewals the broker did not confirm.", "queue")
	m.settleErrors = m.counter("settle_errors_total", "Settlements given up: the message comes again.", "queue")
	m.deadLetters = m.counter("dead_letters_total", "Messages that became dead letters here.", "queue", "job")
	m.reloads = m.counter("reloads_total", "New versions of plug-ins that were tried, by result: ok or error.", "job", "result")
	m.httpCalls = m.counter("http_calls_total", "Handlers' HTTP calls, by result: the class of the status, or refused, failed.", "job", "result")
	m.events = m.counter("events_total", "Events, by kind.", "kind")
	m.runSeconds = m.histogram("run_seconds", "How long runs took.", runBuckets)
	m.waitSeconds = m.histogram("wait_seconds", "From a message's enqueueing to the start of its first run.", waitBuckets)
	m.inFlight = m.gauge("in_flight", "Runs going on now.", "queue")
	m.memory = m.gauge("memory_bytes", "Linear memory of the handler's instance after its last run.", "job")
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "build_info", Help: "The version of this host; always 1."}, []string{"version"})
	info.WithLabelValues(version).Set(1)
	m.registry.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, []string{"queue", "job"})
	m.registry.MustRegister(v)
	return v
}

// Handler answers a scrape. An error of one collector does not cost the others their answer.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4})
}

// Reloaded counts a version of a plug-in that was tried.
func (m *Metrics) Reloaded(job string, ok bool) {
	result := "ok"
	if !ok {
		result = "error"
	}
	m.reloads.WithLabelValues(job, result).Inc()
}

// HTTPCall counts a handler's HTTP call.
func (m *Metrics) HTTPCall(job, result string) { m.httpCalls.WithLabelValues(job, result).Inc() }

// Event counts an event.
func (m *Metrics) Event(kind string) { m.events.WithLabelValues(kind).Inc() }

// Queue is one queue's counters.
type Queue struct {
	m    *Metrics
	name string
	jobs sync.Map // of *Job by name

	inFlight prometheus.Gauge
	running  atomic.Int64
	// LeaseLost, Renewed and NotRenewed count leases, SettleErrors settlements given up.
	LeaseLost, Renewed, NotRenewed, SettleErrors prometheus.Counter
}

// Queue returns a queue's counters, all there with zero from the start.
func (m *Metrics) Queue(name string) *Queue {
	return &Queue{m: m, name: name,
		inFlight:  m.inFlight.WithLabelValues(name),
		LeaseLost: m.leaseLost.WithLabelValues(name),
		Renewed:   m.renewals.WithLabelValues(name), NotRenewed: m.renewalErrors.WithLabelValues(name),
		SettleErrors: m.settleErrors.WithLabelValues(name),
	}
}

// Start and End count a run that is going on.
func (q *Queue) Start() {
	q.inFlight.Inc()
	q.running.Add(1)
}

// End is Start's counterpart.
func (q *Queue) End() {
	q.inFlight.Dec()
	q.running.Add(-1)
}

// Running is how many runs are going on.
func (q *Queue) Running() int { return int(q.running.Load()) }

// Job is what is counted of one job on one queue.
type Job struct {
	q         *Queue
	name      string
	outcomes  sync.Map // of *outcome by its word
	run, wait prometheus.Observer
	dead      prometheus.Counter
	memory    prometheus.Gauge
	runs      atomic.Int64
	nanos     atomic.Int64 // of all runs together
}

// outcome is counted twice: for scrapes, and for the page, which cannot read the former.
type outcome struct {
	counter prometheus.Counter
	n       atomic.Int64
}

// Job returns a job's counters. The caller passes Unknown for a job without a handler: what
// producers write must not make series.
func (q *Queue) Job(name string) *Job {
	if j, ok := q.jobs.Load(name); ok {
		return j.(*Job)
	}
	j, _ := q.jobs.LoadOrStore(name, &Job{q: q, name: name,
		run: q.m.runSeconds.WithLabelValues(q.name, name), wait: q.m.waitSeconds.WithLabelValues(q.name, name),
		dead: q.m.deadLetters.WithLabelValues(q.name, name), memory: q.m.memory.WithLabelValues(name)})
	return j.(*Job)
}

// Ended counts the end of a run, or of a message without one.
func (j *Job) Ended(word string) {
	c, ok := j.outcomes.Load(word)
	if !ok {
		c, _ = j.outcomes.LoadOrStore(word, &outcome{counter: j.q.m.runs.WithLabelValues(j.q.name, j.name, word)})
	}
	o := c.(*outcome)
	o.counter.Inc()
	o.n.Add(1)
}

// Ran observes a run that took place: its duration, and the memory of its instance, bytes.
func (j *Job) Ran(d time.Duration, memory uint64) {
	j.run.Observe(d.Seconds())
	j.runs.Add(1)
	j.nanos.Add(int64(d))
	j.memory.Set(float64(memory))
}

// Waited observes how long a message waited for its first run.
func (j *Job) Waited(d time.Duration) { j.wait.Observe(max(0, d.Seconds())) }

// Died counts a dead letter.
func (j *Job) Died() { j.dead.Inc() }

// Totals are a job's counts on one queue since the start of the host.
type Totals struct {
	Job      string           `json:"job"`
	Outcomes map[string]int64 `json:"outcomes"`
	Runs     int64            `json:"runs"`   // those that took place
	RunMS    float64          `json:"run_ms"` // all of them together, milliseconds
}

// Totals returns those of every job that was seen, by name.
func (q *Queue) Totals() []Totals {
	all := []Totals{}
	q.jobs.Range(func(name, v any) bool {
		j := v.(*Job)
		t := Totals{Job: name.(string), Outcomes: map[string]int64{}, Runs: j.runs.Load(),
			RunMS: float64(j.nanos.Load()) / float64(time.Millisecond)}
		j.outcomes.Range(func(word, o any) bool {
			t.Outcomes[word.(string)] = o.(*outcome).n.Load()
			return true
		})
		all = append(all, t)
		return true
	})
	slices.SortFunc(all, func(a, b Totals) int { return cmp.Compare(a.Job, b.Job) })
	return all
}
