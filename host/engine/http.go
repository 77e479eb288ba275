package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/egress"
)

// HTTP makes one handler's requests. Its method may be called concurrently.
type HTTP interface {
	// Do returns the whole response, whatever its status. Errors wrap those of package egress.
	// It returns when ctx ends, and must not use the request's parts after that but to read them.
	Do(ctx context.Context, r egress.Request) (*egress.Response, error)
}

// httpSend makes a request and keeps the response for the functions below.
func httpSend(c *Call, mod api.Module, stack []uint64) {
	head := c.slice(mod, "http_send", stack[0], stack[1])
	body := c.slice(mod, "http_send", stack[2], stack[3])
	if refusedWhileStarting(c, stack) {
		return
	}
	c.run.response = nil
	r, ok := parseRequest(string(head[:min(len(head), maxHead)]))
	if ok = ok && len(head) <= maxHead; !ok && c.run.m.cfg.HTTP != nil {
		result(stack, abi.ErrMalformed)
		return
	}
	// The transport may still read the body when the call is over, and the guest's memory goes
	// on to the next message.
	r.Body = bytes.Clone(body)
	response, err := c.doHTTP(r)
	if err != nil {
		result(stack, httpError(err))
		return
	}
	c.run.response = response
	result(stack, int32(response.Status))
}

// doHTTP makes a request for the run, within its limits. Where the run ends while it waits, it
// does not return.
func (c *Call) doHTTP(r egress.Request) (*egress.Response, error) {
	cfg := &c.run.m.cfg
	c.check()
	switch {
	case cfg.HTTP == nil:
		return nil, c.httpFailed(r, fmt.Errorf("%w: the handler has no http in the configuration", egress.ErrNotGranted))
	case c.run.httpCalls >= cfg.HTTPCalls:
		return nil, c.httpFailed(r, fmt.Errorf("%w: %d requests are all that a run may make", egress.ErrTooLarge, cfg.HTTPCalls))
	}
	c.run.httpCalls++
	c.passTrace(r.Header)
	start := time.Now()
	response, err := cfg.HTTP.Do(c.context(), r)
	if c.OnHTTP != nil {
		status := 0
		if response != nil {
			status = response.Status
		}
		c.OnHTTP(r.Method, r.URL, status, start, err)
	}
	c.check() // what ended while it waited, ends here
	if err != nil {
		return nil, c.httpFailed(r, err)
	}
	if log := c.logger(); log.Enabled(context.Background(), slog.LevelDebug) {
		log.Debug("http_send", "job", c.job(), "id", c.ID, "method", r.Method, "host", hostOf(r.URL),
			"status", response.Status, "duration", time.Since(start))
	}
	return response, nil
}

// httpFailed logs why there is no response: the first one of a run for the operator to see,
// since a guest may try again and again. The error names the host, and no more of the URL.
func (c *Call) httpFailed(r egress.Request, err error) error {
	level := slog.LevelDebug
	if !c.run.httpWarned {
		c.run.httpWarned = true
		level = slog.LevelWarn
	}
	c.logger().Log(context.Background(), level, "http_send", "job", c.job(), "id", c.ID, "method", r.Method,
		"host", hostOf(r.URL), "error", err)
	return err
}

// passTrace hands the message's trace on, unless the guest has one of its own.
func (c *Call) passTrace(h http.Header) {
	trace, ok := c.Headers.Get(abi.HeaderTraceparent)
	if !ok || h.Get(abi.HeaderTraceparent) != "" {
		return
	}
	h.Set(abi.HeaderTraceparent, trace)
	if state, ok := c.Headers.Get(traceState); ok && h.Get(traceState) == "" {
		h.Set(traceState, state)
	}
}

// traceState travels with a traceparent.
const traceState = "tracestate"

// httpError is an error as the guest sees it.
func httpError(err error) int32 {
	switch {
	case errors.Is(err, egress.ErrNotGranted):
		return abi.ErrNotGranted
	case errors.Is(err, egress.ErrTooLarge):
		return abi.ErrTooLarge
	case errors.Is(err, egress.ErrMalformed):
		return abi.ErrMalformed
	case errors.Is(err, egress.ErrTimedOut):
		return abi.ErrTimedOut
	}
	return abi.ErrUnavailable
}

// parseRequest reads `METHOD URL` and the `Name: value` lines after it. Whether they make a
// request is for the client to say.
func parseRequest(head string) (r egress.Request, ok bool) {
	first, rest, _ := strings.Cut(head, "\n")
	r.Method, r.URL, ok = strings.Cut(strings.TrimSuffix(first, "\r"), " ")
	r.Header = http.Header{}
	if !ok || r.Method == "" || len(r.Method) > maxMethod {
		return r, false
	}
	for line := range strings.Lines(rest) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if line == "" {
			continue
		}
		name, value, found := strings.Cut(line, ":")
		if !found {
			return r, false
		}
		r.Header.Add(name, strings.Trim(value, " \t"))
	}
	return r, true
}

const (
	maxMethod  = 32
	maxLogHost = 260 // a name of 253 letters and a port
)

// hostOf is what of a URL is logged. Its path and query may hold what is nobody's business.
func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(u.Host[:min(len(u.Host), maxLogHost)], "")
}

func httpHeaderRead(c *Call, mod api.Module, stack []uint64) {
	name := c.slice(mod, "http_header_read", stack[0], stack[1])
	dst := c.slice(mod, "http_header_read", stack[2], stack[3])
	if c.withoutHTTP(stack) {
		return
	}
	c.charge(len(name) + len(dst))
	if c.run.response == nil || len(name) > maxHead {
		result(stack, abi.ErrAbsent)
		return
	}
	value, ok := headerValue(c.run.response.Header, string(name))
	answer(stack, dst, value, ok)
}

// headerValue is a header's only value, or all of them in a list as HTTP has it: with commas,
// but for cookies, which hold commas of their own and stand in lines.
func headerValue(h http.Header, name string) (string, bool) {
	values := h.Values(name)
	between := ", "
	if strings.EqualFold(name, "Set-Cookie") {
		between = "\n"
	}
	return strings.Join(values, between), len(values) > 0
}

func httpBodySize(c *Call, _ api.Module, stack []uint64) {
	if c.withoutHTTP(stack) {
		return
	}
	n := 0
	if c.run.response != nil {
		n = len(c.run.response.Body)
	}
	result(stack, int32(n))
}

func httpBodyRead(c *Call, mod api.Module, stack []uint64) {
	dst := c.slice(mod, "http_body_read", stack[0], stack[1])
	if c.withoutHTTP(stack) {
		return
	}
	n := 0
	if r := c.run.response; r != nil {
		n = copy(dst, r.Body[min(uint64(len(r.Body)), uint64(uint32(stack[2]))):])
	}
	c.charge(n)
	result(stack, int32(n))
}

// withoutHTTP answers for a handler that was not granted requests, and while it starts.
func (c *Call) withoutHTTP(stack []uint64) bool {
	refused := c.run.starting || c.run.m.cfg.HTTP == nil
	if refused {
		result(stack, abi.ErrNotGranted)
	}
	return refused
}
