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
			best := inTurns(b, g.export, g.args,
				g.wasm,
				meter(b, g.wasm, rewrite.Options{}),
				meter(b, g.wasm, rewrite.Options{MaxDepth: 10000}))
			b.ReportMetric(float64(best[0]), "plain-ns")
			b.ReportMetric(float64(best[1])/float64(best[0]), "yield-ratio")
			b.ReportMetric(float64(best[2])/float64(best[0]), "yield+depth-ratio")
		})
	}
}

// BenchmarkEvery shows what the yields themselves cost, against one in 100000 rounds.
func BenchmarkEvery(b *testing.B) {
	everies := []int32{100_000, 100, 1000, 5000, 20_000}
	var wasm [][]byte
	for _, every := range everies {
		wasm = append(wasm, meter(b, read(b, "speed.wasm"), rewrite.Options{Every: every}))
	}
	best := inTurns(b, "empty", []uint64{100_000}, wasm...)
	for i, every := range everies {
		b.ReportMetric(float64(best[i])/float64(best[0]), strconv.Itoa(int(every))+"-ratio")
	}
}

// inTurns calls the export of each module in turn and returns the shortest time of each.
func inTurns(b *testing.B, export string, args []uint64, wasm ...[]byte) []time.Duration {
	b.Helper()
	h := newHost(b, wazero.NewRuntimeConfig())
	best := make([]time.Duration, len(wasm))
	funcs := make([]api.Function, len(wasm))
	for i, w := range wasm {
		funcs[i] = h.start(b, w).ExportedFunction(export)
		best[i] = time.Hour
	}
	for b.Loop() {
		for i, f := range funcs {
			begun := time.Now()
			if _, err := f.Call(b.Context(), args...); err != nil {
				b.Fatal(err)
			}
			best[i] = min(best[i], time.Since(begun))
		}
	}
	return best
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
