package natsdriver_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/natsdriver"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
)

func TestConformance(t *testing.T) {
	shared := natstest.Start(t)
	drivertest.Run(t, func(t *testing.T, exclusive bool) *drivertest.Harness {
		s := shared
		if exclusive {
			s = natstest.Start(t)
		}
		proxies := map[drivers.Driver]*natstest.Proxy{}
		return &drivertest.Harness{
			Caps: natsdriver.Caps(),
			Open: func(t *testing.T, worker string, o drivertest.Tuning) drivers.Driver {
				if !exclusive {
					return open(t, s, natsdriver.Options{Worker: worker, MaxDelay: o.MaxDelay})
				}
				p := natstest.Through(t, s)
				d := open(t, s, natsdriver.Options{URL: p.URL, Worker: worker, MaxDelay: o.MaxDelay})
				proxies[d] = p
				return d
			},
			Disconnect: func(_ *testing.T, d drivers.Driver) { proxies[d].Cut() },
			Restart:    func(*testing.T) { s.Restart() },
			Kill: func(*testing.T) {
				s.Kill()
				s.Restart()
			},
			Native: func(t *testing.T, queue string, payload []byte, h drivers.Header) {
				m := nats.NewMsg("guesthand." + queue + ".native")
				m.Data, m.Header = payload, nats.Header(h)
				publish(t, s, m)
			},
		}
	})
}
