package cfdriver

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// pump is what pulls brought and Receive did not take yet, and when to pull next.
type pump struct {
	mu     sync.Mutex
	buf    []arrival
	asked  int // messages that open pulls asked for
	open   int // pulls
	width  int // how many may be open
	closed bool
	inside bool // a Receive is waiting
	idle   *time.Timer

	quiet      time.Duration // between pulls, 0 while there are messages
	quietUntil time.Time
	dues       []time.Time // when messages put back from here are due, in order
	fails      int
	retryAt    time.Time // after an error, whatever is due
	warned     bool
	fatal      error
	first      time.Duration

	wake  chan struct{}
	polls sync.WaitGroup
}

const (
	firstBackoff = 250 * time.Millisecond
	lastBackoff  = 10 * time.Second
	// duesMax bounds what is remembered of messages put back.
	duesMax = 1024
)

func (p *pump) init(first time.Duration) {
	p.width, p.wake, p.first = 1, make(chan struct{}, 1), first
}

// fresh is how long an arrival may wait for a Receive: a lease that cannot be renewed runs
// already.
func (q *queue) fresh() time.Duration { return min(q.lease/3, 5*time.Second) }

func (p *pump) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inside = true
	if p.idle != nil {
		p.idle.Stop()
	}
}

func (p *pump) leave(q *queue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inside = false
	p.rest(q)
}

// rest sees to it that what nobody asks for goes back soon. p.mu is held.
func (p *pump) rest(q *queue) {
	if p.inside || p.closed || len(p.buf) == 0 {
		return
	}
	if p.idle != nil {
		p.idle.Stop()
	}
	p.idle = time.AfterFunc(time.Until(p.buf[0].at.Add(q.fresh())), func() {
		p.mu.Lock()
		skip := p.inside || p.closed
		if !skip {
			p.polls.Add(1)
		}
		p.mu.Unlock()
		if skip {
			return
		}
		defer p.polls.Done()
		ctx, cancel := context.WithTimeout(q.life, 2*q.d.o.CallTimeout)
		defer cancel()
		if err := q.giveBack(ctx, p.takeAll()); err != nil {
			q.log.Debug("give back what was pulled ahead", slog.Any("error", err))
		}
	})
}

// take removes at most n arrivals, and those that have waited too long.
func (p *pump) take(n int, fresh time.Duration) (got, stale []arrival) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.retryAt) {
		return nil, nil // what could not be looked up is not asked for again at once
	}
	p.buf = slices.DeleteFunc(p.buf, func(a arrival) bool {
		if time.Since(a.at) <= fresh {
			return false
		}
		stale = append(stale, a)
		return true
	})
	n = min(n, len(p.buf))
	got = slices.Clone(p.buf[:n])
	p.buf = slices.Delete(p.buf, 0, n)
	return got, stale
}

// takeAll removes everything.
func (p *pump) takeAll() []arrival {
	p.mu.Lock()
	defer p.mu.Unlock()
	got := p.buf
	p.buf = nil
	return got
}

// putBack keeps an arrival for another try, a while later.
func (p *pump) putBack(a arrival, err error, log *slog.Logger) {
	p.mu.Lock()
	p.buf = append(p.buf, a)
	p.mu.Unlock()
	p.fail(err, log)
}

// start opens as many pulls as may be open for that many messages, and returns when to look
// again, the zero time for when woken.
func (p *pump) start(q *queue, most int) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Before(p.retryAt) {
		return p.retryAt
	}
	if n := passed(p.dues, now); n > 0 {
		p.dues = slices.Delete(p.dues, 0, n)
		p.quiet, p.quietUntil = 0, time.Time{}
	}
	if p.open == 0 && now.Before(p.quietUntil) {
		if len(p.dues) > 0 && p.dues[0].Before(p.quietUntil) {
			return p.dues[0]
		}
		return p.quietUntil
	}
	for !p.closed && p.asked < most && p.open < p.width {
		n := min(batchMax, most-p.asked)
		p.asked += n
		p.open++
		p.polls.Go(func() { q.pullOnce(n) })
	}
	return time.Time{}
}

func passed(dues []time.Time, now time.Time) int {
	n := 0
	for n < len(dues) && !dues[n].After(now) {
		n++
	}
	return n
}

// expect makes the pump pull at that time, however quiet the queue was.
func (p *pump) expect(at time.Time) {
	p.mu.Lock()
	if n, _ := slices.BinarySearchFunc(p.dues, at, time.Time.Compare); n < duesMax {
		p.dues = slices.Insert(p.dues, n, at)
		p.dues = p.dues[:min(len(p.dues), duesMax)]
	}
	p.mu.Unlock()
	p.signal()
}

// finished ends a pull.
func (p *pump) finished(q *queue, n int, got []arrival, err error) {
	p.mu.Lock()
	p.asked -= n
	p.open--
	p.buf = append(p.buf, got...)
	switch {
	case len(got) == n:
		p.width = min(parallel, p.width+1)
	default:
		p.width = max(1, p.width-1)
	}
	if len(got) > 0 {
		p.quiet, p.quietUntil = 0, time.Time{}
	} else if err == nil {
		p.quiet = min(q.d.o.LastPoll, max(p.first, 2*p.quiet))
		p.quietUntil = time.Now().Add(p.quiet)
	}
	p.rest(q)
	var gone *goneError
	if errors.As(err, &gone) {
		p.fatal = err
	}
	p.mu.Unlock()
	if err != nil && q.life.Err() == nil {
		p.fail(err, q.log)
	} else if err == nil {
		p.recovered(q.log)
	}
	p.signal()
}

func (p *pump) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// sleep waits until woken, until then where that is a time, or for ctx.
func (p *pump) sleep(ctx context.Context, then time.Time) {
	var due <-chan time.Time
	if !then.IsZero() {
		t := time.NewTimer(time.Until(then))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-p.wake:
	case <-due:
	case <-ctx.Done():
	}
}

// fail backs off, at least as long as Cloudflare asks for, with jitter so that hosts do not come
// in step, and says so once.
func (p *pump) fail(err error, log *slog.Logger) {
	p.mu.Lock()
	wait := min(lastBackoff, firstBackoff<<min(p.fails, 8))
	wait = wait/2 + rand.N(wait/2)
	var r *refusal
	if errors.As(err, &r) {
		wait = max(wait, r.after)
	}
	p.fails++
	p.retryAt = time.Now().Add(wait)
	first := !p.warned
	p.warned = true
	p.mu.Unlock()
	if first {
		log.Warn("Cloudflare does not hand out messages, trying again", slog.Duration("in", wait), slog.Any("error", err))
	}
}

// failed is the error that ends Receive.
func (p *pump) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fatal
}

func (p *pump) recovered(log *slog.Logger) {
	p.mu.Lock()
	was := p.warned
	p.warned, p.fails = false, 0
	p.mu.Unlock()
	if was {
		log.Info("Cloudflare hands out messages again")
	}
}

// close lets no pull begin any more and wakes Receive.
func (p *pump) close() {
	p.mu.Lock()
	p.closed = true
	if p.idle != nil {
		p.idle.Stop()
	}
	p.mu.Unlock()
	p.signal()
}

// wait waits for the pulls that are open.
func (p *pump) wait(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		p.polls.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
