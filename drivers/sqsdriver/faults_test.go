package sqsdriver_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/sqsdriver"
	"github.com/guesthand/guesthand/drivers/sqsdriver/sqstest"
)

// on makes a fault of the n-th request of an action, 0 for all of them.
func on(action string, n int, f sqstest.Fault) func(string, int) *sqstest.Fault {
	return func(a string, k int) *sqstest.Fault {
		if a == action && (n == 0 || n == k) {
			return &f
		}
		return nil
	}
}

// logged collects the texts of log records.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// bbc/sqs-consumer#193: an entry that fails in an answer of 200 is not deleted.
func TestDeleteFailsForOneEntry(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	b.sendIDs("1", "2", "3")
	ds := b.take(3)
	b.s.Fault(on("DeleteMessageBatch", 1, sqstest.Fault{Fail: []int{1}}))
	errs := b.settle(ack(ds[0]), ack(ds[1]), ack(ds[2]))
	if errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Fatalf("results %v, want an error for the second only", errs)
	}
	b.mustSettle(ack(ds[1]))
	b.empty()
}

// bbc/sqs-consumer#137: a receive that is never answered must not be waited for for ever.
func TestReceiveHangs(t *testing.T) {
	t.Parallel()
	log := &logged{}
	b := newBench(t, setting{Options: sqsdriver.Options{CallTimeout: 3 * time.Second, Logger: log.logger()}})
	b.s.Fault(on("ReceiveMessage", 1, sqstest.Fault{Hang: true}))
	b.nothing(300 * time.Millisecond)
	b.sendIDs("m")
	b.mustSettle(ack(b.take(1)[0]))
	if text := log.text(); !strings.Contains(text, "trying again") || strings.Count(text, "hands out messages again") != 1 {
		t.Errorf("logged %s", text)
	}
}

// aws/aws-sdk-go#3262: a call's timeout is not that of a long poll.
func TestLongPollOutlastsCallTimeout(t *testing.T) {
	t.Parallel()
	log := &logged{}
	b := newBench(t, setting{Options: sqsdriver.Options{CallTimeout: 2 * time.Second, Wait: 3 * time.Second, Logger: log.logger()}})
	b.s.WaitSecond(time.Second)
	b.s.Fault(nil)
	b.nothing(3500 * time.Millisecond)
	if n, text := b.s.Calls("ReceiveMessage"), log.text(); n > 2 || text != "" {
		t.Errorf("%d polls in 3.5 s of 3 s each, logged %q", n, text)
	}
	b.sendIDs("m")
	d := b.take(1)[0]
	if d.Redelivered || d.Carry.Stalls != 0 {
		t.Errorf("redelivered %t, stalls %d", d.Redelivered, d.Carry.Stalls)
	}
	b.mustSettle(ack(d))
}

// localstack/localstack#3956, mapbox/ecs-watchbot#203: SQS keeps a message for 12 hours from
// the receive on, whatever is renewed. The lease ends before SQS would refuse, and the run's
// outcome no longer counts when somebody else has the message.
func TestRenewalEndsAtTotalVisibility(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{lease: 2 * time.Second, Options: sqsdriver.Options{MaxVisibility: 7 * time.Second}})
	b.s.MaxVisibility(8 * time.Second)
	other := benchOn(t, b.s, setting{lease: 2 * time.Second, Options: sqsdriver.Options{MaxVisibility: 7 * time.Second}})
	b.sendIDs("m")
	d := b.take(1)[0]
	renewed, start := 0, time.Now()
	for ; ; renewed++ {
		err := b.q.Renew(t.Context(), []*drivers.Delivery{d})[0]
		if errors.Is(err, drivers.ErrLeaseLost) {
			break
		}
		if err != nil || time.Since(start) > patience {
			t.Fatalf("renewal %d: %v", renewed, err)
		}
		other.nothing(250 * time.Millisecond)
	}
	if renewed < 1 || time.Since(d.Received) > 7*time.Second {
		t.Errorf("renewed %d times, lost after %s", renewed, time.Since(d.Received))
	}
	again := other.take(1)[0]
	failed := drivers.Carry{Tally: drivers.Tally{Failures: 1}}
	if err := b.settle(drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: failed})[0]; !errors.Is(err, drivers.ErrLeaseLost) {
		t.Errorf("requeue of a lost lease: %v", err)
	}
	other.mustSettle(ack(again))
	other.empty()
}

