package engine

import (
	"bytes"
	"context"
	"errors"
	"math"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// exists is what kv_create returns for a key that has a value.
const exists = 1

func kvGet(c *Call, mod api.Module, stack []uint64) {
	key := c.slice(mod, "kv_get", stack[0], stack[1])
	dst := c.slice(mod, "kv_get", stack[2], stack[3])
	c.withBucket("kv_get", key, stack, func(ctx context.Context, b drivers.Bucket, key []byte) (int32, error) {
		value, err := b.Get(ctx, key)
		copy(dst, value)
		return int32(min(len(value), math.MaxInt32)), err
	})
}

func kvPut(c *Call, mod api.Module, stack []uint64) {
	c.store("kv_put", mod, stack, func(ctx context.Context, b drivers.Bucket, key, value []byte, ttl time.Duration) (int32, error) {
		return 0, b.Put(ctx, key, value, ttl)
	})
}

func kvCreate(c *Call, mod api.Module, stack []uint64) {
	c.store("kv_create", mod, stack, func(ctx context.Context, b drivers.Bucket, key, value []byte, ttl time.Duration) (int32, error) {
		err := b.Create(ctx, key, value, ttl)
		if errors.Is(err, drivers.ErrExists) {
			return exists, nil
		}
		return 0, err
	})
}

func kvDelete(c *Call, mod api.Module, stack []uint64) {
	key := c.slice(mod, "kv_delete", stack[0], stack[1])
	c.withBucket("kv_delete", key, stack, func(ctx context.Context, b drivers.Bucket, key []byte) (int32, error) {
		return 0, b.Delete(ctx, key)
	})
}

// store reads the arguments that kv_put and kv_create share. The value is copied: a driver
// may still hold it when the call is over, and the guest's memory goes on to the next message.
func (c *Call) store(what string, mod api.Module, stack []uint64, op func(context.Context, drivers.Bucket, []byte, []byte, time.Duration) (int32, error)) {
	key := c.slice(mod, what, stack[0], stack[1])
	value := c.slice(mod, what, stack[2], stack[3])
	ttl, ok := ttlOf(int64(stack[4]))
	if !ok {
		result(stack, abi.ErrMalformed)
		return
	}
	c.withBucket(what, key, stack, func(ctx context.Context, b drivers.Bucket, key []byte) (int32, error) {
		return op(ctx, b, key, bytes.Clone(value), ttl)
	})
}

// ttlOf reads milliseconds, 0 for none. What no duration can hold is as good as for ever.
func ttlOf(ms int64) (ttl time.Duration, ok bool) {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64, true
	}
	return time.Duration(ms) * time.Millisecond, ms >= 0
}

// withBucket runs one operation on the handler's bucket, under the run's deadline.
func (c *Call) withBucket(what string, key []byte, stack []uint64, op func(ctx context.Context, b drivers.Bucket, key []byte) (int32, error)) {
	switch {
	case c.run.starting || c.Bucket == nil:
		result(stack, abi.ErrNotGranted)
		return
	case len(key) == 0 || len(key) > drivers.MaxKey:
		result(stack, abi.ErrMalformed)
		return
	}
	c.check()
	n, err := op(c.context(), c.Bucket, bytes.Clone(key))
	c.check() // what ended while it waited, ends here
	if err != nil {
		n = c.bucketError(what, err)
	}
	result(stack, n)
}

// bucketError is an error as the guest sees it.
func (c *Call) bucketError(what string, err error) int32 {
	switch {
	case errors.Is(err, drivers.ErrNotFound):
		return abi.ErrAbsent
	case errors.Is(err, drivers.ErrQuota), errors.Is(err, drivers.ErrTooLarge):
		return abi.ErrTooLarge
	case errors.Is(err, drivers.ErrInvalid):
		return abi.ErrMalformed
	case errors.Is(err, drivers.ErrUnsupported): // the host found no broker that keeps values
		return abi.ErrNotGranted
	}
	if !c.run.kvWarned { // one line for each run: the guest may try again and again
		c.run.kvWarned = true
		c.logger().Warn(what, "job", c.job(), "id", c.ID, "error", err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return abi.ErrTimedOut
	}
	return abi.ErrUnavailable
}
