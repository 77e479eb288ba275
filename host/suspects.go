package host

import "context"

// suspects lets messages that have stalled twice or more run one at a time, beside healthy
// ones: if one of them kills the worker again, it is known which.
type suspects struct{ turn chan struct{} }

func newSuspects() suspects { return suspects{turn: make(chan struct{}, 1)} }

// enter waits for the turn; where wait is false it takes it only if it is free, because a
// suspect that merely waits would be counted with the one that runs.
func (s suspects) enter(ctx context.Context, wait bool) (leave func(), ok bool) {
	leave = func() { <-s.turn }
	select {
	case s.turn <- struct{}{}:
		return leave, true
	default:
	}
	if !wait {
		return nil, false
	}
	select {
	case s.turn <- struct{}{}:
		return leave, true
	case <-ctx.Done():
		return nil, false
	}
}
