package redisdriver_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/redisdriver"
	"github.com/guesthand/guesthand/drivers/redisdriver/redistest"
)

// quickReap finds orphans at once.
var quickReap = redisdriver.Options{ReapEvery: 50 * time.Millisecond}

// stall is what a message carries after its worker was lost n times.
func stall(n int) drivers.Tally { return drivers.Tally{Stalls: n} }

// TestOrphanInFlight: hibiken/asynq#1051 and #1144, a message in flight that no lease names,
// as after an eviction, was never found again.
func TestOrphanInFlight(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	dying := open(t, s, redisdriver.Options{ReapEvery: time.Hour})
	lost := openQueue(t, dying, drivers.QueueOptions{Lease: time.Hour})
	send(t, lost, drivers.Message{ID: "m"})
	receive(t, lost, 1)
	dying.Abandon()
	raw(t, client(t, s), "del", "guesthand:{q}:lease")

	q := worker(t, s, quickReap, drivers.QueueOptions{Lease: time.Second})
	d := receive(t, q, 1)[0]
	if d.Carry.Tally != stall(1) || d.Stalled != 1 || !d.Held {
		t.Errorf("came back with %+v, stalled %d, held %t", d.Carry.Tally, d.Stalled, d.Held)
	}
	settle(t, q, drivers.Ack, d)
	hasCounts(t, q, drivers.Counts{})
}

// TestOrphanHeldByLivingWorker: the next renewal makes the lost entry anew.
func TestOrphanHeldByLivingWorker(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	q := worker(t, s, redisdriver.Options{ReapEvery: time.Hour}, drivers.QueueOptions{Lease: time.Hour})
	send(t, q, drivers.Message{ID: "m"})
	d := receive(t, q, 1)
	raw(t, client(t, s), "del", "guesthand:{q}:lease")
	if err := q.Renew(t.Context(), d)[0]; err != nil {
		t.Fatal(err)
	}
	hasCounts(t, q, drivers.Counts{Depth: 1, InFlight: 1})
	settle(t, q, drivers.Ack, d...)
}

// TestOrphanWaiting: the whole list of waiting messages is gone, the messages are not.
func TestOrphanWaiting(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	q := worker(t, s, quickReap, drivers.QueueOptions{Lease: 500 * time.Millisecond})
	send(t, q, drivers.Message{ID: "1"}, drivers.Message{ID: "2"}, drivers.Message{ID: "later", NotBefore: time.Now().Add(time.Hour)})
	raw(t, client(t, s), "del", "guesthand:{q}:ready")
	ds := receive(t, q, 2)
	for _, d := range ds {
		if d.Carry.Tally != stall(0) {
			t.Errorf("%s counts %+v", d.ID, d.Carry.Tally)
		}
	}
	settle(t, q, drivers.Ack, ds...)
	empty(t, q, time.Second) // the delayed one is no orphan
	hasCounts(t, q, drivers.Counts{Depth: 1, Delayed: 1})
}

// TestCrashIsNoFailure: hibiken/asynq#1015, a worker's crash was a failed attempt.
func TestCrashIsNoFailure(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	dying := open(t, s, redisdriver.Options{})
	lost := openQueue(t, dying, drivers.QueueOptions{Lease: 300 * time.Millisecond})
	send(t, lost, drivers.Message{ID: "m"})
	receive(t, lost, 1)
	dying.Abandon()
	q := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
	if d := receive(t, q, 1)[0]; d.Carry.Tally != stall(1) {
		t.Errorf("tally %+v after a crash, want one stall", d.Carry.Tally)
	}
}

// failover is a primary and its replica, with a proxy between the two.
func failover(t *testing.T) (primary, replica *redistest.Server, between *redistest.Proxy) {
	t.Helper()
	primary = redistest.Start(t, "repl-diskless-sync-delay 0")
	between = redistest.Through(t, primary)
	host, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(between.URL, "redis://"), "/0"))
	if err != nil {
		t.Fatal(err)
	}
	replica = redistest.Start(t, fmt.Sprintf("replicaof %s %s", host, port))
	return primary, replica, between
}

// caughtUp waits until the replica has what the primary has.
func caughtUp(t *testing.T, primary *redis.Client) {
	t.Helper()
	eventually(t, "the replica follows", func() bool {
		n, ok := raw(t, primary, "wait", 1, 100).(int64)
		return ok && n == 1
	})
}

func promote(t *testing.T, replica *redistest.Server) {
	t.Helper()
	raw(t, client(t, replica), "replicaof", "no", "one")
}

