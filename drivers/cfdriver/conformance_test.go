package cfdriver_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/cfdriver"
	"github.com/guesthand/guesthand/drivers/cfdriver/cftest"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/memdriver"
)

func harness(s *cftest.Server, isForeign bool, store drivers.KeyValue) *drivertest.Harness {
	h := &drivertest.Harness{
		Caps: cfdriver.Caps(), Lease: 2 * time.Second, Hammer: 600, DepthOnly: true,
		RejectReturns: true, DeadBounds: "Cloudflare drops dead letters by age only, and keeps them for a minute at least",
	}
	prefix := "guesthand-"
	if isForeign {
		prefix, h.Caps = "theirs-", cfdriver.ForeignCaps(store != nil)
	}
	h.Open = func(t *testing.T, worker string, o drivertest.Tuning) drivers.Driver {
		d := open(t, s.URL, cfdriver.Options{Worker: worker, MaxDelay: o.MaxDelay, Store: store})
		if isForeign {
			return foreign{d}
		}
		return d
	}
	h.Native = func(t *testing.T, queue string, payload []byte, headers drivers.Header) {
		if headers == nil {
			s.Inject(prefix+queue, "bytes", payload)
			return
		}
		body, err := json.Marshal(map[string]any{"guesthand": 1, "headers": headers, "base64": payload})
		if err != nil {
			t.Fatal(err)
		}
		s.Inject(prefix+queue, "json", body)
	}
	return h
}

// TestConformance runs the suite on queues of ours, and on others with a [store], which can do
// as much but for what spends native attempts.
func TestConformance(t *testing.T) {
	run := func(isForeign bool) func(t *testing.T) {
		return func(t *testing.T) {
			start := func(t *testing.T) (*cftest.Server, drivers.KeyValue) {
				if isForeign {
					return cftest.Start(t), store(t)
				}
				return cftest.Start(t), nil
			}
			shared, sharedStore := start(t)
			drivertest.Run(t, func(t *testing.T, exclusive bool) *drivertest.Harness {
				if !exclusive {
					return harness(shared, isForeign, sharedStore)
				}
				s, kv := start(t)
				h := harness(s, isForeign, kv)
				h.Restart = func(t *testing.T) { s.Restart(t) }
				h.Kill = h.Restart
				h.Disconnect = func(*testing.T, drivers.Driver) { s.Cut() }
				return h
			})
		}
	}
	t.Run("Own", run(false))
	t.Run("Foreign", run(true))
}

// store is a [store] in memory.
func store(t testing.TB) drivers.KeyValue {
	t.Helper()
	d, err := memdriver.Open(t.Context(), memdriver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(t, d) })
	kv, ok := any(d).(drivers.KeyValue)
	if !ok {
		t.Fatal("the memory driver keeps no values by key")
	}
	return kv
}
