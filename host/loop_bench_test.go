package host_test

import (
	"slices"
	"testing"
	"time"
)

// BenchmarkBesideALoop tells what an endless loop does to a healthy handler of the same
// queue: the 99th percentile of the time from sending a message to its settlement.
func BenchmarkBesideALoop(b *testing.B) {
	for _, loops := range []int{0, 1} {
		name := map[int]string{0: "alone", 1: "beside-a-loop"}[loops]
		b.Run(name, func(b *testing.B) {
			r := newRig(b, quick+"[handlers.bad]\ntimeout = \"5m\"\n")
			r.install("bad")
			r.install("puppet")
			h := r.start()
			for range loops {
				h.send("bad", "loop")
			}
			took := make([]time.Duration, 0, b.N)
			for b.Loop() {
				before := h.Settled()
				began := time.Now()
				h.send("puppet", "0")
				for h.Settled() == before {
					time.Sleep(20 * time.Microsecond)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
}
