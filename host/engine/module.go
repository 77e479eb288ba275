package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/guesthand/guesthand/abi"
)

// withDefaults fills in the defaults that Config documents.
func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	if c.Memory == 0 {
		c.Memory = 64 << 20
	}
	c.Memory = min(c.Memory, 1<<32) / pageSize * pageSize
	if c.Timeout <= 0 {
		c.Timeout = 30 * time.Second
	}
	def(&c.Payload, 8<<20)
	def(&c.Result, 1<<20)
	def(&c.ErrorText, 16<<10)
	def(&c.Log, 256<<10)
	def(&c.CallDepth, 10000)
	def(&c.Sends, 100)
	def(&c.SendBytes, 8<<20)
	def(&c.HTTPCalls, 100)
	def(&c.Recycle, 10000)
	def(&c.MaxIdle, 16)
	return c
}

// StartError is why an instance could not start. End.Cause is Load, or what else ended it:
// Timeout, Memory, Limit or what Stop was given.
type StartError struct{ End abi.End }

func (e *StartError) Error() string { return e.End.Text }

// Module is a loaded handler: checked, compiled, and run any number of times. Its methods
// may be called concurrently; there are as many instances as there are runs at a time, and
// Config.MaxIdle kept between them.
type Module struct {
	engine   *Engine
	cfg      Config
	sections map[string][]byte
	code     *code
	decoded  decoded
	dialect  Dialect
	entry    string        // the export that takes the messages
	starters []string      // the exports that start an instance
	gone     chan struct{} // closed when closed and no run is left

	mu      sync.Mutex
	info    ModuleInfo // Instances and InstancesWhy change once, when the mode is decided
	decided bool
	reuse   bool
	starts  int // instances started to decide
	closed  bool
	running int
	idle    []*instance // the last one used is the next to be used: its memory is warm

	envWarning sync.Once
}

func newModule(e *Engine, cfg Config, l loadable, c *code) *Module {
	m := &Module{
		engine: e, cfg: cfg, sections: l.sections, code: c, decoded: l.decoded,
		dialect: l.info.Dialect, entry: l.info.Entry, info: l.info,
		starters: l.decoded.initializers(l.info.Dialect, l.info.Entry), gone: make(chan struct{}),
	}
	m.decided = m.runsOnce() || cfg.Instances != Auto
	m.reuse = m.decided && l.info.Instances == Reuse
	return m
}

// Info describes the module. Which instances it uses is certain once it was started.
func (m *Module) Info() ModuleInfo {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.info
}

// Config is the configuration in effect, with its defaults filled in.
func (m *Module) Config() Config { return m.cfg }

// Close unloads the module. It does not wait: runs in flight finish, and the last one
// releases the code. It may be called twice.
func (m *Module) Close() {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.closed = true
	idle := m.idle
	m.idle = nil
	last := m.running == 0
	m.mu.Unlock()
	for _, inst := range idle {
		inst.close()
	}
	if last {
		m.release()
	}
}

// release gives up the code once nothing can run any more.
func (m *Module) release() {
	m.engine.release(m.code)
	m.engine.mu.Lock()
	delete(m.engine.modules, m)
	m.engine.mu.Unlock()
	close(m.gone)
}

// enter counts a run in and takes an idle instance, if there is one.
func (m *Module) enter() (inst *instance, open bool) {
	m.mu.Lock()
	if open = !m.closed; open {
		m.running++
		if n := len(m.idle); n > 0 {
			inst = m.idle[n-1]
			m.idle[n-1] = nil
			m.idle = m.idle[:n-1]
		}
	}
	m.mu.Unlock()
	return inst, open
}

// leave counts a run out, and keeps the instance where it can serve again.
func (m *Module) leave(inst *instance, keep bool) {
	m.mu.Lock()
	if keep = keep && m.reuse && !m.closed && len(m.idle) < m.cfg.MaxIdle; keep {
		m.idle = append(m.idle, inst)
	}
	m.running--
	last := m.closed && m.running == 0
	m.mu.Unlock()
	if inst != nil && !keep {
		inst.close()
	}
	if last {
		m.release()
	}
}

// startLimit is how long the start of an instance may take for fresh ones to be the
// default, and startTries how often it is measured at most.
const (
	startLimit = 200 * time.Microsecond
	startTries = 3
)

// Start starts one instance within Config.Timeout, so that a module that cannot start is
// found before its first message, and keeps it where instances are reused. The error is a
// *StartError, or ErrClosed. A ctx that ends stops the start with abi.Cancelled.
func (m *Module) Start(ctx context.Context) error {
	for {
		again, err := m.startOnce(ctx)
		if err != nil || !again {
			return err
		}
	}
}

// startOnce reports whether the start should be measured once more.
func (m *Module) startOnce(ctx context.Context) (again bool, err error) {
	inst, open := m.enter()
	if !open {
		return false, ErrClosed
	}
	if inst != nil {
		m.leave(inst, true)
		return false, nil
	}
	var c Call
	stop := context.AfterFunc(ctx, func() { c.Stop(abi.Cancelled) })
	defer stop()
	c.begin(m, time.Now())
	inst, end := m.start(&c)
	c.finish()
	if inst == nil {
		m.leave(nil, false)
		return false, &StartError{End: end}
	}
	again = m.decideByStart(inst, c.run.drewRandom)
	m.leave(inst, true)
	return again, nil
}

// expectedInstances is what is known of the mode before an instance was started.
func expectedInstances(info *ModuleInfo, cfg Config) (Instances, string) {
	switch {
	case info.Dialect == Command || info.Entry == startExport:
		return Fresh, "a command runs once in its memory"
	case cfg.Instances != Auto:
		return cfg.Instances, "configured"
	case info.Dialect != "":
		return Auto, "decided when it is started: reuse if it draws random numbers then or takes long, else fresh"
	}
	return Auto, ""
}

// runsOnce tells a module whose entry is _start: its exit code is an outcome, and its memory
// serves no second message.
func (m *Module) runsOnce() bool { return m.entry == startExport }

// decideByStart chooses the mode of a native module or a plug-in by how an instance started, or says
// that another start should be measured.
func (m *Module) decideByStart(inst *instance, drewRandom bool) (again bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.decided {
		return false
	}
	m.starts++
	switch {
	case drewRandom:
		m.decide(Reuse, "it draws random numbers while starting, which instances restored from one start would share")
	case inst.startTook <= startLimit:
		m.decide(Fresh, fmt.Sprintf("starting an instance takes under %s", startLimit))
	case m.starts == startTries:
		m.decide(Reuse, fmt.Sprintf("starting an instance takes over %s", startLimit))
	default:
		return true
	}
	return false
}

func (m *Module) decide(mode Instances, why string) {
	m.decided, m.reuse = true, mode == Reuse
	m.info.Instances, m.info.InstancesWhy = mode, why
}

var errGone = errors.New("the handler was unloaded")
