package memdriver_test

import (
	"log/slog"
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/memdriver"
)

func buckets(t *testing.T) func(t *testing.T) drivers.KeyValue {
	broker := open(t, memdriver.Options{Logger: slog.New(slog.DiscardHandler)})
	return func(*testing.T) drivers.KeyValue { return broker.Join("w") }
}

func TestBuckets(t *testing.T) { drivertest.RunBuckets(t, buckets(t)) }

func TestBucketsInNoTime(t *testing.T) { drivertest.RunBucketsSynctest(t, buckets(t)) }
