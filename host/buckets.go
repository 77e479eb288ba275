package host

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/config"
)

// buckets are the handlers' values. A handler has one bucket on the broker of [store], or
// without that on each broker its messages come from; it is opened when it is first used.
type buckets struct {
	brokers *Brokers

	mu sync.Mutex
	m  map[bucketKey]*bucket
}

// bucketKey tells buckets apart. One with another quota is opened anew.
type bucketKey struct {
	broker  string
	options drivers.BucketOptions
}

// of is the bucket of a handler for messages of that queue; nil where none is granted.
func (b *buckets) of(c *config.Config, queue string, h config.Handler) drivers.Bucket {
	if h.KV == nil {
		return nil
	}
	key := bucketKey{c.BucketBroker(queue), drivers.BucketOptions{
		Name: h.KV.BucketName(h.Job), MaxKeys: h.KV.MaxKeys, MaxBytes: h.KV.MaxBytes}}
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.m[key]
	if k == nil {
		k = &bucket{brokers: b.brokers, key: key, opening: make(chan struct{}, 1)}
		if b.m == nil {
			b.m = map[bucketKey]*bucket{}
		}
		// The same bucket with another quota was that of an earlier configuration.
		for old := range b.m {
			if old.broker == key.broker && old.options.Name == key.options.Name {
				delete(b.m, old)
			}
		}
		b.m[key] = k
	}
	return k
}

// bucket opens itself when it is first used. A broker that is away is asked again by the
// next call.
type bucket struct {
	brokers *Brokers
	key     bucketKey
	opening chan struct{} // holds one while somebody opens
	opened  atomic.Pointer[drivers.Bucket]
}

func (k *bucket) get(ctx context.Context) (drivers.Bucket, error) {
	if b := k.opened.Load(); b != nil {
		return *b, nil
	}
	select {
	case k.opening <- struct{}{}:
		defer func() { <-k.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if b := k.opened.Load(); b != nil {
		return *b, nil
	}
	kv, err := k.brokers.keyValue(ctx, k.key.broker)
	if err != nil {
		return nil, err
	}
	b, err := kv.OpenBucket(ctx, k.key.options)
	if err != nil {
		return nil, fmt.Errorf("broker %s: %w", k.key.broker, err)
	}
	k.opened.Store(&b)
	return b, nil
}

// Get implements drivers.Bucket.
func (k *bucket) Get(ctx context.Context, key []byte) ([]byte, error) {
	b, err := k.get(ctx)
	if err != nil {
		return nil, err
	}
	return b.Get(ctx, key)
}

// Put implements drivers.Bucket.
func (k *bucket) Put(ctx context.Context, key, value []byte, ttl time.Duration) error {
	b, err := k.get(ctx)
	if err != nil {
		return err
	}
	return b.Put(ctx, key, value, ttl)
}

// Create implements drivers.Bucket.
func (k *bucket) Create(ctx context.Context, key, value []byte, ttl time.Duration) error {
	b, err := k.get(ctx)
	if err != nil {
		return err
	}
	return b.Create(ctx, key, value, ttl)
}

// Delete implements drivers.Bucket.
func (k *bucket) Delete(ctx context.Context, key []byte) error {
	b, err := k.get(ctx)
	if err != nil {
		return err
	}
	return b.Delete(ctx, key)
}
