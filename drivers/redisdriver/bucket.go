package redisdriver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/guesthand/guesthand/drivers"
)

// bucketPrefix begins the keys of buckets: guesthand-kv:{NAME}:values and so on.
const bucketPrefix = "guesthand-kv:"

// maxTTL is the longest time to live that is told to the server; longer ones are this.
const maxTTL = 100 * 365 * 24 * time.Hour

// bucket is a hash of values, a sorted set of when they end, and how many bytes they are.
// Scripts keep the quota, so that it is exact whoever writes.
type bucket struct {
	d    *Driver
	o    drivers.BucketOptions
	keys []string
}

// OpenBucket implements drivers.KeyValue. Nothing is stored until something is put.
func (d *Driver) OpenBucket(ctx context.Context, o drivers.BucketOptions) (drivers.Bucket, error) {
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case !bucketName.MatchString(o.Name):
		return nil, fmt.Errorf("bucket %q: a name is up to 128 of a-z, 0-9, ., _ and -: %w", o.Name, drivers.ErrInvalid)
	case d.isClosed():
		return nil, drivers.ErrClosed
	}
	p := bucketPrefix + "{" + o.Name + "}"
	return &bucket{d: d, o: o, keys: []string{p + ":values", p + ":ends", p + ":bytes"}}, nil
}

// run runs a script on a key.
func (b *bucket) run(ctx context.Context, s script, key []byte, args ...any) (*redis.Cmd, error) {
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case b.d.isClosed():
		return nil, drivers.ErrClosed
	case len(key) == 0 || len(key) > drivers.MaxKey:
		return nil, fmt.Errorf("key of %d bytes, it has 1 to %d: %w", len(key), drivers.MaxKey, drivers.ErrInvalid)
	}
	c := &call{script: s, keys: b.keys, args: append([]any{key}, args...)}
	b.d.run(ctx, c)
	return c.cmd, nil
}

// Get implements drivers.Bucket.
func (b *bucket) Get(ctx context.Context, key []byte) ([]byte, error) {
	c, err := b.run(ctx, kvGetScript, key)
	if err != nil {
		return nil, err
	}
	s, err := c.Text()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, drivers.ErrNotFound
	case err != nil:
		return nil, b.d.wrap("get from bucket "+b.o.Name, err)
	}
	return []byte(s), nil
}

// Put implements drivers.Bucket.
func (b *bucket) Put(ctx context.Context, key, value []byte, ttl time.Duration) error {
	return b.write(ctx, key, value, ttl, "")
}

// Create implements drivers.Bucket.
func (b *bucket) Create(ctx context.Context, key, value []byte, ttl time.Duration) error {
	return b.write(ctx, key, value, ttl, "1")
}

func (b *bucket) write(ctx context.Context, key, value []byte, ttl time.Duration, create string) error {
	if len(value) > b.d.server.bulk {
		return fmt.Errorf("value of %d bytes, the server takes %d: %w", len(value), b.d.server.bulk, drivers.ErrTooLarge)
	}
	if value == nil {
		value = []byte{}
	}
	c, err := b.run(ctx, kvPutScript, key, value, ceilMilli(min(ttl, maxTTL)), b.o.MaxKeys, b.o.MaxBytes, create)
	if err != nil {
		return err
	}
	n, err := c.Int64()
	switch {
	case err != nil:
		return b.d.wrap("put into bucket "+b.o.Name, err)
	case n == 0:
		return drivers.ErrExists
	case n < 0:
		return drivers.ErrQuota
	}
	return nil
}

// Delete implements drivers.Bucket.
func (b *bucket) Delete(ctx context.Context, key []byte) error {
	c, err := b.run(ctx, kvDeleteScript, key)
	if err != nil {
		return err
	}
	n, err := c.Int64()
	switch {
	case err != nil:
		return b.d.wrap("delete from bucket "+b.o.Name, err)
	case n == 0:
		return drivers.ErrNotFound
	}
	return nil
}
