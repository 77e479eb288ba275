package plugindir

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/engine"
)

// State says whether a job can be run here. The zero State is never returned.
type State int

// The states.
const (
	// Absent: there is no file for the job.
	Absent State = iota + 1
	// Broken: a file is there, but nothing of it serves: it was refused, or has not been
	// loaded yet.
	Broken
	// Ready: a version serves.
	Ready
)

// String is the word for logs, page and API.
func (s State) String() string {
	switch s {
	case Absent:
		return "absent"
	case Broken:
		return "broken"
	case Ready:
		return "ready"
	}
	return "unknown"
}

// MarshalText writes a state as its word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *State) UnmarshalText(text []byte) error {
	for _, known := range []State{Absent, Broken, Ready} {
		if known.String() == string(text) {
			*s = known
			return nil
		}
	}
	return fmt.Errorf("unknown plugin state %q", text)
}

// Plugin is one version of a handler with the settings it was loaded under.
type Plugin struct {
	version *version
	handler config.Handler
}

// Module is the started module. It must not be used after Release, nor closed.
func (p *Plugin) Module() *engine.Module { return p.version.module }

// Handler is what holds for the job: the configuration, its sidecar and the defaults. Its
// maps are shared and must not be changed.
func (p *Plugin) Handler() config.Handler { return p.handler }

// Digest is the SHA-256 of the module file, in hex.
func (p *Plugin) Digest() string { return p.version.info.Digest }

// Release ends the use that Acquire began. The module is closed with the last use of a
// version that has been replaced or removed.
func (p *Plugin) Release() { p.version.release() }

// version is a started module and how many use it. Settings that do not concern the engine
// can change without a new version.
type version struct {
	module *engine.Module
	info   engine.ModuleInfo
	config engine.Config // without HTTP, whose settings are the handler's
	loaded time.Time
	close  func()       // gives up what the module worked with
	refs   atomic.Int64 // 1 for the directory, and 1 for each run
}

func newVersion(m *engine.Module, c engine.Config, close func()) *version {
	v := &version{module: m, info: m.Info(), config: c, close: close, loaded: time.Now()}
	v.refs.Store(1)
	return v
}

// acquire reports whether the version could be taken; one without references is closed.
func (v *version) acquire() bool {
	for {
		n := v.refs.Load()
		if n == 0 {
			return false
		}
		if v.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (v *version) release() {
	switch n := v.refs.Add(-1); {
	case n == 0:
		v.module.Close()
		v.close() // nothing runs any more
	case n < 0:
		panic("plugindir: released more often than acquired")
	}
}
