package engine_test

import (
	"context"
	"crypto/rand"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/engine"
)

// BenchmarkNativeNoop1KiB is a whole run of a handler that reads its payload, on a reused
// instance, with the deadline enforced. Compare with BenchmarkBareWazero.
func BenchmarkNativeNoop1KiB(b *testing.B) {
	e := newEngine(b, engine.Options{})
	m := load(b, e, wat(b, "noop"), engine.Config{Instances: engine.Reuse})
	in := engine.Input{Payload: make([]byte, 1024)}
	var c engine.Call
	b.ReportAllocs()
	for b.Loop() {
		c.Reset(in)
		if r := m.Run(&c); r.End.Cause != abi.Returned {
			b.Fatal(r.End)
		}
	}
}

// BenchmarkBareWazero calls the same guest with nothing but wazero and a copy of the payload.
func BenchmarkBareWazero(b *testing.B) {
	ctx := context.Background()
	r := wazero.NewRuntime(ctx)
	defer r.Close(ctx)
	payload := make([]byte, 1024)
	read := func(_ context.Context, mod api.Module, stack []uint64) {
		dst, _ := mod.Memory().Read(uint32(stack[0]), uint32(stack[1]))
		stack[0] = uint64(copy(dst, payload[min(len(payload), int(uint32(stack[2]))):]))
	}
	i32 := api.ValueTypeI32
	_, err := r.NewHostModuleBuilder(abi.Module).NewFunctionBuilder().
		WithGoModuleFunction(api.GoModuleFunc(read), []api.ValueType{i32, i32, i32}, []api.ValueType{i32}).
		Export("payload_read").Instantiate(ctx)
	if err != nil {
		b.Fatal(err)
	}
	mod, err := r.InstantiateWithConfig(ctx, wat(b, "noop"), wazero.NewModuleConfig().WithRandSource(rand.Reader))
	if err != nil {
		b.Fatal(err)
	}
	handle := mod.ExportedFunction(abi.HandleExport)
	var stack [1]uint64
	b.ReportAllocs()
	for b.Loop() {
		if err := handle.CallWithStack(ctx, stack[:]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNativeFresh1KiB is the same with a fresh instance for each message.
func BenchmarkNativeFresh1KiB(b *testing.B) {
	e := newEngine(b, engine.Options{})
	m := load(b, e, wat(b, "noop"), engine.Config{Instances: engine.Fresh})
	in := engine.Input{Payload: make([]byte, 1024)}
	var c engine.Call
	b.ReportAllocs()
	for b.Loop() {
		c.Reset(in)
		if r := m.Run(&c); r.End.Cause != abi.Returned {
			b.Fatal(r.End)
		}
	}
}

// BenchmarkGoNoop is a reused Go handler; BenchmarkGoFresh starts one for each message.
func BenchmarkGoNoop(b *testing.B)  { benchmarkGo(b, engine.Reuse) }
func BenchmarkGoFresh(b *testing.B) { benchmarkGo(b, engine.Fresh) }

func benchmarkGo(b *testing.B, mode engine.Instances) {
	e := newEngine(b, engine.Options{})
	m := load(b, e, goGuest(b, "native"), engine.Config{Instances: mode})
	in := engine.Input{Payload: []byte("hello")}
	var c engine.Call
	b.ReportAllocs()
	for b.Loop() {
		c.Reset(in)
		if r := m.Run(&c); r.End.Cause != abi.Returned {
			b.Fatal(r.End)
		}
	}
}
