package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/engine"
	"github.com/guesthand/guesthand/host/ledger"
	"github.com/guesthand/guesthand/host/metrics"
	"github.com/guesthand/guesthand/host/plugindir"
	"github.com/guesthand/guesthand/host/policy"
	"github.com/guesthand/guesthand/host/tracing"
)

// slotWait is how long a message waits in its slot for its handler's own slot, rate or
// pause before it is put back, so that one job does not hold up the others of its queue.
const slotWait = time.Second

// attempt is one message on its way through a worker, and what it came to.
type attempt struct {
	q       *queue
	h       *held
	job     string
	plugin  *plugindir.Plugin // nil where there is no handler
	digest  string
	message policy.Message
	policy  policy.Policy
	result  engine.Result
	end     abi.End
	// word is the outcome where no run gave one.
	word     string
	decision policy.Decision
	settled  bool             // the broker agreed to the decision
	trace    *tracing.Message // nil where nothing is traced
}

// process takes one message to its settlement and tells whether a handler ran.
func (q *queue) process(ctx context.Context, h *held) (ran bool) {
	for {
		a := &h.attempt
		*a = attempt{q: q, h: h, job: q.route(h.d)}
		ran, again := a.process(ctx)
		if !again {
			return ran
		}
	}
}

// process is one try. again is true where the message still waits for its handler, and
// everything is to be looked up anew.
func (a *attempt) process(ctx context.Context) (ran, again bool) {
	q, h := a.q, a.h
	if h.lost.Load() { // while it waited
		q.host.suspects.forget(h)
		q.leases.remove(h)
		return false, false
	}
	a.message = policy.Message{
		Tally: h.d.Carry.Tally, EnqueuedAt: h.d.EnqueuedAt, Retention: q.retention,
		MaxAttempts: q.lowered(h.d, abi.HeaderMaxAttempts), MaxDelays: q.lowered(h.d, abi.HeaderMaxDelays),
	}
	if h.cancel.Load() != nil {
		q.cancelled(h)
		return false, false
	}
	if h.d.Broken != "" {
		a.bury("undecodable message: " + h.d.Broken)
		return false, false
	}
	var state plugindir.State
	if a.plugin, state = q.host.plugins.Acquire(a.job); a.plugin == nil {
		a.unhandled(state)
		return false, false
	}
	a.digest = a.plugin.Digest()
	defer a.plugin.Release()
	c := q.host.Config()
	a.policy = c.Policy(q.name, a.plugin.Handler())
	if d, dead := policy.Arrival(a.message, a.policy, time.Now()); dead {
		a.finish(abi.End{Cause: abi.Stalled, Text: d.Reason}, d)
		return false, false
	}
	if limit := a.plugin.Handler().Payload; len(h.d.Payload) > limit {
		a.bury(fmt.Sprintf("payload of %d bytes is over the limit of %d", len(h.d.Payload), limit))
		return false, false
	}
	leave, ok, again := a.enter(ctx)
	if !ok {
		return false, again
	}
	if leave != nil {
		defer leave()
	}
	return a.run(), false
}

// route is the job a message is for: the queue's handler, else what the message says,
// through the queue's own names.
func (q *queue) route(d *drivers.Delivery) string {
	c := q.config()
	if c.Handler != "" {
		return c.Handler
	}
	if job, ok := c.Jobs[d.Job]; ok {
		return job
	}
	return d.Job
}

// lowered reads a producer's own budget; nonsense counts as none and is logged once.
func (q *queue) lowered(d *drivers.Delivery, name string) int {
	if len(d.Headers) == 0 {
		return 0
	}
	v, ok := d.Headers.Get(name)
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		q.host.once.warn(q.log, name, "ignored a header that is no number of runs", keyHeader, name, keyValue, v, keyID, d.ID)
		return 0
	}
	return n
}

