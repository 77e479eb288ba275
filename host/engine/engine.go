package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/guesthand/guesthand/host/engine/rewrite"
)

// yieldEvery is how many loop heads and function entries a metered module passes between
// two looks at the clock: well under a millisecond of the tightest loop.
const yieldEvery = 5000

// ErrClosed is returned by Load after Close.
var ErrClosed = errors.New("engine is closed")

// Engine compiles modules and keeps the compiled code. Its methods may be called
// concurrently.
type Engine struct {
	logger *slog.Logger
	cache  *codeCache

	meter func(core []byte, depth int) ([]byte, error)

	// compiling is held while wazero compiles or drops code: it compiles one module with
	// every core, and its counting of shared code does not like both at once.
	compiling sync.Mutex

	mu       sync.Mutex
	closed   bool
	released bool     // the runtimes too
	metered  *machine // for modules with injected counters
	checked  *machine // close-on-context-done, for those that were not understood
	codes    map[codeKey]*code
	modules  map[*Module]struct{}
}

// New makes an engine. A cache directory that cannot be used is logged and done without.
func New(o Options) (*Engine, error) {
	logger := o.Logger
	if logger == nil {
		logger = slog.Default()
	}
	cache, err := openCodeCache(o.CacheDir, logger)
	if err != nil {
		logger.Warn("compiled code is not kept", "dir", o.CacheDir, "err", err)
		cache = &codeCache{logger: logger, wazero: wazero.NewCompilationCache()}
	}
	e := &Engine{
		logger:  logger,
		cache:   cache,
		meter:   meter,
		codes:   map[codeKey]*code{},
		modules: map[*Module]struct{}{},
	}
	if e.metered, err = newMachine(cache.wazero, false); err != nil {
		return nil, errors.Join(fmt.Errorf("start wazero: %w", err), cache.close())
	}
	return e, nil
}

// Close unloads every module, waits for the runs in flight and releases everything. When
// ctx ends first it returns its error and leaves the engine to those runs; the caller
// stops them and closes again.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	open := make([]*Module, 0, len(e.modules))
	for m := range e.modules {
		open = append(open, m)
	}
	e.mu.Unlock()
	for _, m := range open {
		m.Close()
	}
	for _, m := range open {
		select {
		case <-m.gone:
		case <-ctx.Done():
			return fmt.Errorf("close engine: runs still in flight: %w", ctx.Err())
		}
	}
	e.compiling.Lock() // a Load that began before may still be at it
	defer e.compiling.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.released {
		return nil
	}
	e.released = true
	return errors.Join(e.metered.close(), e.checked.close(), e.cache.close())
}

// machine is one wazero runtime with the host modules guests import.
type machine struct {
	runtime wazero.Runtime
	// closesOnDone is true where wazero itself ends a run when its context is done.
	closesOnDone bool
	// imports are the functions a guest may import, by module and name.
	imports map[string]map[string]api.FunctionDefinition
}

func newMachine(cache wazero.CompilationCache, closesOnDone bool) (*machine, error) {
	ctx := context.Background()
	config := wazero.NewRuntimeConfig().
		WithCompilationCache(cache).
		WithCloseOnContextDone(closesOnDone).
		WithDebugInfoEnabled(false)
	m := &machine{
		runtime:      wazero.NewRuntimeWithConfig(ctx, config),
		closesOnDone: closesOnDone,
		imports:      map[string]map[string]api.FunctionDefinition{},
	}
	for _, name := range hostModules {
		compiled, err := hostModule(m.runtime, name).Compile(ctx)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("host module %s: %w", name, err), m.close())
		}
		m.imports[name] = compiled.ExportedFunctions()
		if _, err := m.runtime.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithName(name)); err != nil {
			return nil, errors.Join(fmt.Errorf("host module %s: %w", name, err), m.close())
		}
	}
	return m, nil
}

func (m *machine) close() error {
	if m == nil {
		return nil
	}
	return m.runtime.Close(context.Background())
}

// codeKey names compiled code: the module without its custom sections, and the call depth
// that is compiled in.
type codeKey struct {
	core  [sha256.Size]byte
	depth int
}

// code is a compiled module, shared by every Module loaded from the same bytes.
type code struct {
	key  codeKey
	refs int // under Engine.mu

	ready    chan struct{} // closed when the fields below are set
	err      error
	compiled wazero.CompiledModule
	machine  *machine
	note     string
	shift    int // how many imports were added in front of the module's own functions
}

// acquire returns the compiled code of a core module, compiling it unless somebody has or
// does.
func (e *Engine) acquire(ctx context.Context, core []byte, imported, depth int) (*code, error) {
	key := codeKey{core: sha256.Sum256(core), depth: depth}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, ErrClosed
	}
	c := e.codes[key]
	if c != nil {
		c.refs++
		e.mu.Unlock()
	} else {
		c = &code{key: key, refs: 1, ready: make(chan struct{})}
		e.codes[key] = c
		e.mu.Unlock()
		e.build(c, core, imported)
		close(c.ready)
	}
	select {
	case <-c.ready:
	case <-ctx.Done():
		go func() { <-c.ready; e.release(c) }()
		return nil, ctx.Err()
	}
	if c.err != nil {
		e.release(c)
		return nil, c.err
	}
	return c, nil
}

// release gives compiled code back; the last one drops it.
func (e *Engine) release(c *code) {
	e.mu.Lock()
	c.refs--
	last := c.refs == 0
	if last {
		delete(e.codes, c.key)
	}
	e.mu.Unlock()
	if last && c.compiled != nil {
		e.compiling.Lock()
		defer e.compiling.Unlock()
		if err := c.compiled.Close(context.Background()); err != nil {
			e.logger.Warn("compiled code could not be dropped", "err", err)
		}
	}
}

