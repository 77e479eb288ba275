package config_test

import (
	"slices"
	"testing"

	"github.com/guesthand/guesthand/host/config"
)

// What a change of the file means for a running host.
func TestDiff(t *testing.T) {
	const base = minimal + "retry = {}\n[handlers.a]\ntimeout = \"1s\"\n[log]\nlevel = \"info\"\n"
	for name, tt := range map[string]struct {
		text             string
		applies, restart []string
	}{
		"nothing": {text: "# a comment\n" + base},
		"all that applies": {
			text: "drain = 1\ntrust_sidecars = true\n" + minimal + "retry = { max_attempts = 4 }\njobs = { A = \"a\" }\nunknown_job = { tries = 1 }\n" +
				"[handlers.a]\nmemory = \"1MiB\"\n[handlers.\"b.c\"]\nrate = \"1/s\"\nsecrets = { S = \"env:S\" }\n[limits]\nlog = \"1KiB\"\nmax_memory = \"1GiB\"\n[log]\nlevel = \"debug\"\n",
			applies: []string{"drain", `handlers."b.c".rate`, `handlers."b.c".secrets`, "handlers.a.memory", "handlers.a.timeout",
				"limits.log", "limits.max_memory", "log.level", "queues.default.jobs", "queues.default.retry", "queues.default.unknown_job", "trust_sidecars"},
		},
		"all that does not": {
			text: "plugins = \"p\"\ndata = \"d\"\n[brokers.x]\ndriver = \"nats\"\nurl = \"nats://h\"\n[queues.default]\nbroker = \"x\"\nretry = {}\n" +
				"concurrency = 1\nlease = 5\nhandler = \"h\"\ncreate = false\ndead = { max = 1 }\nnats = { stream = \"S\" }\n[handlers.a]\ntimeout = \"1s\"\n" +
				"[admin]\nlisten = \"none\"\ntoken = \"env:S\"\n[ledger]\ndriver = \"none\"\nkeep = 1\nmax = \"2GiB\"\n[log]\nformat = \"json\"\n[trace]\nendpoint = \"http://h\"\nsample = 0.5\nheaders = { A = \"env:S\" }\n",
			restart: []string{"admin.listen", "admin.token", "brokers.x.driver", "brokers.x.url", "data", "ledger.driver", "ledger.keep", "ledger.max",
				"ledger.path", "log.format", "plugins", "queues.default.concurrency", "queues.default.create", "queues.default.dead",
				"queues.default.handler", "queues.default.lease", "queues.default.nats", "trace.endpoint", "trace.headers", "trace.sample"},
		},
		"what comes": {
			text:    base + "[brokers.y]\ndriver = \"memory\"\n[queues.other]\nbroker = \"y\"\nretry = {}\n",
			restart: []string{"brokers.y", "queues.other"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := t.TempDir() + "/config.toml"
			load := func(text string) *config.Config {
				c, err := config.Parse(file, []byte(text), env("S", "secret"))
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			applies, restart := config.Diff(load(base), load(tt.text))
			if !slices.Equal(applies, tt.applies) {
				t.Errorf("applies: got %q, want %q", applies, tt.applies)
			}
			if !slices.Equal(restart, tt.restart) {
				t.Errorf("needs a restart: got %q, want %q", restart, tt.restart)
			}
			backA, backR := config.Diff(load(tt.text), load(base))
			if !slices.Equal(backA, applies) || name != "all that does not" && !slices.Equal(backR, restart) {
				t.Errorf("backwards: %q and %q", backA, backR)
			}
		})
	}
}