// enter waits for what the handler's own limits ask for, and for the suspects' turn. When
// ok is false the message was put back, or is to be processed again.
func (a *attempt) enter(ctx context.Context) (leave func(), ok, again bool) {
	suspect := policy.Suspect(a.message.Tally)
	gate := a.q.host.gates.of(a.plugin.Handler())
	if d := a.paused(gate); d > slotWait {
		if a.q.config().Handler != "" || a.q.host.pauses.left(a.q.name, "", time.Now()) > 0 {
			d = 0 // this host does not receive: the message is for others, or for us after a resume
		}
		a.q.putBack(a.h, spread(d))
		return nil, false, false
	}
	if suspect || !gate.open() {
		if leave, ok, again = a.wait(ctx, gate, suspect); !ok {
			return nil, false, again
		}
	}
	if ctx.Err() != nil {
		if leave != nil {
			leave()
		}
		a.q.putBack(a.h, 0)
		return nil, false, false
	}
	return leave, true, false
}

// paused is how long this message's job still takes no message on this host.
func (a *attempt) paused(g *gate) time.Duration {
	now := time.Now()
	return max(g.paused(now), a.q.host.pauses.left(a.q.name, a.job, now))
}

// wait waits for at most slotWait: then the message gives its slot to those of other jobs. A
// queue with a single handler has none to make room for, and only looks again, whether the
// handler is still the same; but it does not keep messages from other hosts through a pause.
func (a *attempt) wait(ctx context.Context, g *gate, suspect bool) (leave func(), ok, again bool) {
	waiting, cancel := context.WithTimeout(ctx, slotWait)
	defer cancel()
	if leave, ok = a.turns(waiting, g, suspect); ok {
		if a.h.lost.Load() {
			leave()
			return nil, false, true
		}
		return leave, true, false
	}
	switch {
	case ctx.Err() != nil:
		a.q.putBack(a.h, 0)
	case a.q.config().Handler == "", suspect, g.paused(time.Now()) > 0:
		// Not all that wait for one handler are to come back together.
		a.q.putBack(a.h, time.Second+rand.N(4*time.Second))
	default:
		<-waiting.Done() // a rate that is spent is known at once
		return nil, false, true
	}
	return nil, false, false
}

// turns enters what a run of this message must enter.
func (a *attempt) turns(ctx context.Context, g *gate, suspect bool) (leave func(), ok bool) {
	if !suspect {
		return g.enter(ctx)
	}
	s := &a.q.host.suspects
	var leaveTurn func()
	if a.h.d.Held {
		leaveTurn, ok = s.enterAlone(ctx, a.h)
	} else {
		leaveTurn, ok = s.enter(ctx)
	}
	if !ok {
		return nil, false
	}
	leaveGate, ok := g.enter(ctx)
	if !ok {
		if a.h.d.Held {
			s.hold(a.h)
		}
		leaveTurn()
		return nil, false
	}
	return func() { leaveGate(); leaveTurn() }, true
}

// run runs the handler and settles what it came to.
func (a *attempt) run() bool {
	q, h := a.q, a.h
	if q.starts != nil {
		q.starts.RecordStart(h.d)
	}
	budget, _ := a.policy.Budget(a.message)
	h.call.Input = engine.Input{
		ID: h.d.ID, Job: a.job, Queue: q.name, Tally: h.d.Carry.Tally,
		MaxAttempts: budget, EnqueuedAt: h.d.EnqueuedAt,
		Headers: h.d.Headers, Payload: h.d.Payload, State: h.d.Carry.State, Logger: q.host.guestLog,
		Bucket: q.host.buckets.of(q.host.Config(), q.name, a.plugin.Handler()), Outbox: q.host.outbox,
	}
	a.traced()
	a.traceRun(&h.call.Input)
	q.metrics.Start()
	a.result = a.plugin.Module().Run(&h.call)
	q.metrics.End()
	end := a.result.End
	sends := len(a.result.Sends) > 0 && succeeded(end)
	switch {
	case h.lost.Load() && (sends || !succeeded(end)):
		// A success is completed in full or not at all.
		end = abi.End{Cause: abi.LeaseLost, Text: end.Text}
	case sends:
		if instead, ok := a.follow(); !ok {
			end = instead
		}
	}
	// The run resets what was counted for want of a handler.
	a.message.Tally.Unrouted = 0
	d := policy.Decide(end, a.message, a.policy, time.Now(), rand.Float64)
	if d.Capped {
		q.host.once.warn(q.log, "max_wait "+a.job, "max_wait shortened what the handler asked for", keyJob, a.job, keyDelay, end.Outcome.Delay)
	}
	if d.Pause > 0 {
		q.host.gates.of(a.plugin.Handler()).pause(time.Now().Add(d.Pause))
	}
	a.finish(end, d)
	return true
}

