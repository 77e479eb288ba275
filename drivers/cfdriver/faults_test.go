package cfdriver_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/cfdriver"
	"github.com/guesthand/guesthand/drivers/cfdriver/cftest"
)

// on makes a fault of the n-th request of an action, 0 for all of them.
func on(action string, n int, f cftest.Fault) func(string, int) *cftest.Fault {
	return func(a string, k int) *cftest.Fault {
		if a == action && (n == 0 || n == k) {
			return &f
		}
		return nil
	}
}

// own makes the bench's queue beforehand, with a consumer of its operator's.
func own(s *cftest.Server, retries int) {
	s.Add(cftest.Queue{Name: deadName, Consumer: "http_pull", MaxRetries: 100})
	s.Add(cftest.Queue{Name: "guesthand-q", Consumer: "http_pull", MaxRetries: retries, Dead: deadName})
}

// harlan-zw/harlan-nuxt#75: what was put off or given back without a run must not use up
// max_retries. On a queue of ours it does not, however small that is.
func TestDeferralSpendsNoRetries(t *testing.T) {
	t.Parallel()
	s := cftest.Start(t)
	own(s, 1)
	b := benchOn(t, s, setting{})
	b.sendIDs("m")
	for range 6 {
		d := b.take(1)[0]
		if d.Carry.Attempt() != 1 || d.Stalled != 0 {
			t.Fatalf("attempt %d, stalled %d", d.Carry.Attempt(), d.Stalled)
		}
		b.mustSettle(requeue(d, d.Carry, 0))
	}
	for range 3 { // hosts that stop
		other := benchOn(t, s, setting{})
		other.take(1)
		closeAll(t, other.d)
	}
	d := b.take(1)[0]
	if d.Carry.Attempt() != 1 || !d.Redelivered {
		t.Errorf("attempt %d, redelivered %t", d.Carry.Attempt(), d.Redelivered)
	}
	b.mustSettle(ack(d))
	b.depth(0)
	if ms := s.Messages(deadName); len(ms) != 0 {
		t.Errorf("dead: %v", ms)
	}
}

// The same on a queue of others: it spends native attempts, which the queue says, with the limit.
func TestDeferralOnForeignQueue(t *testing.T) {
	t.Parallel()
	s := cftest.Start(t)
	s.Add(cftest.Queue{Name: deadName, Consumer: "http_pull"})
	s.Add(cftest.Queue{Name: "theirs-q", Consumer: "http_pull", MaxRetries: 3, Dead: deadName})
	b := benchOn(t, s, setting{foreign: true})
	info := b.q.Info()
	if l := info.DeliveryLimit; l.Deliveries != 4 || l.PerCopy || !strings.Contains(l.Setting, "max_retries = 3") {
		t.Errorf("delivery limit %+v", l)
	}
	if info.Caps != cfdriver.ForeignCaps(false) || info.Caps.ExactCounts || info.Retention != 4*24*time.Hour {
		t.Errorf("caps %+v, retention %s", info.Caps, info.Retention)
	}
	if !finds(info, true, "spends one of max_retries") {
		t.Errorf("findings %+v", info.Findings)
	}
	s.Inject("theirs-q", "text", []byte("body"))
	want := drivers.Carry{}
	for range 3 { // this process knows what it did
		d := b.take(1)[0]
		if d.Carry.Tally != want.Tally || d.ID == "" || string(d.Payload) != "body" {
			t.Fatalf("%s: tally %+v, want %+v", d.ID, d.Carry.Tally, want.Tally)
		}
		want.Delays++
		b.mustSettle(requeue(d, want, 0))
	}
	if ms := s.Messages("theirs-q"); len(ms) != 1 || ms[0].Body != "body" {
		t.Fatalf("rewritten: %+v", ms)
	}
	d := b.take(1)[0]
	b.mustSettle(requeue(d, want, 0)) // the fourth delivery was the last
	b.nothing(200 * time.Millisecond)
	ls, err := b.dead().ListDead(t.Context(), "", 10)
	if err != nil || len(ls) != 1 || string(ls[0].Payload) != "body" || !strings.Contains(ls[0].Reason, "max_retries") {
		t.Fatalf("dead letters %+v, %v", ls, err)
	}
}