// TestInFlightAfterFailover: hibiken/asynq#55, what was in progress was stuck after a failover.
func TestInFlightAfterFailover(t *testing.T) {
	t.Parallel()
	primary, replica, _ := failover(t)
	dying := open(t, primary, redisdriver.Options{})
	lost := openQueue(t, dying, drivers.QueueOptions{Lease: 2 * time.Second})
	send(t, lost, drivers.Message{ID: "held"}, drivers.Message{ID: "waiting"})
	receive(t, lost, 1)
	caughtUp(t, client(t, primary))
	dying.Abandon()
	primary.Kill()
	promote(t, replica)

	q := worker(t, replica, redisdriver.Options{}, drivers.QueueOptions{})
	stalls := map[string]int{}
	for _, d := range receive(t, q, 2) {
		stalls[d.ID] = d.Carry.Stalls
		settle(t, q, drivers.Ack, d)
	}
	if stalls["held"] != 1 || stalls["waiting"] != 0 || len(stalls) != 2 {
		t.Errorf("stalls %v", stalls)
	}
	hasCounts(t, q, drivers.Counts{})
}

// TestFinishedReturnsAfterFailover: redis/redis#5433, what was finished and not replicated
// comes back. It is a duplicate, never a loss, and the late worker's word does not count.
func TestFinishedReturnsAfterFailover(t *testing.T) {
	t.Parallel()
	primary, replica, between := failover(t)
	d1 := open(t, primary, redisdriver.Options{})
	q1 := openQueue(t, d1, drivers.QueueOptions{Lease: time.Second})
	send(t, q1, drivers.Message{ID: "m"})
	ds := receive(t, q1, 1)
	caughtUp(t, client(t, primary))
	between.HalfOpen()
	settle(t, q1, drivers.Ack, ds...)
	d1.Abandon()
	primary.Kill()
	promote(t, replica)

	q2 := worker(t, replica, redisdriver.Options{}, drivers.QueueOptions{})
	again := receive(t, q2, 1)
	if again[0].ID != "m" || again[0].Carry.Tally != stall(1) {
		t.Errorf("came back as %s with %+v", again[0].ID, again[0].Carry.Tally)
	}
	settle(t, q2, drivers.Ack, again...)
	hasCounts(t, q2, drivers.Counts{})
}

// TestLeaseNotRenewed: taskforcesh/bullmq#3183 and #3056, a lock was not renewed and the job
// ran twice, each run settling for the other.
func TestLeaseNotRenewed(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	slow := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{Lease: 300 * time.Millisecond})
	next := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{Lease: time.Minute})
	verdicts := []drivers.Verdict{drivers.Requeue, drivers.Dead, drivers.Reject, drivers.Ack}
	for _, v := range verdicts {
		send(t, slow, drivers.Message{ID: v.String()})
	}
	old := receive(t, slow, len(verdicts))
	now := receive(t, next, len(verdicts))
	for i, v := range verdicts {
		if err := slow.Renew(t.Context(), old[i:])[0]; !errors.Is(err, drivers.ErrLeaseLost) {
			t.Errorf("renewal of a lost lease: %v", err)
		}
		st := drivers.Settlement{Delivery: old[i], Verdict: v, Death: &drivers.Death{}}
		if err := slow.Settle(t.Context(), []drivers.Settlement{st})[0]; !errors.Is(err, drivers.ErrLeaseLost) {
			t.Errorf("%s under a lost lease: %v", v, err)
		}
	}
	hasCounts(t, next, drivers.Counts{Depth: len(verdicts), InFlight: len(verdicts)})
	settle(t, next, drivers.Ack, now...)
	hasCounts(t, next, drivers.Counts{})
}

// TestStallGivenBack: a stall is noticed once; given back at a close it stays in the tally and
// is not noticed again.
func TestStallGivenBack(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	dying := open(t, s, redisdriver.Options{})
	lost := openQueue(t, dying, drivers.QueueOptions{Lease: 300 * time.Millisecond})
	send(t, lost, drivers.Message{ID: "m"})
	receive(t, lost, 1)
	dying.Abandon()
	for stalled := 1; stalled >= 0; stalled-- {
		d := open(t, s, redisdriver.Options{})
		m := receive(t, openQueue(t, d, drivers.QueueOptions{}), 1)[0]
		if m.Carry.Tally != stall(1) || m.Stalled != stalled {
			t.Errorf("tally %+v, stalled %d, want %d", m.Carry.Tally, m.Stalled, stalled)
		}
		closeAll(t, d)
	}
}

// TestRunsLongerThanItsLease: celery/kombu#337 and celery/celery#5935, a message was handed
// out again after a time-out although its worker was alive.
func TestRunsLongerThanItsLease(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const lease = time.Second
	a := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{Lease: lease})
	b := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{Lease: lease})
	send(t, a, drivers.Message{ID: "m"})
	ds := receive(t, a, 1)
	for end := time.Now().Add(2 * lease); time.Now().Before(end); {
		empty(t, b, lease/5)
		if err := a.Renew(t.Context(), ds)[0]; err != nil {
			t.Fatal(err)
		}
	}
	settle(t, a, drivers.Ack, ds...)
}

