package rabbitdriver

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestHops walks delays through the hold queues: never too early, late by a second or 5 % at
// most, in few hops.
func TestHops(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := time.Duration(rapid.Int64Range(1, int64(365*24*time.Hour)).Draw(t, "delay"))
		most := rapid.IntRange(0, maxStep).Draw(t, "longest")
		waited, hops := time.Duration(0), 0
		for waited < whole && hops < 40 {
			waited += holdTime(hop(whole-waited, whole, most))
			hops++
		}
		longest := int(whole / holdTime(most))
		if late := waited - whole; waited < whole && hops < 40 || late > max(time.Second, whole/overshoot) {
			t.Fatalf("%s waits %s in %d hops", whole, waited, hops)
		}
		if hops > longest+6 {
			t.Fatalf("%s takes %d hops of at most %s", whole, hops, holdTime(most))
		}
	})
}

func TestMaxStepFor(t *testing.T) {
	for limit, want := range map[time.Duration]int{
		time.Millisecond: 0, time.Second: 0, 3 * time.Second: 1, 4 * time.Second: 2, 1000 * 24 * time.Hour: maxStep,
	} {
		if got := maxStepFor(limit); got != want {
			t.Errorf("%s: %d, want %d", limit, got, want)
		}
	}
}

func TestAtLeast(t *testing.T) {
	for _, c := range []struct {
		version string
		want    bool
	}{{"3.10.8", true}, {"3.9.27", false}, {"4.0.0", true}, {"3.13", true}, {"3.10.0-rc.1", true}, {"nonsense", false}} {
		if got := atLeast(c.version, MinimumServer); got != c.want {
			t.Errorf("%s: %t", c.version, got)
		}
	}
}
