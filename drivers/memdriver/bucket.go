package memdriver

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)

var _ drivers.KeyValue = (*Driver)(nil)

// OpenBucket opens a bucket, which all joined drivers share. Its quota is that of the latest
// opening.
func (d *Driver) OpenBucket(ctx context.Context, o drivers.BucketOptions) (drivers.Bucket, error) {
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case !bucketName.MatchString(o.Name):
		return nil, fmt.Errorf("memory driver: bucket %q: %w: a name is up to 128 of a-z, 0-9, ., _ and -", o.Name, drivers.ErrInvalid)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, drivers.ErrClosed
	}
	return &bucketHandle{d: d, b: d.b.bucket(o), maxValue: d.b.o.MaxPayload}, nil
}

// bucket finds or makes one and sets its quota.
func (b *broker) bucket(o drivers.BucketOptions) *bucket {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.buckets[o.Name]
	if k == nil {
		k = &bucket{values: map[string]entry{}}
		b.buckets[o.Name] = k
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.maxKeys, k.maxBytes = o.MaxKeys, o.MaxBytes
	if k.maxBytes <= 0 { // the process's own bound
		k.maxBytes = int64(b.o.MaxBytes)
	}
	return k
}

// bucket is a set of values. Nothing happens in the background: what has expired is removed
// by whoever finds it, or finds the bucket full.
type bucket struct {
	mu       sync.Mutex
	values   map[string]entry
	bytes    int64
	maxKeys  int
	maxBytes int64
}

type entry struct {
	value   []byte
	expires time.Time // zero: never
}

func (e entry) expired(now time.Time) bool { return !e.expires.IsZero() && !now.Before(e.expires) }

func size(key string, e entry) int64 { return int64(len(key) + len(e.value)) }

// find returns a value that is there, and removes one that has expired; b.mu is held.
func (b *bucket) find(key string, now time.Time) (entry, bool) {
	e, ok := b.values[key]
	if ok && e.expired(now) {
		b.remove(key, e)
		return entry{}, false
	}
	return e, ok
}

func (b *bucket) remove(key string, e entry) {
	b.bytes -= size(key, e)
	delete(b.values, key)
}

// store keeps a value where the quota allows; b.mu is held.
func (b *bucket) store(key string, e entry, now time.Time) error {
	if !b.fits(key, e) {
		for k, old := range b.values {
			if old.expired(now) {
				b.remove(k, old)
			}
		}
		if !b.fits(key, e) {
			return drivers.ErrQuota
		}
	}
	if old, ok := b.values[key]; ok {
		b.bytes -= size(key, old)
	}
	b.values[key] = e
	b.bytes += size(key, e)
	return nil
}

func (b *bucket) fits(key string, e entry) bool {
	keys, total := len(b.values)+1, b.bytes+size(key, e)
	if old, ok := b.values[key]; ok {
		keys, total = keys-1, total-size(key, old)
	}
	return (b.maxKeys <= 0 || keys <= b.maxKeys) && total <= b.maxBytes
}

// bucketHandle is a bucket as one driver opened it.
type bucketHandle struct {
	d        *Driver
	b        *bucket
	maxValue int
}

// check is what every call begins with.
func (h *bucketHandle) check(ctx context.Context, key []byte) error {
	if err := h.d.Ping(ctx); err != nil {
		return err
	}
	if len(key) == 0 || len(key) > drivers.MaxKey {
		return fmt.Errorf("key of %d bytes: %w: a key has 1 to %d", len(key), drivers.ErrInvalid, drivers.MaxKey)
	}
	return nil
}

func (h *bucketHandle) entry(value []byte, ttl time.Duration, now time.Time) (entry, error) {
	if len(value) > h.maxValue {
		return entry{}, fmt.Errorf("value of %d bytes, the limit is %d: %w", len(value), h.maxValue, drivers.ErrTooLarge)
	}
	e := entry{value: bytes.Clone(value)}
	if ttl > 0 {
		e.expires = now.Add(ttl)
	}
	return e, nil
}

// Get implements drivers.Bucket.
func (h *bucketHandle) Get(ctx context.Context, key []byte) ([]byte, error) {
	if err := h.check(ctx, key); err != nil {
		return nil, err
	}
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	e, ok := h.b.find(string(key), time.Now())
	if !ok {
		return nil, drivers.ErrNotFound
	}
	return bytes.Clone(e.value), nil
}

// Put implements drivers.Bucket.
func (h *bucketHandle) Put(ctx context.Context, key, value []byte, ttl time.Duration) error {
	return h.write(ctx, key, value, ttl, false)
}

// Create implements drivers.Bucket.
func (h *bucketHandle) Create(ctx context.Context, key, value []byte, ttl time.Duration) error {
	return h.write(ctx, key, value, ttl, true)
}

func (h *bucketHandle) write(ctx context.Context, key, value []byte, ttl time.Duration, create bool) error {
	if err := h.check(ctx, key); err != nil {
		return err
	}
	now := time.Now()
	e, err := h.entry(value, ttl, now)
	if err != nil {
		return err
	}
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	if _, there := h.b.find(string(key), now); there && create {
		return drivers.ErrExists
	}
	return h.b.store(string(key), e, now)
}

// Delete implements drivers.Bucket.
func (h *bucketHandle) Delete(ctx context.Context, key []byte) error {
	if err := h.check(ctx, key); err != nil {
		return err
	}
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	e, ok := h.b.find(string(key), time.Now())
	if !ok {
		return drivers.ErrNotFound
	}
	h.b.remove(string(key), e)
	return nil
}
