package host

import (
	"context"
	"sync/atomic"
	"time"
)

// suspects lets messages that have stalled twice or more run one at a time, beside healthy
// ones: if one of them kills the worker again, it is known which. Where the broker counts
// what was merely held, a suspect runs only once no other one is held. While it waits for
// that, and for a moment after it began, the queues receive nothing.
type suspects struct {
	turn    chan struct{}
	waiting atomic.Int64  // suspects that are held and do not have the turn
	settled chan struct{} // waiting went down; at most one is interested
	quiet   atomic.Int64  // when queues may receive again, Unix nanoseconds
}

const (
	// arrival is how long what was asked for before may take to come in.
	arrival = 100 * time.Millisecond
	// firstMoments are those in which most of what kills its worker does so.
	firstMoments = time.Second
)

func newSuspects() suspects {
	return suspects{turn: make(chan struct{}, 1), settled: make(chan struct{}, 1)}
}

// enter waits for the turn. It may wait while it is held: its broker counts runs only.
func (s *suspects) enter(ctx context.Context) (leave func(), ok bool) {
	select {
	case s.turn <- struct{}{}:
		return s.leave, true
	case <-ctx.Done():
		return nil, false
	}
}

// enterAlone takes the turn only if it is free, since a suspect that merely waits would be
// counted with the one that runs, and then waits until h is the only suspect held.
func (s *suspects) enterAlone(ctx context.Context, h *held) (leave func(), ok bool) {
	select {
	case s.turn <- struct{}{}:
	default:
		return nil, false
	}
	s.keepQuiet(time.Minute) // more than this can take; leave ends it
	s.forget(h)
	if !sleep(ctx, arrival) || !s.alone(ctx) {
		s.hold(h)
		s.leave()
		return nil, false
	}
	s.keepQuiet(firstMoments)
	return s.leave, true
}

func (s *suspects) keepQuiet(d time.Duration) { s.quiet.Store(time.Now().Add(d).UnixNano()) }

// calm tells whether queues may receive.
func (s *suspects) calm() bool {
	t := s.quiet.Load()
	return t == 0 || time.Now().UnixNano() >= t
}

// alone waits until no other suspect is held.
func (s *suspects) alone(ctx context.Context) bool {
	for s.waiting.Load() > 0 {
		select {
		case <-s.settled:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (s *suspects) leave() {
	s.quiet.Store(0)
	<-s.turn
}

// hold counts a suspect that was received.
func (s *suspects) hold(h *held) {
	h.suspect = true
	s.waiting.Add(1)
}

// forget takes it back, when it is settled, given up or about to run.
func (s *suspects) forget(h *held) {
	if !h.suspect {
		return
	}
	h.suspect = false
	s.waiting.Add(-1)
	select {
	case s.settled <- struct{}{}:
	default:
	}
}
