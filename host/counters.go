package host

import "sync/atomic"

// counters are what happened on this host since it started.
type counters struct {
	outcomes     [len(outcomeWords)]atomic.Int64
	settleErrors atomic.Int64
	leaseLost    atomic.Int64
}

var outcomeWords = [...]string{"success", "retry", "retry-after", "delay", "permanent", "reject",
	"pause", "interrupted", "stalled", "lease-lost", "cancelled"}

func (c *counters) count(word string) {
	for i, w := range outcomeWords {
		if w == word {
			c.outcomes[i].Add(1)
			return
		}
	}
}

// Settled is how many runs have ended and been settled or given up since the start.
func (h *Host) Settled() (n int64) {
	for i := range h.counters.outcomes {
		n += h.counters.outcomes[i].Load()
	}
	return n
}
