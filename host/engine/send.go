package engine

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tetratelabs/wazero/api"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// Send is a message that a run wants to be sent once it has succeeded.
type Send struct {
	Queue string
	// Delay counts from the run's success.
	Delay time.Duration
	// Message has no id yet, and no NotBefore.
	Message drivers.Message
}

// Outbox knows the queues that messages are sent to.
type Outbox interface {
	// Check tells whether the queue would take a message at all: ErrTooLarge or
	// ErrUnsupported of package drivers, or another error where there is no such queue.
	Check(queue string, m *drivers.Message) error
}

const (
	// maxHead bounds message_send's head, bytes, and maxSendJob the job's name in it.
	maxHead    = 64 << 10
	maxSendJob = 255
)

// messageSend holds a message until the run succeeds.
func messageSend(c *Call, mod api.Module, stack []uint64) {
	head := c.slice(mod, "message_send", stack[0], stack[1])
	body := c.slice(mod, "message_send", stack[2], stack[3])
	if refusedWhileStarting(c, stack) {
		return
	}
	c.charge(len(head) + len(body))
	result(stack, c.hold(head, body))
}

func (c *Call) hold(head, body []byte) int32 {
	cfg := &c.run.m.cfg
	switch {
	case len(cfg.Send) == 0:
		return abi.ErrNotGranted
	case len(head) > maxHead:
		return abi.ErrMalformed
	}
	s, ok := parseHead(string(head))
	if !ok {
		return abi.ErrMalformed
	}
	if !slices.Contains(cfg.Send, s.Queue) {
		return abi.ErrNotGranted
	}
	size := len(head) + len(body)
	if len(c.run.sends) >= cfg.Sends || size > cfg.SendBytes-c.run.sendBytes {
		return abi.ErrTooLarge
	}
	s.Message.Payload = bytes.Clone(body)
	if c.Outbox != nil {
		if err := c.Outbox.Check(s.Queue, &s.Message); err != nil {
			return sendError(err)
		}
	}
	c.run.sends = append(c.run.sends, s)
	c.run.sendBytes += size
	return 0
}

func sendError(err error) int32 {
	switch {
	case errors.Is(err, drivers.ErrTooLarge):
		return abi.ErrTooLarge
	case errors.Is(err, drivers.ErrUnsupported), errors.Is(err, drivers.ErrInvalid):
		return abi.ErrMalformed
	}
	return abi.ErrNotGranted
}

// parseHead reads `QUEUE JOB` and the `Name: value` lines after it. Delay and Key are not
// headers of the message but say how to send it.
func parseHead(head string) (s Send, ok bool) {
	if !utf8.ValidString(head) {
		return s, false
	}
	first, rest, _ := strings.Cut(head, "\n")
	queue, job, _ := strings.Cut(strings.TrimSuffix(first, "\r"), " ")
	s.Queue, s.Message.Job = queue, job
	if queue == "" || job == "" || len(job) > maxSendJob || strings.ContainsFunc(job, unicode.IsControl) {
		return s, false
	}
	for line := range strings.Lines(rest) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if line == "" {
			continue
		}
		name, value, found := strings.Cut(line, ":")
		if !found || !s.set(name, strings.Trim(value, " \t")) {
			return s, false
		}
	}
	return s, s.Message.Headers.Validate() == nil
}

// set takes one line of the head.
func (s *Send) set(name, value string) bool {
	switch {
	case strings.EqualFold(name, "Delay"):
		d, ok := parseDelay(value)
		s.Delay = d
		return ok
	case strings.EqualFold(name, "Key"):
		s.Message.Key = value
		return value != ""
	case ours(name) && !strings.EqualFold(name, abi.HeaderMaxAttempts) && !strings.EqualFold(name, abi.HeaderMaxDelays):
		return false // the host's to say
	}
	if s.Message.Headers == nil {
		s.Message.Headers = drivers.Header{}
	}
	s.Message.Headers[name] = append(s.Message.Headers[name], value)
	return true
}

func ours(name string) bool {
	n := len(abi.HeaderPrefix)
	return len(name) >= n && strings.EqualFold(name[:n], abi.HeaderPrefix)
}

// parseDelay reads 30s, 1h30m or 2d.
func parseDelay(s string) (time.Duration, bool) {
	var d time.Duration
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n > int(abi.MaxDelay/(24*time.Hour)) {
			return 0, false
		}
		d = time.Duration(n) * 24 * time.Hour
	} else {
		var err error
		if d, err = time.ParseDuration(s); err != nil {
			return 0, false
		}
	}
	return d, d >= 0 && d <= abi.MaxDelay
}
