package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/policy"
)

const minimal = "[brokers.x]\ndriver = \"memory\"\n[queues.default]\nbroker = \"x\"\n"

func parse(t *testing.T, text string, pairs ...string) *config.Config {
	t.Helper()
	c, err := config.Parse(filepath.Join(t.TempDir(), "config.toml"), []byte(text), env(pairs...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func handler(t *testing.T, c *config.Config, job string, s *config.Sidecar) config.Handler {
	t.Helper()
	h, err := c.Handler(job, s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Two tables are a whole configuration; everything else has the documented default.
func TestMinimal(t *testing.T) {
	c := parse(t, minimal)
	dir := c.Dir
	want := config.Queue{Name: "default", Broker: "x", Concurrency: 16, Lease: 30 * time.Second,
		UnknownJob: config.UnknownJob{Wait: 30 * time.Second, Tries: 10},
		DeadKeep:   30 * 24 * time.Hour, DeadMax: 100000, Create: true}
	if got := c.Queues["default"]; !reflect.DeepEqual(got, want) {
		t.Errorf("queue: got %+v, want %+v", got, want)
	}
	h := handler(t, c, "resize", nil)
	wantHandler := config.Handler{Job: "resize", Timeout: 30 * time.Second, Memory: 64 << 20, Recycle: 10000,
		Payload: 8 << 20, Result: 1 << 20, Error: 16 << 10, Log: 256 << 10, CallDepth: 10000, SendMax: 100, SendBytes: 8 << 20}
	if !reflect.DeepEqual(h, wantHandler) {
		t.Errorf("handler: got %+v, want %+v", h, wantHandler)
	}
	type rest struct {
		plugins, data string
		drain         time.Duration
		admin         config.Admin
		ledger        config.Ledger
		log           config.Log
		ceiling       uint64
	}
	got := rest{c.Plugins, c.Data, c.Drain, c.Admin, c.Ledger, c.Log, c.Limits.Memory}
	wantRest := rest{filepath.Join(dir, "plugins"), filepath.Join(dir, "data"), 25 * time.Second,
		config.Admin{Listen: "127.0.0.1:7070"},
		config.Ledger{Driver: "sqlite", Path: filepath.Join(dir, "data", "ledger.db"), Keep: 7 * 24 * time.Hour, Max: 1 << 30},
		config.Log{Level: "info"}, 256 << 20}
	if got != wantRest {
		t.Errorf("got %+v, want %+v", got, wantRest)
	}
	if len(c.Warnings) != 1 || c.Warnings[0].Line != 3 || !strings.Contains(c.Warnings[0].Text, "one failure dead-letters") {
		t.Errorf("warnings: %v, want one for the queue without a retry", c.Warnings)
	}
}

func TestDefaults(t *testing.T) {
	c := config.Defaults()
	if len(c.Brokers)+len(c.Queues) != 0 || !filepath.IsAbs(c.Data) || c.Ledger.Path != filepath.Join(c.Data, "ledger.db") {
		t.Errorf("got %+v", c)
	}
	if loaded, err := config.Load(""); err != nil || !reflect.DeepEqual(loaded, c) {
		t.Errorf("Load of no file: %+v, %v", loaded, err)
	}
}

// What follows from another key follows it, unless it is written itself.
func TestDerived(t *testing.T) {
	c := parse(t, "data = \"/var/lib/guesthand\"\n[brokers.a]\ndriver = \"embedded\"\n[brokers.b]\ndriver = \"embedded\"\ndir = \"b\"\n"+
		"[queues.q]\nbroker = \"a\"\nretry = {}\n[limits]\nmemory = \"1GiB\"\n")
	if c.Brokers["a"].Dir != "/var/lib/guesthand/broker" || c.Brokers["b"].Dir != filepath.Join(c.Dir, "b") {
		t.Errorf("broker directories %q and %q", c.Brokers["a"].Dir, c.Brokers["b"].Dir)
	}
	if c.Ledger.Path != "/var/lib/guesthand/ledger.db" {
		t.Errorf("ledger %q", c.Ledger.Path)
	}
	if c.Limits.Memory != 1<<30 {
		t.Errorf("ceiling %d is below what every handler has", c.Limits.Memory)
	}
}

func TestValues(t *testing.T) {
	c := parse(t, `drain = 90
[brokers.x]
driver = "embedded"
sync = "always"
[brokers.n]
driver = "nats"
url = "nats://a:4222, tls://b"
[queues.default]
broker = "x"
dead = { keep = "none", max = 0 }
unknown_job = { tries = 0 }
jobs = { "com.acme.Order" = "order" }
[queues.default.embedded]
stream = "ORDERS"
[handlers.resize]
timeout = "2 m"
memory = 1048576
rate = "100/m"
instances = "reuse"
sha256 = "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855"
function = "run"
config = { quality = "${Q}", cost = "$$5", empty = "" }
[admin]
listen = "none"
[ledger]
driver = "none"
keep = "none"
max = "none"
[log]
format = "json"
`, "Q", "85")
	q, h := c.Queues["default"], handler(t, c, "resize", nil)
	checks := map[string][2]any{
		"drain":       {c.Drain, 90 * time.Second},
		"sync":        {c.Brokers["x"].SyncAlways, true},
		"url":         {c.Brokers["n"].URL, "nats://a:4222, tls://b"},
		"dead":        {[2]int{int(q.DeadKeep), q.DeadMax}, [2]int{0, 0}},
		"unknown_job": {q.UnknownJob, config.UnknownJob{Wait: 30 * time.Second}},
		"jobs":        {q.Jobs, map[string]string{"com.acme.Order": "order"}},
		"names":       {q.Names, map[string]string{"stream": "ORDERS"}},
		"timeout":     {h.Timeout, 2 * time.Minute},
		"memory":      {h.Memory, uint64(1 << 20)},
		"rate":        {h.Rate, config.Rate{N: 100, Per: time.Minute}},
		"instances":   {h.Instances, "reuse"},
		"sha256":      {h.SHA256[:4], "e3b0"},
		"function":    {h.Function, "run"},
		"config":      {h.Config, map[string]string{"quality": "85", "cost": "$5", "empty": ""}},
		"listen":      {c.Admin.Listen, ""},
		"ledger":      {[3]any{c.Ledger.Driver, c.Ledger.Keep, c.Ledger.Max}, [3]any{"none", time.Duration(0), int64(0)}},
		"log":         {c.Log, config.Log{Level: "info", Format: "json"}},
	}
	for name, pair := range checks {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s: got %+v, want %+v", name, pair[0], pair[1])
		}
	}
}

func TestRetry(t *testing.T) {
	with := func(change func(*policy.Policy)) policy.Policy {
		p := policy.Default()
		change(&p)
		return p
	}
	for text, want := range map[string]policy.Policy{
		`{}`:                   policy.Default(),
		`{ max_attempts = 0 }`: with(func(p *policy.Policy) { p.MaxAttempts = 0 }),
		`{ backoff = "none" }`: with(func(p *policy.Policy) { p.Backoff = policy.None }),
		`{ backoff = "fixed", delay = "1d", jitter = false }`: with(func(p *policy.Policy) {
			p.Backoff, p.Delay, p.Jitter = policy.Fixed, 24*time.Hour, false
		}),
		`{ base = 2, factor = 3, max = 2 }`: with(func(p *policy.Policy) {
			p.Base, p.Factor, p.Max = 2*time.Second, 3, 2*time.Second
		}),
		`{ max_delays = 3, max_stalls = 0, max_age = "30d", max_wait = "none" }`: with(func(p *policy.Policy) {
			p.MaxDelays, p.MaxStalls, p.MaxAge = 3, 0, 30*24*time.Hour
		}),
	} {
		c := parse(t, minimal+"retry = "+text+"\n")
		if got := c.Policy("default", handler(t, c, "j", nil)); got != want {
			t.Errorf("%s: got %+v, want %+v", text, got, want)
		}
		if len(c.Warnings) != 0 {
			t.Errorf("%s: warnings %v", text, c.Warnings)
		}
	}
	c := parse(t, minimal+"retry = { backoff = \"none\", base = \"1s\" }\n")
	if len(c.Warnings) != 1 || c.Warnings[0].Key != "queues.default.retry.base" {
		t.Errorf("warnings %v, want one for a base without effect", c.Warnings)
	}
}

// The handler's own, else the queue's, else none; never a mixture.
func TestPolicy(t *testing.T) {
	c := parse(t, minimal+"retry = { max_attempts = 7, max_delays = 2 }\n[queues.bare]\nbroker = \"x\"\n"+
		"[queues.single]\nbroker = \"x\"\nhandler = \"own\"\n[handlers.own]\nretry = { max_attempts = 9 }\n")
	for _, tt := range []struct {
		queue, job          string
		attempts, maxDelays int
	}{
		{"default", "own", 9, 0}, {"default", "other", 7, 2}, {"bare", "own", 9, 0}, {"bare", "other", 1, 0}, {"nowhere", "other", 1, 0},
	} {
		got := c.Policy(tt.queue, handler(t, c, tt.job, nil))
		if got.MaxAttempts != tt.attempts || got.MaxDelays != tt.maxDelays {
			t.Errorf("%s, %s: got %+v, want %d attempts and %d delays", tt.queue, tt.job, got, tt.attempts, tt.maxDelays)
		}
	}
	if len(c.Warnings) != 1 || c.Warnings[0].Key != "queues.bare" {
		t.Errorf("warnings %v, want one for bare", c.Warnings)
	}
}

func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte("from file\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := minimal + `[handlers.a]
secrets = { ENV = "env:KEY", FILE = "file:key", PLACE = "file:${DIR}/key" }
[admin]
listen = "0.0.0.0:1"
token = "env:KEY"
`
	c, err := config.Parse(filepath.Join(dir, "config.toml"), []byte(text), env("KEY", "from env", "DIR", dir))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string = handler(t, c, "a", nil).Secrets // assignable without a conversion
	want := map[string]string{"ENV": "from env", "FILE": "from file", "PLACE": "from file"}
	if !reflect.DeepEqual(got, want) || c.Admin.Token != "from env" {
		t.Errorf("got %v and %q, want %v", got, c.Admin.Token, want)
	}
}

func TestSecretFileRefused(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{"large": 64<<10 + 1, "empty": 0} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"large": "over 64KiB", "empty": "is empty", ".": "no regular file", "gone": "gone"} {
		text := minimal + "[handlers.a]\nsecrets = { A = \"file:" + name + "\" }\n"
		_, err := config.Parse(filepath.Join(dir, "config.toml"), []byte(text), env())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
}

func TestFind(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv(config.EnvFile, "")
	if _, err := config.Find(""); !errors.Is(err, config.ErrNoFile) {
		t.Errorf("nothing named: %v", err)
	}
	for _, name := range []string{"config.toml", "env.toml", "flag.toml"} {
		if err := os.WriteFile(name, []byte(minimal), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ flag, env, want string }{
		{"", "", "config.toml"}, {"", "env.toml", "env.toml"}, {"flag.toml", "env.toml", "flag.toml"},
	} {
		t.Setenv(config.EnvFile, tt.env)
		if got, err := config.Find(tt.flag); got != tt.want || err != nil {
			t.Errorf("-c %q, env %q: got %q, %v, want %q", tt.flag, tt.env, got, err, tt.want)
		}
	}
	t.Setenv(config.EnvFile, "gone.toml")
	for flag, source := range map[string]string{"": "$GUESTHAND_CONFIG", "lost.toml": "-c"} {
		_, err := config.Find(flag)
		if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, config.ErrNoFile) || !strings.Contains(err.Error(), source) {
			t.Errorf("-c %q: %v, want it to blame %s", flag, err, source)
		}
	}
}

func TestLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	if _, err := config.Load(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if err := os.WriteFile(file, []byte("\ufeff"+strings.ReplaceAll(minimal, "\n", "\r\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := config.Load(file); err != nil || c.Dir != filepath.Dir(file) {
		t.Errorf("with a byte order mark and CRLF: %v, %v", c, err)
	}
	if err := os.WriteFile(file, []byte(strings.Repeat("#", 1<<20+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	var bad *config.Error
	if _, err := config.Load(file); !errors.As(err, &bad) || !strings.Contains(err.Error(), "over 1MiB") {
		t.Errorf("a huge file: %v", err)
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string][2]bool{ // queue, job
		"orders": {true, true}, "a-b_c9": {true, true}, "dead": {false, true}, "a.b": {false, true}, "": {false, false},
		"-a": {false, false}, ".a": {false, false}, "A": {false, false}, "../a": {false, false}, "a\n": {false, false},
		strings.Repeat("a", 48): {true, true}, strings.Repeat("a", 49): {false, true},
	} {
		if got := [2]bool{config.ValidQueue(name), config.ValidJob(name)}; got != want {
			t.Errorf("%q: queue, job %v, want %v", name, got, want)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"resize", "order", "github"}
	for written, want := range map[string]string{
		"resiez": "resize", "Resize": "resize", "oder": "order", "githubb": "github", "x": "", "": "", "webhook": "",
	} {
		if got := config.Nearest(written, names); got != want {
			t.Errorf("%q: got %q, want %q", written, got, want)
		}
	}
}
