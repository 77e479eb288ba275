package config

import (
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/guesthand/guesthand/host/policy"
)

// defaultCeiling is the most memory a sidecar may ask for where [limits] names no ceiling.
const defaultCeiling = 256 << 20

// driverKeys are the keys of [brokers.NAME] that a driver understands beside `driver`.
var driverKeys = map[string][]string{
	"memory":     {},
	"embedded":   {"dir", "sync", "listen", "user", "password"},
	"nats":       {"url", "credentials", "user", "password"},
	"rabbitmq":   {"url", "user", "password"},
	"redis":      {"url", "user", "password"},
	"postgres":   {"url", "user", "password", "schema"},
	"sqs":        {"url", "region"},
	"cloudflare": {"url", "account", "token"},
}

// driverURLs are the schemes of a driver's url, with an example, and whether there must be
// one: the services' own addresses are known.
var driverURLs = map[string]struct {
	schemes []string
	example string
	several bool // with commas between
	needed  bool
}{
	"nats":       {[]string{"nats", "tls", "ws", "wss"}, "nats://127.0.0.1:4222", true, true},
	"rabbitmq":   {[]string{"amqp", "amqps"}, "amqp://127.0.0.1:5672/vhost", true, true},
	"redis":      {[]string{"redis", "rediss"}, "redis://127.0.0.1:6379/0", false, true},
	"postgres":   {[]string{"postgres", "postgresql"}, "postgres://127.0.0.1:5432/database", false, true},
	"sqs":        {[]string{"http", "https"}, "http://127.0.0.1:4566", false, false},
	"cloudflare": {[]string{"http", "https"}, "https://api.cloudflare.com/client/v4", false, false},
}

// storeDrivers are those whose key-value can be the [store].
var storeDrivers = []string{"embedded", "nats", "postgres", "redis"}

// driverNames are the keys of [queues.NAME.DRIVER]: names on the broker that do not follow
// from the queue's.
var driverNames = map[string][]string{
	"memory":     {},
	"embedded":   natsNames,
	"nats":       natsNames,
	"rabbitmq":   {"queue", "type", "dead_queue", "hold_prefix"},
	"redis":      {"prefix"},
	"postgres":   {"queue"},
	"sqs":        {"queue", "dead_queue"},
	"cloudflare": {"queue", "dead_queue"},
}

var natsNames = []string{"stream", "subject", "consumer", "dead_stream"}

// Defaults is the configuration without a file: no broker and no queue, everything else as
// the reference config.toml has it. Paths are relative to the working directory.
func Defaults() *Config {
	c := defaults("")
	c.complete(keys{}, keys{}, keys{})
	return c
}

// defaults are completed once the file is read, since some follow from what it says.
func defaults(file string) *Config {
	dir := filepath.Dir(file)
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return &Config{
		File: file, Dir: dir, Plugins: within(dir, "plugins"), Data: within(dir, "data"), Drain: 25 * time.Second,
		Brokers: map[string]Broker{}, Queues: map[string]Queue{}, Handlers: map[string]Handler{},
		Limits: Limits{Default: defaultHandler()},
		Admin:  Admin{Listen: "127.0.0.1:7070"},
		Ledger: Ledger{Driver: "sqlite", Keep: 7 * day, Max: 1 << 30},
		Log:    Log{Level: "info"},
		Trace:  Trace{Sample: 1},
	}
}

// complete fills in what follows from other keys and was not written itself.
func (c *Config) complete(ledger, limits, brokers keys) {
	if !ledger["path"] {
		c.Ledger.Path = filepath.Join(c.Data, "ledger.db")
	}
	if !limits["max_memory"] {
		c.Limits.Memory = max(defaultCeiling, c.Limits.Default.Memory)
	}
	for name, b := range c.Brokers {
		if b.Driver == "embedded" && !brokers[name] {
			b.Dir = filepath.Join(c.Data, "broker")
			c.Brokers[name] = b
		}
	}
}

