package redisdriver_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/redisdriver"
	"github.com/guesthand/guesthand/drivers/redisdriver/redistest"
)

func TestConformance(t *testing.T) {
	shared := redistest.Start(t, "proto-max-bulk-len 8mb")
	drivertest.Run(t, func(t *testing.T, exclusive bool) *drivertest.Harness {
		s := shared
		if exclusive {
			s = redistest.Start(t)
		}
		proxies := map[drivers.Driver]*redistest.Proxy{}
		return &drivertest.Harness{
			Caps: redisdriver.Caps(),
			Open: func(t *testing.T, worker string, o drivertest.Tuning) drivers.Driver {
				if !exclusive {
					return open(t, s, redisdriver.Options{Worker: worker, MaxDelay: o.MaxDelay})
				}
				p := redistest.Through(t, s)
				d := open(t, s, redisdriver.Options{URL: p.URL, Worker: worker, MaxDelay: o.MaxDelay})
				proxies[d] = p
				return d
			},
			Disconnect: func(_ *testing.T, d drivers.Driver) { proxies[d].Cut() },
			Restart:    func(*testing.T) { s.Restart() },
			Kill: func(*testing.T) {
				s.Kill()
				s.Restart()
			},
			Native: func(t *testing.T, queue string, payload []byte, h drivers.Header) { enqueue(t, s, queue, payload, h) },
		}
	})
}

// enqueue is a producer in any language: two commands in a transaction.
func enqueue(t *testing.T, s *redistest.Server, queue string, payload []byte, h drivers.Header) {
	t.Helper()
	id := uuid.NewString()
	fields := []any{"hset", "guesthand:{" + queue + "}:m:" + id, "payload", payload}
	if h != nil {
		b, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		fields = append(fields, "headers", b)
	}
	tx := client(t, s).TxPipeline()
	tx.Do(t.Context(), fields...)
	tx.Do(t.Context(), "rpush", "guesthand:{"+queue+"}:ready", id)
	tx.Do(t.Context(), "publish", "guesthand:{"+queue+"}:wake", "")
	if _, err := tx.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}
