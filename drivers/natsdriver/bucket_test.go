package natsdriver_test

import (
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/natsdriver"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
)

func TestBuckets(t *testing.T) {
	s := natstest.Start(t)
	drivertest.RunBuckets(t, func(t *testing.T) drivers.KeyValue {
		d := open(t, s, natsdriver.Options{})
		t.Cleanup(func() { closeAll(t, d) })
		return d
	})
}
