package redisdriver_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/redisdriver"
	"github.com/guesthand/guesthand/drivers/redisdriver/redistest"
)

func TestBuckets(t *testing.T) {
	s := redistest.Start(t, "proto-max-bulk-len 8mb")
	drivertest.RunBuckets(t, func(t *testing.T) drivers.KeyValue {
		d := open(t, s, redisdriver.Options{})
		t.Cleanup(func() { closeAll(t, d) })
		return d
	})
}

// TestBucketQuotaExact: many values that have expired at once, more than one write clears away,
// count for nothing, and what is counted is what is there, to the byte.
func TestBucketQuotaExact(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	d := open(t, s, redisdriver.Options{})
	t.Cleanup(func() { closeAll(t, d) })
	const n = 1000
	b, err := d.OpenBucket(t.Context(), drivers.BucketOptions{Name: "b", MaxKeys: n, MaxBytes: 5 * n})
	if err != nil {
		t.Fatal(err)
	}
	key := func(i int) []byte { return fmt.Appendf(nil, "%04d", i) }
	for i := range n { // the last to end are the first keys
		if err := b.Put(t.Context(), key(i), []byte("x"), time.Minute-time.Duration(i)*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range [][]byte{key(n), key(0)} {
		if err := b.Put(t.Context(), k, []byte("xx"), 0); !errors.Is(err, drivers.ErrQuota) {
			t.Errorf("one byte or key too many: %v", err)
		}
	}
	c := client(t, s)
	const p = "guesthand-kv:{b}:"
	for i := range n { // all have ended
		raw(t, c, "zadd", p+"ends", n-i, key(i))
	}
	if err := b.Create(t.Context(), key(0), []byte("new"), time.Hour); err != nil {
		t.Errorf("create over an ended value: %v", err)
	}
	if v, err := b.Get(t.Context(), key(0)); string(v) != "new" {
		t.Errorf("got %q, %v", v, err)
	}
	for i := range n - 1 {
		if err := b.Put(t.Context(), key(n+i), []byte("y"), 0); err != nil {
			t.Fatalf("after %d of %d: %v", i, n, err)
		}
		if i == n-3 {
			break // the new value is two bytes longer than the others
		}
	}
	if keys, bytes := raw(t, c, "hlen", p+"values"), raw(t, c, "get", p+"bytes"); keys != int64(n-1) || bytes != fmt.Sprint(5*(n-2)+7) {
		t.Errorf("%v keys of %v bytes", keys, bytes)
	}
}