// read fills c from the document and checks it.
func (c *Config) read(root node) {
	var ledger, limits keys
	dirs := keys{}
	root.table(fields{
		"plugins":        path(&c.Plugins, "plugins"),
		"data":           path(&c.Data, "data"),
		"drain":          duration(&c.Drain),
		"trust_sidecars": boolean(&c.TrustSidecars),
		"brokers":        named(c.Brokers, func(n node) Broker { return readBroker(n, dirs) }),
		"queues":         named(c.Queues, readQueue),
		"handlers":       named(c.Handlers, readHandler),
		"limits":         func(n node) { limits = n.table(limitFields(&c.Limits)) },
		"admin":          func(n node) { readAdmin(n, &c.Admin) },
		"ledger":         func(n node) { ledger = readLedger(n, &c.Ledger) },
		"log":            func(n node) { readLog(n, &c.Log) },
		"on_dead":        text(&c.OnDead, "bury"),
		"events":         text(&c.Events, "ops"),
		"store":          func(n node) { readStore(n, &c.Store) },
		"trace":          func(n node) { readTrace(n, &c.Trace) },
	})
	c.complete(ledger, limits, dirs)
	c.check(root)
}

// named reads a table whose keys are names the operator chose.
func named[T any](into map[string]T, read func(node) T) setter {
	return func(n node) {
		for _, child := range n.children() {
			into[child.name()] = read(child)
		}
	}
}

func readBroker(n node, dirs keys) Broker {
	b := Broker{Name: n.name(), Sync: time.Second, Schema: "guesthand"}
	if !queueName.MatchString(b.Name) {
		n.fail("%s", queueNameRule)
	}
	given := n.table(fields{
		"driver":      driver(&b.Driver),
		"url":         text(&b.URL, "nats://127.0.0.1:4222"),
		"dir":         path(&b.Dir, "data/broker"),
		"sync":        syncing(&b),
		"listen":      address(&b.Listen),
		"credentials": path(&b.Credentials, "nats.creds"),
		"user":        text(&b.User, "guesthand"),
		"password":    secret(&b.Password),
		"schema":      schemaName(&b.Schema),
		"region":      text(&b.Region, "eu-central-1"),
		"account":     text(&b.Account, "023e105f4ecef8ad9ca31a8372d0c353"),
		"token":       secret(&b.Token),
	})
	dirs[b.Name] = given["dir"]
	if !given["driver"] {
		n.fail("has no driver; add driver = \"embedded\", or another of %s", strings.Join(slices.Sorted(maps.Keys(driverKeys)), ", "))
	}
	n.checkBroker(b, given)
	return b
}

// checkBroker looks at what the keys of one broker mean together.
func (n node) checkBroker(b Broker, given keys) {
	known, ok := driverKeys[b.Driver]
	if !ok {
		return
	}
	for key := range given {
		if key != "driver" && !slices.Contains(known, key) {
			n.key(key).fail("the %s driver has no such setting; remove it", b.Driver)
		}
	}
	n.checkURL(b, given["url"])
	if b.Driver == "cloudflare" && !(given["account"] && given["token"]) {
		n.fail(`needs the account's id and an API token; add account = "..." and token = "env:CLOUDFLARE_API_TOKEN"`)
	}
	// A Redis server may ask for a password alone.
	if given["user"] != given["password"] && (b.Driver != "redis" || given["user"]) {
		n.fail("user and password go together; add the other one")
	}
	if given["credentials"] && given["user"] {
		n.key("credentials").fail("stands beside user and password; keep one of them")
	}
	if b.Driver == "embedded" && b.Listen != "" && !loopback(b.Listen) && !given["password"] {
		n.key("listen").fail("%q is not loopback, so producers must log in; add user and password, or listen on 127.0.0.1", b.Listen)
	}
}

