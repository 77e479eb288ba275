package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero/api"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/engine/rewrite"
)

func refuse(format string, args ...any) error {
	return &RefusedError{Reason: fmt.Sprintf(format, args...)}
}

// moduleHeader is how a core module begins: magic and version 1.
const moduleHeader = "\x00asm\x01\x00\x00\x00"

// checkHeader tells apart the files that people drop by mistake.
func checkHeader(wasm []byte) error {
	head := string(wasm[:min(len(wasm), len(moduleHeader))])
	switch {
	case len(wasm) == 0:
		return refuse("the file is empty: a WebAssembly module is needed")
	case head == moduleHeader:
		return nil
	case head == "\x00asm\x0d\x00\x01\x00":
		return refuse("this is a WebAssembly component: a core module is needed, built for WASI preview 1 (wasip1)")
	case strings.HasPrefix(moduleHeader, head):
		return refuse("the file ends after %d bytes: it is incomplete", len(wasm))
	case strings.HasPrefix(head, "\x00asm"):
		return refuse("the module's format version is unknown: version 1 is needed")
	case strings.HasPrefix(strings.TrimLeft(string(wasm[:min(len(wasm), 1024)]), " \t\r\n"), "(module"):
		return refuse("this is WebAssembly text: translate it first, with wat2wasm for example")
	}
	return refuse("this is no WebAssembly module: it begins with % x, a module with 00 61 73 6d", head[:min(4, len(head))])
}

// maxTable is the most elements a table may have: a function each, and no toolchain comes
// near. Unlike memory, tables are not counted against a handler's memory limit.
const maxTable = rewrite.MaxTable

// check decides whether a module that was decoded can be loaded, and its dialect.
func (e *Engine) check(d *decoded, info *ModuleInfo, cfg Config) error {
	for _, step := range []func(*decoded, *ModuleInfo, Config) error{
		checkDialect, e.checkImports, checkMemory, checkEntry,
	} {
		if err := step(d, info, cfg); err != nil {
			return err
		}
	}
	return nil
}

const (
	startExport      = "_start"
	initializeExport = "_initialize"
	memoryExport     = "memory"
)

// dialectOf tells the dialect from imports and exports; "" is none.
func dialectOf(d *decoded) Dialect {
	switch {
	case slices.ContainsFunc(d.imports, func(i importEntry) bool { return i.module == extismModule }):
		return Extism
	case d.exports[abi.HandleExport] != nil:
		return Native
	case d.exports[startExport] != nil:
		return Command
	}
	return ""
}

func checkDialect(_ *decoded, info *ModuleInfo, cfg Config) error {
	switch {
	case cfg.Function != "" && (info.Dialect == Native || info.Dialect == Command):
		return refuse("function = %q is for Extism plug-ins, and this is a %s module: leave it out", cfg.Function, info.Dialect)
	case info.Dialect == "":
		return refuse("neither handle nor _start is exported: a native module exports handle: () -> i64, a command _start: () -> ()")
	}
	return nil
}

// checkEntry finds the function that takes the messages, and checks it and what starts an
// instance.
func checkEntry(d *decoded, info *ModuleInfo, cfg Config) (err error) {
	entry := startExport
	switch info.Dialect {
	case Native:
		entry = abi.HandleExport
		err = d.checkExport(entry, funcType{results: []byte{api.ValueTypeI64}})
	case Extism:
		entry, err = d.chooseEntry(cfg.Function)
	default:
		err = d.checkExport(entry, funcType{})
	}
	if err != nil {
		return err
	}
	info.Entry = entry
	if info.Dialect == Command || d.exports[initializeExport] == nil {
		return nil
	}
	return d.checkExport(initializeExport, funcType{})
}

// checkExport wants a function of exactly that type.
func (d *decoded) checkExport(name string, want funcType) error {
	ex := d.exports[name]
	if ex.kind != kindFunc {
		return refuse("the export %s is no function: %s: %s is needed", name, name, want)
	}
	got, ok := d.typeOf(ex.index)
	if !ok {
		return refuse("the exported function %s has a type that is not understood: %s is needed", name, want)
	}
	if !got.equal(want) {
		return refuse("the exported function %s is %s: %s is needed", name, got, want)
	}
	return nil
}

func checkMemory(d *decoded, info *ModuleInfo, cfg Config) error {
	for _, mem := range append(slices.Clip(d.memories), d.tables...) {
		switch {
		case mem.is64:
			return refuse("memory64 is not supported: compile for wasm32")
		case mem.shared:
			return refuse("shared memory (threads) is not supported: compile without threads")
		}
	}
	for _, t := range d.tables {
		if t.min > maxTable {
			return refuse("a table of %d elements is over the limit of %d", t.min, maxTable)
		}
	}
	ex := d.exports[memoryExport]
	switch {
	case info.Dialect == Extism && len(d.memories) == 0: // it works on the host's blocks
	case len(d.memories) == 0:
		return refuse("the module has no memory: it must export one named memory")
	case len(d.memories) > 1:
		return refuse("the module has %d memories: exactly one is supported", len(d.memories))
	case info.Dialect != Extism && (ex == nil || ex.kind != kindMemory):
		return refuse("the module's memory is not exported: it must be exported under the name memory")
	case info.MinMemory > cfg.Memory:
		return refuse("the module needs %s of memory to start, the limit is %s: raise the handler's memory",
			sizeText(info.MinMemory), sizeText(cfg.Memory))
	}
	return nil
}

// checkImports wants every import to be a function that exists here, of the same type.
func (e *Engine) checkImports(d *decoded, _ *ModuleInfo, _ Config) error {
	for _, im := range d.imports {
		full := im.module + "." + im.name
		if im.kind != kindFunc {
			return refuse("the import %s is a %s: only functions can be imported, a module brings its own memory and tables", full, im.kind)
		}
		switch im.module {
		case controlModule:
			return refuse("the import module %s is the host's own", controlModule)
		case "wasi_unstable":
			return refuse("the import module wasi_unstable is WASI's obsolete first snapshot: compile for wasi_snapshot_preview1 (wasip1)")
		}
		if im.module == extismUserModule {
			return refuse("the import %s is a function of the application that the plug-in was made for: guesthand offers those of %s and %s",
				full, extismModule, abi.Module)
		}
		names, ok := e.metered.imports[im.module]
		if !ok {
			return refuse("the import %s is unknown: there are %s, %s, wasi_snapshot_preview1 and env.abort", full, abi.Module, extismModule)
		}
		def, ok := names[im.name]
		if !ok {
			return refuse("the import %s is unknown: %s has %s", full, im.module,
				strings.Join(slices.Sorted(maps.Keys(names)), ", "))
		}
		want := funcType{params: def.ParamTypes(), results: def.ResultTypes()}
		got, ok := d.typeAt(im.typeIndex)
		if !ok || !got.equal(want) {
			return refuse("the import %s is declared as %s: it is %s", full, got, want)
		}
	}
	return nil
}

// sizeText is a size as the configuration would say it.
func sizeText(n uint64) string {
	for _, u := range []struct {
		size uint64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size && n%u.size == 0 {
			return fmt.Sprintf("%d %s", n/u.size, u.name)
		}
	}
	if n >= 1<<20 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
