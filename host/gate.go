package host

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/config"
)

// gates holds one gate for each job that ran on this host: its own concurrency, rate and
// pause, over all queues.
type gates struct {
	mu sync.Mutex
	m  map[string]*gate
}

// gate limits how many runs of one job start.
type gate struct {
	limits      atomic.Pointer[gateLimits]
	pausedUntil atomic.Int64 // Unix nanoseconds
}

type gateLimits struct {
	concurrency int
	rate        config.Rate
	slots       chan struct{} // nil: no cap
	tokens      *rate.Limiter // nil: no limit
}

// of returns the job's gate, with the limits that hold now. A change makes new slots: runs
// that hold an old one give it back to the old ones.
func (g *gates) of(h config.Handler) *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	gt := g.m[h.Job]
	if gt == nil {
		if g.m == nil {
			g.m = map[string]*gate{}
		}
		gt = &gate{}
		g.m[h.Job] = gt
	}
	if l := gt.limits.Load(); l == nil || l.concurrency != h.Concurrency || l.rate != h.Rate {
		l = &gateLimits{concurrency: h.Concurrency, rate: h.Rate}
		if h.Concurrency > 0 {
			l.slots = make(chan struct{}, h.Concurrency)
		}
		if h.Rate.N > 0 {
			// One second's worth may start at once, as users of token buckets expect.
			perSecond := float64(h.Rate.N) / h.Rate.Per.Seconds()
			l.tokens = rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond)))
		}
		gt.limits.Store(l)
	}
	return gt
}

// pause keeps the gate shut until t; the longest pause wins.
func (g *gate) pause(t time.Time) {
	for {
		old := g.pausedUntil.Load()
		if t.UnixNano() <= old || g.pausedUntil.CompareAndSwap(old, t.UnixNano()) {
			return
		}
	}
}

// resume ends a job's pause, for "" those of all jobs.
func (g *gates) resume(job string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, gt := range g.m {
		if job == "" || job == name {
			gt.pausedUntil.Store(0)
		}
	}
}

// pauses lists the pauses that handlers asked for, of one job or for "" of all, as pauses of
// a queue.
func (g *gates) pauses(queue, job string) (some []admin.Pause) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for name, gt := range g.m {
		if job != "" && job != name {
			continue
		}
		if d := gt.paused(now); d > 0 {
			some = append(some, admin.Pause{Queue: queue, Job: name, Until: now.Add(d), ByHandler: true})
		}
	}
	slices.SortFunc(some, func(a, b admin.Pause) int { return cmp.Compare(a.Job, b.Job) })
	return some
}

// paused is how long the gate stays shut from now, 0 for open.
func (g *gate) paused(now time.Time) time.Duration {
	until := g.pausedUntil.Load()
	if until == 0 {
		return 0
	}
	if left := time.Duration(until - now.UnixNano()); left > 0 {
		return left
	}
	g.pausedUntil.CompareAndSwap(until, 0)
	return 0
}

// enter waits until a run may start, and gives up when ctx ends, or before where it is sure
// to end too early. leave must be called after the run when ok is true.
func (g *gate) enter(ctx context.Context) (leave func(), ok bool) {
	if d := g.paused(time.Now()); d > 0 && !sleep(ctx, d) {
		return nil, false
	}
	l := g.limits.Load()
	if l.slots != nil {
		select {
		case l.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, false
		}
	}
	if l.tokens != nil && l.tokens.Wait(ctx) != nil {
		if l.slots != nil {
			<-l.slots
		}
		return nil, false
	}
	if g.paused(time.Now()) > 0 { // by the run that had the slot before
		l.leave()
		return nil, false
	}
	return l.leave, true
}

func (l *gateLimits) leave() {
	if l.slots != nil {
		<-l.slots
	}
}

// open tells whether enter would never wait: the common case, decided without a timer.
func (g *gate) open() bool {
	l := g.limits.Load()
	return l.slots == nil && l.tokens == nil && g.pausedUntil.Load() == 0
}

// sleep waits for d and tells whether ctx let it.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
