package config_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/policy"
)

var (
	defaultLine = regexp.MustCompile(`(?m)^#([a-z0-9_]+ = )`)
	exampleLine = regexp.MustCompile(`(?m)^# ([a-z0-9_]+ = |\[[a-z0-9_.]+\]$)`)
)

// reference parses the repository's config.toml after a change to its text.
func reference(t *testing.T, change func(string) string) *config.Config {
	t.Helper()
	file := filepath.Join("..", "..", "config.toml")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse(file, []byte(change(string(data))), func(string) (string, bool) { return "secret", true })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func uncomment(lines ...*regexp.Regexp) func(string) string {
	return func(text string) string {
		for _, re := range lines {
			text = re.ReplaceAllString(text, "$1")
		}
		return text
	}
}

// The live parts are what `make run` uses.
func TestReferenceLive(t *testing.T) {
	c := reference(t, uncomment())
	if len(c.Warnings) != 0 {
		t.Errorf("warnings %v", c.Warnings)
	}
	if len(c.Brokers) != 1 || c.Brokers["local"].Driver != "embedded" || c.Brokers["local"].Dir != filepath.Join(c.Dir, "data", "broker") {
		t.Errorf("brokers %v", c.Brokers)
	}
	if len(c.Queues) != 2 || c.Queues["github"].Handler != "github" {
		t.Errorf("queues %v", c.Queues)
	}
	want := policy.Default()
	want.MaxAttempts, want.Max = 5, 2*time.Minute
	if got := c.Policy("default", config.Handler{}); got != want {
		t.Errorf("default's retry %+v, want %+v", got, want)
	}
	if c.Plugins != filepath.Join(c.Dir, "plugins") || c.Admin.Listen != "127.0.0.1:7070" {
		t.Errorf("plugins %q, listen %q", c.Plugins, c.Admin.Listen)
	}
}

// Uncommenting every #key = value, all at once, changes nothing: the file's defaults are the
// code's.
func TestReferenceDefaults(t *testing.T) {
	live, written := reference(t, uncomment()), reference(t, uncomment(defaultLine))
	applies, restart := config.Diff(live, written)
	// That a handler's keys are written at all is a difference, though not in what holds.
	for _, key := range append(applies, restart...) {
		if !strings.HasPrefix(key, "handlers.github.") {
			t.Errorf("%s is another in the file than in the code", key)
		}
	}
	for _, job := range []string{"github", "other"} {
		if a, b := handler(t, live, job, nil), handler(t, written, job, nil); !reflect.DeepEqual(a, b) {
			t.Errorf("%s: the code has %+v, the file %+v", job, a, b)
		}
	}
	// Whatever Diff does not look at.
	live.Handlers, written.Handlers, live.Limits.Default, written.Limits.Default = nil, nil, config.Handler{}, config.Handler{}
	if !reflect.DeepEqual(live, written) {
		t.Errorf("the code has\n%+v\nthe file\n%+v", live, written)
	}
}

// The examples of keys without a default load as well, all of them at once.
func TestReferenceExamples(t *testing.T) {
	c := reference(t, func(text string) string {
		text = strings.Replace(text, `"ca.pem"`, strconv.Quote(certificate(t)), 1)
		return uncomment(defaultLine, exampleLine)(text)
	})
	if len(c.Brokers) != 9 || len(c.Queues) != 8 || c.Queues["orders"].Names["stream"] != "ORDERS" {
		t.Errorf("brokers %v, queues %v", c.Brokers, c.Queues)
	}
}

var knownKeys = regexp.MustCompile(`zzz.*known here: (.*)`)

// Every key the code knows stands in the reference under its table: live, as a default or as
// an example.
func TestReferenceComplete(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]string{} // a table's name, and its text
	table := ""
	for line := range strings.Lines(uncomment(defaultLine, exampleLine)(string(data))) {
		if strings.HasPrefix(line, "[") {
			table, _, _ = strings.Cut(line[1:], "]")
		}
		tables[table] += line
	}
	inAny := func(prefix, key string) bool {
		for name, text := range tables {
			if strings.HasPrefix(name, prefix+key) || regexp.MustCompile(`(?m)^`+key+` = `).MatchString(text) && strings.HasPrefix(name, prefix) {
				return true
			}
		}
		return false
	}
	// The first column is a table with a key nobody knows; the second is where its keys stand.
	for unknown, prefix := range map[string]string{
		"": "", "[brokers.b]": "brokers.", "[queues.q]": "queues.", "[queues.q.retry]": "queues.github.retry",
		"[queues.q.nats]": "queues.orders.nats", "[queues.q.rabbitmq]": "queues.mails.rabbitmq",
		"[queues.q.redis]": "queues.thumbs.redis", "[queues.q.postgres]": "queues.invoices.postgres",
		"[queues.q.sqs]": "queues.uploads.sqs", "[queues.q.cloudflare]": "queues.clicks.cloudflare",
		"[store]": "store", "[handlers.h]": "handlers.", "[handlers.h.http]": "handlers.webhooks.http", "[limits]": "limits", "[admin]": "admin",
		"[ledger]": "ledger", "[log]": "log",
	} {
		_, err := config.Parse("", []byte(unknown+"\nzzzzzzzzzzzzzzzz = 1\n"), env())
		m := knownKeys.FindStringSubmatch(err.Error())
		if m == nil {
			t.Fatalf("%s: no list of keys in %v", unknown, err)
		}
		for _, key := range strings.Split(m[1], ", ") {
			// Each driver's names have a row of their own above; those on an embedded broker are
			// those of a NATS one, and memory has none.
			if unknown == "[queues.q]" && slices.Contains([]string{"nats", "embedded", "memory", "rabbitmq", "redis", "postgres", "sqs", "cloudflare"}, key) {
				continue
			}
			if !inAny(prefix, key) {
				t.Errorf("%s: %s is not in the reference", unknown, key)
			}
		}
	}
}
