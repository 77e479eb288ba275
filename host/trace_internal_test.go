package host

import (
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/engine"
)

// What is not traced costs no allocation.
func TestUntracedCostsNothing(t *testing.T) {
	a := &attempt{q: &queue{host: &Host{}, name: "q"}, h: &held{d: &drivers.Delivery{ID: "1"}}, job: "j"}
	in := engine.Input{Headers: drivers.Header{"traceparent": {"00-1-2-01"}}}
	if n := testing.AllocsPerRun(100, func() { a.traced(); a.traceRun(&in) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if v, _ := in.Headers.Get("traceparent"); v != "00-1-2-01" {
		t.Errorf("the producer's traceparent became %q", v)
	}
}
