package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// setting is one comparable value of a configuration.
type setting struct {
	value any
	live  bool // can change while queues are open
}

// Diff names the keys that differ between two configurations: those that can take effect
// while the host runs, and those that need a restart. Values are not shown.
func Diff(old, new *Config) (applies, needsRestart []string) {
	a, b := old.settings(), new.settings()
	both := maps.Clone(a)
	maps.Copy(both, b)
	for _, key := range slices.Sorted(maps.Keys(both)) {
		if reflect.DeepEqual(a[key].value, b[key].value) {
			continue
		}
		if partOfNew(a, b, key) {
			continue
		}
		if both[key].live {
			applies = append(applies, key)
		} else {
			needsRestart = append(needsRestart, key)
		}
	}
	return applies, needsRestart
}

// partOfNew tells whether a key belongs to a queue or broker that only one of both has: that
// is one change, named by the section, and not one for each of its keys.
func partOfNew(a, b map[string]setting, key string) bool {
	parts := strings.SplitN(key, ".", 3) // these sections' names have no dots
	if len(parts) < 3 || parts[0] != "queues" && parts[0] != "brokers" {
		return false
	}
	section := parts[0] + "." + parts[1]
	_, inA := a[section]
	_, inB := b[section]
	return inA != inB
}

func (c *Config) settings() map[string]setting {
	s := map[string]setting{}
	fixed := func(value any, key ...string) { s[toml.Key(key).String()] = setting{value, false} }
	live := func(value any, key ...string) { s[toml.Key(key).String()] = setting{value, true} }

	fixed(c.Plugins, "plugins")
	fixed(c.Data, "data")
	live(c.Drain, "drain")
	live(c.TrustSidecars, "trust_sidecars")
	live(c.Events, "events")
	live(c.OnDead, "on_dead")
	live(c.Limits.Memory, "limits", "max_memory")
	fixed(c.Admin.Listen, "admin", "listen")
	fixed(c.Admin.Token, "admin", "token")
	fixed(c.Admin.Cert, "admin", "cert")
	fixed(c.Admin.Key, "admin", "key")
	fixed(c.Ledger.Driver, "ledger", "driver")
	fixed(c.Ledger.Path, "ledger", "path")
	fixed(c.Ledger.Keep, "ledger", "keep")
	fixed(c.Ledger.Max, "ledger", "max")
	live(c.Log.Level, "log", "level")
	fixed(c.Log.Format, "log", "format")
	fixed(c.Store.Broker, "store", "broker")
	fixed(c.Trace.Endpoint, "trace", "endpoint")
	fixed(c.Trace.Sample, "trace", "sample")
	fixed(c.Trace.Headers, "trace", "headers")
	for name, b := range c.Brokers {
		fixed(true, "brokers", name)
		fixed(b.Driver, "brokers", name, "driver")
		fixed(b.URL, "brokers", name, "url")
		fixed(b.Dir, "brokers", name, "dir")
		fixed([]any{b.SyncAlways, b.Sync}, "brokers", name, "sync")
		fixed(b.Listen, "brokers", name, "listen")
		fixed(b.Credentials, "brokers", name, "credentials")
		fixed(b.User, "brokers", name, "user")
		fixed(b.Password, "brokers", name, "password")
		fixed(b.Schema, "brokers", name, "schema")
		fixed(b.Region, "brokers", name, "region")
		fixed(b.Account, "brokers", name, "account")
		fixed(b.Token, "brokers", name, "token")
	}
	for name, q := range c.Queues {
		fixed(true, "queues", name)
		fixed(q.Broker, "queues", name, "broker")
		fixed(q.Concurrency, "queues", name, "concurrency")
		fixed(q.Lease, "queues", name, "lease")
		fixed(q.Handler, "queues", name, "handler")
		live(q.Jobs, "queues", name, "jobs")
		live(q.UnknownJob, "queues", name, "unknown_job")
		live(q.Retry, "queues", name, "retry")
		fixed([]any{q.DeadKeep, q.DeadMax}, "queues", name, "dead")
		fixed(q.Create, "queues", name, "create")
		if len(q.Names) > 0 {
			fixed(q.Names, "queues", name, c.Brokers[q.Broker].Driver)
		}
	}
	for name, key := range handlerKeys {
		if key.limit {
			live(c.Limits.Default.value(name), "limits", name)
		}
		for job, h := range c.Handlers {
			if h.given[name] {
				live(h.value(name), "handlers", job, name)
			}
		}
	}
	return s
}

// value is what a key of the handler holds.
func (h Handler) value(name string) any {
	field := handlerKeys[name].field
	if field == nil {
		return nil
	}
	place, _ := field(&h)
	return reflect.ValueOf(place).Elem().Interface()
}