// TestIdleReceive: redis/go-redis#2963 and redis/redis#12998, a blocking read on an idle
// connection ended with a time-out, or not at all. The server here drops idle connections.
func TestIdleReceive(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "timeout 1")
	for name, o := range map[string]redisdriver.Options{"subscribed": {}, "polling": {NoWake: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := worker(t, s, o, drivers.QueueOptions{Name: name})
			empty(t, q, 2500*time.Millisecond)
			send(t, q, drivers.Message{ID: "m"})
			settle(t, q, drivers.Ack, receive(t, q, 1)...)
		})
	}
}

// TestPoison: sidekiq/sidekiq#4633, #3196 and #5540, a message that kills its worker went on
// for ever, and orphans were found at the next boot only. Here each worker dies in turn, and
// one that lives finds the message with every death counted.
func TestPoison(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sender := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{SendOnly: true})
	send(t, sender, drivers.Message{ID: "poison"})
	for n := range 5 {
		dying := open(t, s, redisdriver.Options{})
		q := openQueue(t, dying, drivers.QueueOptions{Lease: 200 * time.Millisecond})
		if d := receive(t, q, 1)[0]; d.Carry.Tally != stall(n) || d.Held != (n > 0) {
			t.Errorf("delivery %d: %+v, held %t", n+1, d.Carry.Tally, d.Held)
		}
		dying.Abandon()
	}
	q := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
	d := receive(t, q, 1)
	if d[0].Carry.Tally != stall(5) {
		t.Errorf("tally %+v", d[0].Carry.Tally)
	}
	settle(t, q, drivers.Dead, d...)
	hasCounts(t, q, drivers.Counts{Dead: 1})
}

// TestLostAnswerOfReceive: the server has handed messages out and its answer did not arrive.
// The request is repeated and brings the same ones, which is no stall.
func TestLostAnswerOfReceive(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Through(t, s)
	q := worker(t, s, redisdriver.Options{URL: p.URL, NoWake: true}, drivers.QueueOptions{Lease: time.Hour})
	watch := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{SendOnly: true})
	send(t, watch, drivers.Message{ID: "1"}, drivers.Message{ID: "2"}, drivers.Message{ID: "3"})
	p.LoseAnswers()
	handed := make(chan struct{})
	go func() {
		defer close(handed)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for c, err := watch.Counts(ctx); err == nil && c.InFlight < 2; c, err = watch.Counts(ctx) {
		}
		p.Cut()
	}()
	ds := receive(t, q, 2)
	<-handed
	if ds[0].ID != "1" || ds[1].ID != "2" || ds[0].Stalled+ds[1].Stalled != 0 || ds[0].Redelivered {
		t.Errorf("received %s and %s, stalled %d and %d, redelivered %t", ds[0].ID, ds[1].ID, ds[0].Stalled, ds[1].Stalled, ds[0].Redelivered)
	}
	hasCounts(t, watch, drivers.Counts{Depth: 3, InFlight: 2})
	settle(t, q, drivers.Ack, ds...)
}

// TestLostAnswerOfReceiveThenClose: what nobody saw is given back.
func TestLostAnswerOfReceiveThenClose(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Through(t, s)
	d := open(t, s, redisdriver.Options{URL: p.URL, NoWake: true, AnswerTimeout: 500 * time.Millisecond})
	q := openQueue(t, d, drivers.QueueOptions{Lease: time.Hour})
	other := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
	send(t, other, drivers.Message{ID: "1"}, drivers.Message{ID: "2"})
	p.LoseAnswers()
	empty(t, q, time.Second)
	p.Cut()
	closeAll(t, d)
	for i, m := range receive(t, other, 2) {
		if m.ID != fmt.Sprint(i+1) || m.Carry.Tally != stall(0) || m.Stalled != 0 {
			t.Errorf("message %d: %s, %+v", i, m.ID, m.Carry.Tally)
		}
		settle(t, other, drivers.Ack, m)
	}
}