// The same where only SQS knows the limit.
func TestRenewalRefusedBeyondTotalVisibility(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{lease: 2 * time.Second})
	b.s.MaxVisibility(time.Second)
	b.sendIDs("m")
	if err := b.q.Renew(t.Context(), b.take(1))[0]; err == nil {
		t.Error("renewed beyond the limit")
	}
}

// bbc/sqs-consumer#83: SQS refuses a FIFO delete with an expired handle.
func TestExpiredHandleOnFIFO(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{lease: time.Second, fifo: true, Options: sqsdriver.Options{Store: store(t)}})
	b.sendIDs("m")
	old := b.take(1)[0]
	other := benchOn(t, b.s, setting{lease: 10 * time.Second, fifo: true, Options: sqsdriver.Options{Store: store(t)}})
	now := other.take(1)[0]
	if err := b.settle(ack(old))[0]; !errors.Is(err, drivers.ErrLeaseLost) {
		t.Errorf("ack with an expired handle: %v", err)
	}
	// A refusal by SQS itself, where our clock is behind.
	b.s.Fault(on("DeleteMessageBatch", 1, sqstest.Fault{Refuse: &sqstest.Error{
		Code: "InvalidParameterValue", Message: "The receipt handle has expired", Status: 400}}))
	if err := other.settle(ack(now))[0]; !errors.Is(err, drivers.ErrLeaseLost) {
		t.Errorf("ack that SQS refuses: %v", err)
	}
	other.mustSettle(ack(now)) // a success may still be completed
	other.empty()
}

// redpanda-data/connect#182: a message that was delivered twice makes no batch with equal ids.
// zarusz/SlimMessageBus#473: the earlier delivery's success uses the newest receipt handle.
func TestSameMessageTwiceInOneBatch(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	b.sendIDs("m")
	first := b.take(1)[0]
	b.s.Fault(on("DeleteMessageBatch", 1, sqstest.Fault{Refuse: sqstest.Throttled}))
	if err := b.settle(ack(first))[0]; err == nil {
		t.Fatal("a throttled delete succeeded")
	}
	b.s.Expire("guesthand_q")
	second := b.take(1)[0]
	b.s.Fault(nil)
	if errs := b.settle(ack(first), ack(second)); errs[0] != nil || errs[1] != nil {
		t.Fatalf("both at once: %v", errs)
	}
	b.empty()
}

func TestDeleteRetryUsesNewestReceipt(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	b.sendIDs("m")
	first := b.take(1)[0]
	b.s.Expire("guesthand_q")
	second := b.take(1)[0]
	b.mustSettle(ack(first))
	b.empty()
	failed := drivers.Settlement{Delivery: second, Verdict: drivers.Requeue, Carry: drivers.Carry{Tally: drivers.Tally{Failures: 1}}}
	if err := b.settle(failed)[0]; !errors.Is(err, drivers.ErrLeaseLost) {
		t.Errorf("requeue of a message that is done: %v", err)
	}
	b.mustSettle(ack(second))
	b.empty()
}

// Standard queues may hand out what was deleted.
func TestRedeliveredAfterDelete(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	b.sendIDs("acked", "copied")
	for _, d := range b.take(2) {
		s := ack(d)
		if d.ID == "copied" {
			s = drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: d.Carry, Delay: time.Hour}
		}
		b.mustSettle(s)
	}
	if n := b.s.Redeliver("guesthand_q"); n != 2 {
		t.Fatalf("%d to be delivered again", n)
	}
	for end := time.Now().Add(patience); ; {
		b.nothing(300 * time.Millisecond)
		c, err := b.q.Counts(t.Context())
		if err == nil && c.Depth == 1 && c.Delayed == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("counts %+v, %v, want the copy alone", c, err)
		}
	}
}

