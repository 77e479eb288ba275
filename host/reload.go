package host

import (
	"context"
	"maps"

	"github.com/guesthand/guesthand/host/config"
)

// Reload puts a new configuration in force where that is possible while running, and
// returns the keys that changed: those in force now, and those that need a restart. The
// errors are handlers that could not be loaded with their new settings.
func (h *Host) Reload(ctx context.Context, c *config.Config) (applied, restart []string, errs []error) {
	old := h.Config()
	applied, restart = config.Diff(old, c)
	h.config.Store(reloaded(old, c))
	return applied, restart, h.plugins.Reconfigure(ctx)
}

// reloaded is the old configuration with those parts of the new one that can change while
// queues are open.
func reloaded(old, c *config.Config) *config.Config {
	r := *old
	r.Handlers, r.Limits, r.Log = c.Handlers, c.Limits, c.Log
	r.Events, r.OnDead = c.Events, c.OnDead
	r.Drain, r.TrustSidecars, r.Warnings = c.Drain, c.TrustSidecars, c.Warnings
	r.Queues = maps.Clone(old.Queues)
	for name, q := range r.Queues {
		if n, ok := c.Queues[name]; ok {
			q.Retry, q.UnknownJob, q.Jobs = n.Retry, n.UnknownJob, n.Jobs
			r.Queues[name] = q
		}
	}
	return &r
}
