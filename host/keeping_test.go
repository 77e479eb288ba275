package host_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/host/ledger"
)

// stub changes single methods of a queue.
type stub struct {
	drivers.Queue
	lease   time.Duration
	caps    func(*drivers.Caps)
	receive func(ctx context.Context, q drivers.Queue, max int) ([]*drivers.Delivery, error)
	renew   func(ctx context.Context, q drivers.Queue, ds []*drivers.Delivery) []error
	settle  func(ctx context.Context, q drivers.Queue, ss []drivers.Settlement) []error
	counts  func(ctx context.Context, q drivers.Queue) (drivers.Counts, error)
	start   func(*drivers.Delivery)
}

func (s *stub) Info() drivers.Info {
	i := s.Queue.Info()
	if s.lease > 0 {
		i.Lease = s.lease
	}
	if s.caps != nil {
		s.caps(&i.Caps)
	}
	return i
}

func (s *stub) Receive(ctx context.Context, max int) ([]*drivers.Delivery, error) {
	if s.receive == nil {
		return s.Queue.Receive(ctx, max)
	}
	return s.receive(ctx, s.Queue, max)
}

func (s *stub) Renew(ctx context.Context, ds []*drivers.Delivery) []error {
	if s.renew == nil {
		return s.Queue.Renew(ctx, ds)
	}
	return s.renew(ctx, s.Queue, ds)
}

func (s *stub) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	if s.settle == nil {
		return s.Queue.Settle(ctx, ss)
	}
	return s.settle(ctx, s.Queue, ss)
}

func (s *stub) Counts(ctx context.Context) (drivers.Counts, error) {
	if s.counts == nil {
		return s.Queue.Counts(ctx)
	}
	return s.counts(ctx, s.Queue)
}

func (s *stub) RecordStart(d *drivers.Delivery) {
	if s.start != nil {
		s.start(d)
	}
}

// with makes the rig's hosts see the queue through s.
func (r *rig) with(s stub) {
	r.wrap = func(q drivers.Queue) drivers.Queue {
		wrapped := s
		wrapped.Queue = q
		return struct {
			*stub
			drivers.DeadLetters
		}{&wrapped, q.(drivers.DeadLetters)}
	}
}

