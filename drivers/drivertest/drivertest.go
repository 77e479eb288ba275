// Package drivertest is the conformance suite of package drivers: what every driver must
// do, against its real broker, and what its Caps promise, both ways.
//
// A driver's conformance_test.go opens the broker and calls Run:
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, func(t *testing.T, exclusive bool) *drivertest.Harness {
//			b := startBroker(t)
//			return &drivertest.Harness{Caps: thedriver.Caps(), Open: b.open, Restart: b.restart}
//		})
//	}
//
// A case is skipped only for what Caps or a nil field of the Harness excludes, and says so.
// Times are lower bounds, which hold strictly, or bounds for liveness, which are generous.
package drivertest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/guesthand/guesthand/drivers"
)

// Harness is one broker under test. Only Open and Caps are required.
type Harness struct {
	// Open makes a new connection to the broker, as another worker would. The suite closes
	// it.
	Open func(t *testing.T, worker string, o Tuning) drivers.Driver
	// Caps is what the driver publishes about itself; every untuned queue must show it.
	Caps drivers.Caps
	// Lease is a short one that the broker keeps reliably; 1.5 s.
	Lease time.Duration
	// Hammer is how many messages the hammer test sends; 2000.
	Hammer int

	// Restart stops the broker orderly under its open connections and starts it again on
	// the same data; Kill does so without a warning. They return when it accepts
	// connections. Nil where that cannot be.
	Restart func(t *testing.T)
	Kill    func(t *testing.T)
	// Disconnect breaks that driver's connections, which then may come back. Nil where
	// there are none.
	Disconnect func(t *testing.T, d drivers.Driver)
	// Die ends that driver's connections for good, as the death of its process would: it
	// gives nothing back. Nil where nothing is needed but to stop renewing.
	Die func(t *testing.T, d drivers.Driver)
	// Native publishes a message as a foreign producer would, with these headers only. Nil
	// where there is no other way in than Send.
	Native func(t *testing.T, queue string, payload []byte, h drivers.Header)
	// Rejected reads what the broker keeps of rejected messages; needed with
	// Caps.RejectCounted, and nil otherwise.
	Rejected func(t *testing.T, queue string) []drivers.Tally

	// RejectReturns: a rejected message comes back until the broker's own policy takes it.
	RejectReturns bool
	// DelayedInFlight: the broker cannot tell delayed messages from those in flight, and
	// Counts has them all under InFlight.
	DelayedInFlight bool
	// DepthOnly: the broker tells how many messages are unfinished, and nothing of how many of
	// them are delayed or in flight.
	DepthOnly bool
	// OwnInFlight: the broker tells nobody what workers hold; Counts has the asking worker's own
	// messages under InFlight and in Depth, and no others.
	OwnInFlight bool
	// StallsOfHeld: the broker may hand a message out without being asked, so that it counts a
	// stall, and is Held, where its connection ends before anybody receives it.
	StallsOfHeld bool
	// DeadBounds says why QueueOptions.DeadKeep and DeadMax are not kept to the letter, where
	// the broker has bounds of its own only; "" where they are.
	DeadBounds string
	// Leaks are what goleak should overlook.
	Leaks []goleak.Option
}

// Tuning shrinks a broker's limits for a test.
type Tuning struct {
	// MaxDelay, if not 0, is the longest delay the driver gives to the broker at once;
	// Info().Caps.MaxDelay shows it. Drivers whose Caps.MaxDelay is 0 have none to shrink.
	MaxDelay time.Duration
}

// Opener prepares a broker for one case. An exclusive one is stopped and started under the
// case; otherwise one broker may serve all, since queue names do not repeat.
type Opener func(t *testing.T, exclusive bool) *Harness

// Run runs every case against a real broker, in parallel.
func Run(t *testing.T, open Opener) {
	t.Run("NoLeak", func(t *testing.T) { noLeak(t, open) })
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(newSuite(t, open(t, c.exclusive), false))
		})
	}
}

