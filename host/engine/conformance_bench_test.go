package engine_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/engine"
)

// summed is what each language does in the benchmarks: read 100 bytes, add them up, write the sum.
var summed = append([]byte("sum\n"), make([]byte, 96)...)

// BenchmarkLanguages runs the conformance handler of each language through the engine, and tells
// how many times as long that takes as the same on bare wazero (x-bare): the module called with
// nothing around it, or for fresh instances and commands also instantiated for each message, without
// a deadline that holds.
func BenchmarkLanguages(b *testing.B) {
	for _, g := range guests {
		modes := []engine.Instances{engine.Reuse, engine.Fresh}
		if g.dialect == engine.Command {
			modes = modes[1:]
		}
		for _, mode := range modes {
			b.Run(g.name+"/"+string(mode), func(b *testing.B) { benchmarkLanguage(b, g, mode) })
		}
	}
}

func benchmarkLanguage(b *testing.B, g guest, mode engine.Instances) {
	wasm := g.module(b)
	m := load(b, newEngine(b, engine.Options{}), wasm, engine.Config{Job: "conform", Instances: mode})
	if err := m.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	bare := bestOf(bareRuns(b, g, wasm, mode))
	var c engine.Call
	for b.Loop() {
		c.Reset(engine.Input{Payload: summed})
		if r := m.Run(&c); r.End.Cause != abi.Returned || string(r.Output) != "0" {
			b.Fatal(r.End, string(r.Output))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(bare.Nanoseconds()), "x-bare")
}

// bestOf is the least time of one call in several rounds, so that a busy moment does not count.
func bestOf(call func()) time.Duration {
	best := time.Duration(1<<63 - 1)
	for range 10 {
		start, n := time.Now(), 0
		for ; time.Since(start) < 20*time.Millisecond; n++ {
			call()
		}
		best = min(best, time.Since(start)/time.Duration(n))
	}
	return max(best, 1)
}

// bareRuns makes one run of the handler on wazero alone.
func bareRuns(b *testing.B, g guest, wasm []byte, mode engine.Instances) func() {
	ctx := context.Background()
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().WithCustomSections(true))
	b.Cleanup(func() { r.Close(ctx) })
	wasi_snapshot_preview1.MustInstantiate(ctx, r)
	code, err := r.CompileModule(ctx, wasm)
	if err != nil {
		b.Fatal(err)
	}
	bareHost(b, r, code)
	cfg := wazero.NewModuleConfig().WithName("").WithRandSource(rand.Reader).WithStartFunctions("_initialize")
	if g.dialect == engine.Command {
		cfg = cfg.WithStartFunctions("_start")
	}
	instance := func() api.Module {
		mod, err := r.InstantiateModule(ctx, code, cfg)
		if err != nil && g.dialect != engine.Command { // a command may exit, with 0
			b.Fatal(err)
		}
		return mod
	}
	call := func(handle api.Function, stack []uint64) {
		if err := handle.CallWithStack(ctx, stack); err != nil || stack[0] != 0 {
			b.Fatal(err, stack[0])
		}
	}
	switch {
	case g.dialect == engine.Command:
		return func() {
			if mod := instance(); mod != nil {
				mod.Close(ctx)
			}
		}
	case mode == engine.Fresh:
		return func() {
			mod := instance()
			call(mod.ExportedFunction("handle"), make([]uint64, 1))
			mod.Close(ctx)
		}
	}
	handle, stack := instance().ExportedFunction("handle"), make([]uint64, 1)
	return func() { call(handle, stack) }
}

// bareHost is the least that the handler needs: the payload, custom sections, and a result that
// is thrown away.
func bareHost(b *testing.B, r wazero.Runtime, code wazero.CompiledModule) {
	functions := map[string]func(api.Module, []uint64){
		"payload_size": func(_ api.Module, stack []uint64) { stack[0] = uint64(len(summed)) },
		"payload_read": func(mod api.Module, stack []uint64) {
			dst, _ := mod.Memory().Read(uint32(stack[0]), uint32(stack[1]))
			stack[0] = uint64(copy(dst, summed[min(len(summed), int(uint32(stack[2]))):]))
		},
		"attribute_read": func(mod api.Module, stack []uint64) {
			name, _ := mod.Memory().Read(uint32(stack[0]), uint32(stack[1]))
			dst, _ := mod.Memory().Read(uint32(stack[2]), uint32(stack[3]))
			stack[0] = 1<<32 - 1
			for _, s := range code.CustomSections() {
				if "section."+s.Name() == string(name) {
					copy(dst, s.Data())
					stack[0] = uint64(len(s.Data()))
				}
			}
		},
	}
	modules := map[string]wazero.HostModuleBuilder{}
	for _, f := range code.ImportedFunctions() {
		module, name, _ := f.Import()
		if module == wasi_snapshot_preview1.ModuleName {
			continue
		}
		if modules[module] == nil {
			modules[module] = r.NewHostModuleBuilder(module)
		}
		do := functions[name]
		if do == nil {
			do = func(_ api.Module, stack []uint64) {
				if len(stack) > 0 {
					stack[0] = 0
				}
			}
		}
		modules[module].NewFunctionBuilder().
			WithGoModuleFunction(api.GoModuleFunc(func(_ context.Context, mod api.Module, stack []uint64) { do(mod, stack) }),
				f.ParamTypes(), f.ResultTypes()).Export(name)
	}
	for _, m := range modules {
		if _, err := m.Instantiate(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