// A lost answer leaves its messages out for a lease: stalled, but only held.
func TestLostAnswerOfReceive(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{lease: 4 * time.Second})
	b.sendIDs("m")
	b.s.Fault(on("ReceiveMessage", 1, sqstest.Fault{LoseAnswer: true}))
	d := b.take(1)[0]
	if d.Carry.Stalls != 1 || d.Stalled != 1 || !d.Held || !d.Redelivered {
		t.Errorf("stalls %d, stalled %d, held %t, redelivered %t", d.Carry.Stalls, d.Stalled, d.Held, d.Redelivered)
	}
	b.mustSettle(ack(d))
}

// A FIFO queue hands the same messages out again to the same attempt.
func TestLostAnswerOfReceiveOnFIFO(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{lease: time.Hour, fifo: true, Options: sqsdriver.Options{Store: store(t)}})
	b.sendIDs("m")
	b.s.Fault(on("ReceiveMessage", 1, sqstest.Fault{LoseAnswer: true}))
	d := b.take(1)[0]
	if d.Carry.Stalls != 0 || d.Redelivered {
		t.Errorf("stalls %d, redelivered %t", d.Carry.Stalls, d.Redelivered)
	}
	b.mustSettle(ack(d))
	b.empty()
}

// A settlement that got half way is completed, not done again.
func TestRequeueRepeatedAfterLostDelete(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	for _, v := range []drivers.Verdict{drivers.Requeue, drivers.Dead} {
		for _, fault := range []sqstest.Fault{{Refuse: sqstest.Throttled}, {LoseAnswer: true}} {
			b.s.Fault(on("DeleteMessageBatch", 1, fault))
			b.sendIDs("m")
			s := drivers.Settlement{Delivery: b.take(1)[0], Verdict: v, Carry: drivers.Carry{Tally: drivers.Tally{Failures: 1}},
				Death: &drivers.Death{Reason: "r"}, Delay: time.Hour}
			if err := b.settle(s)[0]; err == nil {
				t.Fatalf("%s without its delete succeeded", v)
			}
			if err := b.settle(ack(s.Delivery))[0]; !errors.Is(err, drivers.ErrLeaseLost) {
				t.Errorf("ack after half a %s: %v", v, err)
			}
			b.mustSettle(s)
			if n := b.s.Calls("SendMessageBatch"); n != 2 { // the message and its copy
				t.Errorf("%s: %d messages sent, want 2", v, n)
			}
		}
	}
	if c, err := b.q.Counts(t.Context()); err != nil || c.Depth != 2 || c.Dead != 2 {
		t.Errorf("counts %+v, %v, want two delayed and two dead", c, err)
	}
}

// An uncertain copy is sent again: a duplicate, never a loss.
func TestLostAnswerOfCopy(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	b.sendIDs("m")
	s := drivers.Settlement{Delivery: b.take(1)[0], Verdict: drivers.Requeue, Carry: drivers.Carry{Tally: drivers.Tally{Failures: 1}}}
	b.s.Fault(on("SendMessageBatch", 1, sqstest.Fault{LoseAnswer: true}))
	if err := b.settle(s)[0]; err == nil {
		t.Fatal("a copy without an answer succeeded")
	}
	b.mustSettle(s)
	for _, d := range b.take(2) {
		if d.ID != "m" || d.Carry.Failures != 1 {
			t.Errorf("id %q, tally %+v", d.ID, d.Carry.Tally)
		}
		b.mustSettle(ack(d))
	}
	b.empty()
}

// Each message of a batch has its own answer.
func TestSendFailsForOneEntry(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	b.s.Fault(on("SendMessageBatch", 1, sqstest.Fault{Fail: []int{0}}))
	errs := b.q.Send(t.Context(), []drivers.Message{{ID: "1", Job: "job"}, {ID: "2", Job: "job"}})
	if errs[0] == nil || errs[1] != nil {
		t.Fatalf("results %v, want an error for the first only", errs)
	}
	if d := b.take(1)[0]; d.ID != "2" {
		t.Errorf("received %q", d.ID)
	}
}

