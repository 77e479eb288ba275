package sqsdriver

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// pump is what polls brought and Receive did not take yet.
type pump struct {
	mu      sync.Mutex
	buf     []arrival
	asked   int // messages that open polls asked for
	open    int // polls
	width   int // how many may be open
	closed  bool
	inside  bool // a Receive is waiting
	fails   int
	retryAt time.Time
	warned  bool
	fatal   error
	idle    *time.Timer
	// unanswered are the attempt ids of a FIFO queue's receives whose answers were lost.
	unanswered []string

	wake  chan struct{}
	polls sync.WaitGroup
}

const (
	firstBackoff = 250 * time.Millisecond
	lastBackoff  = 10 * time.Second
)

func (p *pump) init() { p.width, p.wake = 1, make(chan struct{}, 1) }

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

// rest sees to it that what nobody asks for goes back long before its lease is over. p.mu is
// held.
func (p *pump) rest(q *queue) {
	if p.inside || p.closed || len(p.buf) == 0 {
		return
	}
	if p.idle != nil {
		p.idle.Stop()
	}
	p.idle = time.AfterFunc(q.lease/3, func() {
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
		if err := q.giveBackBuffered(ctx); err != nil {
			q.log.Debug("give back what was received ahead", slog.Any("error", err))
		}
	})
}

// take removes at most n arrivals whose lease is not over.
func (p *pump) take(n int, lease time.Duration) []arrival {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.retryAt) {
		return nil // what could not be looked up is not asked for again at once
	}
	p.buf = slices.DeleteFunc(p.buf, func(a arrival) bool { return time.Since(a.at) > lease })
	n = min(n, len(p.buf))
	if n == 0 {
		return nil
	}
	got := slices.Clone(p.buf[:n])
	p.buf = slices.Delete(p.buf, 0, n)
	return got
}

// putBack keeps an arrival for another try, a while later.
func (p *pump) putBack(a arrival, err error, log *slog.Logger) {
	p.mu.Lock()
	p.buf = append(p.buf, a)
	p.mu.Unlock()
	p.fail(err, log)
}

// finished ends a poll.
func (p *pump) finished(q *queue, n int, got []arrival, err error) {
	p.mu.Lock()
	p.asked -= n
	p.open--
	p.buf = append(p.buf, got...)
	switch {
	case len(got) == batchMax:
		p.width = min(parallel, p.width+1)
	case len(got) == 0:
		p.width = 1
	default:
		p.width = max(1, p.width-1)
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

// fail backs off, with jitter so that hosts do not come in step, and says so once.
func (p *pump) fail(err error, log *slog.Logger) {
	p.mu.Lock()
	wait := min(lastBackoff, firstBackoff<<min(p.fails, 8))
	wait = wait/2 + rand.N(wait/2)
	p.fails++
	p.retryAt = time.Now().Add(wait)
	first := !p.warned
	p.warned = true
	p.mu.Unlock()
	if first {
		log.Warn("SQS does not hand out messages, trying again", slog.Duration("in", wait), slog.Any("error", err))
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
		log.Info("SQS hands out messages again")
	}
}

// attempt is the id of a receive: a new one, or that of one that was not answered.
func (p *pump) attempt() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.unanswered); n > 0 {
		id := p.unanswered[n-1]
		p.unanswered = p.unanswered[:n-1]
		return id
	}
	return uuid.NewString()
}

// lost keeps an attempt id for another try.
func (p *pump) lost(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id != "" && len(p.unanswered) < parallel {
		p.unanswered = append(p.unanswered, id)
	}
}

// drain removes everything.
func (p *pump) drain() []arrival {
	p.mu.Lock()
	defer p.mu.Unlock()
	got := p.buf
	p.buf = nil
	return got
}

// close lets no poll begin any more and wakes Receive.
func (p *pump) close() {
	p.mu.Lock()
	p.closed = true
	if p.idle != nil {
		p.idle.Stop()
	}
	p.mu.Unlock()
	p.signal()
}

// wait waits for the polls that are open.
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
