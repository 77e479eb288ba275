package natsdriver_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

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

// sizeOf is how many messages the bucket's stream has.
func sizeOf(t *testing.T, s *natstest.Server, bucket string) uint64 {
	t.Helper()
	nc, js := client(t, s)
	defer nc.Close()
	stream, err := js.Stream(t.Context(), "KV_"+bucket)
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

// A bucket is one that NATS' own tools can read, and a deleted key leaves nothing.
func TestBucketOnTheServer(t *testing.T) {
	s := natstest.Start(t)
	d := open(t, s, natsdriver.Options{})
	t.Cleanup(func() { closeAll(t, d) })
	b, err := d.OpenBucket(t.Context(), drivers.BucketOptions{Name: "re.size"})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"order-17", "a b"} {
		if err := b.Create(t.Context(), []byte(key), []byte("v"), 0); err != nil {
			t.Fatal(err)
		}
	}
	_, js := client(t, s)
	kv, err := js.KeyValue(t.Context(), "guesthand-kv_reDOTsize")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"order-17", "a=20b"} {
		if e, err := kv.Get(t.Context(), key); err != nil || string(e.Value()) != "v" {
			t.Errorf("%s: %v", key, err)
		}
	}
	if err := b.Delete(t.Context(), []byte("a b")); err != nil {
		t.Fatal(err)
	}
	if n := sizeOf(t, s, "guesthand-kv_reDOTsize"); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
	// A tool's deletion leaves a mark, which is no value and does not keep a key from being created.
	if err := kv.Delete(t.Context(), "order-17"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), []byte("order-17")); !errors.Is(err, drivers.ErrNotFound) {
		t.Errorf("get of a mark: %v", err)
	}
	if err := b.Delete(t.Context(), []byte("order-17")); !errors.Is(err, drivers.ErrNotFound) {
		t.Errorf("delete of a mark: %v", err)
	}
	if err := b.Create(t.Context(), []byte("order-17"), []byte("w"), 0); err != nil {
		t.Errorf("create over a mark: %v", err)
	}
}

// A stream that somebody deleted is made again.
func TestBucketDeleted(t *testing.T) {
	s := natstest.Start(t)
	d := open(t, s, natsdriver.Options{})
	t.Cleanup(func() { closeAll(t, d) })
	b, err := d.OpenBucket(t.Context(), drivers.BucketOptions{Name: "b", MaxKeys: 3})
	if err != nil {
		t.Fatal(err)
	}
	_, js := client(t, s)
	for name, op := range map[string]func() error{
		"get":    func() error { _, err := b.Get(t.Context(), []byte("k")); return err },
		"put":    func() error { return b.Put(t.Context(), []byte("k"), nil, 0) },
		"create": func() error { return b.Create(t.Context(), []byte("k"), nil, 0) },
		"delete": func() error { return b.Delete(t.Context(), []byte("k")) },
	} {
		if err := js.DeleteStream(t.Context(), "KV_guesthand-kv_b"); err != nil {
			t.Fatal(err)
		}
		if err := op(); err != nil && !errors.Is(err, drivers.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		sizeOf(t, s, "guesthand-kv_b")
	}
}

// A stream that others made is not altered. Here it has neither direct reads nor a time to
// live, as on a server before 2.11: what has expired goes when it is in the way.
func TestBucketOfOthers(t *testing.T) {
	s := natstest.Start(t)
	_, js := client(t, s)
	config := jetstream.StreamConfig{Name: "KV_guesthand-kv_b", Subjects: []string{"$KV.guesthand-kv_b.>"},
		MaxMsgsPerSubject: 1, MaxMsgs: 3, Discard: jetstream.DiscardNew}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	d := open(t, s, natsdriver.Options{})
	t.Cleanup(func() { closeAll(t, d) })
	b, err := d.OpenBucket(t.Context(), drivers.BucketOptions{Name: "b", MaxKeys: 100})
	if err != nil {
		t.Fatal(err)
	}
	const ttl = 100 * time.Millisecond
	for _, key := range []string{"a", "b", "c"} {
		if err := b.Put(t.Context(), []byte(key), []byte("v"), ttl); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := b.Get(t.Context(), []byte("c")); errors.Is(err, drivers.ErrNotFound) {
			break
		} else if err != nil || time.Now().After(end) {
			t.Fatalf("c does not expire: %v", err)
		}
	}
	if n := sizeOf(t, s, "guesthand-kv_b"); n != 3 {
		t.Fatalf("%d messages, want the server to leave all 3", n)
	}
	for _, key := range []string{"d", "a", "e"} {
		if err := b.Create(t.Context(), []byte(key), []byte("w"), 0); err != nil {
			t.Errorf("create %s where three have expired: %v", key, err)
		}
	}
	if err := b.Create(t.Context(), []byte("f"), nil, 0); !errors.Is(err, drivers.ErrQuota) {
		t.Errorf("a fourth: %v, want the quota of the stream as it was made", err)
	}
	if err := b.Create(t.Context(), []byte("a"), nil, 0); !errors.Is(err, drivers.ErrExists) {
		t.Errorf("create of what is there: %v", err)
	}
	stream, err := js.Stream(t.Context(), config.Name)
	if err != nil || stream.CachedInfo().Config.MaxMsgs != 3 {
		t.Errorf("the stream was altered: %v", err)
	}
}

// BenchmarkBucketGet is a get, against the same through the client's own key-value.
func BenchmarkBucketGet(b *testing.B) {
	s := natstest.Start(b)
	d := open(b, s, natsdriver.Options{})
	b.Cleanup(func() { closeAll(b, d) })
	bucket, err := d.OpenBucket(b.Context(), drivers.BucketOptions{Name: "b", MaxKeys: 10000, MaxBytes: 16 << 20})
	if err != nil {
		b.Fatal(err)
	}
	if err := bucket.Put(b.Context(), []byte("key"), make([]byte, 100), 0); err != nil {
		b.Fatal(err)
	}
	b.Run("bucket", func(b *testing.B) {
		for b.Loop() {
			if _, err := bucket.Get(b.Context(), []byte("key")); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		_, js := client(b, s)
		kv, err := js.KeyValue(b.Context(), "guesthand-kv_b")
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := kv.Get(b.Context(), "key"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
