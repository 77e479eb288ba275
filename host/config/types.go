// Package config reads the configuration file and the sidecars of plug-ins. It is strict:
// an unknown key, a wrong type or a bad value is an Issue with file, line, key and what would
// be right, and all of them are reported together. It opens no connection and knows drivers
// by name only.
package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/guesthand/guesthand/host/policy"
)

// Config is a configuration file, checked and complete: every default is filled in, every
// path absolute, every reference resolved.
type Config struct {
	File string // as given; "" for the built-in defaults
	Dir  string // what relative paths are relative to

	Plugins       string        // the plug-in directory
	Data          string        // sockets, ledger, caches, broker stores
	Drain         time.Duration // how long a stop waits for runs
	TrustSidecars bool
	// Events is the queue that events are sent to, "" for none. OnDead is who gets dead letters:
	// a job, or QUEUE/JOB; "" for nobody.
	Events, OnDead string

	Brokers  map[string]Broker
	Queues   map[string]Queue
	Handlers map[string]Handler // what [handlers.JOB] says; use Handler for what holds
	Limits   Limits
	Admin    Admin
	Ledger   Ledger
	Trace    Trace
	Log      Log
	Store    Store

	// Warnings are what `check` reports beside errors: a queue without retries, for example.
	Warnings []Issue
}

// Broker is [brokers.NAME].
type Broker struct {
	Name        string
	Driver      string        // a key of driverKeys
	URL         string        // its scheme and form are the driver's
	Dir         string        // embedded: the store
	SyncAlways  bool          // embedded: sync = "always"
	Sync        time.Duration // embedded: otherwise, how often the store is synced; 1 s
	Listen      string        // embedded: an address for producers; "" for none
	Credentials string        // a NATS credentials file
	User        string
	Password    string
	Schema      string // postgres
	Region      string // sqs; "" for what the environment says
	Account     string // cloudflare
	Token       string // cloudflare
}

// NeedsStore tells whether the broker keeps no values by key itself, so that [store] serves it.
func (b Broker) NeedsStore() bool {
	return b.Driver != "memory" && !slices.Contains(storeDrivers, b.Driver)
}

// Queue is [queues.NAME].
type Queue struct {
	Name        string
	Broker      string
	Concurrency int
	Lease       time.Duration
	Handler     string            // one handler for everything; "" for the message's job
	Jobs        map[string]string // foreign job names to ours
	UnknownJob  UnknownJob
	Retry       *policy.Policy // nil: not given
	DeadKeep    time.Duration  // 0: for ever
	DeadMax     int            // 0: no limit
	Create      bool
	Names       map[string]string // [queues.NAME.nats] stream = ..., subject = ...
}

// UnknownJob is what happens to a message whose job has no handler.
type UnknownJob struct {
	Wait  time.Duration
	Tries int // 0: no cap
}

// Handler is [handlers.JOB], or what holds for a job after its sidecar and the defaults.
type Handler struct {
	Job         string
	Timeout     time.Duration
	Memory      uint64
	Concurrency int    // 0: no cap beside the queue's
	Rate        Rate   // zero: no limit
	Instances   string // "fresh", "reuse", or "" for the engine's choice
	Recycle     int
	Payload     int
	Result      int
	Error       int
	Log         int
	CallDepth   int
	Config      map[string]string
	Secrets     Secrets        // resolved values
	HTTP        *HTTP          // nil: not granted
	KV          *KV            // nil: not granted
	Send        []string       // queues that it may send to
	SendMax     int            // messages of one run
	SendBytes   int            // of one run
	SHA256      string         // lower case hex; "" for any module
	Function    string         // the entry of an Extism plug-in; "": the only one there is
	Retry       *policy.Policy // nil: the queue's

	given keys // what was written, so that a zero in the file still wins over a sidecar
}

// Rate is N runs per Per.
type Rate struct {
	N   int
	Per time.Duration
}

// Limits is [limits]: the host's ceilings and the defaults of every handler.
type Limits struct {
	Memory  uint64  // max_memory: a sidecar cannot ask for more
	Default Handler // what holds where neither [handlers.JOB] nor a sidecar says
}

// Store is [store]: the broker whose key-value serves those that have none.
type Store struct {
	Broker string // "" for none
}

// Admin is [admin].
type Admin struct {
	Listen string // "" switches the address off; the socket stays
	Token  string // required unless Listen is loopback
	// Cert and Key are PEM files for TLS on Listen; "" for plain HTTP.
	Cert, Key string
}

// Ledger is [ledger].
type Ledger struct {
	Driver string // "sqlite" or "none"
	Path   string
	Keep   time.Duration // 0: for ever
	Max    int64         // bytes; 0: no limit
}

// Log is [log].
type Log struct {
	Level  string // debug, info, warn, error
	Format string // "text", "json", or "" by terminal
}

// Issue is one thing to say about a configuration.
type Issue struct {
	File string
	Line int    // 0: not known
	Key  string // dotted
	Text string // what is wrong and what would be right
}

// String is `config.toml:12: queues.default.lease: what is wrong`.
func (i Issue) String() string {
	var b strings.Builder
	if i.File != "" {
		b.WriteString(i.File)
		if i.Line > 0 {
			fmt.Fprintf(&b, ":%d", i.Line)
		}
		b.WriteString(": ")
	}
	if i.Key != "" {
		b.WriteString(i.Key + ": ")
	}
	return b.String() + i.Text
}

// Error is everything that is wrong with a file, in the order of its lines.
type Error struct{ Issues []Issue }

// Error is one line for each issue.
func (e *Error) Error() string {
	lines := make([]string, len(e.Issues))
	for i, issue := range e.Issues {
		lines[i] = issue.String()
	}
	return strings.Join(lines, "\n")
}
