package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// QueueState is how a queue stands at its broker.
type QueueState struct {
	Queue                          string
	Depth, InFlight, Delayed, Dead int
	// Oldest is when the oldest unfinished message was enqueued; zero: none, or not known.
	Oldest time.Time
	// Err is why the broker did not say; the other fields but Queue are then zero.
	Err error
}

// HandlerState is one handler of the plug-in directory.
type HandlerState struct{ Job, State, Dialect, Instances, Digest string }

// Source is asked at each scrape.
type Source interface {
	QueueStates(ctx context.Context) []QueueState
	HandlerStates() []HandlerState
	// LedgerDropped is how many rows the ledger could not keep.
	LedgerDropped() int64
}

// scrapeBudget is how long a scrape waits for brokers.
const scrapeBudget = 3 * time.Second

// Watch shows the state that a source tells.
func (m *Metrics) Watch(s Source) {
	labels := []string{"queue"}
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
	}
	m.registry.MustRegister(&state{source: s,
		depth:   d("queue_depth", "Unfinished messages at the broker, in flight and delayed included.", labels...),
		leased:  d("queue_leased", "Messages the broker has handed out, to any host.", labels...),
		delayed: d("queue_delayed", "Messages that wait for their time.", labels...),
		dead:    d("queue_dead_letters", "Dead letters kept.", labels...),
		oldest:  d("queue_oldest_seconds", "Age of the oldest unfinished message; absent where the broker does not tell.", labels...),
		up:      d("queue_up", "1 where the broker answered for the queue, else 0.", labels...),
		info:    d("handler_info", "A handler that is there; always 1.", "job", "state", "dialect", "instances", "digest"),
		dropped: d("ledger_dropped_total", "Runs that are missing in the ledger, because it could not keep up."),
	})
}

// state is a prometheus.Collector.
type state struct {
	source                                         Source
	depth, leased, delayed, dead, oldest, up, info *prometheus.Desc
	dropped                                        *prometheus.Desc
}

func (s *state) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.depth, s.leased, s.delayed, s.dead, s.oldest, s.up, s.info, s.dropped} {
		ch <- d
	}
}

func (s *state) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeBudget)
	defer cancel()
	for _, q := range s.source.QueueStates(ctx) {
		if q.Err != nil {
			gauge(s.up, 0, q.Queue)
			continue
		}
		gauge(s.up, 1, q.Queue)
		gauge(s.depth, float64(q.Depth), q.Queue)
		gauge(s.leased, float64(q.InFlight), q.Queue)
		gauge(s.delayed, float64(q.Delayed), q.Queue)
		gauge(s.dead, float64(q.Dead), q.Queue)
		switch {
		case !q.Oldest.IsZero():
			gauge(s.oldest, max(0, time.Since(q.Oldest).Seconds()), q.Queue)
		case q.Depth == 0:
			gauge(s.oldest, 0, q.Queue)
		}
	}
	for _, h := range s.source.HandlerStates() {
		gauge(s.info, 1, h.Job, h.State, h.Dialect, h.Instances, h.Digest)
	}
	ch <- prometheus.MustNewConstMetric(s.dropped, prometheus.CounterValue, float64(s.source.LedgerDropped()))
}