// unhandled is what happens to a message without a handler. A module that is there but
// cannot be loaded is the operator's to mend, so its messages wait without limit.
func (a *attempt) unhandled(state plugindir.State) {
	c := a.q.config()
	if state == plugindir.Broken {
		a.q.host.once.warn(a.q.log, "broken "+a.job, "handler cannot be loaded; its messages are put back", keyJob, a.job)
		a.q.putBack(a.h, c.UnknownJob.Wait)
		return
	}
	d := policy.Unrouted(a.message, c.UnknownJob.Wait, c.UnknownJob.Tries, a.job, time.Now())
	if d.Verdict == drivers.Requeue {
		a.q.host.once.warn(a.q.log, "absent "+a.job, "no handler; the message is put back", keyJob, a.job, keyDelay, d.Delay)
		carry := a.h.d.Carry
		carry.Tally = d.Tally
		a.q.putBackWith(a.h, carry, d.Delay)
		return
	}
	a.word = abi.Permanent.String()
	a.finish(abi.End{Cause: abi.Load, Text: d.Reason}, d)
}

// bury dead-letters a message without a run.
func (a *attempt) bury(reason string) {
	d := policy.Decision{Verdict: drivers.Dead, Tally: a.message.Tally, Reason: reason}
	a.word = abi.Permanent.String()
	a.finish(abi.End{Cause: abi.Limit, Text: reason}, d)
}

// finish hands the decision to the settler, which calls report once the broker agreed.
func (a *attempt) finish(end abi.End, d policy.Decision) {
	a.end, a.decision = end, d
	if a.word == "" {
		a.word = end.Word()
	}
	a.traced()
	if a.trace != nil {
		a.trace.Ran(a.word, a.failureText())
	}
	if d.Verdict == 0 {
		a.report(nil)
		a.q.leases.remove(a.h)
		return
	}
	s := drivers.Settlement{Delivery: a.h.d, Verdict: d.Verdict}
	if d.Verdict == drivers.Ack {
		a.reply()
	} else {
		s.Delay, s.Reason, s.Carry = d.Delay, d.Reason, a.carry()
	}
	if d.Verdict == drivers.Dead {
		s.Death = a.death()
	}
	if a.trace != nil {
		a.trace.Settling(s.Verdict.String())
	}
	a.q.settle.settle(finished{h: a.h, s: s, ran: true})
}

// instead is what becomes of a message that the broker cannot put back as it was asked to: it
// would only come back as stalled, again and again.
func (q *queue) instead(f finished, err error) (finished, bool) {
	if !f.ran || f.s.Verdict != drivers.Requeue {
		return f, false
	}
	a := &f.h.attempt
	a.decision.Verdict, a.decision.Reason = drivers.Dead, fmt.Sprintf("%s refused: %v", a.word, err)
	f.s.Verdict, f.s.Reason, f.s.Death = drivers.Dead, a.decision.Reason, a.death()
	return f, true
}

// death is why and how the message dies.
func (a *attempt) death() *drivers.Death {
	return &drivers.Death{Reason: a.decision.Reason, Outcome: a.word, Cause: a.end.CauseWord(),
		Time: time.Now(), Digest: a.digest, Worker: a.q.host.worker}
}

// carry is what the message takes to its next run or into its grave.
func (a *attempt) carry() drivers.Carry {
	end, d := a.end, a.decision
	c := a.h.d.Carry
	c.Tally = d.Tally
	if a.result.StateWritten && stateKept(end) {
		c.State = a.result.State
	}
	if d.Failure {
		text := end.Text
		if text == "" {
			text = d.Reason
		}
		c.Errors = append(slices.Clone(c.Errors), drivers.RunError{
			Attempt: a.message.Tally.Attempt(), At: time.Now().UTC(), Outcome: a.word, Cause: end.CauseWord(),
			Text: cut(text, drivers.MaxErrorText),
		})
		if n := len(c.Errors) - drivers.MaxErrors; n > 0 {
			c.Errors = c.Errors[n:]
		}
	}
	return c
}

