// Package tracing tells an OpenTelemetry collector how each message went: a span "process" from
// its receipt to its settlement, with "receive", "run", the handler's HTTP calls and "settle"
// below it, by the semantic conventions for messaging. A message that came with a traceparent
// stays in its producer's trace; without one the sample ratio decides.
//
// A host without an endpoint has no Tracer and makes no Messages.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"
)

// Options configures a Tracer.
type Options struct {
	Endpoint string  // http or https; without a path, OTLP's own /v1/traces
	Sample   float64 // 0 to 1, of the messages that come without a decision
	Headers  map[string]string
	Version  string // this build's
	Worker   string // this process's name
	Logger   *slog.Logger
}

// Tracer makes spans and sends them in batches, beside the work. What a collector does not take
// in time is dropped: a message never waits for it.
type Tracer struct {
	provider *trace.TracerProvider
	tracer   api.Tracer
}

// maxText bounds an error's text in a span, bytes.
const maxText = 1024

// Open makes a Tracer. The collector need not be there; what it does not answer is logged.
func Open(ctx context.Context, o Options) (*Tracer, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()), otlptracehttp.WithHeaders(o.Headers))
	if err != nil {
		return nil, fmt.Errorf("exporter: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { o.Logger.Warn("traces are not taken", "error", err) }))
	limits := trace.NewSpanLimits()
	limits.AttributeValueLengthLimit = maxText
	p := trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithRawSpanLimits(limits),
		trace.WithSampler(trace.ParentBased(trace.TraceIDRatioBased(o.Sample))),
		trace.WithResource(resource.NewSchemaless(attribute.String("service.name", "guesthand"),
			attribute.String("service.version", o.Version), attribute.String("service.instance.id", o.Worker))))
	return &Tracer{p, p.Tracer("github.com/guesthand/guesthand", api.WithInstrumentationVersion(o.Version))}, nil
}

// Close sends what is left, until ctx ends. A nil Tracer has nothing to send.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// systems are the conventions' names of brokers that have another one here.
var systems = map[string]string{"embedded": "nats", "sqs": "aws_sqs", "cloudflare": "cloudflare_queues"}

// Info is what is known of a message when it was received.
type Info struct {
	Driver, Queue, Job, ID  string
	Attempt, Size           int
	Received                time.Time
	Traceparent, Tracestate string // "" for none
}

// Message is one delivery of a message, from its receipt to its settlement. Its methods are
// called one after the other.
type Message struct {
	t                    *Tracer
	info                 Info
	process, run, settle api.Span
}

var w3c propagation.TraceContext

// Message begins one, in its producer's trace where it came with one.
func (t *Tracer) Message(i Info) *Message {
	if name, ok := systems[i.Driver]; ok {
		i.Driver = name
	}
	ctx := w3c.Extract(context.Background(), propagation.MapCarrier{"traceparent": i.Traceparent, "tracestate": i.Tracestate})
	m := &Message{t: t, info: i}
	_, m.process = t.tracer.Start(ctx, "process "+i.Queue, api.WithTimestamp(i.Received), api.WithSpanKind(api.SpanKindConsumer),
		api.WithAttributes(m.attributes("process", attribute.String("guesthand.job", i.Job), attribute.Int("guesthand.attempt", i.Attempt),
			attribute.Int("messaging.message.body.size", i.Size))...))
	return m
}

// attributes are those that the conventions want of every span about a message.
func (m *Message) attributes(operation string, more ...attribute.KeyValue) []attribute.KeyValue {
	return append([]attribute.KeyValue{
		attribute.String("messaging.system", m.info.Driver), attribute.String("messaging.destination.name", m.info.Queue),
		attribute.String("messaging.message.id", m.info.ID), attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.operation.type", operation)}, more...)
}

// child begins a span below another one.
func (m *Message) child(parent api.Span, name string, o ...api.SpanStartOption) api.Span {
	_, s := m.t.tracer.Start(api.ContextWithSpan(context.Background(), parent), name, o...)
	return s
}

// Run tells that the handler starts now. What it returns is for the handler and for whatever it
// calls: the trace as it continues from here.
func (m *Message) Run() (traceparent, tracestate string) {
	now := time.Now()
	m.child(m.process, "receive "+m.info.Queue, api.WithTimestamp(m.info.Received), api.WithSpanKind(api.SpanKindClient),
		api.WithAttributes(m.attributes("receive")...)).End(api.WithTimestamp(now))
	m.run = m.child(m.process, "run "+m.info.Job, api.WithTimestamp(now))
	carrier := propagation.MapCarrier{}
	w3c.Inject(api.ContextWithSpan(context.Background(), m.run), carrier)
	return carrier["traceparent"], carrier["tracestate"]
}

// HTTP tells of a request that the handler made.
func (m *Message) HTTP(method, address string, status int, began time.Time, err error) {
	host := ""
	if u, bad := url.Parse(address); bad == nil { // the query and the path may hold secrets
		host = u.Host
	}
	s := m.child(m.run, method, api.WithTimestamp(began), api.WithSpanKind(api.SpanKindClient),
		api.WithAttributes(attribute.String("http.request.method", method), attribute.String("server.address", host)))
	if status != 0 {
		s.SetAttributes(attribute.Int("http.response.status_code", status))
	}
	switch {
	case err != nil:
		s.SetStatus(codes.Error, err.Error())
	case status >= 400:
		s.SetStatus(codes.Error, "")
	}
	s.End()
}

// Ran tells how the run ended: with an outcome, and a text where it failed.
func (m *Message) Ran(outcome, failure string) {
	if m.run == nil { // it ended without one
		return
	}
	m.run.SetAttributes(attribute.String("guesthand.outcome", outcome))
	if failure != "" {
		m.run.SetStatus(codes.Error, failure)
	}
	m.run.End()
}

// Settling tells what is asked of the broker from now on.
func (m *Message) Settling(verdict string) {
	m.settle = m.child(m.process, verdict+" "+m.info.Queue, api.WithSpanKind(api.SpanKindClient), api.WithAttributes(
		append(m.attributes("settle"), attribute.String("guesthand.verdict", verdict))...))
}

// Settled is the end of it: with the outcome, a text where it was a failure, and the broker's
// error where it refused the settlement.
func (m *Message) Settled(outcome, failure string, err error) {
	if m.settle != nil {
		if err != nil {
			m.settle.SetStatus(codes.Error, err.Error())
		}
		m.settle.End()
	}
	m.process.SetAttributes(attribute.String("guesthand.outcome", outcome))
	switch {
	case err != nil:
		m.process.SetStatus(codes.Error, err.Error())
	case failure != "":
		m.process.SetStatus(codes.Error, failure)
	}
	m.process.End()
}
