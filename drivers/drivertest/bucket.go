package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// RunBuckets is the conformance suite of drivers.KeyValue and drivers.Bucket.
//
// open makes a connection to the broker under test, as another host would, and closes it with
// t.Cleanup. All that it returns are on one broker: what is stored through one is seen through
// the other. Where a broker can have one connection only, open may return it each time. Names
// of buckets do not repeat, so that one broker may serve all cases, which run in parallel.
func RunBuckets(t *testing.T, open func(t *testing.T) drivers.KeyValue) {
	for _, c := range bucketCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(newBucketSuite(t, open))
		})
	}
}

// RunBucketsSynctest is RunBuckets in bubbles of package synctest, for drivers that live in
// the process alone.
func RunBucketsSynctest(t *testing.T, open func(t *testing.T) drivers.KeyValue) {
	for _, c := range bucketCases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.run(newBucketSuite(t, open)) })
		})
	}
}

var bucketCases = []struct {
	name string
	run  func(s *bucketSuite)
}{
	{"Absent", bucketAbsent},
	{"PutGet", bucketPutGet},
	{"Values", bucketValues},
	{"Keys", bucketKeys},
	{"BadKeys", bucketBadKeys},
	{"Create", bucketCreate},
	{"CreateOnce", bucketCreateOnce},
	{"CreateOnceExpired", bucketCreateOnceExpired},
	{"Delete", bucketDelete},
	{"DeleteLeavesNothing", bucketDeleteLeavesNothing},
	{"CallerOwnsBytes", bucketOwnsBytes},
	{"Shared", bucketShared},
	{"Apart", bucketApart},
	{"Names", bucketNames},
	{"TTL", bucketTTL},
	{"TTLReplaced", bucketTTLReplaced},
	{"LongTTL", bucketLongTTL},
	{"MaxKeys", bucketMaxKeys},
	{"MaxBytes", bucketMaxBytes},
	{"ExpiredFreesQuota", bucketExpiredFrees},
	{"QuotaRaised", bucketQuotaRaised},
	{"TooLarge", bucketTooLarge},
	{"ContextEnded", bucketContextEnded},
	{"ManyAtOnce", bucketManyAtOnce},
}

// bucketSuite is one case's view of the broker: a bucket through two connections.
type bucketSuite struct {
	*testing.T
	kv, other drivers.KeyValue
	ctx       context.Context
	name      string
}

func newBucketSuite(t *testing.T, open func(t *testing.T) drivers.KeyValue) *bucketSuite {
	s := &bucketSuite{T: t, kv: open(t), other: open(t)}
	s.name = fmt.Sprintf("b%d-%x", serial.Add(1), time.Now().UnixNano()&0xffffff)
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithTimeout(t.Context(), 3*patience)
	t.Cleanup(cancel)
	return s
}

func (s *bucketSuite) open(kv drivers.KeyValue, o drivers.BucketOptions) drivers.Bucket {
	s.Helper()
	if o.Name == "" {
		o.Name = s.name
	}
	b, err := kv.OpenBucket(s.ctx, o)
	if err != nil {
		s.Fatalf("open bucket %s: %v", o.Name, err)
	}
	return b
}

// both is the case's bucket through each connection.
func (s *bucketSuite) both(o drivers.BucketOptions) (a, b drivers.Bucket) {
	s.Helper()
	return s.open(s.kv, o), s.open(s.other, o)
}

func (s *bucketSuite) bucket() drivers.Bucket {
	s.Helper()
	return s.open(s.kv, drivers.BucketOptions{})
}

func (s *bucketSuite) put(b drivers.Bucket, key, value string, ttl time.Duration) {
	s.Helper()
	if err := b.Put(s.ctx, []byte(key), []byte(value), ttl); err != nil {
		s.Fatalf("put %q: %v", key, err)
	}
}

func (s *bucketSuite) create(b drivers.Bucket, key, value string, ttl time.Duration) {
	s.Helper()
	if err := b.Create(s.ctx, []byte(key), []byte(value), ttl); err != nil {
		s.Fatalf("create %q: %v", key, err)
	}
}

func (s *bucketSuite) get(b drivers.Bucket, key, want string) {
	s.Helper()
	got, err := b.Get(s.ctx, []byte(key))
	if err != nil || string(got) != want {
		s.Fatalf("get %.40q: %.40q, %v; want %.40q", key, got, err, want)
	}
}

func (s *bucketSuite) absent(b drivers.Bucket, key string) {
	s.Helper()
	if got, err := b.Get(s.ctx, []byte(key)); !errors.Is(err, drivers.ErrNotFound) {
		s.Fatalf("get %q: %.40q, %v; want ErrNotFound", key, got, err)
	}
}

