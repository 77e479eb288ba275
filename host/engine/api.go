// Package engine runs handlers: it checks and compiles a Wasm module once, keeps or makes
// instances of it, and runs one message at a time through one of them under a deadline and
// limits. It knows nothing of brokers or policies.
//
// A run never harms the host or another run: a trap, an endless loop, recursion without
// end, a sleep, memory.grow without end and proc_exit all come back as a Result whose
// cause the host itself established.
package engine

import (
	"log/slog"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// Options configures an Engine. The zero value is usable.
type Options struct {
	// CacheDir holds compiled code between starts; "" compiles anew each time. Whoever
	// can write there owns the process, so it is created 0700.
	CacheDir string
	Logger   *slog.Logger // slog.Default()
}

// Dialect is how a module speaks to the host.
type Dialect string

// The dialects, told apart by a module's own imports and exports.
const (
	Native  Dialect = "native"
	Command Dialect = "command"
	Extism  Dialect = "extism"
)

// Instances says whether messages share an instance's memory.
type Instances string

// The modes. Auto chooses fresh where it is cheap and safe, and reuse otherwise.
const (
	Auto  Instances = ""
	Fresh Instances = "fresh"
	Reuse Instances = "reuse"
)

// Config is one handler's settings for the engine. Zero values mean the default named at
// each field.
type Config struct {
	Job       string
	Memory    uint64        // bytes, 64 MiB; rounded down to whole 64 KiB pages
	Timeout   time.Duration // 30 s, starting an instance included
	Payload   int           // bytes, 8 MiB; checked by the host before a run
	Result    int           // bytes, 1 MiB
	ErrorText int           // bytes, 16 KiB; longer text is cut
	Log       int           // bytes of log text in one run, 256 KiB; the rest is dropped and counted
	CallDepth int           // nested guest calls, 10000
	Instances Instances
	Recycle   int               // runs of one reused instance, 10000
	MaxIdle   int               // reused instances kept, 16
	Values    map[string]string // config.NAME
	Secrets   map[string]string // secret.NAME; never logged
	Function  string            // the entry of an Extism plug-in; "": the only one there is
	Send      []string          // queues that message_send may name
	Sends     int               // messages of one run, 100
	SendBytes int               // bytes of their heads and bodies, 8 MiB
	HTTP      HTTP              // makes requests; nil: not granted
	HTTPCalls int               // requests of one run, 100
}

// Input is the message a run works on.
type Input struct {
	ID, Job, Queue string
	Tally          drivers.Tally
	MaxAttempts    int // of the effective policy
	EnqueuedAt     time.Time
	Headers        drivers.Header
	Payload        []byte
	State          []byte       // left by an earlier run
	Logger         *slog.Logger // the guest's log lines; nil: the engine's logger
	// Bucket is what kv_* works on; nil: not granted.
	Bucket drivers.Bucket
	// OnHTTP is told of each request that was made, with its answer's status or why there is
	// none; nil: nobody is.
	OnHTTP func(method, url string, status int, began time.Time, err error)
	// Outbox is asked about messages before they are held; nil: nobody is.
	Outbox Outbox
}

// Result is what a run came to. Its byte slices are the caller's own.
type Result struct {
	End abi.End
	// Output is the run's result, at most Config.Result bytes.
	Output []byte
	// State is what the run wrote with state_write, valid when StateWritten.
	State        []byte
	StateWritten bool
	// Sends are the messages to send if the run succeeded, in the order of the calls.
	Sends []Send
	// LogDropped is how many bytes of log text were over the limit.
	LogDropped int
	// Memory is the size of the instance's linear memory after the run, bytes.
	Memory   uint64
	Started  time.Time
	Duration time.Duration
}

// RefusedError says why a module cannot be loaded, and what would be right.
type RefusedError struct {
	Reason string // "no exported function handle: () -> i64 is needed"
}

func (e *RefusedError) Error() string { return e.Reason }

// ModuleInfo is what `guesthand inspect` shows.
type ModuleInfo struct {
	Digest  string // SHA-256 of the file's bytes, hex
	Size    int
	Dialect Dialect
	Entry   string   // the export that takes the messages; "" where none can
	Imports []string // "module.name"
	Exports []string
	// MinMemory and MaxMemory are the module's own, bytes; MaxMemory 0: not stated.
	MinMemory, MaxMemory uint64
	// Sections are the names and sizes of the custom sections.
	Sections map[string]int
	// Metered is true when deadlines are enforced by injected counters, false when the
	// module was not understood and wazero's slower check is used; Note says why.
	Metered bool
	Note    string
	// Instances is the mode in effect, InstancesWhy the reason.
	Instances    Instances
	InstancesWhy string
}
