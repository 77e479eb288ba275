package engine

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/sys"

	"github.com/guesthand/guesthand/abi"
)

// Run runs one message and returns what it came to. It never panics, and returns within
// the deadline and a little: the guest is asked every few thousand of its own steps.
func (m *Module) Run(c *Call) (r Result) {
	now := time.Now()
	c.begin(m, now)
	inst, open := m.enter()
	if !open {
		c.finish()
		return Result{End: abi.End{Cause: abi.Load, Text: errGone.Error()}, Started: now}
	}
	keep := false
	defer func() {
		if p := recover(); p != nil { // a bug of this package or of wazero
			m.engine.logger.Error("run panicked", "job", m.cfg.Job, "panic", p, "stack", string(debug.Stack()))
			keep = false
			r.End = abi.End{Cause: abi.Trap, Text: fmt.Sprintf("trap: host error: %v", p)}
			c.finish()
		}
		m.leave(inst, keep)
	}()
	if inst == nil {
		if inst, r.End = m.start(c); inst != nil {
			m.decideByStart(inst, c.run.drewRandom)
		}
	}
	if inst != nil {
		m.call(c, inst, &r.End)
		r.Memory = inst.size()
		keep = r.End.Cause == abi.Returned && inst.reusable(r.Memory)
	}
	r.Output, r.State, r.StateWritten, r.LogDropped = c.run.output, c.run.state, c.run.stateSet, c.run.logDropped
	r.Sends = c.run.sends
	c.run.response, c.run.kernel = nil, nil // may be large, and a Call lives on
	r.Started, r.Duration = now, time.Since(now)
	return r
}

// call runs the message on a started instance and sets how it ended.
func (m *Module) call(c *Call, inst *instance, end *abi.End) {
	c.run.starting = false
	inst.memory.refused = false
	if c.run.kernel = inst.kernel; inst.kernel != nil {
		inst.kernel.begin(inst.runs == 0, len(c.Payload))
	}
	inst.stack[0] = 0
	inst.runs++
	var err error
	if cause := c.stopCause(); cause != "" {
		c.run.ended, c.run.end = true, abi.End{Cause: cause, Text: stopText(cause)}
	} else {
		err = inst.entry.CallWithStack(c, inst.stack[:])
	}
	stopped := c.finish()
	c.flushLines()
	c.collect()
	switch {
	case err != nil || c.run.ended:
		*end = c.failed(inst, err, stopped)
	case m.dialect == Extism:
		*end = c.outcome(abi.DecodeExit(uint32(inst.stack[0])))
	case inst.stack[0] == 0 || m.dialect == Command: // the common case
		end.Cause, end.Outcome.Kind = abi.Returned, abi.Success
	default:
		*end = c.outcome(abi.DecodeNative(int64(inst.stack[0])))
	}
}

// flushLines logs what the guest wrote last without ending the line.
func (c *Call) flushLines() {
	if len(c.run.stderr.line) > 0 {
		c.run.stderr.flush(c, "stderr")
	}
	if len(c.run.stdout.line) > 0 {
		c.run.stdout.flush(c, "stdout")
	}
}

// outcome is the end of a run that returned a code, with the guest's text.
func (c *Call) outcome(o abi.Outcome) abi.End {
	if o.Kind == abi.Success && c.run.m.dialect == Extism && c.run.errorText != "" {
		// To Extism a call that sets an error has failed, whatever it returns.
		o = abi.Outcome{Kind: abi.Retry, Code: abi.CodeRetry}
	}
	end := abi.End{Cause: abi.Returned, Outcome: o}
	if o.Kind != abi.Success {
		end.Text = joinText(o.Text, c.guestText(), ": ")
	}
	return end
}

// failed is the end of a run that did not come back by itself.
func (c *Call) failed(inst *instance, err error, stopped abi.Cause) abi.End {
	end := c.ending(inst, err, stopped)
	switch end.Cause {
	case abi.Returned: // a command's exit
		// A crash after memory was refused: runtimes end with a small number of their own.
		if known(end.Outcome.Code) || !inst.memory.refused {
			return c.outcome(end.Outcome)
		}
		return abi.End{Cause: abi.Memory, Text: joinText(c.run.m.memoryText(), c.guestText(), ": ")}
	case abi.Trap, abi.Exit, abi.Load:
		if inst.memory.refused {
			end = abi.End{Cause: abi.Memory, Text: c.run.m.memoryText()}
			return withText(end, joinText(end.Text, c.guestText(), ": "))
		}
		// What the guest says tells more than the kind of the trap.
		if text := c.guestText(); text != "" {
			return withText(end, text+" ("+end.Text+")")
		}
	case abi.Timeout, abi.Limit:
		if inst.memory.refused {
			end.Text += ", after its memory limit was reached"
		}
	}
	return end
}

func withText(e abi.End, text string) abi.End {
	e.Text = text
	return e
}

// known tells a code that means something from a crash's.
func known(code abi.Code) bool {
	switch code {
	case abi.CodeSuccess, abi.CodeRetry, abi.CodeRetryAfter, abi.CodeDelay, abi.CodePermanent,
		abi.CodeReject, abi.CodePause:
		return true
	}
	return false
}

// ending is what the host saw. A guest has no part in it: err counts for a timeout or a
// stop only where the host's own state says so.
func (c *Call) ending(inst *instance, err error, stopped abi.Cause) abi.End {
	if c.run.ended {
		return c.run.end
	}
	var exit *sys.ExitError
	if c.run.m.code.machine.closesOnDone && errors.As(err, &exit) { // proc_exit is ours: nobody else makes one
		if stopped != "" {
			return abi.End{Cause: stopped, Text: stopText(stopped)}
		}
		return abi.End{Cause: abi.Timeout, Text: c.run.m.timeoutText()}
	}
	return abi.End{Cause: abi.Trap, Text: c.run.m.trapText(err)}
}

// guestText is the guest's own account of what went wrong.
func (c *Call) guestText() string {
	if c.run.errorText != "" {
		return c.run.errorText
	}
	return cutText([]byte(c.run.stderr.summary()), c.run.m.cfg.ErrorText)
}

func (m *Module) memoryText() string {
	return "memory limit of " + sizeText(m.cfg.Memory) + " reached"
}

func joinText(a, b, between string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + between + b
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