func (s *bucketSuite) refused(what string, err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Fatalf("%s: %v, want %v", what, err, want)
	}
}

// eventually waits for what must come true within patience.
func (s *bucketSuite) eventually(what string, ok func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func bucketAbsent(s *bucketSuite) {
	b := s.bucket()
	s.absent(b, "a")
	s.refused("delete of nothing", b.Delete(s.ctx, []byte("a")), drivers.ErrNotFound)
}

func bucketPutGet(s *bucketSuite) {
	b := s.bucket()
	s.put(b, "a", "one", 0)
	s.put(b, "b", "other", 0)
	s.get(b, "a", "one")
	s.put(b, "a", "two", 0)
	s.get(b, "a", "two")
	s.get(b, "b", "other")
}

func bucketValues(s *bucketSuite) {
	b := s.bucket()
	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	for i, v := range []string{"", "\x00", "\r\n", string(all[:]), strings.Repeat("x", 256<<10)} {
		key := fmt.Sprint(i)
		s.create(b, key, v, 0)
		s.get(b, key, v)
		s.put(b, key, "between", 0)
		s.put(b, key, v, time.Hour)
		s.get(b, key, v)
	}
	if err := b.Put(s.ctx, []byte("nil"), nil, 0); err != nil {
		s.Fatalf("put nil: %v", err)
	}
	s.get(b, "nil", "")
}

func bucketKeys(s *bucketSuite) {
	keys := []string{"a", "A", "a.b", "a..b", ".", "..", ".a", "a.", "*", ">", "a.*", "a.>", " ", "a b", "%41", "=41",
		"$JS.API", "a/b", "a\\b", "a:b", "a_b", "a-b", "{a}", "'; --", "%", "_", "a\x00", "a\x00b", "ä", "\xff\xfe",
		strings.Repeat("k", drivers.MaxKey), strings.Repeat("\xff", drivers.MaxKey), strings.Repeat("k", drivers.MaxKey-1)}
	seen := map[string]bool{}
	for _, k := range keys {
		seen[k] = true
	}
	for i := range 256 {
		if k := string([]byte{byte(i)}); !seen[k] {
			keys = append(keys, k)
		}
	}
	b, other := s.both(drivers.BucketOptions{})
	for _, k := range keys {
		s.create(b, k, "of "+k, 0)
	}
	for _, k := range keys {
		s.get(other, k, "of "+k)
	}
	for i, k := range keys {
		if i%2 == 0 {
			if err := b.Delete(s.ctx, []byte(k)); err != nil {
				s.Fatalf("delete %q: %v", k, err)
			}
		}
	}
	for i, k := range keys {
		if i%2 == 0 {
			s.absent(other, k)
		} else {
			s.get(other, k, "of "+k)
		}
	}
}

func bucketBadKeys(s *bucketSuite) {
	b := s.bucket()
	for _, key := range [][]byte{nil, {}, make([]byte, drivers.MaxKey+1), make([]byte, 100_000)} {
		what := fmt.Sprintf("key of %d bytes: ", len(key))
		_, err := b.Get(s.ctx, key)
		s.refused(what+"get", err, drivers.ErrInvalid)
		s.refused(what+"put", b.Put(s.ctx, key, []byte("v"), 0), drivers.ErrInvalid)
		s.refused(what+"create", b.Create(s.ctx, key, []byte("v"), 0), drivers.ErrInvalid)
		s.refused(what+"delete", b.Delete(s.ctx, key), drivers.ErrInvalid)
	}
}

func bucketCreate(s *bucketSuite) {
	b, other := s.both(drivers.BucketOptions{})
	s.create(b, "a", "first", 0)
	s.refused("second create", other.Create(s.ctx, []byte("a"), []byte("second"), 0), drivers.ErrExists)
	s.get(b, "a", "first")
	if err := other.Delete(s.ctx, []byte("a")); err != nil {
		s.Fatal(err)
	}
	s.create(b, "a", "third", 0)
	s.get(other, "a", "third")
	s.put(other, "b", "put", 0)
	s.refused("create of what was put", b.Create(s.ctx, []byte("b"), nil, 0), drivers.ErrExists)
}

// race lets many create one key at once, through both connections, and wants one winner,
// whose value it then finds.
func (s *bucketSuite) race(a, b drivers.Bucket, key string) {
	s.Helper()
	const each = 8
	var wg sync.WaitGroup
	var won atomic.Int32
	var winner atomic.Value
	start := make(chan struct{})
	for i := range 2 * each {
		bucket, value := a, fmt.Sprintf("value %d", i)
		if i%2 == 1 {
			bucket = b
		}
		wg.Go(func() {
			<-start
			switch err := bucket.Create(s.ctx, []byte(key), []byte(value), 0); {
			case err == nil:
				won.Add(1)
				winner.Store(value)
			case !errors.Is(err, drivers.ErrExists):
				s.Errorf("create %q: %v", key, err)
			}
		})
	}
	close(start)
	wg.Wait()
	if n := won.Load(); n != 1 {
		s.Fatalf("%d of %d created %q, want 1", n, 2*each, key)
	}
	s.get(b, key, winner.Load().(string))
}

func bucketCreateOnce(s *bucketSuite) {
	a, b := s.both(drivers.BucketOptions{})
	for i := range 20 {
		s.race(a, b, fmt.Sprintf("key %d", i))
	}
}

// bucketCreateOnceExpired races for keys that have just become free by their ttl.
func bucketCreateOnceExpired(s *bucketSuite) {
	a, b := s.both(drivers.BucketOptions{})
	for i := range 3 {
		key := fmt.Sprintf("key %d", i)
		s.create(a, key, "old", 300*time.Millisecond)
		s.eventually("the value expires", func() bool {
			_, err := b.Get(s.ctx, []byte(key))
			return errors.Is(err, drivers.ErrNotFound)
		})
		s.race(a, b, key)
	}
}

func bucketDelete(s *bucketSuite) {
	a, b := s.both(drivers.BucketOptions{})
	s.put(a, "a", "v", time.Hour)
	s.put(a, "ab", "w", 0)
	if err := b.Delete(s.ctx, []byte("a")); err != nil {
		s.Fatal(err)
	}
	s.absent(a, "a")
	s.refused("second delete", a.Delete(s.ctx, []byte("a")), drivers.ErrNotFound)
	s.get(a, "ab", "w")
}

// bucketDeleteLeavesNothing counts: what a deletion left behind would fill the quota.
func bucketDeleteLeavesNothing(s *bucketSuite) {
	b := s.open(s.kv, drivers.BucketOptions{MaxKeys: 3, MaxBytes: 16 << 10})
	for i := range 50 {
		key := fmt.Sprint("key ", i)
		s.create(b, key, strings.Repeat("v", 1000), 0)
		if err := b.Delete(s.ctx, []byte(key)); err != nil {
			s.Fatalf("delete %q: %v", key, err)
		}
	}
}

func bucketOwnsBytes(s *bucketSuite) {
	b := s.bucket()
	key, value := []byte("key"), []byte("value")
	if err := b.Put(s.ctx, key, value, 0); err != nil {
		s.Fatal(err)
	}
	copy(key, "xxx")
	copy(value, "xxxxx")
	s.get(b, "key", "value")
	got, err := b.Get(s.ctx, []byte("key"))
	if err != nil {
		s.Fatal(err)
	}
	copy(got, "yyyyy")
	s.get(b, "key", "value")
}

func bucketShared(s *bucketSuite) {
	a, b := s.both(drivers.BucketOptions{})
	again := s.open(s.kv, drivers.BucketOptions{})
	for i := range 20 {
		v := fmt.Sprint(i)
		s.put(a, "a", v, 0)
		s.get(b, "a", v)
		s.get(again, "a", v)
		s.put(b, "b", v, 0)
		s.get(a, "b", v)
	}
}

func bucketApart(s *bucketSuite) {
	names := []string{s.name, s.name + ".x", s.name + "_x", s.name + "-x", s.name + "x", s.name + "..x", s.name + ".", s.name + "dotx"}
	names = append(names, s.name+strings.Repeat("n", 128-len(s.name)), s.name+strings.Repeat("n", 127-len(s.name))+"m")
	buckets := make([]drivers.Bucket, len(names))
	for i, name := range names {
		buckets[i] = s.open(s.kv, drivers.BucketOptions{Name: name})
		s.create(buckets[i], "a", name, 0)
		s.create(buckets[i], "x.a", name, 0)
	}
	for i, name := range names {
		s.get(buckets[i], "a", name)
	}
	if err := buckets[0].Delete(s.ctx, []byte("a")); err != nil {
		s.Fatal(err)
	}
	for i, name := range names[1:] {
		s.get(buckets[i+1], "a", name)
	}
}

func bucketNames(s *bucketSuite) {
	for _, name := range []string{".a", "-a", "A", "a b", "a/b", "a*", "ä", strings.Repeat("n", 129)} {
		if _, err := s.kv.OpenBucket(s.ctx, drivers.BucketOptions{Name: name}); !errors.Is(err, drivers.ErrInvalid) {
			s.Errorf("bucket %q: %v, want ErrInvalid", name, err)
		}
	}
}

func bucketTTL(s *bucketSuite) {
	a, b := s.both(drivers.BucketOptions{})
	for _, ttl := range []time.Duration{50 * time.Millisecond, 2 * time.Second} {
		for _, how := range []string{"put", "create"} {
			key := fmt.Sprintf("%s %s", how, ttl)
			asked := time.Now()
			if how == "put" {
				s.put(a, key, "v", ttl)
			} else {
				s.create(a, key, "v", ttl)
			}
			if _, err := b.Get(s.ctx, []byte(key)); err != nil && time.Since(asked) < ttl-slack {
				s.Fatalf("%s: %v before its ttl was over", key, err)
			}
			s.eventually(key+" expires", func() bool {
				before := time.Since(asked)
				_, err := b.Get(s.ctx, []byte(key))
				if err != nil && !errors.Is(err, drivers.ErrNotFound) {
					s.Fatalf("%s: %v", key, err)
				}
				if err != nil && time.Since(asked) < ttl-slack {
					s.Fatalf("%s was gone after %s", key, before)
				}
				return err != nil
			})
			s.refused("delete of what has expired", b.Delete(s.ctx, []byte(key)), drivers.ErrNotFound)
			s.create(b, key, "again", 0)
			s.get(a, key, "again")
		}
	}
}

// bucketTTLReplaced: each write brings its own ttl.
func bucketTTLReplaced(s *bucketSuite) {
	b := s.bucket()
	const ttl = 300 * time.Millisecond
	s.put(b, "stays", "old", ttl)
	s.put(b, "stays", "new", 0)
	s.put(b, "longer", "old", ttl)
	s.put(b, "longer", "new", time.Hour)
	s.put(b, "goes", "old", 0)
	s.put(b, "goes", "new", ttl)
	s.eventually("the value expires", func() bool {
		_, err := b.Get(s.ctx, []byte("goes"))
		return errors.Is(err, drivers.ErrNotFound)
	})
	time.Sleep(2 * time.Second) // longer than any broker rounds up
	s.get(b, "stays", "new")
	s.get(b, "longer", "new")
}

func bucketLongTTL(s *bucketSuite) {
	b := s.bucket()
	for _, ttl := range []time.Duration{400 * 24 * time.Hour, 80 * 365 * 24 * time.Hour, math.MaxInt64} {
		s.put(b, ttl.String(), "v", ttl)
		s.create(b, "c"+ttl.String(), "v", ttl)
		s.get(b, ttl.String(), "v")
		s.get(b, "c"+ttl.String(), "v")
	}
	s.put(b, "negative", "v", -time.Second) // is none
	s.get(b, "negative", "v")
}

func bucketMaxKeys(s *bucketSuite) {
	const n = 5
	b := s.open(s.kv, drivers.BucketOptions{MaxKeys: n})
	for i := range n {
		s.create(b, fmt.Sprint(i), "v", 0)
	}
	s.refused("put over the quota", b.Put(s.ctx, []byte("more"), nil, 0), drivers.ErrQuota)
	s.refused("create over the quota", b.Create(s.ctx, []byte("more"), nil, time.Hour), drivers.ErrQuota)
	s.refused("create of what is there", b.Create(s.ctx, []byte("0"), nil, 0), drivers.ErrExists)
	s.put(b, "0", "replaced", 0)
	s.get(b, "0", "replaced")
	s.absent(b, "more")
	if err := b.Delete(s.ctx, []byte("1")); err != nil {
		s.Fatal(err)
	}
	s.put(b, "more", "v", 0)
	s.refused("put over the quota again", b.Put(s.ctx, []byte("1"), nil, 0), drivers.ErrQuota)
	free := s.open(s.kv, drivers.BucketOptions{Name: s.name + "-free"})
	for i := range 2 * n {
		s.put(free, fmt.Sprint(i), "v", 0)
	}
}

func bucketMaxBytes(s *bucketSuite) {
	value := strings.Repeat("v", 8<<10)
	b := s.open(s.kv, drivers.BucketOptions{MaxBytes: int64(8 * len(value))})
	stored := 0
	for ; stored < 16; stored++ {
		err := b.Put(s.ctx, fmt.Append(nil, stored), []byte(value), 0)
		if errors.Is(err, drivers.ErrQuota) {
			break
		}
		if err != nil {
			s.Fatal(err)
		}
	}
	// A broker may count a little for each key.
	if stored < 7 || stored > 12 {
		s.Fatalf("%d values of an eighth of the quota were stored", stored)
	}
	s.refused("create over the quota", b.Create(s.ctx, []byte("more"), []byte(value), 0), drivers.ErrQuota)
	s.put(b, "0", strings.Repeat("w", len(value)), 0)
	s.put(b, "1", "small", 0)
	s.put(b, "more", value[:4<<10], 0)
	err := b.Put(s.ctx, []byte("0"), bytes.Repeat([]byte("w"), 20*len(value)), 0)
	if !errors.Is(err, drivers.ErrQuota) && !errors.Is(err, drivers.ErrTooLarge) {
		s.Fatalf("a value larger than the bucket: %v, want ErrQuota or ErrTooLarge", err)
	}
	s.get(b, "0", strings.Repeat("w", len(value)))
}

func bucketExpiredFrees(s *bucketSuite) {
	b := s.open(s.kv, drivers.BucketOptions{MaxKeys: 2})
	s.put(b, "a", "v", 500*time.Millisecond)
	s.put(b, "b", "v", 0)
	s.eventually("the expired value makes room", func() bool {
		err := b.Create(s.ctx, []byte("c"), []byte("v"), 0)
		if err != nil && !errors.Is(err, drivers.ErrQuota) {
			s.Fatal(err)
		}
		return err == nil
	})
	s.get(b, "b", "v")
}

// bucketQuotaRaised: the quota is that of the latest opening.
func bucketQuotaRaised(s *bucketSuite) {
	small := s.open(s.kv, drivers.BucketOptions{MaxKeys: 1, MaxBytes: 1 << 20})
	s.put(small, "a", "v", 0)
	s.refused("put over the quota", small.Put(s.ctx, []byte("b"), nil, 0), drivers.ErrQuota)
	large := s.open(s.kv, drivers.BucketOptions{MaxKeys: 3, MaxBytes: 2 << 20})
	s.get(large, "a", "v")
	s.put(large, "b", "v", 0)
	s.put(large, "c", "v", 0)
	s.refused("put over the quota", large.Put(s.ctx, []byte("d"), nil, 0), drivers.ErrQuota)
}

// bucketTooLarge: a value that the broker does not take is refused by that name.
func bucketTooLarge(s *bucketSuite) {
	b := s.bucket()
	value := bytes.Repeat([]byte("v"), 10<<20)
	for name, err := range map[string]error{
		"put":    b.Put(s.ctx, []byte("a"), value, 0),
		"create": b.Create(s.ctx, []byte("b"), value, 0),
	} {
		if err != nil && !errors.Is(err, drivers.ErrTooLarge) {
			s.Errorf("%s of 10 MiB: %v, want ErrTooLarge", name, err)
		}
	}
}

func bucketContextEnded(s *bucketSuite) {
	b := s.bucket()
	s.put(b, "a", "v", 0)
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	_, err := b.Get(ctx, []byte("a"))
	for what, err := range map[string]error{
		"get": err, "put": b.Put(ctx, []byte("a"), nil, 0), "create": b.Create(ctx, []byte("c"), nil, 0),
		"delete": b.Delete(ctx, []byte("a")),
	} {
		if !errors.Is(err, context.Canceled) {
			s.Errorf("%s under an ended context: %v", what, err)
		}
	}
	if _, err := s.kv.OpenBucket(ctx, drivers.BucketOptions{Name: s.name + "-new"}); !errors.Is(err, context.Canceled) {
		s.Errorf("open under an ended context: %v", err)
	}
}

// bucketManyAtOnce: each goroutine reads what it wrote, whatever the others do.
func bucketManyAtOnce(s *bucketSuite) {
	a, b := s.both(drivers.BucketOptions{MaxKeys: 1000, MaxBytes: 1 << 20})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			key := fmt.Appendf(nil, "key.%d", g)
			for i := range 25 {
				value := fmt.Appendf(nil, "%d of %d", i, g)
				if err := a.Put(s.ctx, key, value, time.Duration(i%2)*time.Hour); err != nil {
					s.Errorf("put: %v", err)
					return
				}
				if got, err := b.Get(s.ctx, key); err != nil || !bytes.Equal(got, value) {
					s.Errorf("get: %q, %v; want %q", got, err, value)
					return
				}
				if err := b.Delete(s.ctx, key); err != nil {
					s.Errorf("delete: %v", err)
					return
				}
				if err := b.Create(s.ctx, key, value, 0); err != nil {
					s.Errorf("create: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}
