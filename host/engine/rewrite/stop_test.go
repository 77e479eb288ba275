package rewrite_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/guesthand/guesthand/host/engine/rewrite"
)

func TestYieldStops(t *testing.T) {
	hostile := meter(t, read(t, "hostile.wasm"), rewrite.Options{MaxDepth: 10000})
	engines := map[string]wazero.RuntimeConfig{
		"compiler":    wazero.NewRuntimeConfig(),
		"interpreter": wazero.NewRuntimeConfigInterpreter(),
	}
	exports := []string{
		"loop", "loop_calls", "loop_table", "loop_if", "loop_nested",
		"recursion", "indirect", "chain",
	}
	for name, config := range engines {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, config)
			for _, export := range exports {
				f := h.start(t, hostile).ExportedFunction(export)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				begun := time.Now()
				_, err := f.Call(ctx, make([]uint64, len(f.Definition().ParamTypes()))...)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: ended with %v", export, err)
				}
				if d := time.Since(begun); d > time.Second {
					t.Errorf("%s: stopped after %v", export, d)
				}
			}
		})
	}
}

func TestYieldStopsGo(t *testing.T) {
	h := newHost(t, wazero.NewRuntimeConfig())
	m := h.start(t, meter(t, goGuest(t), goOptions))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := m.ExportedFunction("spin").Call(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ended with %v", err)
	}
}

func TestDepthStops(t *testing.T) {
	hostile := meter(t, read(t, "hostile.wasm"), rewrite.Options{MaxDepth: 10000})
	h := newHost(t, wazero.NewRuntimeConfig())
	for _, export := range []string{"deep", "deep_mutual", "deep_indirect"} {
		m := h.start(t, hostile)
		before := allocated()
		begun := time.Now()
		if _, err := m.ExportedFunction(export).Call(t.Context()); !errors.Is(err, errDepth) {
			t.Errorf("%s: ended with %v", export, err)
		}
		// Without the limit it takes a third of a second and 121 MiB.
		if d := time.Since(begun); d > time.Second {
			t.Errorf("%s: stopped after %v", export, d)
		}
		if n := allocated() - before; n > 32<<20 {
			t.Errorf("%s: allocated %d bytes", export, n)
		}
	}
}

func TestDepthStopsGo(t *testing.T) {
	h := newHost(t, wazero.NewRuntimeConfig())
	m := h.start(t, meter(t, goGuest(t), goOptions))
	if _, err := m.ExportedFunction("deep").Call(t.Context()); !errors.Is(err, errDepth) {
		t.Errorf("ended with %v", err)
	}
}

func allocated() uint64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.TotalAlloc
}

func TestDepthIsExact(t *testing.T) {
	const depth = 100
	h := newHost(t, wazero.NewRuntimeConfig())
	m := h.start(t, meter(t, read(t, "hostile.wasm"), rewrite.Options{MaxDepth: depth}))
	limited := m.ExportedFunction("limited")
	// limited(n) nests n+1 calls. Many rounds, because nothing may be left over from one
	// call to the next.
	for range 3 * depth {
		if res, err := limited.Call(t.Context(), depth-1); err != nil || res[0] != depth-1 {
			t.Fatalf("%d nested calls: %v, %v", depth, res, err)
		}
	}
	if _, err := limited.Call(t.Context(), depth); !errors.Is(err, errDepth) {
		t.Errorf("%d nested calls: %v", depth+1, err)
	}
}

func TestEvery(t *testing.T) {
	tests := []struct {
		export  string
		arg     uint64
		charges int
	}{
		{"sum", 65535, 65537},
		// Entry, outer and inner loop, and entry and loop of the callee.
		{"cube", 0, 1 + 100 + 100*100*(1+1+100)},
	}
	for _, test := range tests {
		for _, every := range []int32{1, 2, 100, 5000} {
			h := newHost(t, wazero.NewRuntimeConfig())
			m := h.start(t, meter(t, read(t, "control.wasm"), rewrite.Options{Every: every}))
			if _, err := m.ExportedFunction(test.export).Call(t.Context(), test.arg); err != nil {
				t.Fatal(err)
			}
			if want := test.charges / int(every); h.yields != want {
				t.Errorf("%s every %d: %d yields, want %d", test.export, every, h.yields, want)
			}
		}
	}
}
