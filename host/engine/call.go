package engine

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero/sys"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/egress"
)

// Call is one message's run: what goes in, the way to stop it, and the state host functions
// work on. It can be used again after Reset; a Call is never copied.
//
// It is itself the context of the run. The deadline is compared where the guest yields, so
// that a run starts no timer and no goroutine; a channel is only made for those who wait.
type Call struct {
	Input

	// stopped is why the run is to end, as an index into stopCauses, or over.
	stopped  atomic.Uint32
	drainEnd atomic.Pointer[time.Time]

	waited  atomic.Bool // Done was called, else what follows is unused
	waiting sync.Mutex
	done    chan struct{} // made by Done, closed by Stop and by the deadline
	timer   *time.Timer   // closes done at the deadline
	closed  bool          // done is closed
	// ctx is for what waits within the run, made by context. It is kept because a run may wait
	// often, and ends with the run.
	ctx    context.Context
	cancel context.CancelFunc

	run run
}

// run is the state of a run in progress, used by the goroutine that runs it only.
type run struct {
	m        *Module
	deadline time.Time
	// starting is true until the instance has started; most host functions then answer
	// that they are not granted.
	starting   bool
	drewRandom bool // the guest asked for random numbers while starting

	ended bool // the host decided the end, which follows
	end   abi.End

	stdin      int // how much of the payload was read from it
	output     []byte
	state      []byte
	stateSet   bool
	errorText  string
	stdout     lineWriter
	stderr     lineWriter
	logLeft    int
	logDropped int
	sends      []Send
	sendBytes  int
	kvWarned   bool
	httpCalls  int
	httpWarned bool
	response   *egress.Response // the last one
	kernel     *kernel          // the instance's, of an Extism plug-in

	scratch [64]byte // attributes that are numbers
}

// reset keeps the buffers that are not handed out. Only a run that wrote to a stream has
// left something in them.
func (r *run) reset() {
	stdout, stderr := r.stdout, r.stderr
	*r = run{}
	if stdout.line != nil || stderr.tail != nil {
		r.stdout.line, r.stdout.tail = stdout.line[:0], stdout.tail[:0]
		r.stderr.line, r.stderr.tail = stderr.line[:0], stderr.tail[:0]
	}
}

// over in Call.stopped: the run has ended.
const over = 1 << 16

// stopCauses are what Stop takes.
var stopCauses = [...]abi.Cause{"", abi.Interrupted, abi.LeaseLost, abi.Cancelled}

// Reset makes c ready for another message. Nobody may still call Stop or SetDrainEnd for
// the message before.
func (c *Call) Reset(in Input) {
	c.Input = in
	c.stopped.Store(0)
	if c.drainEnd.Load() != nil {
		c.drainEnd.Store(nil)
	}
	if c.waited.Load() {
		c.waited.Store(false)
		c.waiting.Lock()
		c.done, c.timer, c.closed, c.ctx, c.cancel = nil, nil, false, nil, nil
		c.waiting.Unlock()
	}
	c.run.reset()
}

// Stop ends the run with abi.Interrupted, abi.LeaseLost or abi.Cancelled, or keeps it from
// starting. It may be called from any goroutine at any time; the first call wins, and one
// after the run's end has no effect. It does not wait. Another cause is a programmer's
// error and counts as Cancelled.
func (c *Call) Stop(cause abi.Cause) {
	index := uint32(len(stopCauses) - 1)
	for i, known := range stopCauses {
		if i > 0 && known == cause {
			index = uint32(i)
		}
	}
	if c.stopped.CompareAndSwap(0, index) {
		c.waiting.Lock()
		defer c.waiting.Unlock()
		c.closeDone()
		if c.cancel != nil {
			c.cancel()
		}
	}
}

// SetDrainEnd tells the guest, through remaining(), that the host stops at t. The zero time
// takes it back. It may be called from any goroutine.
func (c *Call) SetDrainEnd(t time.Time) {
	if t.IsZero() {
		c.drainEnd.Store(nil)
		return
	}
	c.drainEnd.Store(&t)
}

// begin starts the clock.
func (c *Call) begin(m *Module, now time.Time) {
	c.run.m = m
	c.run.deadline = now.Add(m.cfg.Timeout)
	c.run.logLeft = m.cfg.Log
}

// finish ends the run: Stop has no effect from here on. It returns what was asked for
// before.
func (c *Call) finish() abi.Cause {
	index := c.stopped.Swap(over)
	if c.waited.Load() {
		c.waiting.Lock()
		if c.timer != nil {
			c.timer.Stop()
			c.timer = nil
		}
		if c.cancel != nil {
			c.cancel()
		}
		c.waiting.Unlock()
	}
	if index < uint32(len(stopCauses)) {
		return stopCauses[index]
	}
	return ""
}

