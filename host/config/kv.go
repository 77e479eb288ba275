package config

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"regexp"
	"slices"
)

// KV is a handler's kv: the values it may keep.
type KV struct {
	MaxKeys  int
	MaxBytes int64  // of keys and values
	Bucket   string // its name on the broker; "" for the job's
}

// maxBucketName is what every broker takes.
const maxBucketName = 128

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)

// BucketName is the name of the job's bucket on its broker.
func (k KV) BucketName(job string) string {
	if k.Bucket != "" {
		return k.Bucket
	}
	if len(job) <= maxBucketName {
		return job
	}
	sum := sha256.Sum256([]byte(job))
	tail := hex.EncodeToString(sum[:16])
	return job[:maxBucketName-1-len(tail)] + "-" + tail
}

// keyValue reads kv = { ... }; kv = {} grants it with the defaults.
func keyValue(p **KV) setter {
	return func(n node) {
		k := KV{MaxKeys: 10000, MaxBytes: 16 << 20}
		n.table(fields{
			"max_keys":  integer(&k.MaxKeys, 1, maxCount),
			"max_bytes": sizeInt(&k.MaxBytes, 1, 1<<40),
			"bucket":    bucketText(&k.Bucket),
		})
		*p = &k
	}
}

func bucketText(p *string) setter {
	return func(n node) {
		s, ok := n.text("resize-staging")
		if ok && !bucketName.MatchString(s) {
			n.fail("%s is no bucket's name; use 1 to 128 of a-z, 0-9, dot, _ and -, and start with a letter or digit", n.quote())
			return
		}
		*p = s
	}
}

// checkBuckets keeps handlers from seeing each other's values.
func (c *Config) checkBuckets(root node) {
	owner := map[string]string{}
	for _, job := range slices.Sorted(maps.Keys(c.Handlers)) {
		h := c.Handlers[job]
		if h.KV == nil {
			continue
		}
		name := h.KV.BucketName(job)
		if other, taken := owner[name]; taken {
			root.key("handlers", job, "kv").fail("its bucket %s is that of [handlers.%s] too; a handler sees only its own, so give it another bucket", name, other)
		}
		owner[name] = job
		c.warnOfBuckets(root.key("handlers", job, "kv"), job)
	}
}

// warnOfBuckets says where a handler's values would have no place.
func (c *Config) warnOfBuckets(n node, job string) {
	if c.Store.Broker != "" {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.Queues)) {
		q := c.Queues[name]
		if b, ok := c.Brokers[q.Broker]; ok && b.Driver != "" && b.NeedsStore() && (q.Handler == "" || q.Handler == job) {
			n.warn("on queue %s kv_* answers that it is not granted: broker %s (%s) keeps no values; name one that does under [store]", name, b.Name, b.Driver)
		}
	}
}

// sidecarBucket is what is wrong with a kv that a sidecar grants.
func (c *Config) sidecarBucket(s *Sidecar) string {
	k := s.handler.KV
	switch {
	case k == nil:
		return ""
	case k.Bucket != "":
		return "names a bucket, which only config.toml may, under [handlers." + s.Job + "]"
	}
	for job, h := range c.Handlers {
		if h.KV != nil && job != s.Job && h.KV.BucketName(job) == k.BucketName(s.Job) {
			return "its bucket is that of [handlers." + job + "] in config.toml"
		}
	}
	return ""
}

// BucketBroker is the broker that keeps the values of handlers for messages of that queue:
// that of [store], which puts them in one place, else the queue's own.
func (c *Config) BucketBroker(queue string) string {
	if c.Store.Broker != "" {
		return c.Store.Broker
	}
	return c.Queues[queue].Broker
}