// RunSynctest runs every case in a bubble of package synctest, for drivers that live in the
// process alone. Time is exact there, and a goroutine left behind is a failure.
func RunSynctest(t *testing.T, open Opener) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.run(newSuite(t, open(t, c.exclusive), true))
			})
		})
	}
}

type testCase struct {
	name      string
	exclusive bool
	run       func(s *suite)
}

var cases = []testCase{
	// verdicts.go
	{name: "Info", run: info},
	{name: "FirstDelivery", run: firstDelivery},
	{name: "Ack", run: ack},
	{name: "Requeue", run: requeue},
	{name: "Dead", run: dead},
	{name: "Reject", run: reject},
	{name: "RejectCounted", run: rejectCounted},
	{name: "SettleBatch", run: settleBatch},
	{name: "SettleTwice", run: settleTwice},
	{name: "SettleOtherwiseAfterAck", run: settleOtherwise},
	{name: "SettleNonsense", run: settleNonsense},
	{name: "Counts", run: counts},
	// carry.go
	{name: "CarryOverTwoWorkers", run: carryOverTwoWorkers},
	{name: "CarryCleared", run: carryCleared},
	{name: "PutBackCountsNothing", run: putBack},
	{name: "CallerOwnsBytes", run: callerOwnsBytes},
	// delay.go
	{name: "DelayIsLowerBound", run: delayLowerBound},
	{name: "DelayHops", run: delayHops},
	{name: "NotBefore", run: notBefore},
	{name: "NotBeforeHops", run: notBeforeHops},
	{name: "LongestDelay", run: longestDelay},
	{name: "DelayOutlivesWorker", run: delayOutlivesWorker},
	// lease.go
	{name: "ExpiryIsStall", run: expiryIsStall},
	{name: "StallsAddUp", run: stallsAddUp},
	{name: "StallKeepsTally", run: stallKeepsTally},
	{name: "Renew", run: renew},
	{name: "StaleSuccess", run: staleSuccess},
	{name: "StaleRequeue", run: staleRequeue},
	{name: "StaleDead", run: staleDead},
	{name: "ExpiredSettlement", run: expiredSettlement},
	// workers.go
	{name: "TwoWorkersShare", run: twoWorkersShare},
	{name: "BackPressure", run: backPressure},
	{name: "CloseGivesBack", run: closeGivesBack},
	{name: "DriverCloseGivesBack", run: driverCloseGivesBack},
	{name: "OutOfOrderSettlement", run: outOfOrder},
	{name: "Closed", run: closed},
	{name: "CloseEndsReceive", run: closeEndsReceive},
	{name: "ReceiveEndsWithContext", run: receiveEndsWithContext},
	{name: "WaitingReceive", run: waitingReceive},
	{name: "CancelledReceivesLoseNothing", run: cancelStorm},
	{name: "Ordered", run: ordered},
	{name: "Hammer", run: hammer},
	// send.go
	{name: "SendIDs", run: sendIDs},
	{name: "SendBatch", run: sendBatch},
	{name: "SendOnly", run: sendOnly},
	{name: "Create", run: create},
	{name: "Headers", run: headers},
	{name: "InvalidHeaders", run: invalidHeaders},
	{name: "ManyHeaders", run: manyHeaders},
	{name: "Payloads", run: payloads},
	{name: "TooLarge", run: tooLarge},
	{name: "JobNames", run: jobNames},
	{name: "Keys", run: sendKeys},
	{name: "Foreign", run: foreign},
	// dead.go
	{name: "DeadLetter", run: deadLetter},
	{name: "DeadList", run: deadList},
	{name: "DeadGet", run: deadGet},
	{name: "DeadReplay", run: deadReplay},
	{name: "DeadDrop", run: deadDrop},
	{name: "DeadMax", run: deadMax},
	{name: "DeadKeep", run: deadKeep},
	{name: "DeadTwice", run: deadTwice},
	// restart.go
	{name: "RestartIdle", exclusive: true, run: restartIdle},
	{name: "RestartReceiving", exclusive: true, run: restartReceiving},
	{name: "RestartRunning", exclusive: true, run: restartRunning},
	{name: "RestartSettling", exclusive: true, run: restartSettling},
	{name: "RestartKeeps", exclusive: true, run: restartKeeps},
	{name: "RestartOutOfOrder", exclusive: true, run: restartOutOfOrder},
	{name: "Reopen", exclusive: true, run: reopen},
}

