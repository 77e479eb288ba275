package pgdriver_test

import (
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/pgdriver"
	"github.com/guesthand/guesthand/drivers/pgdriver/pgtest"
)

func TestConformance(t *testing.T) {
	shared := pgtest.Start(t)
	drivertest.Run(t, func(t *testing.T, exclusive bool) *drivertest.Harness {
		s := shared
		if exclusive {
			s = pgtest.Start(t)
		}
		proxies := map[drivers.Driver]*pgtest.Proxy{}
		return &drivertest.Harness{
			Caps: pgdriver.Caps(),
			Open: func(t *testing.T, worker string, _ drivertest.Tuning) drivers.Driver {
				if !exclusive {
					return open(t, s, pgdriver.Options{Worker: worker})
				}
				p := pgtest.Through(t, s)
				d := open(t, s, pgdriver.Options{URL: p.URL, Worker: worker})
				proxies[d] = p
				return d
			},
			Disconnect: func(_ *testing.T, d drivers.Driver) { proxies[d].Cut() },
			Restart:    func(*testing.T) { s.Restart() },
			Kill: func(*testing.T) {
				s.Kill()
				s.Restart()
			},
			Native:   func(t *testing.T, queue string, payload []byte, h drivers.Header) { enqueue(t, s, queue, payload, h) },
			Rejected: func(t *testing.T, queue string) []drivers.Tally { return rejected(t, s, queue) },
		}
	})
}

// enqueue is a producer in any language: one statement.
func enqueue(t *testing.T, s *pgtest.Server, queue string, payload []byte, h drivers.Header) {
	t.Helper()
	if h == nil {
		sql(t, client(t, s.URL), "INSERT INTO guesthand.messages (queue, payload) VALUES ($1, $2)", queue, payload)
		return
	}
	b, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	sql(t, client(t, s.URL), "INSERT INTO guesthand.messages (queue, payload, headers) VALUES ($1, $2, $3)", queue, payload, b)
}

func rejected(t *testing.T, s *pgtest.Server, queue string) []drivers.Tally {
	t.Helper()
	rows, err := client(t, s.URL).Query(t.Context(),
		"SELECT failures, delays, stalls, interruptions, unrouted, prior FROM guesthand.dead_letters WHERE queue = $1 AND state = 'rejected' ORDER BY entry", queue)
	if err != nil {
		t.Fatal(err)
	}
	tallies, err := pgx.CollectRows(rows, pgx.RowToStructByPos[drivers.Tally])
	if err != nil {
		t.Fatal(err)
	}
	return tallies
}

func TestBuckets(t *testing.T) {
	s := pgtest.Start(t)
	drivertest.RunBuckets(t, func(t *testing.T) drivers.KeyValue {
		d := open(t, s, pgdriver.Options{})
		t.Cleanup(func() { closeAll(t, d) })
		return d
	})
}
