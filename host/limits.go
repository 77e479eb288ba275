package host

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/config"
)

// leaseMargin is how much longer than a run a lease must be where it cannot be renewed:
// the settlement's own budget of 30 s, and the way there.
const leaseMargin = 40 * time.Second

// Limits holds what a queue's broker allows against the policies and timeouts of the handlers
// that may serve it, by job. The error is a configuration that cannot work; warnings name the limit,
// the policy and what to change.
func Limits(c *config.Config, queue string, info drivers.Info, handlers map[string]config.Handler) (warnings []string, err error) {
	if only := c.Queues[queue].Handler; only != "" {
		handlers = map[string]config.Handler{only: handlers[only]}
	}
	if len(handlers) == 0 {
		handlers = map[string]config.Handler{"": c.Limits.Default}
	}
	var attempts, stalls int
	var slowest config.Handler
	uncapped := false
	for _, job := range slices.Sorted(maps.Keys(handlers)) {
		h := handlers[job]
		p := c.Policy(queue, h)
		attempts, stalls = max(attempts, p.MaxAttempts), max(stalls, p.MaxStalls)
		uncapped = uncapped || p.MaxAttempts == 0
		if h.Timeout > slowest.Timeout {
			slowest = h
		}
	}
	if w := deliveryWarning(info.DeliveryLimit, attempts, stalls, uncapped); w != "" {
		warnings = append(warnings, w)
	}
	if least := slowest.Timeout + leaseMargin; !info.Caps.Renewable && info.Lease < least {
		return warnings, fmt.Errorf("queue %s: this broker cannot extend a lease, so it must be at least timeout + %s: "+
			"the lease is %s and handler %q may run %s; set lease = %q or lower the timeout",
			queue, config.FormatDuration(leaseMargin), config.FormatDuration(info.Lease), slowest.Job,
			config.FormatDuration(slowest.Timeout), config.FormatDuration(least))
	}
	return warnings, nil
}

// deliveryWarning is what is to be said about a broker's own limit on deliveries, "" for
// nothing.
func deliveryWarning(l drivers.DeliveryLimit, attempts, stalls int, uncapped bool) string {
	// One delivery more than may stall is the one that the host dead-letters.
	need := stalls + 1
	if !l.PerCopy {
		need = max(need, attempts)
	}
	if l.Deliveries == 0 || l.Deliveries >= need && (l.PerCopy || !uncapped) {
		return ""
	}
	policy := fmt.Sprintf("%d attempts", attempts)
	if uncapped {
		policy = "attempts without cap"
	}
	text := fmt.Sprintf("%s is %d, and the policy allows %s and %d stalls", l.Setting, l.Deliveries, policy, stalls)
	if l.PerCopy {
		return fmt.Sprintf("%s: the broker takes a message away after %d workers died on it, before the host can dead-letter it; raise the limit to at least %d, or lower max_stalls to %d",
			text, l.Deliveries, need, max(l.Deliveries-1, 0))
	}
	if uncapped {
		return fmt.Sprintf("%s: the broker takes a message away after %d deliveries, whatever the policy says; switch the limit off, or cap max_attempts", text, l.Deliveries)
	}
	return fmt.Sprintf("%s: the broker takes a message away after %d deliveries, delays and stalls included; raise the limit to at least %d, or lower max_attempts and max_stalls",
		text, l.Deliveries, need)
}