// Without a [store] another process's doings count as stalled, never as failures.
func TestForeignQueueWithoutStore(t *testing.T) {
	t.Parallel()
	s := cftest.Start(t)
	a := benchOn(t, s, setting{foreign: true})
	b := benchOn(t, s, setting{foreign: true})
	a.sendIDs("m")
	failed := drivers.Carry{Tally: drivers.Tally{Failures: 1}}
	a.mustSettle(requeue(a.take(1)[0], failed, 0))
	d := b.take(1)[0]
	if want := (drivers.Tally{Stalls: 1}); d.Carry.Tally != want || !d.Held || !d.Redelivered {
		t.Errorf("tally %+v, want %+v; held %t", d.Carry.Tally, want, d.Held)
	}
	b.mustSettle(ack(d))
	b.depth(0)
}

// cloudflare/workers-sdk#6943: max_retries and retry_delay hold where nothing else is said, and a
// retry at once is one at once.
func TestRetryDelayAndMaxRetriesOfConsumer(t *testing.T) {
	t.Parallel()
	s := cftest.Start(t)
	s.Add(cftest.Queue{Name: deadName, Consumer: "http_pull"})
	s.Add(cftest.Queue{Name: "guesthand-q", Consumer: "http_pull", MaxRetries: 1, Dead: deadName, Delay: time.Hour})
	s.RetryDelay("guesthand-q", time.Hour)
	b := benchOn(t, s, setting{lease: time.Second})
	if l := b.q.Info().DeliveryLimit; l.Deliveries != 2 || !l.PerCopy || !strings.Contains(l.Setting, "guesthand-q") {
		t.Errorf("delivery limit %+v", l)
	}
	b.sendIDs("m")
	d := b.take(1)[0]
	b.mustSettle(requeue(d, drivers.Carry{Tally: drivers.Tally{Failures: 1}}, 0))
	// A reject makes no call: the lease runs out, max_retries takes it, and it is not counted here.
	for n := range 2 {
		d = b.take(1)[0]
		if want := (drivers.Tally{Failures: 1}); d.Carry.Tally != want {
			t.Errorf("delivery %d: tally %+v, want %+v", n, d.Carry.Tally, want)
		}
		b.mustSettle(drivers.Settlement{Delivery: d, Verdict: drivers.Reject})
	}
	b.depth(0)
	ls, err := b.dead().GetDead(t.Context(), "m")
	if err != nil || len(ls) != 1 || string(ls[0].Payload) != "m" || ls[0].Tally.Failures != 1 {
		t.Fatalf("dead letters %+v, %v", ls, err)
	}
}

// A pull whose answer is lost leases its messages all the same. They come back after a lease, as
// held by somebody, and no second batch is leased by a repetition inside the client.
func TestPullAnswerLost(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{lease: 2 * time.Second})
	b.sendIDs("1", "2")
	b.s.Fault(on(cftest.ActionPull, 1, cftest.Fault{Lose: true}))
	start := time.Now()
	for _, d := range b.take(2) {
		if d.Stalled != 1 || d.Carry.Stalls != 1 || !d.Held || !d.Redelivered {
			t.Errorf("%s: stalled %d, stalls %d, held %t", d.ID, d.Stalled, d.Carry.Stalls, d.Held)
		}
		b.mustSettle(ack(d))
	}
	if took := time.Since(start); took < 2*time.Second {
		t.Errorf("came back after %s, which is before the lease was over", took)
	}
	b.depth(0)
}