// stateKept tells whether the run's state is committed: only when the module itself asked
// to be run again.
func stateKept(end abi.End) bool {
	if end.Cause != abi.Returned {
		return false
	}
	switch end.Outcome.Code {
	case abi.CodeRetry, abi.CodeRetryAfter, abi.CodeDelay, abi.CodePause:
		return true
	}
	return false
}

// settlementWord is what the ledger calls a confirmed verdict.
func (a *attempt) settlementWord() string {
	switch a.decision.Verdict {
	case drivers.Ack:
		return ledger.Acked
	case drivers.Dead:
		return ledger.DeadLtr
	case drivers.Reject:
		return ledger.Rejected
	case drivers.Requeue:
		if k := a.end.Outcome.Kind; a.end.Cause == abi.Returned && (k == abi.Delay || k == abi.Pause) {
			return ledger.Delayed
		}
		return ledger.Retried
	}
	return ledger.None
}

// report says what became of a message: ledger, counters, events, in that order and only
// after the broker accepted the settlement or refused it for good.
func (a *attempt) report(err error) {
	q, word := a.q, a.settlementWord()
	if err != nil {
		word = ledger.Failed
		q.metrics.SettleErrors.Inc()
		level := slog.LevelError
		if errors.Is(err, drivers.ErrLeaseLost) { // nobody can mend that: the message runs again
			level = slog.LevelWarn
		}
		q.log.Log(context.Background(), level, "settle", keyVerdict, a.decision.Verdict.String(), keyID, a.h.d.ID, keyJob, a.job, keyError, err)
	}
	if a.trace != nil {
		a.trace.Settled(a.word, a.failureText(), err)
	}
	a.count(err)
	q.host.ledger.Record(ledger.Row{
		ID: a.h.d.ID, Queue: q.name, Job: a.job, Attempt: a.number(), Outcome: a.word,
		Cause: a.end.CauseWord(), Code: a.end.CodeOrNone(), Delay: a.end.Outcome.Delay, Error: a.errorText(),
		Result: a.result.Output, Started: a.result.Started, Finished: time.Now(), Settlement: word,
		Digest: a.digest, Worker: q.host.worker,
	})
	if err == nil {
		a.settled = true
		a.event()
	}
}

// tell makes the settled end known to whoever wants to hear of it.
func (a *attempt) tell(s drivers.Settlement) {
	ev := Event{Queue: a.q.name, Job: a.job, ID: a.h.d.ID, Attempt: a.number(), Outcome: a.word, Reason: a.decision.Reason, Digest: a.digest}
	switch {
	case s.Verdict == drivers.Dead:
		ev.Kind = eventDead
		a.onDead(s.Carry, s.Death)
	case s.Verdict == drivers.Reject:
		ev.Kind = eventRejected
	case a.end.Cause == abi.Cancelled:
		ev.Kind = eventCancelled
	default:
		return
	}
	a.q.host.emit(ev)
}

// count keeps the metrics of a message that was settled, or given up with err.
func (a *attempt) count(err error) {
	q := a.q
	q.host.settled.Add(1)
	job := metrics.Unknown
	if a.plugin != nil {
		job = a.job
	}
	j := q.metrics.Job(job)
	j.Ended(a.word)
	if !a.result.Started.IsZero() {
		j.Ran(a.result.Duration, a.result.Memory)
		if a.message.Tally == (drivers.Tally{}) {
			j.Waited(a.result.Started.Sub(a.h.d.EnqueuedAt))
		}
	}
	if err == nil && a.decision.Verdict == drivers.Dead {
		j.Died()
	}
	if a.decision.Failure && a.plugin != nil {
		q.host.failures.Store(a.job, failure{cut(a.errorText(), drivers.MaxErrorText), time.Now()})
	}
}

// jobLabel is a job's name in the metrics: what producers make up is not.
func (q *queue) jobLabel(job string) string {
	if p, _ := q.host.plugins.Acquire(job); p != nil {
		p.Release()
		return job
	}
	return metrics.Unknown
}

