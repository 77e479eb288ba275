package memdriver_test

import (
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/memdriver"
)

func TestReplies(t *testing.T) {
	broker := open(t, memdriver.Options{})
	drivertest.RunReplies(t, func(*testing.T) drivers.Driver { return broker.Join("w") })
}
