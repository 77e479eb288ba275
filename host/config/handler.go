package config

import (
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/guesthand/guesthand/host/policy"
)

// Bounds of a handler's limits, bytes.
const (
	page      = 64 << 10
	maxMemory = 4 << 30 // all that a 32-bit guest can address
	maxBytes  = 1 << 30
)

// maxConcurrency is the most runs at once of one queue or handler.
const maxConcurrency = 10000

// who may write a handler's key.
type who int

const (
	operator who = iota // config.toml only
	author              // a sidecar as well
	granted             // it grants something: a sidecar only where they are trusted
)

// handlerKey is one key of [handlers.JOB]: who may write it, whether [limits] may give every
// handler another default, where the value is and how it is read.
type handlerKey struct {
	who   who
	limit bool
	field func(*Handler) (place any, read setter)
}

// handlerKeys are all of them. A nil field is a key of a later version.
var handlerKeys = map[string]handlerKey{
	"timeout": {author, true, func(h *Handler) (any, setter) { return &h.Timeout, duration(&h.Timeout) }},
	"memory":  {author, true, func(h *Handler) (any, setter) { return &h.Memory, size(&h.Memory, page, maxMemory) }},
	"concurrency": {author, false, func(h *Handler) (any, setter) {
		return &h.Concurrency, integer(&h.Concurrency, 0, maxConcurrency)
	}},
	"rate":       {author, false, func(h *Handler) (any, setter) { return &h.Rate, optional(&h.Rate, rate(&h.Rate)) }},
	"instances":  {author, true, func(h *Handler) (any, setter) { return &h.Instances, instances(&h.Instances) }},
	"retry":      {author, false, func(h *Handler) (any, setter) { return &h.Retry, retry(&h.Retry) }},
	"recycle":    {operator, true, func(h *Handler) (any, setter) { return &h.Recycle, integer(&h.Recycle, 1, math.MaxInt32) }},
	"payload":    {operator, true, func(h *Handler) (any, setter) { return &h.Payload, sizeInt(&h.Payload, 1, maxBytes) }},
	"result":     {operator, true, func(h *Handler) (any, setter) { return &h.Result, sizeInt(&h.Result, 1, maxBytes) }},
	"error":      {operator, true, func(h *Handler) (any, setter) { return &h.Error, sizeInt(&h.Error, 1, maxBytes) }},
	"log":        {operator, true, func(h *Handler) (any, setter) { return &h.Log, sizeInt(&h.Log, 1, maxBytes) }},
	"call_depth": {operator, true, func(h *Handler) (any, setter) { return &h.CallDepth, integer(&h.CallDepth, 1, math.MaxInt32) }},
	"sha256":     {operator, false, func(h *Handler) (any, setter) { return &h.SHA256, sha256Text(&h.SHA256) }},
	"config":     {granted, false, func(h *Handler) (any, setter) { return &h.Config, texts(&h.Config, anyText) }},
	"secrets": {granted, false, func(h *Handler) (any, setter) {
		return &h.Secrets, texts((*map[string]string)(&h.Secrets), secret)
	}},
	"function": {operator, false, func(h *Handler) (any, setter) { return &h.Function, text(&h.Function, "run") }},
	"http":     {granted, false, func(h *Handler) (any, setter) { return &h.HTTP, httpGrants(&h.HTTP) }},
	"kv":       {granted, false, func(h *Handler) (any, setter) { return &h.KV, keyValue(&h.KV) }},
	"send":     {granted, false, func(h *Handler) (any, setter) { return &h.Send, queueNames(&h.Send) }},
	"send_max": {operator, true, func(h *Handler) (any, setter) { return &h.SendMax, integer(&h.SendMax, 1, 10000) }},
	"send_bytes": {operator, true, func(h *Handler) (any, setter) {
		return &h.SendBytes, sizeInt(&h.SendBytes, 1, maxBytes)
	}},
}

func instances(p *string) setter {
	return func(n node) {
		var s string
		oneOf(&s, "auto", "fresh", "reuse")(n)
		if s == "auto" {
			s = ""
		}
		*p = s
	}
}

func defaultHandler() Handler {
	return Handler{Timeout: 30 * time.Second, Memory: 64 << 20, Recycle: 10000, Payload: 8 << 20, Result: 1 << 20,
		Error: 16 << 10, Log: 256 << 10, CallDepth: 10000, SendMax: 100, SendBytes: 8 << 20}
}

// handlerFields are the keys as a table of the file has them.
func handlerFields(h *Handler) fields {
	known := fields{}
	for name, key := range handlerKeys {
		known[name] = nil
		if key.field != nil {
			_, known[name] = key.field(h)
		}
	}
	return known
}