// number is the attempt that this was, or the last one where no run came of it.
func (a *attempt) number() int {
	n := a.message.Tally.Attempt()
	if a.result.Started.IsZero() {
		n--
	}
	return n
}

// failureText is the error of a run that failed, or why its message died; "" for all others.
func (a *attempt) failureText() string {
	if !a.decision.Failure && a.decision.Verdict != drivers.Dead {
		return ""
	}
	if text := a.errorText(); text != "" {
		return text
	}
	return a.word
}

// errorText is the run's error for the ledger, with the reason where the message died.
func (a *attempt) errorText() string {
	if a.decision.Verdict == drivers.Dead && a.decision.Reason != "" {
		return a.decision.Reason
	}
	return a.end.Text
}

// event logs what happened. A handler's failures are no faults of the host, so they are
// no errors, and no more than so many lines.
func (a *attempt) event() {
	level, text := slog.LevelDebug, "run"
	switch {
	case a.decision.Verdict == drivers.Dead:
		level, text = slog.LevelWarn, "dead-lettered"
	case a.decision.Verdict == drivers.Reject:
		level, text = slog.LevelInfo, "rejected"
	case a.end.Cause == abi.Interrupted:
		level, text = slog.LevelInfo, "interrupted"
	case a.decision.Failure:
		level, text = slog.LevelInfo, "failed"
	}
	hidden := 0
	if level > slog.LevelDebug {
		var ok bool
		if ok, hidden = a.q.host.lines.allow(text, a.job); !ok {
			level = slog.LevelDebug
		}
	}
	if !a.q.log.Enabled(context.Background(), level) {
		return
	}
	log := a.q.log
	if hidden > 0 {
		log = log.With(keyHidden, hidden)
	}
	log.Log(context.Background(), level, text, keyID, a.h.d.ID, keyJob, a.job,
		keyAttempt, a.number(), keyOutcome, a.word, keyCause, a.end.CauseWord(),
		keyReason, a.decision.Reason, keyDelay, a.decision.Delay, keyDuration, a.result.Duration, keyDigest, a.digest)
}

// putBack returns a message uncounted: nothing of it ran.
func (q *queue) putBack(h *held, delay time.Duration) { q.putBackWith(h, h.d.Carry, delay) }

func (q *queue) putBackWith(h *held, c drivers.Carry, delay time.Duration) {
	if h.cancel.Load() != nil {
		q.cancelled(h)
		return
	}
	s := drivers.Settlement{Delivery: h.d, Verdict: drivers.Requeue, Delay: delay, Carry: c}
	q.settle.settle(finished{h: h, s: s})
}

// settled is called by the settler, once for each settlement.
func (q *queue) settled(f finished, err error) {
	q.host.suspects.forget(f.h)
	switch {
	case f.ran:
		a := &f.h.attempt
		switch v := f.s.Verdict; {
		case err != nil:
		case v == drivers.Dead, v == drivers.Reject:
			a.reply()
			a.tell(f.s)
		case a.end.Cause == abi.Cancelled:
			a.tell(f.s)
		}
		a.report(err)
	case err != nil:
		q.metrics.SettleErrors.Inc()
		q.log.Warn("put back", keyID, f.h.d.ID, keyError, err)
	}
}

// noteStalls writes the ledger rows of runs whose worker died or lost the lease.
func (q *queue) noteStalls(h *held) {
	if h.d.Stalled == 0 {
		return
	}
	q.log.Warn("stalled", keyID, h.d.ID, keyJob, h.d.Job, keyStalls, h.d.Carry.Stalls)
	last := h.d.Carry.Attempt() - 1
	q.host.emit(Event{Kind: eventStalled, Queue: q.name, Job: q.route(h.d), ID: h.d.ID, Attempt: last})
	for i := range min(h.d.Stalled, 10) {
		q.metrics.Job(q.jobLabel(q.route(h.d))).Ended(string(abi.Stalled))
		q.host.ledger.Record(ledger.Row{
			ID: h.d.ID, Queue: q.name, Job: q.route(h.d), Attempt: last - i, Outcome: string(abi.Stalled),
			Code: -1, Finished: time.Now(), Settlement: ledger.None, Worker: q.host.worker,
		})
	}
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
