// Package plugindir keeps the handlers of a plug-in directory loaded: PLUGINS/resize.wasm
// serves the job resize for as long as the file is there. Files that are added, replaced or
// removed take effect while the host runs, whole or not at all.
//
// A file's way: a scan sees it (after a file event, and every second in any case, since
// events do not work on network mounts); when module and sidecar have been still for half
// a second both are read and checked to be of one version; the module is compiled and
// started once; then it takes over. Until then, and where any of it goes wrong, the
// version before serves on. Runs in flight finish on the version they began with.
package plugindir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/engine"
)

// Bounds on what is read and done at once.
const (
	maxModule  = 256 << 20 // bytes of a module file
	maxSidecar = 1 << 20   // bytes of a sidecar
	maxLoads   = 2         // modules compiled and started at the same time
)

// Options configures a Directory. Dir, Engine (or Load) and Config are needed.
type Options struct {
	Dir    string
	Engine *engine.Engine
	// Config returns the configuration in force. It is asked at every load, so that a
	// reread one holds from the next load on; Reconfigure applies it to what is loaded.
	Config func() *config.Config
	// Still is how long a file must not have changed before it is read; 500 ms.
	Still time.Duration
	// Poll is the longest time between two looks at the directory; 1 s.
	Poll   time.Duration
	Logger *slog.Logger // slog.Default()
	// OnChange is told of every version that took over, was refused or went away, one at
	// a time and after the fact. It must not call Reconfigure or Close. May be nil.
	OnChange func(Change)
	// OnHTTP is told how each request of a handler ended, in the words of egress.Options. May
	// be nil.
	OnHTTP func(job, result string)
	// Load stands in for Engine.Load where something has to happen around it.
	Load func(ctx context.Context, wasm []byte, c engine.Config) (*engine.Module, error)
}

func (o Options) withDefaults() Options {
	if o.Still <= 0 {
		o.Still = 500 * time.Millisecond
	}
	if o.Poll <= 0 {
		o.Poll = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Load == nil && o.Engine != nil {
		o.Load = o.Engine.Load
	}
	return o
}

// Validate names what is missing.
func (o Options) Validate() error {
	switch {
	case o.Dir == "":
		return errors.New("plugin directory: Dir is needed")
	case o.Engine == nil && o.Load == nil:
		return errors.New("plugin directory: Engine is needed")
	case o.Config == nil:
		return errors.New("plugin directory: Config is needed")
	}
	return nil
}

// Directory is a plug-in directory in use. Its methods may be called concurrently.
type Directory struct {
	o Options

	// table is what Acquire reads: a nil Plugin stands for a file of which nothing serves.
	// It is replaced, never changed.
	table atomic.Pointer[map[string]*Plugin]

	// report is held from a change of state until it has been logged and told, so that
	// changes are told in the order they happened. It is taken before mu.
	report sync.Mutex

	mu      sync.Mutex
	jobs    map[string]*job
	notes   map[string]*note // by file name
	epoch   int              // goes up when every file is to be looked at again
	loading int              // loads running, at most maxLoads
	changed chan struct{}    // closed and replaced whenever a load ends
	closed  bool
}

// job is what is known of one job's files. mu guards it.
type job struct {
	name  string
	seen  stamp     // the files as the last scan saw them
	since time.Time // from when on they have looked like that

	tried      stamp // the version that was last loaded or refused
	triedEpoch int
	loading    bool

	serving *Plugin // nil: nothing
	digest  string  // of the newest version read, "" for none
	err     error   // why the newest version does not serve; nil if it does
	logged  string  // the error text that was last logged
}

// Open loads every module of the directory. Where files were written just now it waits
// until they have been still, at most four times Options.Still: a start that is half a second
// late beats messages put back for want of a handler. What is being written even then is
// left to Run. A module that cannot be loaded is no error of Open's: it is logged and shown
// by Status. An absent directory is one. ctx bounds the opening only.
func Open(ctx context.Context, o Options) (*Directory, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	d := &Directory{
		o:       o.withDefaults(),
		jobs:    map[string]*job{},
		notes:   map[string]*note{},
		changed: make(chan struct{}),
	}
	d.table.Store(&map[string]*Plugin{})
	if err := checkDir(d.o.Dir); err != nil {
		return nil, err
	}
	if err := d.fill(ctx); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// fill loads what is there and still, and waits a while for what is not.
func (d *Directory) fill(ctx context.Context) error {
	for end := time.Now().Add(4 * d.o.Still); ; {
		if err := d.scan(true); err != nil {
			return err
		}
		if err := d.loadAll(ctx, 0); err != nil {
			return err
		}
		wait := d.fresh()
		if wait <= 0 || time.Now().Add(wait).After(end) {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("load plugins: %w", context.Cause(ctx))
		}
	}
}

// fresh is how long until the first file that is not still yet may be; 0 if all are.
func (d *Directory) fresh() (wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, j := range d.jobs {
		if w := d.o.Still - now.Sub(j.since); w > 0 && (wait == 0 || w < wait) {
			wait = w
		}
	}
	return wait
}

func checkDir(dir string) error {
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("plugin directory %s does not exist: create it or set plugins to another one", dir)
	case err != nil:
		return fmt.Errorf("plugin directory: %w", err)
	case !fi.IsDir():
		return fmt.Errorf("plugin directory %s is a file", dir)
	}
	return nil
}

// Acquire returns what serves a job now. With Ready comes a Plugin that stays usable until
// its Release, whatever happens to the file meanwhile. It is cheap: no lock, no allocation.
func (d *Directory) Acquire(job string) (*Plugin, State) {
	for {
		p, ok := (*d.table.Load())[job]
		switch {
		case !ok:
			return nil, Absent
		case p == nil:
			return nil, Broken
		case p.version.acquire():
			return p, Ready
		}
		// Its last reference went between the two steps, so the table is already another.
	}
}

// Reconfigure applies a configuration that Options.Config returns from now on: handlers
// whose effective settings changed are loaded anew, and versions that were refused get
// another try. It returns what could not be applied, an error for each job; those serve on
// as before. A file that is being written at the moment is left to Run.
func (d *Directory) Reconfigure(ctx context.Context) []error {
	d.mu.Lock()
	d.epoch++
	epoch := d.epoch
	d.mu.Unlock()
	if err := d.loadAll(ctx, epoch); err != nil {
		return []error{err}
	}
	var errs []error
	for _, s := range d.Status() {
		if s.err != nil {
			errs = append(errs, fmt.Errorf("plugin %s: %w", s.Job, s.err))
		}
	}
	return errs
}

// Close takes every job away. Modules are closed once the runs in flight have released
// them. Run must have been stopped before. It is safe to call twice.
func (d *Directory) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.waitIdle()

	d.mu.Lock()
	var gone []*Plugin
	for name, j := range d.jobs {
		if j.serving != nil {
			gone = append(gone, j.serving)
		}
		delete(d.jobs, name)
	}
	d.publish()
	d.mu.Unlock()
	for _, p := range gone {
		p.Release()
	}
}

// publish makes jobs what Acquire sees. The caller holds mu, and releases a Plugin that is
// no longer in the table only afterwards.
func (d *Directory) publish() {
	t := make(map[string]*Plugin, len(d.jobs))
	for name, j := range d.jobs {
		t[name] = j.serving
	}
	d.table.Store(&t)
}
