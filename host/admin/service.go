// Package admin is the host's HTTP side: health, readiness and the JSON API, served on a
// Unix socket in the data directory and on an address for people, and the client that
// commands use to reach a running host through either.
package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/ledger"
	"github.com/guesthand/guesthand/host/plugindir"
)

// ErrNoLedger is the answer to questions about runs where none are recorded.
var ErrNoLedger = errors.New(`no ledger is kept: [ledger] driver is "none"`)

// Service is what can be asked of a host. A running host answers it directly, the client
// over HTTP, and a command with no host running by opening the brokers itself.
type Service interface {
	// Send publishes messages to a queue and returns the ids they have, with an error for
	// each that the broker did not confirm. A message without an id gets one.
	Send(ctx context.Context, queue string, ms []drivers.Message) (ids []string, errs []error, err error)
	// Queues tells how each configured queue stands.
	Queues(ctx context.Context) ([]QueueStatus, error)
	// Handlers tells what the plug-in directory holds; empty where no host runs.
	Handlers(ctx context.Context) ([]plugindir.Status, error)
	// Runs reads the ledger, newest first, or returns ErrNoLedger.
	Runs(ctx context.Context, f ledger.Filter) ([]ledger.Row, error)
	// Pause keeps this host from a queue, or from one job of it, until its time or a Resume. It
	// holds over a restart. Pausing anew replaces what was there.
	Pause(ctx context.Context, p Pause) error
	// Resume ends a queue's pauses, or one job's, those that a handler asked for included.
	Resume(ctx context.Context, queue, job string) error
	// Cancel stops a message that this host has in its hands, and drops one that waits where the
	// broker can; then it is finished, with the outcome cancelled. It returns ErrNotCancelled
	// where the message came to another end first.
	Cancel(ctx context.Context, queue, id string) error
	// Dead reads and changes a queue's dead letters.
	Dead(ctx context.Context, queue string) (drivers.DeadLetters, error)
}

// Host is a Service that runs.
type Host interface {
	Service
	// Unready lists why this host should get no work now; nothing when it is ready.
	Unready(ctx context.Context) []string
	// Alive is nil while the host's own loops make progress, whatever brokers and handlers do.
	Alive() error
	// Metrics answers a scrape in Prometheus' text form.
	Metrics() http.Handler
	// Overview is how everything stands now. Brokers are asked at most every two seconds, however
	// many look.
	Overview(ctx context.Context) Overview
	// Setup is what the configuration makes of queues and handlers.
	Setup() Setup
}

// Pause is a queue, or one job of it, that a host leaves alone.
type Pause struct {
	Queue string    `json:"queue"`
	Job   string    `json:"job,omitempty"` // "" for all
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"` // zero: until it is resumed
	// ByHandler: a run asked for it, on all queues of its job; it does not outlive the host.
	ByHandler bool `json:"by_handler,omitempty"`
}

// QueueStatus is one line of `guesthand queues`.
type QueueStatus struct {
	Queue    string `json:"queue"`
	Broker   string `json:"broker"`
	Driver   string `json:"driver"`
	Depth    int    `json:"depth"`
	InFlight int    `json:"in_flight"`
	Delayed  int    `json:"delayed"`
	Dead     int    `json:"dead"`
	// Paused is true where this host takes nothing from the queue. Pauses says what is paused
	// of it, and until when.
	Paused bool    `json:"paused"`
	Pauses []Pause `json:"pauses,omitempty"`
	// Oldest is when the oldest unfinished message was enqueued; zero: none, or the broker does
	// not tell.
	Oldest time.Time `json:"oldest,omitzero"`
	Error  string    `json:"error,omitempty"` // why the counts could not be read
}
