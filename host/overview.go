package host

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/config"
)

// failure is a job's latest.
type failure struct {
	text string
	at   time.Time
}

// stateCache keeps what brokers said of their queues for a moment: any number of pages and
// scrapers cost them no more than one.
type stateCache struct {
	mu    sync.Mutex
	asked time.Time
	last  []admin.QueueStatus
}

const (
	stateFresh  = 2 * time.Second
	stateBudget = 3 * time.Second
)

// queueStates asks the brokers, or answers from what they said a moment ago.
func (h *Host) queueStates(ctx context.Context) []admin.QueueStatus {
	s := &h.states
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.asked) < stateFresh {
		return slices.Clone(s.last)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateBudget)
	defer cancel()
	all, err := h.Queues(ctx)
	if err != nil {
		h.log.Error("queues", keyError, err)
		return nil
	}
	s.last, s.asked = all, time.Now()
	return slices.Clone(all)
}

// Overview implements admin.Host.
func (h *Host) Overview(ctx context.Context) admin.Overview {
	ping, cancel := context.WithTimeout(ctx, stateBudget)
	defer cancel()
	o := admin.Overview{Version: h.version, Worker: h.worker, Started: h.started.UTC(), Now: time.Now().UTC(),
		Unready: h.Unready(ping), Queues: []admin.QueueOverview{}, Handlers: []admin.HandlerOverview{},
		LedgerDropped: scraped{h}.LedgerDropped()}
	if o.Unready == nil {
		o.Unready = []string{}
	}
	for _, s := range h.queueStates(ctx) {
		q := h.queues[s.Queue]
		o.Queues = append(o.Queues, admin.QueueOverview{QueueStatus: s, Running: q.metrics.Running(), Jobs: q.metrics.Totals()})
	}
	for _, s := range h.plugins.Status() {
		v := admin.HandlerOverview{Status: s}
		if f, ok := h.failures.Load(s.Job); ok {
			v.LastError, v.LastErrorAt = f.(failure).text, f.(failure).at.UTC()
		}
		o.Handlers = append(o.Handlers, v)
	}
	return o
}

// Setup implements admin.Host.
func (h *Host) Setup() admin.Setup {
	c := h.Config()
	s := admin.Setup{File: c.File, Queues: []admin.QueueSetup{}, Handlers: []admin.HandlerSetup{}}
	handlers := h.plugins.Handlers()
	for _, name := range slices.Sorted(maps.Keys(c.Queues)) {
		q, info := c.Queues[name], h.queues[name].driver.Info()
		v := admin.QueueSetup{Queue: name, Broker: q.Broker, Driver: c.Brokers[q.Broker].Driver, Concurrency: q.Concurrency,
			LeaseMS: info.Lease.Milliseconds(), RetentionMS: info.Retention.Milliseconds(), Handler: q.Handler,
			Retry: c.Policy(name, handlers[q.Handler]).String(), Caps: info.Caps, Findings: []string{}}
		if warnings, err := Limits(c, name, info, handlers); err == nil {
			v.Findings = append(v.Findings, warnings...)
		}
		for _, f := range info.Findings {
			if f.Warning {
				v.Findings = append(v.Findings, f.Text)
			}
		}
		s.Queues = append(s.Queues, v)
	}
	for _, job := range slices.Sorted(maps.Keys(handlers)) {
		s.Handlers = append(s.Handlers, handlerSetup(handlers[job]))
	}
	return s
}

func handlerSetup(c config.Handler) admin.HandlerSetup {
	v := admin.HandlerSetup{Job: c.Job, TimeoutMS: c.Timeout.Milliseconds(), Memory: c.Memory, Concurrency: c.Concurrency,
		Instances: c.Instances, Grants: grants(c)}
	if v.Instances == "" {
		v.Instances = "auto"
	}
	if c.Rate.N > 0 {
		v.Rate = fmt.Sprintf("%d per %s", c.Rate.N, config.FormatDuration(c.Rate.Per))
	}
	if c.Retry != nil {
		v.Retry = c.Retry.String()
	}
	return v
}

// grants names what a handler may do beside computing. Values are not shown.
func grants(c config.Handler) []string {
	g := []string{}
	if c.HTTP != nil {
		for _, t := range c.HTTP.Allow {
			g = append(g, "http "+t.String())
		}
	}
	if c.KV != nil {
		g = append(g, "kv")
	}
	for _, queue := range c.Send {
		g = append(g, "send "+queue)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Secrets)) {
		g = append(g, "secret "+name)
	}
	return g
}
