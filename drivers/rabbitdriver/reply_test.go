package rabbitdriver_test

import (
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/rabbitdriver"
)

func TestReplies(t *testing.T) {
	n := plain.get(t)
	drivertest.RunReplies(t, func(t *testing.T) drivers.Driver { return opened(t, n.URL, rabbitdriver.Options{}) })
}
