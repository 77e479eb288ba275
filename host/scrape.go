package host

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/guesthand/guesthand/host/metrics"
)

// Metrics answers scrapes.
func (h *Host) Metrics() http.Handler { return h.metrics.Handler() }

// Settled is how many runs have ended and been settled or given up since the start.
func (h *Host) Settled() int64 { return h.settled.Load() }

// scraped is what a scrape reads of the host.
type scraped struct{ *Host }

// QueueStates implements metrics.Source.
func (s scraped) QueueStates(ctx context.Context) []metrics.QueueState {
	all := s.queueStates(ctx)
	states := make([]metrics.QueueState, len(all))
	for i, q := range all {
		states[i] = metrics.QueueState{Queue: q.Queue, Depth: q.Depth, InFlight: q.InFlight, Delayed: q.Delayed,
			Dead: q.Dead, Oldest: q.Oldest}
		if q.Error != "" {
			states[i] = metrics.QueueState{Queue: q.Queue, Err: errors.New(q.Error)}
		}
	}
	return states
}

// HandlerStates implements metrics.Source.
func (s scraped) HandlerStates() []metrics.HandlerState {
	all := s.plugins.Status()
	states := make([]metrics.HandlerState, len(all))
	for i, p := range all {
		states[i] = metrics.HandlerState{Job: p.Job, State: strings.ToLower(p.State.String()), Dialect: string(p.Dialect),
			Instances: string(p.Instances), Digest: p.Digest}
	}
	return states
}

// LedgerDropped implements metrics.Source.
func (s scraped) LedgerDropped() int64 {
	successes, others := s.ledger.Dropped()
	return int64(successes + others)
}