// errEnded unwinds a guest whose end the host has decided. wazero passes an ExitError
// through untouched; a guest cannot make this very one.
var errEnded = sys.NewExitError(sys.ExitCodeContextCanceled)

// abort ends the run for the cause, from within a host function. The first one stands.
func (c *Call) abort(cause abi.Cause, text string) {
	if !c.run.ended {
		c.run.ended = true
		c.run.end = abi.End{Cause: cause, Text: text}
	}
	panic(errEnded)
}

// check ends the run when it was stopped or its deadline is over. Host functions whose
// cost grows with their arguments call it too.
func (c *Call) check() {
	if cause := c.stopCause(); cause != "" {
		c.abort(cause, stopText(cause))
	}
	if time.Until(c.run.deadline) <= 0 {
		c.abort(abi.Timeout, c.run.m.timeoutText())
	}
}

func (c *Call) stopCause() abi.Cause {
	if i := c.stopped.Load(); i < uint32(len(stopCauses)) {
		return stopCauses[i]
	}
	return ""
}

func stopText(cause abi.Cause) string {
	switch cause {
	case abi.Interrupted:
		return "interrupted: the host is stopping"
	case abi.LeaseLost:
		return "lease lost: the broker took the message back"
	}
	return "cancelled by an operator"
}

func (m *Module) timeoutText() string {
	return fmt.Sprintf("deadline of %s exceeded", m.cfg.Timeout)
}

// remaining is the time until the deadline or the drain's end.
func (c *Call) remaining() time.Duration {
	left := time.Until(c.run.deadline)
	if drain := c.drainEnd.Load(); drain != nil {
		left = min(left, time.Until(*drain))
	}
	return left
}

// sleep waits for d, the deadline or Stop, whichever comes first, and ends the run for the
// latter two.
func (c *Call) sleep(d time.Duration) {
	c.check()
	if d <= 0 {
		return
	}
	wake := time.NewTimer(d)
	defer wake.Stop()
	select {
	case <-wake.C:
	case <-c.Done():
	}
	c.check()
}

// callKey finds the Call in a context derived from it.
type callKey struct{}

// callOf is the Call of a running guest. Only a start section sees a derived context.
func callOf(ctx context.Context) *Call {
	if c, ok := ctx.(*Call); ok {
		return c
	}
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// Deadline implements context.Context.
func (c *Call) Deadline() (time.Time, bool) { return c.run.deadline, !c.run.deadline.IsZero() }

// Done implements context.Context. The channel is closed by Stop and at the deadline.
func (c *Call) Done() <-chan struct{} {
	c.waiting.Lock()
	defer c.waiting.Unlock()
	if c.done == nil {
		c.waited.Store(true)
		c.done = make(chan struct{})
		c.closed = false
		if c.stopCause() != "" {
			c.closeDone()
		} else {
			done := c.done
			c.timer = time.AfterFunc(time.Until(c.run.deadline), func() { c.deadlineOver(done) })
		}
	}
	return c.done
}

// context ends with Stop, at the deadline and with the run. Unlike the Call, which is used for
// one message after another, it may outlive the run. It is of the standard library's own kind,
// so that those derived from it need no goroutine.
func (c *Call) context() context.Context {
	c.waiting.Lock()
	defer c.waiting.Unlock()
	if c.ctx == nil {
		c.waited.Store(true)
		c.ctx, c.cancel = context.WithDeadline(context.Background(), c.run.deadline)
		if c.stopCause() != "" {
			c.cancel()
		}
	}
	return c.ctx
}

// deadlineOver closes the channel it was started for, which by now may be another run's.
func (c *Call) deadlineOver(done chan struct{}) {
	c.waiting.Lock()
	defer c.waiting.Unlock()
	if c.done == done {
		c.closeDone()
	}
}

// closeDone is called with waiting held.
func (c *Call) closeDone() {
	if c.done != nil && !c.closed {
		close(c.done)
		c.closed = true
	}
}

// Err implements context.Context: it is not nil once Done is closed.
func (c *Call) Err() error {
	if c.stopCause() != "" {
		return context.Canceled
	}
	c.waiting.Lock()
	defer c.waiting.Unlock()
	if c.closed {
		return context.DeadlineExceeded
	}
	return nil
}

// Value implements context.Context.
func (c *Call) Value(key any) any {
	if _, ok := key.(callKey); ok {
		return c
	}
	return nil
}

func (c *Call) logger() *slog.Logger {
	if c.Logger != nil {
		return c.Logger
	}
	return c.run.m.engine.logger
}