// TestLostAnswerOfSettle: each settlement is carried out, its answer lost, and repeated.
func TestLostAnswerOfSettle(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Through(t, s)
	q := worker(t, s, redisdriver.Options{URL: p.URL, NoWake: true, AnswerTimeout: 500 * time.Millisecond}, drivers.QueueOptions{Lease: time.Hour})
	watch := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
	send(t, q, drivers.Message{ID: "ack"}, drivers.Message{ID: "reject"}, drivers.Message{ID: "dead"}, drivers.Message{ID: "requeue"}, drivers.Message{ID: "delay"})
	ds := receive(t, q, 5)
	failed := drivers.Carry{Tally: drivers.Tally{Failures: 1}}
	ss := []drivers.Settlement{
		{Delivery: ds[0], Verdict: drivers.Ack}, {Delivery: ds[1], Verdict: drivers.Reject},
		{Delivery: ds[2], Verdict: drivers.Dead, Death: &drivers.Death{Reason: "because"}},
		{Delivery: ds[3], Verdict: drivers.Requeue, Carry: failed}, {Delivery: ds[4], Verdict: drivers.Requeue, Delay: time.Hour, Carry: failed},
	}
	p.LoseAnswers()
	for i, err := range q.Settle(t.Context(), ss) {
		if err == nil || errors.Is(err, drivers.ErrLeaseLost) {
			t.Errorf("%s without an answer: %v", ds[i].ID, err)
		}
	}
	p.Cut()
	want := drivers.Counts{Depth: 2, Delayed: 1, Dead: 1}
	hasCounts(t, watch, want)
	again := receive(t, watch, 1) // handed out anew
	if again[0].ID != "requeue" || again[0].Carry.Tally != failed.Tally {
		t.Errorf("%s came with %+v", again[0].ID, again[0].Carry.Tally)
	}
	for i, err := range q.Settle(t.Context(), ss) {
		if err != nil {
			t.Errorf("%s repeated: %v", ds[i].ID, err)
		}
	}
	want.InFlight = 1
	hasCounts(t, watch, want)
	settle(t, watch, drivers.Ack, again...)
}

// TestHalfOpen: every connection loses its packets without an end. Receive, renewal and
// settlement go on over new ones, long before the lease ends.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Through(t, s)
	q := worker(t, s, redisdriver.Options{URL: p.URL, AnswerTimeout: 500 * time.Millisecond}, drivers.QueueOptions{Lease: time.Minute})
	other := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
	send(t, other, drivers.Message{ID: "1"}, drivers.Message{ID: "2"})
	ds := receive(t, q, 2)
	p.HalfOpen()
	eventually(t, "renewed over a new connection", func() bool {
		return errors.Join(q.Renew(t.Context(), ds)...) == nil
	})
	p.HalfOpen()
	send(t, other, drivers.Message{ID: "3"})
	third := receive(t, q, 1)
	p.HalfOpen()
	eventually(t, "settled over a new connection", func() bool {
		return q.Settle(t.Context(), []drivers.Settlement{{Delivery: ds[0], Verdict: drivers.Ack}})[0] == nil
	})
	settle(t, q, drivers.Ack, ds[1], third[0])
	hasCounts(t, other, drivers.Counts{})
}

// TestHalfOpenPool: many idle connections that lose everything are given up together, not one
// by one with a time-out each.
func TestHalfOpenPool(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Through(t, s)
	const patience = 500 * time.Millisecond
	q := worker(t, s, redisdriver.Options{URL: p.URL, AnswerTimeout: patience, ReapEvery: time.Hour}, drivers.QueueOptions{})
	s.Pause() // so that each of these needs a connection of its own
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() { _, _ = q.Counts(t.Context()) })
	}
	time.AfterFunc(patience/5, s.Resume)
	wg.Wait()
	p.HalfOpen()
	begun := time.Now()
	eventually(t, "answers again", func() bool {
		_, err := q.Counts(t.Context())
		return err == nil
	})
	if took := time.Since(begun); took > 10*patience {
		t.Errorf("answers again after %s, an answer may take %s", took, patience)
	}
}

// TestScriptsForgotten: the server forgets scripts at a restart, or because it was told to.
func TestScriptsForgotten(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := client(t, s)
	q := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
	for _, id := range []string{"1", "2"} {
		raw(t, c, "script", "flush")
		send(t, q, drivers.Message{ID: id})
		raw(t, c, "script", "flush")
		ds := receive(t, q, 1)
		raw(t, c, "script", "flush")
		settle(t, q, drivers.Ack, ds...)
	}
	hasCounts(t, q, drivers.Counts{})
}

// TestPausedServer: the whole server stands still for a while, as in a long fork.
func TestPausedServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	q := worker(t, s, redisdriver.Options{AnswerTimeout: 300 * time.Millisecond}, drivers.QueueOptions{Lease: time.Hour})
	send(t, q, drivers.Message{ID: "1"})
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if ds, err := q.Receive(ctx, 1); err == nil {
		t.Errorf("received %d from a server that stands still", len(ds))
	}
	s.Resume()
	d := receive(t, q, 1)
	if d[0].Carry.Tally != stall(0) || d[0].Stalled != 0 {
		t.Errorf("came with %+v", d[0].Carry.Tally)
	}
	eventually(t, "settled", func() bool {
		return q.Settle(t.Context(), []drivers.Settlement{{Delivery: d[0], Verdict: drivers.Ack}})[0] == nil
	})
}
