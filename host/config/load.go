package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// EnvFile names the configuration file where no flag does.
const EnvFile = "GUESTHAND_CONFIG"

// defaultFile is the configuration where nothing names one.
const defaultFile = "config.toml"

// ErrNoFile: no file was named, and ./config.toml is not there.
var ErrNoFile = errors.New("no configuration: ./config.toml is not there")

// osEnv is the environment of this process.
func osEnv(name string) (string, bool) { return os.LookupEnv(name) }

// Find is the configuration file: the one the flag names, else $GUESTHAND_CONFIG, else
// ./config.toml. The error says which is missing; it is ErrNoFile only where nothing was
// named.
func Find(flag string) (file string, err error) {
	source := "-c"
	if file = flag; file == "" {
		file, source = os.Getenv(EnvFile), "$"+EnvFile
	}
	if file == "" {
		if _, err := os.Stat(defaultFile); errors.Is(err, fs.ErrNotExist) {
			return "", ErrNoFile
		}
		return defaultFile, nil
	}
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("configuration from %s: %w", source, err)
	}
	return file, nil
}

// Load reads a configuration file; "" gives Defaults. What is wrong with its contents is an
// *Error.
func Load(file string) (*Config, error) {
	if file == "" {
		return Defaults(), nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(file, data, osEnv)
}

// Parse reads a configuration. file is its name in issues, and its directory is what paths
// are relative to. The error is an *Error with everything that is wrong.
func Parse(file string, data []byte, getenv func(string) (string, bool)) (*Config, error) {
	c := defaults(file)
	r := &reader{file: file, dir: c.Dir, getenv: getenv}
	if root, ok := r.decode(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))); ok {
		c.read(root)
	}
	if err := r.result(); err != nil {
		return nil, err
	}
	c.Warnings = r.warnings
	return c, nil
}

// check looks at what the parts of a file mean together.
func (c *Config) check(root node) {
	if !root.misshapen("brokers") {
		c.checkBrokers(root)
		c.checkStore(root)
		if !root.misshapen("queues") {
			c.checkQueues(root)
			c.checkSends(root)
		}
	}
	c.checkBuckets(root)
	c.checkEvents(root)
	// A token that is written but could not be resolved has its own issue.
	if c.Admin.Listen != "" && !loopback(c.Admin.Listen) && !root.key("admin", "token").written() {
		root.key("admin", "listen").fail("%q is not loopback, so a token is required; add token = \"env:NAME\", or listen on 127.0.0.1", c.Admin.Listen)
	}
	if least := c.Limits.Default.Memory; c.Limits.Memory < least {
		root.key("limits", "max_memory").fail("%s is below what every handler has, %s; raise it, or lower limits.memory",
			FormatSize(c.Limits.Memory), FormatSize(least))
	}
}

func (c *Config) checkBrokers(root node) {
	if len(c.Brokers) == 0 {
		root.key("brokers").fail("there is no broker; add [brokers.local] with driver = \"embedded\"")
	}
	used := map[string]bool{c.Store.Broker: true}
	for _, q := range c.Queues {
		used[q.Broker] = true
	}
	dirs := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Brokers)) {
		b, n := c.Brokers[name], root.key("brokers", name)
		if !used[name] {
			n.warn("no queue uses this broker")
		}
		if b.Driver != "embedded" {
			continue
		}
		if other := dirs[b.Dir]; other != "" {
			n.key("dir").fail("is %s, which is broker %s's too; give each a directory of its own", c.relative(b.Dir), other)
		}
		dirs[b.Dir] = name
	}
}

// checkEvents looks at where events and dead letters are to go.
func (c *Config) checkEvents(root node) {
	names := slices.Collect(maps.Keys(c.Queues))
	if _, ok := c.Queues[c.Events]; c.Events != "" && !ok {
		root.key("events").fail("there is no [queues.%s]; %s", c.Events, didYouMean(c.Events, names))
	}
	queue, job, named := strings.Cut(c.OnDead, "/")
	if !named {
		queue, job = "", c.OnDead
	}
	n := root.key("on_dead")
	switch _, ok := c.Queues[queue]; {
	case c.OnDead == "":
	case !ValidJob(job):
		n.fail("%q is no job; write JOB, or QUEUE/JOB", c.OnDead)
	case named && !ok:
		n.fail("there is no [queues.%s]; %s", queue, didYouMean(queue, names))
	case !named:
		for _, name := range slices.Sorted(maps.Keys(c.Queues)) {
			if h := c.Queues[name].Handler; h != "" && h != job {
				n.warn("queue %s sends everything to %s, its dead letters included; write QUEUE/%s to send them elsewhere", name, h, job)
			}
		}
	}
}

func (c *Config) checkStore(root node) {
	name, n := c.Store.Broker, root.key("store", "broker")
	if name == "" {
		return
	}
	b, ok := c.Brokers[name]
	switch {
	case !ok:
		n.fail("there is no [brokers.%s]; %s", name, didYouMean(name, slices.Collect(maps.Keys(c.Brokers))))
	case b.Driver != "" && !slices.Contains(storeDrivers, b.Driver):
		n.fail("is a %s broker, which keeps no values by key; name one with driver %s", b.Driver, strings.Join(storeDrivers, ", "))
	}
}

func (c *Config) checkQueues(root node) {
	if len(c.Queues) == 0 {
		root.key("queues").fail("there is no queue; add [queues.default] with broker = \"NAME\"")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Queues)) {
		q, n := c.Queues[name], root.key("queues", name)
		b, ok := c.Brokers[q.Broker]
		switch {
		case q.Broker == "":
		case !ok:
			n.key("broker").fail("there is no [brokers.%s]; %s", q.Broker, didYouMean(q.Broker, slices.Collect(maps.Keys(c.Brokers))))
		case b.Driver != "":
			c.checkNames(n, b)
		}
		if q.Retry == nil && c.Handlers[q.Handler].Retry == nil {
			n.warn("no retry: one failure dead-letters a message whose handler has no retry of its own; retry = {} makes it 3 attempts")
		}
	}
}

// checkNames refuses [queues.NAME.DRIVER] of another driver than the queue's.
func (c *Config) checkNames(n node, b Broker) {
	for name := range driverNames {
		place := n.key(name)
		if name != b.Driver && place.written() {
			place.fail("broker %s is no %s broker; %s", b.Name, name, elsewhere(n, b.Driver))
		}
	}
}

// elsewhere is where names on a driver's brokers belong.
func elsewhere(n node, driver string) string {
	if len(driverNames[driver]) == 0 {
		return "a " + driver + " broker has no names of its own, so remove it"
	}
	return "write these names under [" + n.key(driver).path.String() + "]"
}

// relative is a path as the file would write it.
func (c *Config) relative(path string) string {
	if rel, err := filepath.Rel(c.Dir, path); err == nil {
		return rel
	}
	return path
}
