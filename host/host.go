// Package host takes messages from queues to their end: it receives under a lease, runs
// the handler that the message names, keeps the lease alive meanwhile, decides from the
// outcome and the message's counts what becomes of it, and settles.
//
// One message's way: queue.receive -> leases -> queue.worker -> attempt.process (route,
// gates, run, decide) -> settler -> attempt.report. ARCHITECTURE.md walks it in full.
package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/engine"
	"github.com/guesthand/guesthand/host/ledger"
	"github.com/guesthand/guesthand/host/metrics"
	"github.com/guesthand/guesthand/host/plugindir"
	"github.com/guesthand/guesthand/host/tracing"
)

// Options configures a Host.
type Options struct {
	Config  *config.Config
	Openers map[string]Opener
	Logger  *slog.Logger // slog.Default()
	// LockWait is how long an embedded store that another process holds is waited for.
	LockWait time.Duration
	// Version is this build's, for the metrics.
	Version string
}

// Host is a running worker. Its methods may be called concurrently.
type Host struct {
	config   atomic.Pointer[config.Config]
	log      *slog.Logger
	guestLog *slog.Logger
	worker   string
	started  time.Time

	brokers *Brokers
	engine  *engine.Engine
	plugins *plugindir.Directory
	ledger  *ledger.Ledger
	queues  map[string]*queue

	outbox  outbox
	buckets buckets

	gates    gates
	pauses   *pauses
	events   *events
	suspects suspects
	once     onceLog
	lines    lineLog
	metrics  *metrics.Metrics
	tracer   *tracing.Tracer // nil where nothing is traced
	settled  atomic.Int64
	failures sync.Map // the latest failure by job
	version  string
	states   stateCache
	stopping atomic.Bool
}

// WorkerName names this process in dead letters, ledger and logs.
func WorkerName() string {
	name, err := os.Hostname()
	if err != nil {
		name = "localhost"
	}
	return fmt.Sprintf("%s-%d", name, os.Getpid())
}

// New opens everything the configuration names: the ledger, the engine, the plug-in
// directory with all its modules, the brokers and the queues. Nothing runs yet. What is
// wrong with a single module is logged; what is wrong with a broker or queue is an error.
func New(ctx context.Context, o Options) (*Host, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	h := &Host{log: o.Logger, guestLog: o.Logger, worker: WorkerName(), started: time.Now(), version: o.Version,
		suspects: newSuspects(), queues: map[string]*queue{}, metrics: metrics.New(o.Version)}
	h.config.Store(o.Config)
	h.metrics.Watch(scraped{h})
	h.brokers = NewBrokers(o.Config, o.Openers,
		OpenOptions{Worker: h.worker, Logger: o.Logger, LockWait: o.LockWait}, false)
	h.events = newEvents(h.log, h.publish)
	h.outbox, h.buckets.brokers = outbox{}, h.brokers
	if err := h.open(ctx); err != nil {
		return nil, errors.Join(err, h.Close(context.WithoutCancel(ctx)))
	}
	return h, nil
}

func (h *Host) open(ctx context.Context) (err error) {
	c := h.Config()
	if err := os.MkdirAll(c.Data, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if h.pauses, err = openPauses(pausesFile(c)); err != nil {
		return err
	}
	if h.tracer, err = openTracer(ctx, c, h.version, h.worker, h.log); err != nil {
		return err
	}
	if h.ledger, err = OpenLedger(ctx, c, h.log); err != nil {
		return err
	}
	if h.engine, err = engine.New(engine.Options{CacheDir: CacheDir(c), Logger: h.guestLog}); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	h.plugins, err = plugindir.Open(ctx, plugindir.Options{
		Dir: c.Plugins, Engine: h.engine, Config: h.Config, Logger: h.log, OnChange: h.changed,
		OnHTTP: h.metrics.HTTPCall})
	if err != nil {
		return fmt.Errorf("plug-in directory: %w", err)
	}
	if c.Store.Broker != "" {
		if _, err := h.brokers.keyValue(ctx, c.Store.Broker); err != nil {
			return fmt.Errorf("[store]: %w", err)
		}
	}
	handlers := h.plugins.Handlers()
	for name, qc := range c.Queues {
		dq, err := h.brokers.Queue(ctx, name)
		if err != nil {
			return err
		}
		info := dq.Info()
		warnings, err := Limits(c, name, info, handlers)
		if err != nil {
			return err
		}
		for _, text := range warnings {
			h.log.Warn(text, keyQueue, name)
		}
		for _, f := range info.Findings {
			if f.Warning {
				h.log.Warn(f.Text, keyQueue, name)
			}
		}
		h.outbox.add(name, dq)
		h.queues[name] = h.newQueue(qc, dq)
	}
	return nil
}

// CacheDir is where compiled modules are kept.
func CacheDir(c *config.Config) string { return filepath.Join(c.Data, "cache") }

// OpenLedger opens the configured ledger; nil, which records nothing, for "none".
func OpenLedger(ctx context.Context, c *config.Config, log *slog.Logger) (*ledger.Ledger, error) {
	if c.Ledger.Driver == "none" {
		return nil, nil
	}
	l, err := ledger.Open(ctx, ledger.Options{Path: c.Ledger.Path, Keep: c.Ledger.Keep, MaxBytes: c.Ledger.Max, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	return l, nil
}

// Config is the configuration in force.
func (h *Host) Config() *config.Config { return h.config.Load() }

// Run works until ctx ends, then drains: it stops receiving, gives back what has not
// started, lets runs finish for the configured time, interrupts the rest and settles.
func (h *Host) Run(ctx context.Context) error {
	h.log.Info("ready", keyWorker, h.worker, "queues", len(h.queues), "handlers", len(h.plugins.Status()))
	defer context.AfterFunc(ctx, func() {
		h.stopping.Store(true)
		h.log.Info("draining", "drain", h.Config().Drain)
	})()
	var watching, running sync.WaitGroup
	watchCtx, endWatch := context.WithCancel(context.WithoutCancel(ctx))
	var watchErr error
	watching.Go(func() { watchErr = h.plugins.Run(watchCtx) })
	for _, q := range h.queues {
		running.Go(func() { q.run(ctx) })
	}
	running.Wait()
	endWatch()
	watching.Wait()
	if errors.Is(watchErr, context.Canceled) {
		watchErr = nil
	}
	return watchErr
}

// Close releases everything. Run must have returned.
func (h *Host) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleBudget)
	defer cancel()
	h.events.close()
	errs := []error{h.brokers.Close(ctx)}
	for _, q := range h.queues {
		q.settle.close()
	}
	if h.plugins != nil {
		h.plugins.Close()
	}
	if h.engine != nil {
		errs = append(errs, h.engine.Close(ctx))
	}
	if err := h.tracer.Close(ctx); err != nil { // nobody's messages depend on it
		h.log.Warn("the last traces were not taken", keyError, err)
	}
	errs = append(errs, h.ledger.Close(ctx))
	return errors.Join(errs...)
}
