package admin

import (
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/metrics"
	"github.com/guesthand/guesthand/host/plugindir"
)

// Overview is how a host stands now: what the page shows first.
type Overview struct {
	Version  string            `json:"version"`
	Worker   string            `json:"worker"`
	Started  time.Time         `json:"started"`
	Now      time.Time         `json:"now"`
	Unready  []string          `json:"unready"` // why it should get no work; empty when it is ready
	Queues   []QueueOverview   `json:"queues"`
	Handlers []HandlerOverview `json:"handlers"`
	// LedgerDropped is how many runs the ledger could not keep.
	LedgerDropped int64 `json:"ledger_dropped"`
}

// QueueOverview is a queue with what this host did with it since its start.
type QueueOverview struct {
	QueueStatus
	Running int              `json:"running"` // runs going on here now
	Jobs    []metrics.Totals `json:"jobs"`
}

// HandlerOverview is a handler with its latest failure.
type HandlerOverview struct {
	plugindir.Status
	LastError   string    `json:"last_error"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
}

// Setup is what the configuration makes of queues and handlers.
type Setup struct {
	File     string         `json:"file"`
	Queues   []QueueSetup   `json:"queues"`
	Handlers []HandlerSetup `json:"handlers"`
}

// QueueSetup is a queue with what its broker can do.
type QueueSetup struct {
	Queue       string       `json:"queue"`
	Broker      string       `json:"broker"`
	Driver      string       `json:"driver"`
	Concurrency int          `json:"concurrency"`
	LeaseMS     int64        `json:"lease_ms"`
	RetentionMS int64        `json:"retention_ms"` // 0: for ever
	Handler     string       `json:"handler"`      // "" for the message's job
	Retry       string       `json:"retry"`
	Caps        drivers.Caps `json:"caps"`
	Findings    []string     `json:"findings"` // what the broker's own settings do to it
}

// HandlerSetup is a handler's settings in force.
type HandlerSetup struct {
	Job         string   `json:"job"`
	TimeoutMS   int64    `json:"timeout_ms"`
	Memory      uint64   `json:"memory_bytes"`
	Concurrency int      `json:"concurrency"` // 0: as many as the queue has
	Rate        string   `json:"rate"`
	Instances   string   `json:"instances"`
	Retry       string   `json:"retry"`  // "" for the queue's
	Grants      []string `json:"grants"` // what it may do beside computing
}