// Push and acknowledgement are two calls. A lost answer to the first makes a duplicate when it is
// repeated, to the second nothing, and neither loses the message.
func TestSettlementAnswerLost(t *testing.T) {
	t.Parallel()
	failed := drivers.Carry{Tally: drivers.Tally{Failures: 1}}
	for name, c := range map[string]struct {
		action string
		copies int
	}{
		"push": {cftest.ActionBatch, 2},
		"ack":  {cftest.ActionAck, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, setting{})
			b.sendIDs("m")
			d := b.take(1)[0]
			b.s.Fault(on(c.action, 1, cftest.Fault{Lose: true}))
			if err := b.settle(requeue(d, failed, 0))[0]; err == nil {
				t.Fatal("a lost answer was taken for a success")
			}
			if n := b.s.Calls(c.action); n != 1 {
				t.Errorf("%d calls, want no repetition inside the client", n)
			}
			b.mustSettle(requeue(d, failed, 0))
			for range c.copies {
				again := b.take(1)[0]
				if again.ID != "m" || again.Carry.Tally != failed.Tally || again.Stalled != 0 {
					t.Errorf("%s: tally %+v", again.ID, again.Carry.Tally)
				}
				b.mustSettle(ack(again))
			}
			b.depth(0)
		})
	}
}

// An acknowledgement that was not carried out for one lease is an answer of 200 with a warning.
func TestWarnings(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	b.sendIDs("1", "2", "3")
	ds := b.take(3)
	b.s.Fault(on(cftest.ActionAck, 1, cftest.Fault{Warn: []int{1}}))
	errs := b.settle(ack(ds[0]), ack(ds[1]), ack(ds[2]))
	if errs[0] != nil || errs[1] == nil || errs[2] != nil || !strings.Contains(errs[1].Error(), "could not be acknowledged") {
		t.Fatalf("results %v, want an error for the second only", errs)
	}
	b.depth(1)
	b.mustSettle(ack(ds[1]))
	b.depth(0)
}

// A message that comes again although its acknowledgement succeeded is acknowledged again and not
// handed out.
func TestAcknowledgedComesAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{lease: time.Second})
	b.sendIDs("1", "2")
	ds := b.take(2)
	b.s.Fault(on(cftest.ActionAck, 1, cftest.Fault{Forget: true}))
	b.mustSettle(ack(ds[0]), requeue(ds[1], drivers.Carry{}, time.Hour))
	b.nothing(1500 * time.Millisecond)
	b.depth(1) // the copy
	if n := b.s.Calls(cftest.ActionAck); n < 2 {
		t.Errorf("%d acknowledgements", n)
	}
}

// An answer of 200 that does not say success is none.
func TestUnsuccessfulAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	b.s.Fault(func(string, int) *cftest.Fault { return &cftest.Fault{Unsuccessful: true} })
	if err := b.q.Send(t.Context(), []drivers.Message{{Job: "job"}})[0]; err == nil {
		t.Error("sent")
	}
	b.s.Fault(nil)
	b.sendIDs("m")
	d := b.take(1)[0]
	b.s.Fault(on(cftest.ActionAck, 1, cftest.Fault{Unsuccessful: true}))
	if err := b.settle(ack(d))[0]; err == nil {
		t.Error("acknowledged")
	}
	b.mustSettle(ack(d))
	b.depth(0)
}

// Too many requests: the pull waits as long as it is told to, and says so once.
func TestTooManyRequests(t *testing.T) {
	t.Parallel()
	log := &logged{}
	b := newBench(t, setting{Options: cfdriver.Options{Logger: log.logger()}})
	b.sendIDs("m")
	b.s.Fault(func(a string, n int) *cftest.Fault {
		if a == cftest.ActionPull && n <= 2 {
			return &cftest.Fault{Status: http.StatusTooManyRequests, RetryAfter: "1"}
		}
		return nil
	})
	start := time.Now()
	d := b.take(1)[0]
	if took := time.Since(start); took < 2*time.Second {
		t.Errorf("asked again after %s, want twice the second it was told", took)
	}
	b.mustSettle(ack(d))
	text := log.text()
	if strings.Count(text, "trying again") != 1 || strings.Count(text, "hands out messages again") != 1 || strings.Contains(text, cftest.Token) {
		t.Errorf("logged %s", text)
	}
	b.s.Fault(func(string, int) *cftest.Fault { return &cftest.Fault{Status: http.StatusTooManyRequests} })
	if err := b.q.Send(t.Context(), []drivers.Message{{Job: "job"}})[0]; err == nil || b.s.Calls(cftest.ActionBatch) != 1 {
		t.Errorf("send: %v after %d calls", err, b.s.Calls(cftest.ActionBatch))
	}
	b.s.Fault(nil)
}

