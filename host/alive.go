package host

import (
	"fmt"
	"time"
)

// Alive is nil while every queue's loops make progress: leases are looked after in time, and
// the locks that workers and receiver share are free. It does not ask brokers, so one that is
// away makes no host look dead; nor do runs that take long. A loop that is stuck under a lock
// shows by Alive not returning.
func (h *Host) Alive() error {
	for _, q := range h.queues {
		q.mu.Lock()
		waiting := len(q.backlog)
		q.mu.Unlock()
		q.leases.mu.Lock()
		held := q.leases.n
		q.leases.mu.Unlock()
		beat := q.leases.beat.Load()
		if beat == 0 { // it does not run, or no longer
			continue
		}
		// A tick comes at a third of the lease, and a batch of renewals takes as long at most.
		if silent := time.Since(time.Unix(0, beat)); silent > 2*q.leases.lease {
			return fmt.Errorf("queue %s: its %d leases were last looked after %s ago, %d messages wait", q.name, held, silent.Round(time.Second), waiting)
		}
	}
	return nil
}
