package rewrite_test

import (
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/guesthand/guesthand/host/engine/rewrite"
)

// BenchmarkMeter runs guests without counters, with yields, and with the depth limit too,
// in turns, and reports the shortest time of each as ratios: means of separate runs would
// mostly show what else the machine did.
func BenchmarkMeter(b *testing.B) {
	speed := read(b, "speed.wasm")
	guests := []struct {
		name, export string
		wasm         []byte
		args         []uint64
	}{
		{"loop-empty", "empty", speed, []uint64{100_000}},
		{"loop-sum", "sum", speed, []uint64{1}},
		{"loop-while", "while", speed, []uint64{1}},
		{"loop-store", "store", speed, []uint64{100_000}},
		{"loop-call", "calls", speed, []uint64{100_000}},
		{"loop-indirect", "indirect", speed, []uint64{100_000}},
		{"fib", "fib", speed, []uint64{22}},
		{"go-json", "json_work", goGuest(b), nil},
		{"go-sum", "sum", goGuest(b), []uint64{1}},
	}
	for _, g := range guests {
		b.Run(g.name, func(b *testing.B) {
			h := newHost(b, wazero.NewRuntimeConfig())
			var best [3]time.Duration
			var funcs [3]api.Function
			for i, wasm := range [][]byte{
				g.wasm,
				meter(b, g.wasm, rewrite.Options{}),
				meter(b, g.wasm, rewrite.Options{MaxDepth: 10000}),
			} {
				funcs[i] = h.start(b, wasm).ExportedFunction(g.export)
				best[i] = time.Hour
			}
			for b.Loop() {
				for i, f := range funcs {
					begun := time.Now()
					if _, err := f.Call(b.Context(), g.args...); err != nil {
						b.Fatal(err)
					}
					best[i] = min(best[i], time.Since(begun))
				}
			}
			b.ReportMetric(float64(best[0]), "plain-ns")
			b.ReportMetric(float64(best[1])/float64(best[0]), "yield-ratio")
			b.ReportMetric(float64(best[2])/float64(best[0]), "yield+depth-ratio")
		})
	}
}

// BenchmarkEvery shows what the yields themselves cost.
func BenchmarkEvery(b *testing.B) {
	wasm := read(b, "speed.wasm")
	for _, every := range []int32{100, 1000, 5000, 50_000} {
		b.Run(strconv.Itoa(int(every)), func(b *testing.B) {
			f := newHost(b, wazero.NewRuntimeConfig()).
				start(b, meter(b, wasm, rewrite.Options{Every: every})).ExportedFunction("store")
			for b.Loop() {
				if _, err := f.Call(b.Context(), 100_000); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRewrite is the time that Meter takes.
func BenchmarkRewrite(b *testing.B) {
	guests := map[string][]byte{"small": read(b, "control.wasm"), "go": goGuest(b)}
	for _, name := range slices.Sorted(maps.Keys(guests)) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(guests[name])))
			b.ReportAllocs()
			var out []byte
			for b.Loop() {
				out = meter(b, guests[name], rewrite.Options{MaxDepth: 10000})
			}
			b.ReportMetric(float64(len(out))/float64(len(guests[name])), "size-ratio")
		})
	}
}