// overlay copies the keys given in from onto h. Tables of names are merged name by name, all
// other keys are replaced whole.
func (h *Handler) overlay(from *Handler) {
	for name := range from.given {
		key := handlerKeys[name]
		if key.field == nil {
			continue
		}
		dst, _ := key.field(h)
		src, _ := key.field(from)
		to, value := reflect.ValueOf(dst).Elem(), reflect.ValueOf(src).Elem()
		if value.Kind() == reflect.Map && !to.IsNil() {
			merged := reflect.MakeMap(to.Type())
			for _, m := range []reflect.Value{to, value} {
				for it := m.MapRange(); it.Next(); {
					merged.SetMapIndex(it.Key(), it.Value())
				}
			}
			value = merged
		}
		to.Set(value)
	}
}

// Sidecar is plugins/JOB.toml: what a module's author says about running it.
type Sidecar struct {
	File    string
	Job     string
	handler Handler
	memory  Issue // where memory was written
	grants  []Issue
}

// ParseSidecar reads a sidecar. The job's name is the file's. What grants something is an
// issue unless sidecars are trusted; so is what only config.toml sets. A sidecar that is not
// trusted cannot read the environment.
func ParseSidecar(file string, data []byte, trusted bool) (*Sidecar, error) {
	return parseSidecar(file, data, trusted, osEnv)
}

func parseSidecar(file string, data []byte, trusted bool, getenv func(string) (string, bool)) (*Sidecar, error) {
	s := &Sidecar{File: file, Job: strings.TrimSuffix(filepath.Base(file), ".toml")}
	s.handler.Job = s.Job
	r := &reader{file: file, dir: filepath.Dir(file), getenv: getenv, noEnv: !trusted}
	root, ok := r.decode(data)
	if !ok {
		return nil, r.result()
	}
	known := handlerFields(&s.handler)
	for name, key := range handlerKeys {
		switch {
		case key.who == operator:
			known[name] = func(n node) { n.fail("is set in config.toml only, under [handlers.%s]", s.Job) }
		case key.who == granted && !trusted:
			known[name] = func(n node) {
				n.fail("grants something, so it is set in config.toml only, under [handlers.%s]; trust_sidecars = true there allows it here", s.Job)
			}
		}
	}
	s.handler.given = root.table(known)
	s.memory = root.key("memory").issue("")
	for name := range s.handler.given {
		if handlerKeys[name].who == granted {
			s.grants = append(s.grants, root.key(name).issue("grants something, and sidecars are not trusted any more"))
		}
	}
	if err := r.result(); err != nil {
		return nil, err
	}
	return s, nil
}

// Handler is what holds for a job: [handlers.JOB] over its sidecar over [limits] over the
// defaults, key by key. s may be nil. A sidecar that asks for more than it may have is an
// *Error.
func (c *Config) Handler(job string, s *Sidecar) (Handler, error) {
	h := c.Limits.Default
	h.Job, h.given = job, nil
	own := c.Handlers[job]
	if s != nil {
		if issues := c.overreach(s, own.given); len(issues) > 0 {
			return Handler{}, &Error{Issues: issues}
		}
		h.overlay(&s.handler)
	}
	h.overlay(&own)
	h.HTTP, h.KV, h.Send = h.HTTP.clone(), cloneOf(h.KV), slices.Clone(h.Send)
	h.Config, h.Secrets, h.Retry = maps.Clone(h.Config), maps.Clone(h.Secrets), cloneOf(h.Retry)
	return h, nil
}

// overreach is what a sidecar may not have here.
func (c *Config) overreach(s *Sidecar, own keys) []Issue {
	var issues []Issue
	if s.handler.given["memory"] && !own["memory"] && s.handler.Memory > c.Limits.Memory {
		i := s.memory
		i.Text = FormatSize(s.handler.Memory) + " is over this host's ceiling of " + FormatSize(c.Limits.Memory) +
			" (limits.max_memory); ask for less, or let config.toml set it under [handlers." + s.Job + "]"
		issues = append(issues, i)
	}
	if !c.TrustSidecars {
		issues = append(issues, s.grants...)
	}
	if text := c.sidecarBucket(s); text != "" && !own["kv"] {
		issues = append(issues, Issue{File: s.File, Key: "kv", Text: text})
	}
	if name := c.unknownQueue(s.handler.Send); name != "" && !own["send"] {
		issues = append(issues, Issue{File: s.File, Key: "send", Text: "there is no [queues." + name + "] in the configuration"})
	}
	sortIssues(issues)
	return slices.Clip(issues)
}

func cloneOf[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// Policy is the retry policy that holds for a queue's message run by h: the handler's own,
// else the queue's, else that of neither.
func (c *Config) Policy(queue string, h Handler) policy.Policy {
	if h.Retry != nil {
		return *h.Retry
	}
	if q := c.Queues[queue]; q.Retry != nil {
		return *q.Retry
	}
	return policy.Unset()
}