// fail answers every settlement, or renewal, with the same error.
func fail(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (r *rig) logged(text string) func() bool {
	return func() bool { return strings.Contains(r.logs.String(), text) }
}

func TestFailedRenewalsAreLogged(t *testing.T) {
	r := newRig(t, quick)
	r.with(stub{lease: 300 * time.Millisecond, renew: func(_ context.Context, _ drivers.Queue, ds []*drivers.Delivery) []error {
		return fail(len(ds), errors.New("broker is out to lunch"))
	}})
	r.install("puppet")
	h := r.start()
	h.send("puppet", "sleep 60000")
	hosttest.Eventually(t, patience, "a line about the failed renewal", r.logged("out to lunch"))
	hosttest.Eventually(t, patience, "the lease to end by the local clock", r.logged("lease lost"))
}

// A broker may answer that there is no lease any more because it was just told to let go.
func TestLeaseThatEndsInASettlementIsNotLost(t *testing.T) {
	r := newRig(t, quick)
	renewed := make(chan struct{}, 1)
	settling := make(chan struct{})
	r.with(stub{lease: 300 * time.Millisecond,
		renew: func(_ context.Context, _ drivers.Queue, ds []*drivers.Delivery) []error {
			select {
			case <-settling:
				defer func() { renewed <- struct{}{} }()
				return fail(len(ds), drivers.ErrLeaseLost)
			default:
				return make([]error, len(ds))
			}
		},
		settle: func(ctx context.Context, q drivers.Queue, ss []drivers.Settlement) []error {
			errs := q.Settle(ctx, ss)
			close(settling)
			<-renewed
			<-renewed // the answer to the first has been dealt with
			return errs
		}})
	r.install("puppet")
	h := r.start()
	if rows := h.end(h.send("puppet", "0")); outcomes(rows) != "success/acked" {
		t.Errorf("%s", outcomes(rows))
	}
	if r.logged("lease lost")() {
		t.Error("a message that was settled counts as a lost lease")
	}
}

func TestLeaseThatCannotBeRenewedEnds(t *testing.T) {
	r := newRig(t, quick)
	var settled, asked atomic.Int32
	// The start would refuse so short a lease: it sees one that can be renewed.
	r.with(stub{lease: 300 * time.Millisecond, caps: func(c *drivers.Caps) { c.Renewable = asked.Add(1) == 1 },
		renew: func(_ context.Context, _ drivers.Queue, ds []*drivers.Delivery) []error {
			return make([]error, len(ds))
		},
		settle: func(ctx context.Context, q drivers.Queue, ss []drivers.Settlement) []error {
			settled.Add(int32(len(ss)))
			return q.Settle(ctx, ss)
		}})
	r.install("puppet")
	h := r.start()
	id := h.send("puppet", "sleep 60000")
	hosttest.Eventually(t, patience, "the run to be stopped", func() bool { return len(h.history(id)) == 1 })
	if rows := h.history(id); outcomes(rows) != "lease-lost/none" || settled.Load() != 0 {
		t.Errorf("%s, %d settlements", outcomes(rows), settled.Load())
	}
}

func TestLeaseLostWhileWaitingIsNoRun(t *testing.T) {
	r := newRig(t, quick+"handler = \"puppet\"\n[handlers.puppet]\nconcurrency = 1\n")
	var lost sync.Map // deliveries that wait
	r.with(stub{lease: 300 * time.Millisecond,
		renew: func(_ context.Context, _ drivers.Queue, ds []*drivers.Delivery) []error {
			errs := make([]error, len(ds))
			for i, d := range ds {
				if string(d.Payload) == "0" {
					errs[i] = drivers.ErrLeaseLost
					lost.Store(d.ID, true)
				}
			}
			return errs
		}})
	r.install("puppet")
	h := r.start()
	busy := h.send("puppet", "sleep 1000")
	hosttest.Eventually(t, patience, "the only slot to be taken", func() bool { return inFlight(h) == 1 })
	waits := h.send("puppet", "0")
	h.end(busy)
	if _, ok := lost.Load(waits); !ok {
		t.Fatal("the lease was not lost in time")
	}
	after := h.send("puppet", "1|0") // the slot was free before this one came
	h.end(after)
	for _, row := range h.history(waits) {
		if row.Outcome == "lease-lost" {
			t.Errorf("a message that only waited has a run: %+v", row)
		}
	}
}

// Whatever a driver says, a queue that stops receiving for good must not look alive.
func TestReceivingGoesOnAfterAnError(t *testing.T) {
	r := newRig(t, quick)
	var calls atomic.Int32
	r.with(stub{receive: func(ctx context.Context, q drivers.Queue, max int) ([]*drivers.Delivery, error) {
		if calls.Add(1) == 1 {
			return nil, drivers.ErrClosed
		}
		return q.Receive(ctx, max)
	}})
	r.install("puppet")
	h := r.start()
	if rows := h.end(h.send("puppet", "0")); outcomes(rows) != "success/acked" {
		t.Errorf("%s", outcomes(rows))
	}
	if !r.logged("msg=receive")() {
		t.Error("the error is not logged")
	}
}

// What died without a run has no run's number: the ledger says what the dead letter says.
func TestRowsOfWhatDidNotRun(t *testing.T) {
	r := newRig(t, quick+"[handlers.puppet]\npayload = \"1KiB\"\n")
	r.with(stub{receive: func(ctx context.Context, q drivers.Queue, max int) ([]*drivers.Delivery, error) {
		ds, err := q.Receive(ctx, max)
		for _, d := range ds {
			if _, ok := d.Headers.Get("Stalls"); ok {
				d.Carry.Stalls, d.Stalled = 6, 1
			}
		}
		return ds, err
	}})
	r.install("puppet")
	h := r.start()
	large := h.send("puppet", strings.Repeat("x", 2000))
	if rows := h.end(large); len(rows) != 1 || rows[0].Attempt != 0 || h.dead(large).LastAttempt() != 0 {
		t.Errorf("%+v", rows)
	}
	stalled := h.send("puppet", "0", "Stalls", "6")
	rows := h.end(stalled)
	if outcomes(rows) != "stalled/none stalled/dead" && outcomes(rows) != "stalled/dead stalled/none" {
		t.Errorf("%s", outcomes(rows))
	}
	for _, row := range rows {
		if row.Attempt != 6 || h.dead(stalled).LastAttempt() != 6 {
			t.Errorf("%+v, letter %d", row, h.dead(stalled).LastAttempt())
		}
	}
}

// What arrived in one batch with a long run must not stay in memory as long as that.
func TestSettledMessagesAreLetGo(t *testing.T) {
	r := newRig(t, quick+"[handlers.puppet]\ntimeout = \"5m\"\n")
	var mu sync.Mutex
	var payloads []weak.Pointer[byte]
	r.with(stub{receive: func(ctx context.Context, q drivers.Queue, _ int) ([]*drivers.Delivery, error) {
		ds, err := q.Receive(ctx, 4) // in one batch, also while only some workers are idle
		mu.Lock()
		defer mu.Unlock()
		for _, d := range ds {
			d.Payload = append(make([]byte, 0, 1<<20), d.Payload...)
			payloads = append(payloads, weak.Make(&d.Payload[0]))
		}
		return ds, err
	}})
	r.install("puppet")
	q, err := r.driver.OpenQueue(t.Context(), drivers.QueueOptions{Name: "q"})
	if err != nil {
		t.Fatal(err)
	}
	for _, payload := range []string{"sleep 60000", "0", "12", "0"} {
		if err := q.Send(t.Context(), []drivers.Message{{Job: "puppet", Payload: []byte(payload)}})[0]; err != nil {
			t.Fatal(err)
		}
	}
	r.config = strings.Replace(r.config, `drain   = "10s"`, `drain = "10ms"`, 1)
	h := r.start()
	hosttest.Eventually(t, patience, "three ends", func() bool {
		rows, err := h.Runs(t.Context(), ledger.Filter{})
		return err == nil && len(rows) == 3
	})
	hosttest.Eventually(t, patience, "the settled payloads to be collected", func() bool {
		runtime.GC()
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, p := range payloads {
			if p.Value() != nil {
				n++
			}
		}
		return n <= 1
	})
}

// What a broker can never carry out is not tried for long: the message dies and says why.
func TestRequeueThatTheBrokerCannotCarryOut(t *testing.T) {
	r := newRig(t, quick)
	r.with(stub{settle: func(ctx context.Context, q drivers.Queue, ss []drivers.Settlement) []error {
		errs := make([]error, len(ss))
		for i, s := range ss {
			if s.Verdict == drivers.Requeue {
				errs[i] = fmt.Errorf("delay without a store: %w", drivers.ErrUnsupported)
			} else {
				errs[i] = q.Settle(ctx, ss[i:i+1])[0]
			}
		}
		return errs
	}})
	r.install("puppet")
	h := r.start()
	id := h.send("puppet", "11 1000")
	rows := h.end(id)
	if outcomes(rows) != "delay/dead" || !strings.Contains(rows[0].Error, "delay refused: delay without a store") {
		t.Errorf("%s: %+v", outcomes(rows), rows)
	}
}