// patience bounds every wait for something that must happen.
const patience = time.Minute

// longLease is so long that nothing comes back because of it within patience.
const longLease = 10 * time.Minute

// slack is what clocks of one machine may differ by.
const slack = 5 * time.Millisecond

// suite is one case's view of the broker.
type suite struct {
	*testing.T
	h      *Harness
	caps   drivers.Caps
	name   string // the queue's
	bubble bool   // inside synctest
}

var serial atomic.Int64

func newSuite(t *testing.T, h *Harness, bubble bool) *suite {
	if h.Lease == 0 {
		h.Lease = 1500 * time.Millisecond
	}
	if h.Hammer == 0 {
		h.Hammer = 2000
	}
	s := &suite{T: t, h: h, caps: h.Caps, bubble: bubble}
	s.fresh()
	return s
}

// fresh turns to a queue that nobody has used.
func (s *suite) fresh() {
	s.name = fmt.Sprintf("c%d-%x", serial.Add(1), time.Now().UnixNano()&0xffffff)
}

func (s *suite) openDriver(worker string, o Tuning) drivers.Driver {
	s.Helper()
	d := s.h.Open(s.T, worker, o)
	s.Cleanup(func() { s.close(d) })
	return d
}

type closer interface{ Close(context.Context) error }

func (s *suite) close(c closer) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		s.Errorf("close: %v", err)
	}
}

// openQueue opens the case's queue, with a long lease if o names none.
func (s *suite) openQueue(d drivers.Driver, o drivers.QueueOptions) drivers.Queue {
	s.Helper()
	o.Name, o.Create = s.name, true
	if o.Lease == 0 {
		o.Lease = longLease
	}
	if o.MaxOutstanding == 0 {
		o.MaxOutstanding = 2000
	}
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	q, err := d.OpenQueue(ctx, o)
	if err != nil {
		s.Fatalf("open queue: %v", err)
	}
	return q
}

// worker is a new connection and the case's queue on it.
func (s *suite) worker(name string) drivers.Queue {
	s.Helper()
	return s.workerWith(name, drivers.QueueOptions{})
}

func (s *suite) workerWith(name string, o drivers.QueueOptions) drivers.Queue {
	s.Helper()
	o.Worker = name
	return s.openQueue(s.openDriver(name, Tuning{}), o)
}

// deadLetters is q's dead letters; without them the case is skipped.
func (s *suite) deadLetters(q drivers.Queue) drivers.DeadLetters {
	s.Helper()
	dl, ok := q.(drivers.DeadLetters)
	if !ok {
		if s.caps.BrowseDead {
			s.Fatal("Caps.BrowseDead, but the queue is no drivers.DeadLetters")
		}
		s.Skip("the queue is no drivers.DeadLetters")
	}
	return dl
}

func noLeak(t *testing.T, open Opener) {
	base := goleak.IgnoreCurrent()
	var leaks []goleak.Option
	t.Run("Use", func(t *testing.T) {
		s := newSuite(t, open(t, true), false)
		leaks = s.h.Leaks
		d := s.openDriver("a", Tuning{})
		q, other := s.openQueue(d, drivers.QueueOptions{}), s.openQueue(d, drivers.QueueOptions{})
		s.send(q, "done", "held", "delayed")
		ms := s.take(q, 3)
		s.settle(q, drivers.Settlement{Delivery: ms[0], Verdict: drivers.Ack})
		s.settle(q, drivers.Settlement{Delivery: ms[1], Verdict: drivers.Requeue, Delay: time.Hour})
		s.nothing(other, 100*time.Millisecond)
		s.close(d)
		s.close(q)
	})
	if err := goleak.Find(append(leaks, base)...); err != nil {
		t.Error(err)
	}
}