// Too many requests, or too many messages in flight: receiving backs off and goes on.
func TestReceiveRefused(t *testing.T) {
	t.Parallel()
	for _, refusal := range []*sqstest.Error{sqstest.Throttled, {Code: "OverLimit", Message: "Too many messages in flight", Status: 403}} {
		b := newBench(t, setting{})
		b.s.Fault(func(action string, n int) *sqstest.Fault {
			if action == "ReceiveMessage" && n <= 2 {
				return &sqstest.Fault{Refuse: refusal}
			}
			return nil
		})
		b.sendIDs("m")
		b.mustSettle(ack(b.take(1)[0]))
		if n := b.s.Calls("ReceiveMessage"); n > 5 {
			t.Errorf("%s: %d requests", refusal.Code, n)
		}
	}
}

// Packets vanish without a FIN: calls end with an error, receiving goes on afterwards.
func TestHalfOpenConnection(t *testing.T) {
	t.Parallel()
	s := sqstest.Start(t)
	s.WaitSecond(100 * time.Millisecond)
	p := sqstest.Through(t, s.Addr())
	b := benchOn(t, s, setting{url: p.URL, Options: sqsdriver.Options{CallTimeout: 3 * time.Second}})
	b.sendIDs("1")
	d := b.take(1)[0]
	p.Silence()
	start := time.Now()
	if err := b.settle(ack(d))[0]; err == nil {
		t.Error("settled through a dead connection")
	}
	if err := b.d.Ping(t.Context()); err == nil {
		t.Error("ping through a dead connection")
	}
	b.nothing(200 * time.Millisecond)
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("a dead connection took %s", took)
	}
	p.Cut()
	b.mustSettle(ack(d))
	other := benchOn(t, s, setting{})
	other.sendIDs("2")
	b.mustSettle(ack(b.take(1)[0]))
	b.empty()
}

// A message that kills its workers adds up stalls; one that merely waits beside it in another
// worker's hands does not.
func TestPoisonMessage(t *testing.T) {
	t.Parallel()
	s := sqstest.Start(t)
	s.WaitSecond(100 * time.Millisecond)
	healthy := benchOn(t, s, setting{})
	healthy.sendIDs("neighbour")
	neighbour := healthy.take(1)[0]
	healthy.sendIDs("poison")
	for n := range 4 {
		b := benchOn(t, s, setting{lease: time.Second})
		d := b.take(1)[0]
		if d.ID != "poison" || d.Carry.Stalls != n || d.Stalled != min(n, 1) || d.Carry.Failures != 0 {
			t.Fatalf("%s: stalls %d, stalled %d, want %d", d.ID, d.Carry.Stalls, d.Stalled, n)
		}
		b.d.Abandon()
	}
	d := healthy.take(1)[0]
	healthy.mustSettle(drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Carry: d.Carry, Death: &drivers.Death{Reason: "max stalls (3) exhausted"}})
	healthy.mustSettle(drivers.Settlement{Delivery: neighbour, Verdict: drivers.Requeue, Carry: neighbour.Carry})
	if d := healthy.take(1)[0]; d.ID != "neighbour" || d.Carry.Stalls != 0 {
		t.Errorf("%s: stalls %d", d.ID, d.Carry.Stalls)
	} else {
		healthy.mustSettle(ack(d))
	}
	ls, err := healthy.q.(drivers.DeadLetters).ListDead(t.Context(), "", 10)
	if err != nil || len(ls) != 1 || ls[0].ID != "poison" || ls[0].Tally.Stalls != 4 {
		t.Errorf("dead letters %+v, %v", ls, err)
	}
}

