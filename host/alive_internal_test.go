package host

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// hung is a queue whose renewals do not come back, whatever their context says.
type hung struct {
	broker
	until chan struct{}
}

func (hung) Info() drivers.Info {
	return drivers.Info{Lease: 30 * time.Second, Caps: drivers.Caps{Renewable: true}}
}

func (h hung) Renew(_ context.Context, ds []*drivers.Delivery) []error {
	<-h.until
	return make([]error, len(ds))
}

func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := hung{until: make(chan struct{})}
		q := &queue{name: "q", leases: newLeases(d, func(*drivers.Delivery) {}, func(int, int, error) {})}
		h := &Host{queues: map[string]*queue{"q": q}}
		check := func(when string, want bool) {
			t.Helper()
			if err := h.Alive(); (err == nil) != want {
				t.Errorf("%s: %v", when, err)
			}
		}
		check("before it runs", true)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { q.leases.keep(ctx); close(done) }()
		time.Sleep(time.Hour)
		check("idle for an hour", true)
		q.leases.add([]*drivers.Delivery{{ID: "1", Received: time.Now()}})
		time.Sleep(40 * time.Second)
		check("a slow renewal", true)
		time.Sleep(time.Minute)
		check("one that hangs", false)
		close(d.until)
		synctest.Wait()
		check("back again", true)
		stop()
		<-done
		time.Sleep(time.Hour)
		check("after its end", true)
	})
}