// build compiles a core module into c: metered if the rewriter understands it, else with
// wazero's own, slower check.
func (e *Engine) build(c *code, core []byte, imported int) {
	e.compiling.Lock()
	defer e.compiling.Unlock()
	if e.isClosed() {
		c.err = ErrClosed
		return
	}
	metered, err := e.meter(core, c.key.depth)
	switch {
	case err == nil:
		c.machine = e.metered
		if c.compiled, c.err = e.compile(e.metered, metered); c.err == nil {
			c.shift = len(c.compiled.ImportedFunctions()) - imported
		}
		return
	case !errors.Is(err, rewrite.ErrUnknown):
		c.err = refuse("not a valid module: %v", err)
		return
	}
	c.note = err.Error()
	if c.machine, c.err = e.fallback(); c.err != nil {
		return
	}
	bounded, err := clampTables(core)
	if err != nil {
		c.err = refuse("not a valid module: %v", err)
		return
	}
	c.compiled, c.err = e.compile(c.machine, bounded)
}

// meter adds the counters by which a run is stopped. A module that is malformed is refused,
// one that is not understood runs under wazero's own check.
func meter(core []byte, depth int) ([]byte, error) {
	return rewrite.Meter(core, rewrite.Options{Every: yieldEvery, MaxDepth: int32(min(depth, math.MaxInt32))})
}

func (e *Engine) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// fallback is the runtime for modules that are not metered, made when first needed.
func (e *Engine) fallback() (*machine, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.checked == nil {
		m, err := newMachine(e.cache.wazero, true)
		if err != nil {
			return nil, fmt.Errorf("start wazero: %w", err)
		}
		e.checked = m
	}
	return e.checked, nil
}

// compile compiles one module, mending the code cache where that is what fails.
func (e *Engine) compile(m *machine, wasm []byte) (wazero.CompiledModule, error) {
	compiled, err := compileOnce(m.runtime, wasm)
	if err != nil && e.cache.mend(wasm, err) {
		compiled, err = compileOnce(m.runtime, wasm)
	}
	if err != nil {
		return nil, &RefusedError{Reason: "not a valid module: " + firstLine(err.Error())}
	}
	return compiled, nil
}

// compileOnce turns a panic of the compiler into an error: it reads what a stranger wrote.
func compileOnce(r wazero.Runtime, wasm []byte) (compiled wazero.CompiledModule, err error) {
	defer func() {
		if p := recover(); p != nil {
			compiled, err = nil, fmt.Errorf("the compiler gave up: %v", p)
		}
	}()
	ctx := experimental.WithCompilationWorkers(context.Background(), runtime.GOMAXPROCS(0))
	return r.CompileModule(ctx, wasm)
}

// Inspect explains a module without compiling it, whatever memory a handler may have. For a
// module that cannot be loaded it returns what it found out so far and a *RefusedError.
func (e *Engine) Inspect(wasm []byte) (ModuleInfo, error) {
	cfg := Config{Memory: math.MaxUint64}.withDefaults()
	l, err := e.examine(wasm, cfg)
	if err != nil {
		return l.info, err
	}
	_, err = e.meter(l.core, cfg.CallDepth)
	switch {
	case err == nil:
		l.info.Metered = true
	case errors.Is(err, rewrite.ErrUnknown):
		l.info.Note = err.Error()
	default:
		return l.info, refuse("not a valid module: %v", err)
	}
	return l.info, nil
}

// Load decodes, checks, rewrites and compiles a module for one handler. Loads of the same
// bytes share the compiled code. A module that cannot be loaded is a *RefusedError; any
// other error is ctx's or the engine's own. The module must be closed.
func (e *Engine) Load(ctx context.Context, wasm []byte, cfg Config) (*Module, error) {
	cfg = cfg.withDefaults()
	l, err := e.examine(wasm, cfg)
	if err != nil {
		return nil, err
	}
	c, err := e.acquire(ctx, l.core, l.decoded.importedFuncs, cfg.CallDepth)
	if err != nil {
		return nil, err
	}
	l.info.Metered, l.info.Note = !c.machine.closesOnDone, c.note
	m := newModule(e, cfg, l, c)
	e.mu.Lock()
	closed := e.closed
	if !closed {
		e.modules[m] = struct{}{}
	}
	e.mu.Unlock()
	if closed {
		e.release(c)
		return nil, ErrClosed
	}
	return m, nil
}

// loadable is a module that has been read and checked, and not yet compiled.
type loadable struct {
	info     ModuleInfo
	decoded  decoded
	core     []byte // without custom sections
	sections map[string][]byte
}

// examine reads a module and checks all that can be checked without compiling it.
func (e *Engine) examine(wasm []byte, cfg Config) (loadable, error) {
	digest := sha256.Sum256(wasm)
	l := loadable{info: ModuleInfo{Digest: hex.EncodeToString(digest[:]), Size: len(wasm)}}
	if err := checkHeader(wasm); err != nil {
		return l, err
	}
	core, sections, err := rewrite.Strip(wasm)
	if err != nil {
		return l, refuse("not a valid module: %v", err)
	}
	l.core, l.sections = core, sections
	l.info.Sections = make(map[string]int, len(sections))
	for name, data := range sections {
		l.info.Sections[name] = len(data)
	}
	l.decoded, err = decodeModule(core)
	l.decoded.describe(&l.info)
	if err != nil {
		return l, refuse("not a valid module: %v", err)
	}
	err = e.check(&l.decoded, &l.info, cfg)
	l.info.Instances, l.info.InstancesWhy = expectedInstances(&l.info, cfg)
	return l, err
}