// A delay of three hops, each a copy that counts nothing.
func TestDelayOfThreeHops(t *testing.T) {
	t.Parallel()
	for _, isFIFO := range []bool{false, true} {
		t.Run(map[bool]string{false: "Standard", true: "FIFO"}[isFIFO], func(t *testing.T) {
			t.Parallel()
			b := newBench(t, setting{fifo: isFIFO, Options: sqsdriver.Options{MaxDelay: time.Second, Store: store(t)}})
			b.sendIDs("m")
			d := b.take(1)[0]
			carry := drivers.Carry{Tally: drivers.Tally{Delays: 1}, State: []byte("state")}
			b.s.Fault(nil)
			start := time.Now()
			const delay = 2500 * time.Millisecond
			b.mustSettle(drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: carry, Delay: delay})
			again := b.take(1)[0]
			if took := time.Since(start); took < delay || took > delay+10*time.Second {
				t.Errorf("came after %s", took)
			}
			if again.Carry.Tally != carry.Tally || string(again.Carry.State) != "state" || again.Stalled != 0 || !again.Redelivered {
				t.Errorf("came with %+v, stalled %d", again.Carry, again.Stalled)
			}
			action := map[bool]string{false: "SendMessageBatch", true: "ChangeMessageVisibilityBatch"}[isFIFO]
			// Three hops of a second; one is saved where the machine was late for another.
			if n := b.s.Calls(action); n < 2 || n > 3 {
				t.Errorf("%d hops, want 3", n)
			}
			b.mustSettle(ack(again))
			b.empty()
		})
	}
}

// One of two workers is killed: its work goes to the other within a lease.
func TestOneOfTwoWorkersKilled(t *testing.T) {
	t.Parallel()
	s := sqstest.Start(t)
	s.WaitSecond(100 * time.Millisecond)
	a := benchOn(t, s, setting{lease: 2 * time.Second})
	b := benchOn(t, s, setting{lease: 2 * time.Second})
	const total = 40
	for i := range total {
		a.sendIDs(string(rune('A' + i)))
	}
	taken := map[string]bool{}
	for _, d := range a.take(15) {
		taken[d.ID] = true
	}
	a.d.Abandon()
	seen := map[string]bool{}
	for len(seen) < total {
		for _, d := range b.take(1) {
			want := 0
			if taken[d.ID] {
				want = 1
			}
			if d.Carry.Stalls != want || seen[d.ID] {
				t.Errorf("%s: stalls %d, want %d; seen before %t", d.ID, d.Carry.Stalls, want, seen[d.ID])
			}
			seen[d.ID] = true
			b.mustSettle(ack(d))
		}
	}
	b.empty()
}

// What polls brought goes back, uncounted, where nobody asks for it, and Close waits for the
// poll that is open.
func TestReceivedAheadGoesBack(t *testing.T) {
	t.Parallel()
	s := sqstest.Start(t)
	s.WaitSecond(time.Second)
	a := benchOn(t, s, setting{lease: 3 * time.Second})
	a.nothing(50 * time.Millisecond) // leaves a poll open
	a.sendIDs("1")
	b := benchOn(t, s, setting{lease: 30 * time.Second})
	d := b.take(1)[0] // a's poll had it first
	if d.Carry.Stalls != 0 || d.Stalled != 0 {
		t.Errorf("stalls %d", d.Carry.Stalls)
	}
	b.mustSettle(ack(d))
	// The same where a Receive took a part of it.
	short, cancelShort := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancelShort()
	if ds, err := a.q.Receive(short, 10); err == nil {
		t.Fatalf("received %s", ds[0].ID)
	}
	for _, err := range a.q.Send(t.Context(), []drivers.Message{{ID: "x", Job: "job"}, {ID: "y", Job: "job"}}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	first, second := a.take(1)[0], b.take(1)[0]
	if first.ID == second.ID || second.Carry.Stalls != 0 {
		t.Errorf("%s and %s, stalls %d", first.ID, second.ID, second.Carry.Stalls)
	}
	a.mustSettle(ack(first))
	b.mustSettle(ack(second))
	a.nothing(50 * time.Millisecond)
	a.sendIDs("2")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := a.q.Close(ctx); err != nil {
		t.Fatal(err)
	}
	d = b.take(1)[0]
	if d.ID != "2" || d.Carry.Stalls != 0 {
		t.Errorf("%s: stalls %d", d.ID, d.Carry.Stalls)
	}
	b.mustSettle(ack(d))
	b.empty()
}
