package memdriver_test

import (
	"log/slog"
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/memdriver"
)

// harness is one broker in memory, which every worker joins.
func harness(t *testing.T, _ bool) *drivertest.Harness {
	broker := open(t, memdriver.Options{MaxPayload: 2 << 20, Logger: slog.New(slog.DiscardHandler)})
	return &drivertest.Harness{Caps: memdriver.Caps(),
		Open: func(_ *testing.T, worker string, _ drivertest.Tuning) drivers.Driver { return broker.Join(worker) }}
}

func TestConformance(t *testing.T) { drivertest.Run(t, harness) }

func TestConformanceInNoTime(t *testing.T) { drivertest.RunSynctest(t, harness) }
