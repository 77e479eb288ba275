package host

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/engine"
	"github.com/guesthand/guesthand/host/tracing"
)

const headerTracestate = "tracestate"

// openTracer is nil where nothing is traced.
func openTracer(ctx context.Context, c *config.Config, version, worker string, log *slog.Logger) (*tracing.Tracer, error) {
	if c.Trace.Endpoint == "" {
		return nil, nil
	}
	t, err := tracing.Open(ctx, tracing.Options{Endpoint: c.Trace.Endpoint, Sample: c.Trace.Sample, Headers: c.Trace.Headers,
		Version: version, Worker: worker, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("[trace]: %w", err)
	}
	return t, nil
}

// traced begins the message's spans, once for each attempt. Without a tracer it does nothing,
// and costs nothing.
func (a *attempt) traced() {
	if a.q.host.tracer == nil || a.trace != nil {
		return
	}
	d, c := a.h.d, a.q.host.Config()
	i := tracing.Info{Driver: c.Brokers[c.Queues[a.q.name].Broker].Driver, Queue: a.q.name, Job: a.job, ID: d.ID,
		Attempt: a.message.Tally.Attempt(), Size: len(d.Payload), Received: d.Received}
	i.Traceparent, _ = d.Headers.Get(abi.HeaderTraceparent)
	i.Tracestate, _ = d.Headers.Get(headerTracestate)
	a.trace = a.q.host.tracer.Message(i)
}

// traceRun lets the run continue the trace: the guest, its requests and its messages see the
// run's traceparent in place of the producer's.
func (a *attempt) traceRun(in *engine.Input) {
	if a.trace == nil {
		return
	}
	parent, state := a.trace.Run()
	headers := drivers.Header{}
	if in.Headers != nil {
		headers = in.Headers.Clone()
	}
	headers.Set(abi.HeaderTraceparent, parent)
	if state != "" {
		headers.Set(headerTracestate, state)
	}
	in.Headers, in.OnHTTP = headers, a.trace.HTTP
}