func driver(p *string) setter {
	return oneOf(p, slices.Sorted(maps.Keys(driverKeys))...)
}

// checkURL looks at a broker's address. No issue shows it: it may hold a password.
func (n node) checkURL(b Broker, given bool) {
	known, ok := driverURLs[b.Driver]
	switch {
	case !ok:
		return
	case !given:
		if known.needed {
			n.fail("has no url; add one such as url = %q", known.example)
		}
		return
	}
	servers := []string{b.URL}
	if known.several {
		servers = strings.Split(b.URL, ",")
	}
	for _, server := range servers {
		u, err := url.Parse(strings.TrimSpace(server))
		if err != nil || u.Hostname() == "" || !slices.Contains(known.schemes, u.Scheme) {
			text := fmt.Sprintf("is no address for the %s driver; write %s", b.Driver, known.example)
			if len(known.schemes) > 1 {
				text += " (or " + strings.Join(known.schemes[1:], ", ") + ")"
			}
			if known.several {
				text += ", several with commas between"
			}
			n.key("url").fail("%s", text)
			return
		}
	}
}

// schemaName is a name that needs no quotes in SQL.
func schemaName(p *string) setter {
	return func(n node) {
		s, ok := n.text("guesthand")
		if ok && !schemaPattern.MatchString(s) {
			n.fail("%q is no schema name; use lower case letters, digits and _, at most 63", s)
			return
		}
		*p = s
	}
}

var schemaPattern = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

func readStore(n node, s *Store) {
	given := n.table(fields{"broker": text(&s.Broker, "local")})
	if !given["broker"] {
		n.fail(`names no broker; add broker = "NAME" of a [brokers.NAME]`)
	}
}

func syncing(b *Broker) setter {
	return func(n node) {
		b.SyncAlways = n.v == "always"
		if !b.SyncAlways {
			duration(&b.Sync)(n)
		}
	}
}

func readQueue(n node) Queue {
	q := Queue{Name: n.name(), Concurrency: 16, Lease: 30 * time.Second, Create: true, DeadKeep: 30 * day,
		DeadMax: 100000, UnknownJob: UnknownJob{Wait: 30 * time.Second, Tries: 10}}
	switch {
	case q.Name == "dead":
		n.fail("this name is taken by the dead letters' subjects; rename the queue")
	case !ValidQueue(q.Name):
		n.fail("%s", queueNameRule)
	}
	known := fields{
		"broker":      text(&q.Broker, "local"),
		"concurrency": integer(&q.Concurrency, 1, maxConcurrency),
		"lease":       durationFrom(&q.Lease, time.Second),
		"handler":     jobText(&q.Handler),
		"jobs":        texts(&q.Jobs, jobText),
		"unknown_job": func(n node) {
			n.table(fields{"wait": duration(&q.UnknownJob.Wait), "tries": integer(&q.UnknownJob.Tries, 0, maxCount)})
		},
		"retry": retry(&q.Retry),
		"dead": func(n node) {
			n.table(fields{"keep": optional(&q.DeadKeep, duration(&q.DeadKeep)), "max": integer(&q.DeadMax, 0, maxCount)})
		},
		"create": boolean(&q.Create),
	}
	for name, names := range driverNames {
		known[name] = brokerNames(&q.Names, names)
	}
	given := n.table(known)
	if !given["broker"] {
		n.fail(`has no broker; add broker = "NAME" of a [brokers.NAME]`)
	}
	if given["handler"] && given["jobs"] {
		n.key("jobs").warn("has no effect beside handler, which takes every message")
	}
	return q
}

// brokerNames reads [queues.NAME.DRIVER].
func brokerNames(p *map[string]string, names []string) setter {
	return func(n node) {
		values := make([]string, len(names))
		known := fields{}
		for i, name := range names {
			known[name] = text(&values[i], "orders")
		}
		n.table(known)
		m := map[string]string{}
		for i, name := range names {
			if values[i] != "" {
				m[name] = values[i]
			}
		}
		*p = m
	}
}