// A link that is half open: nothing is answered, and no call hangs for ever.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{Options: cfdriver.Options{CallTimeout: 500 * time.Millisecond}})
	b.sendIDs("running")
	d := b.take(1)[0]
	b.s.Silence(true)
	b.nothing(700 * time.Millisecond)
	if err := b.settle(ack(d))[0]; err == nil {
		t.Error("acknowledged without an answer")
	}
	if err := b.q.Send(t.Context(), []drivers.Message{{Job: "job"}})[0]; err == nil {
		t.Error("sent without an answer")
	}
	if _, err := b.q.Counts(t.Context()); err == nil {
		t.Error("counted without an answer")
	}
	b.s.Silence(false)
	b.mustSettle(ack(d))
	b.sendIDs("after")
	b.mustSettle(ack(b.take(1)[0]))
	b.depth(0)
	b.sendIDs("held")
	b.take(1)
	b.s.Silence(true)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.q.Close(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("close: %v", err)
	}
	b.s.Silence(false)
}

// A message that kills its worker: each death is one stall, whoever looks, and the message beside
// it that was only held has as many and no more.
func TestPoisonMessage(t *testing.T) {
	t.Parallel()
	s := cftest.Start(t)
	b := benchOn(t, s, setting{lease: time.Second})
	b.sendIDs("poison")
	for n := range 4 {
		w := benchOn(t, s, setting{lease: time.Second})
		d := w.take(1)[0]
		if d.Carry.Stalls != n || d.Stalled != min(n, 1) || d.Held != (n > 0) || d.Carry.Failures != 0 {
			t.Fatalf("after %d deaths: %+v, stalled %d, held %t", n, d.Carry.Tally, d.Stalled, d.Held)
		}
		w.d.Abandon()
	}
	d := b.take(1)[0]
	if d.Carry.Stalls != 4 {
		t.Errorf("stalls %d", d.Carry.Stalls)
	}
	b.mustSettle(bury(d))
	ls, err := b.dead().GetDead(t.Context(), "poison")
	if err != nil || len(ls) != 1 || ls[0].Tally.Stalls != 4 {
		t.Errorf("dead letters %+v, %v", ls, err)
	}
	b.depth(0)
}

// Past the lease by our own clock only a success is sent: Cloudflare would take anything.
func TestOnlySuccessAfterLease(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{lease: time.Second})
	b.sendIDs("1", "2", "3")
	ds := b.take(3)
	time.Sleep(time.Until(ds[0].Received.Add(1100 * time.Millisecond)))
	b.s.Fault(nil)
	errs := b.settle(ack(ds[0]), requeue(ds[1], drivers.Carry{}, 0), bury(ds[2]))
	if errs[0] != nil || !errors.Is(errs[1], drivers.ErrLeaseLost) || !errors.Is(errs[2], drivers.ErrLeaseLost) {
		t.Errorf("results %v", errs)
	}
	if n := b.s.Calls(cftest.ActionBatch); n != 0 {
		t.Errorf("%d pushes", n)
	}
	b.depth(2)
}

