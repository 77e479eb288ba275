package engine

import (
	"context"
	"fmt"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/engine/rewrite"
)

const (
	// controlModule is imported by metered code only; a guest that asks for it is refused.
	controlModule = rewrite.YieldModule
	envModule     = "env"
)

// hostModules are what guests can import.
var hostModules = []string{controlModule, abi.Module, extismModule, envModule, wasi_snapshot_preview1.ModuleName}

const (
	i32 = api.ValueTypeI32
	i64 = api.ValueTypeI64
)

// hostFunc is a function guests import. It reads its parameters from the stack and leaves
// its result there.
type hostFunc struct {
	name            string
	params, results []api.ValueType
	call            func(c *Call, mod api.Module, stack []uint64)
}

func hostModule(r wazero.Runtime, name string) wazero.HostModuleBuilder {
	b := r.NewHostModuleBuilder(name)
	switch name {
	case controlModule:
		export(b, controlFuncs)
	case envModule:
		export(b, envFuncs)
	case abi.Module:
		export(b, nativeFuncs)
	case extismModule:
		export(b, extismFuncs)
	case wasi_snapshot_preview1.ModuleName:
		wasi_snapshot_preview1.NewFunctionExporter().ExportFunctions(b)
		export(b, wasiFuncs)
	}
	return b
}

func export(b wazero.HostModuleBuilder, funcs []hostFunc) {
	for _, f := range funcs {
		b.NewFunctionBuilder().
			WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, stack []uint64) {
				f.call(callOf(ctx), mod, stack)
			}), f.params, f.results).
			Export(f.name)
	}
}

// controlFuncs are called by the counters that the rewriter injects.
var controlFuncs = []hostFunc{
	{name: rewrite.YieldName, call: func(c *Call, _ api.Module, _ []uint64) { c.check() }},
	{name: rewrite.DepthName, call: func(c *Call, _ api.Module, _ []uint64) {
		c.abort(abi.Limit, fmt.Sprintf("call depth of %d exceeded", c.run.m.cfg.CallDepth))
	}},
}

// envFuncs holds what AssemblyScript's runtime imports by default.
var envFuncs = []hostFunc{
	{name: "abort", params: []api.ValueType{i32, i32, i32, i32}, call: assemblyScriptAbort},
}

// assemblyScriptAbort traps with the message, which like the file's name is UTF-16 with its
// length in bytes in the four bytes before it.
func assemblyScriptAbort(c *Call, mod api.Module, stack []uint64) {
	message := assemblyScriptString(mod, uint32(stack[0]))
	file := assemblyScriptString(mod, uint32(stack[1]))
	text := "trap: abort"
	if message != "" {
		text += ": " + message
	}
	if file != "" {
		text += fmt.Sprintf(" at %s:%d:%d", file, uint32(stack[2]), uint32(stack[3]))
	}
	c.abort(abi.Trap, text)
}

// slice is a range of the guest's memory; one that is not all inside ends the run.
func (c *Call) slice(mod api.Module, what string, ptr, n uint64) []byte {
	b, ok := mod.Memory().Read(uint32(ptr), uint32(n))
	if !ok {
		c.abort(abi.Trap, "trap: out of bounds memory access in "+what)
	}
	return b
}

// costly is how many bytes a host function may touch without looking at the clock.
const costly = 16 << 10

// charge looks at the clock after a host function that touched that many bytes: thousands
// of calls may come before the guest yields.
func (c *Call) charge(bytes int) {
	if bytes > costly {
		c.check()
	}
}

// result leaves an i32 on the stack.
func result(stack []uint64, v int32) { stack[0] = uint64(uint32(v)) }
