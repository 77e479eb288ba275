package redisdriver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/guesthand/guesthand/drivers"
)

// defaultBulk is the server's default proto-max-bulk-len: the largest string it takes.
const defaultBulk = 512 << 20

// server is what the server says about itself when the driver opens.
type server struct {
	version  string
	policy   string // maxmemory-policy
	memory   string // maxmemory as people read it; "0B" for none
	aof      bool
	snapshot bool   // save points; true where they cannot be read
	fsync    string // appendfsync, "" unknown
	bulk     int    // proto-max-bulk-len
}

// inspect reads the server's settings and refuses a server that cannot serve.
func (d *Driver) inspect(ctx context.Context) (server, error) {
	info := redis.NewStringCmd(ctx, "info")
	d.do(ctx, info)
	if err := info.Err(); err != nil {
		return server{}, fmt.Errorf("info: %w", err)
	}
	said := fields(info.Val())
	s := server{version: said["redis_version"], policy: said["maxmemory_policy"], memory: said["maxmemory_human"],
		aof: said["aof_enabled"] == "1", snapshot: true, bulk: defaultBulk}
	switch {
	case !atLeast(s.version, MinimumServer):
		return s, fmt.Errorf("the server is version %s; guesthand needs %s or newer, since older ones cannot run its scripts when "+
			"memory is full: upgrade Redis", s.version, MinimumServer)
	case said["role"] == "slave":
		return s, fmt.Errorf("the server is a replica of %s and takes no writes: name the primary", said["master_host"])
	case said["cluster_enabled"] == "1":
		return s, fmt.Errorf("the server is part of a cluster, which this driver does not follow: name a server or a proxy that is none")
	}
	d.settings(ctx, &s)
	return s, nil
}

// settings reads what INFO does not tell. Hosted servers often refuse; then the defaults
// stand.
func (d *Driver) settings(ctx context.Context, s *server) {
	config := redis.NewMapStringStringCmd(ctx, "config", "get", "save", "appendfsync", "proto-max-bulk-len")
	d.do(ctx, config)
	said, err := config.Result()
	if err != nil {
		return
	}
	save, known := said["save"]
	s.snapshot = !known || save != ""
	s.fsync = said["appendfsync"]
	if n, err := strconv.Atoi(said["proto-max-bulk-len"]); err == nil && n > 0 {
		s.bulk = n
	}
}

// fields reads the lines of INFO.
func fields(info string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			out[name] = value
		}
	}
	return out
}

// atLeast compares versions a.b; what follows is ignored.
func atLeast(version, minimum string) bool {
	have, want := versionOf(version), versionOf(minimum)
	return have[0] > want[0] || have[0] == want[0] && have[1] >= want[1]
}

func versionOf(s string) (v [2]int) {
	for i, part := range strings.SplitN(s, ".", 3) {
		n, err := strconv.Atoi(part)
		if err != nil || i == len(v) {
			return v
		}
		v[i] = n
	}
	return v
}

// findings are what the server's settings do to messages.
func (s server) findings() []drivers.Finding {
	var out []drivers.Finding
	warn := func(format string, args ...any) {
		out = append(out, drivers.Finding{Warning: true, Text: fmt.Sprintf(format, args...)})
	}
	if s.policy != "" && s.policy != "noeviction" {
		limit := "maxmemory is 0 now, so nothing is evicted yet"
		if s.memory != "" && s.memory != "0B" {
			limit = "maxmemory is " + s.memory
		}
		warn("maxmemory-policy is %s: a full server throws away messages, counts or leases (%s); set maxmemory-policy noeviction", s.policy, limit)
	}
	switch {
	case !s.aof && !s.snapshot:
		warn("appendonly is no and there are no save points: a restart of the server loses every message; set appendonly yes")
	case !s.aof:
		warn("appendonly is no: a crash of the server loses what came since its last snapshot, and what was finished since comes back; set appendonly yes")
	case s.fsync == "everysec":
		out = append(out, drivers.Finding{Text: "appendfsync is everysec: a power cut can take the last second"})
	case s.fsync == "no":
		warn("appendfsync is no: a power cut takes what the operating system had not written yet, often 30 s; set appendfsync everysec")
	}
	return out
}

// format is the version of what the keys hold.
const format = 1

// setup makes the queue's mark, or looks for it.
func (q *queue) setup(ctx context.Context) error {
	mark := q.prefix + ":meta"
	get := redis.NewStringCmd(ctx, "hget", mark, "format")
	q.d.do(ctx, get)
	switch found, err := get.Result(); {
	case errors.Is(err, redis.Nil) && !q.o.Create:
		return fmt.Errorf("there is no queue %s on the server: set create = true, or correct the name", q.prefix)
	case errors.Is(err, redis.Nil):
		set := redis.NewIntCmd(ctx, "hsetnx", mark, "format", format)
		q.d.do(ctx, set)
		return set.Err()
	case err != nil:
		return err
	default:
		if n, err := strconv.Atoi(found); err != nil || n > format {
			return fmt.Errorf("%s was made by a newer guesthand (format %s, this one knows %d)", q.prefix, found, format)
		}
		return nil
	}
}