// A longer delay than Cloudflare takes hops, uncounted, and is no earlier for it.
func TestThreeHops(t *testing.T) {
	t.Parallel()
	for name, isForeign := range map[string]bool{"own": false, "foreign": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := cftest.Start(t)
			s.Restrict(time.Second)
			o := setting{foreign: isForeign, Options: cfdriver.Options{MaxDelay: time.Second, Store: store(t)}}
			b := benchOn(t, s, o)
			b.sendIDs("m")
			want := drivers.Carry{Tally: drivers.Tally{Failures: 2, Delays: 1}, State: []byte("state")}
			start := time.Now()
			s.Fault(nil)
			b.mustSettle(requeue(b.take(1)[0], want, 2500*time.Millisecond))
			d := b.take(1)[0]
			if took := time.Since(start); took < 2500*time.Millisecond {
				t.Errorf("came after %s", took)
			}
			if d.Carry.Tally != want.Tally || string(d.Carry.State) != "state" || d.Stalled != 0 {
				t.Errorf("carry %+v, stalled %d", d.Carry, d.Stalled)
			}
			action, hops := cftest.ActionBatch, 3
			if isForeign {
				action = cftest.ActionAck
			}
			if n := s.Calls(action); n < hops {
				t.Errorf("%d steps, want at least %d", n, hops)
			}
			b.mustSettle(ack(d))
			b.depth(0)
		})
	}
}

// Pulls of a quiet queue get rarer; what is sent from here is pulled at once all the same.
func TestQuietQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{Options: cfdriver.Options{FirstPoll: 50 * time.Millisecond, LastPoll: time.Hour}})
	b.s.Fault(nil)
	b.nothing(time.Second)
	if n := b.s.Calls(cftest.ActionPull); n < 2 || n > 6 {
		t.Errorf("%d pulls in a second at 50, 100, 200, 400 ms", n)
	}
	b.sendIDs("m")
	b.mustSettle(ack(b.take(1)[0]))
	b.depth(0)
}

// What a pull brought after its Receive had ended goes back soon, uncounted: its lease runs and
// cannot be renewed.
func TestPulledAheadGoesBack(t *testing.T) {
	t.Parallel()
	s := cftest.Start(t)
	a := benchOn(t, s, setting{lease: 3 * time.Second})
	b := benchOn(t, s, setting{lease: time.Hour})
	a.sendIDs("1", "2")
	a.mustSettle(ack(a.takeOf(2, 2)))
	d := b.take(1)[0]
	if d.Carry.Stalls != 0 || d.Stalled != 0 {
		t.Errorf("stalls %d", d.Carry.Stalls)
	}
	b.mustSettle(ack(d))
	b.depth(0)
}

// takeOf lets a pull for that many come in while nobody waits, then takes one of it.
func (b *bench) takeOf(asked, there int) *drivers.Delivery {
	b.Helper()
	pulled := func() (n int) {
		for _, m := range b.s.Messages(b.name) {
			n += m.Attempts
		}
		return n
	}
	for end := time.Now().Add(patience); pulled() < there && time.Now().Before(end); {
		ctx, cancel := context.WithCancel(context.Background())
		b.s.Fault(func(string, int) *cftest.Fault { cancel(); return nil })
		ds, err := b.q.Receive(ctx, asked)
		if len(ds) > 0 || err == nil {
			b.Fatalf("received %d messages, %v: the end of the context came before the answer", len(ds), err)
		}
	}
	b.s.Fault(nil)
	return b.take(1)[0]
}

// Deleted under way: Receive says so, since waiting does not help.
func TestQueueDeleted(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	b.s.Fault(on(cftest.ActionPull, 0, cftest.Fault{Status: http.StatusNotFound}))
	_, err := b.q.Receive(t.Context(), 1)
	if err == nil || !strings.Contains(err.Error(), "was deleted") {
		t.Errorf("receive: %v", err)
	}
	b.s.Fault(nil)
}

func finds(info drivers.Info, warning bool, text string) bool {
	for _, f := range info.Findings {
		if f.Warning == warning && strings.Contains(f.Text, text) {
			return true
		}
	}
	return false
}
