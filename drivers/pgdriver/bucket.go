package pgdriver

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/guesthand/guesthand/drivers"
)

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)

// maxTTL is the longest time to live that is told to the server; longer ones are this.
const maxTTL = 100 * 365 * 24 * time.Hour

// bucket is the rows of a name. Functions in the database keep the quota, so that it is exact
// whoever writes.
type bucket struct {
	d *Driver
	o drivers.BucketOptions
}

// OpenBucket implements drivers.KeyValue. The schema is made where it is missing; the bucket
// itself comes with its first value.
func (d *Driver) OpenBucket(ctx context.Context, o drivers.BucketOptions) (drivers.Bucket, error) {
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case !bucketName.MatchString(o.Name):
		return nil, fmt.Errorf("bucket %q: a name is up to 128 of a-z, 0-9, ., _ and -: %w", o.Name, drivers.ErrInvalid)
	case d.isClosed():
		return nil, drivers.ErrClosed
	}
	if err := d.ready(ctx, true); err != nil {
		return nil, fmt.Errorf("bucket %s: %w", o.Name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, drivers.ErrClosed
	}
	d.keep()
	return &bucket{d: d, o: o}, nil
}

// check refuses what no statement needs to be asked about.
func (b *bucket) check(ctx context.Context, key []byte) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case b.d.isClosed():
		return drivers.ErrClosed
	case len(key) == 0 || len(key) > drivers.MaxKey:
		return fmt.Errorf("key of %d bytes, it has 1 to %d: %w", len(key), drivers.MaxKey, drivers.ErrInvalid)
	}
	return nil
}

// Get implements drivers.Bucket.
func (b *bucket) Get(ctx context.Context, key []byte) ([]byte, error) {
	if err := b.check(ctx, key); err != nil {
		return nil, err
	}
	var value []byte
	err := b.d.row(ctx, b.d.sql.kvGet, []any{b.o.Name, key}, &value)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, drivers.ErrNotFound
	}
	return value, b.d.wrap("get from bucket "+b.o.Name, err)
}

// Put implements drivers.Bucket.
func (b *bucket) Put(ctx context.Context, key, value []byte, ttl time.Duration) error {
	return b.write(ctx, key, value, ttl, false)
}

// Create implements drivers.Bucket.
func (b *bucket) Create(ctx context.Context, key, value []byte, ttl time.Duration) error {
	return b.write(ctx, key, value, ttl, true)
}

func (b *bucket) write(ctx context.Context, key, value []byte, ttl time.Duration, onlyNew bool) error {
	if err := b.check(ctx, key); err != nil {
		return err
	}
	if len(value) > MaxPayload {
		return fmt.Errorf("value of %d bytes, at most %d: %w", len(value), MaxPayload, drivers.ErrTooLarge)
	}
	if value == nil {
		value = []byte{}
	}
	var answer int
	err := b.d.row(ctx, b.d.sql.kvPut, []any{b.o.Name, key, value, ceilMicro(min(ttl, maxTTL)), b.o.MaxKeys, b.o.MaxBytes, onlyNew}, &answer)
	switch {
	case err != nil:
		return b.d.wrap("put into bucket "+b.o.Name, err)
	case answer == 0:
		return drivers.ErrExists
	case answer < 0:
		return drivers.ErrQuota
	}
	return nil
}

// Delete implements drivers.Bucket.
func (b *bucket) Delete(ctx context.Context, key []byte) error {
	if err := b.check(ctx, key); err != nil {
		return err
	}
	var there bool
	err := b.d.row(ctx, b.d.sql.kvDelete, []any{b.o.Name, key}, &there)
	if err == nil && !there {
		return drivers.ErrNotFound
	}
	return b.d.wrap("delete from bucket "+b.o.Name, err)
}