func readHandler(n node) Handler {
	h := Handler{Job: n.name()}
	if !ValidJob(h.Job) {
		n.fail("%s", jobNameRule)
	}
	h.given = n.table(handlerFields(&h))
	return h
}

func limitFields(l *Limits) fields {
	known := fields{"max_memory": size(&l.Memory, page, maxMemory)}
	for name, set := range handlerFields(&l.Default) {
		if handlerKeys[name].limit {
			known[name] = set
		}
	}
	return known
}

func readAdmin(n node, a *Admin) {
	given := n.table(fields{"listen": address(&a.Listen), "token": secret(&a.Token),
		"cert": path(&a.Cert, "tls/cert.pem"), "key": path(&a.Key, "tls/key.pem")})
	if given["cert"] != given["key"] {
		n.fail("cert and key go together; add the other one")
	}
}

func readLedger(n node, l *Ledger) keys {
	return n.table(fields{
		"driver": oneOf(&l.Driver, "sqlite", none),
		"path":   path(&l.Path, "data/ledger.db"),
		"keep":   optional(&l.Keep, duration(&l.Keep)),
		"max":    optional(&l.Max, sizeInt(&l.Max, 1<<20, 1<<50)),
	})
}

func readLog(n node, l *Log) {
	n.table(fields{
		"level": oneOf(&l.Level, "debug", "info", "warn", "error"),
		"format": func(n node) {
			oneOf(&l.Format, "auto", "text", "json")(n)
			if l.Format == "auto" {
				l.Format = ""
			}
		},
	})
}

// maxCount bounds whatever is counted.
const maxCount = 1_000_000_000

// retry reads a policy: every key that is missing has the default, so retry = {} is
// policy.Default.
func retry(p **policy.Policy) setter {
	return func(n node) {
		r := policy.Default()
		before := len(n.issues)
		given := n.table(fields{
			"max_attempts": integer(&r.MaxAttempts, 0, maxCount),
			"backoff":      oneOf((*string)(&r.Backoff), string(policy.None), string(policy.Fixed), string(policy.Exponential)),
			"delay":        duration(&r.Delay),
			"base":         duration(&r.Base),
			"factor":       factor(&r.Factor),
			"max":          duration(&r.Max),
			"jitter":       boolean(&r.Jitter),
			"max_delays":   integer(&r.MaxDelays, 0, maxCount),
			"max_stalls":   integer(&r.MaxStalls, 0, maxCount),
			"max_age":      optional(&r.MaxAge, duration(&r.MaxAge)),
			"max_wait":     optional(&r.MaxWait, duration(&r.MaxWait)),
		})
		*p = &r
		if len(n.issues) == before {
			n.checkRetry(r, given)
		}
	}
}

// checkRetry looks at what a policy's keys mean together.
func (n node) checkRetry(r policy.Policy, given keys) {
	switch r.Backoff {
	case policy.None:
		if r.MaxAttempts == 0 {
			n.key("max_attempts").fail(`0 is no cap, which with backoff = "none" would spin; set a cap or another backoff`)
		}
	case policy.Fixed:
		if !given["delay"] {
			n.fail(`backoff = "fixed" needs a delay; add one such as delay = "10s"`)
		}
	case policy.Exponential:
		if r.Max < r.Base {
			n.fail("max (%s) is below base (%s); raise max or lower base", FormatDuration(r.Max), FormatDuration(r.Base))
		}
	}
	uses := map[policy.Backoff][]string{policy.Fixed: {"delay"}, policy.Exponential: {"base", "factor", "max"}}
	for backoff, names := range uses {
		for _, name := range names {
			if given[name] && backoff != r.Backoff {
				n.key(name).warn("has no effect with backoff = %q", r.Backoff)
			}
		}
	}
}
