package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers/cfdriver/cftest"
)

const cloudflareBroker = `[brokers.b]
driver = "cloudflare"
url = %q
account = %q
token = "env:TEST_CLOUDFLARE_TOKEN"
`

func cloudflareSite(t *testing.T, rest string) (*site, *cftest.Server) {
	t.Helper()
	t.Setenv("TEST_CLOUDFLARE_TOKEN", cftest.Token)
	server := cftest.Start(t)
	return newSite(t, fmt.Sprintf(cloudflareBroker, server.URL, cftest.Account)+rest), server
}

// A lease that cannot be renewed must cover the longest run and its settlement: one that does
// not is refused, by check and by run, with the numbers and what to write instead.
func TestCloudflareLeaseMustCoverTheRun(t *testing.T) {
	const config = `
[queues.q]
broker = "b"
lease = "%s"
retry = {}
[handlers.puppet]
timeout = "30s"
`
	s, _ := cloudflareSite(t, fmt.Sprintf(config, "69s"))
	s.puppet("puppet")
	for _, command := range []string{"check", "run"} {
		out, talk, status := s.do(command)
		if text := out + talk; status == 0 || !strings.Contains(text, "timeout + 40s") || !strings.Contains(text, `set lease = "70s"`) {
			t.Errorf("%s: status %d\n%s", command, status, text)
		}
	}
	s, server := cloudflareSite(t, fmt.Sprintf(config, "70s"))
	s.puppet("puppet")
	server.Add(cftest.Queue{Name: "guesthand-q", Consumer: "http_pull", MaxRetries: 2})
	out := s.must("check")
	for _, want := range []string{"max_retries = 2 of queue guesthand-q", "has no dead_letter_queue"} {
		if !strings.Contains(out, want) {
			t.Errorf("check does not say %q:\n%s", want, out)
		}
	}
}

// Every outcome but reject, which waits for its lease to run out, as a user sees it; and what died
// runs again.
func TestCloudflareOutcomesAndReplay(t *testing.T) {
	s, server := cloudflareSite(t, `
[queues.q]
broker = "b"
lease = "1m"
retry = { max_attempts = 2, base = "10ms", max_delays = 2 }
[handlers.puppet]
timeout = "400ms"
[admin]
listen = "none"
`)
	s.puppet("puppet")
	p := s.start()
	digest := s.digest("puppet")
	var all []end
	var ids []string
	for _, e := range ends {
		if !strings.HasPrefix(e.payload, "13") {
			all, ids = append(all, e), append(ids, s.send(e.payload))
		}
	}
	s.idle()
	letters := s.dead("q")
	for i, e := range all {
		e.check(t, s.runs("--id", ids[i]), of(letters, ids[i]), digest, 1)
	}
	s.must("dead", "replay", "q", "--all")
	s.idle()
	again := s.dead("q")
	for i, e := range all {
		if e.reason != "" {
			e.check(t, s.runs("--id", ids[i]), of(again, ids[i]), digest, e.runs+1)
		}
	}
	s.must("dead", "drop", "q", "--all")
	if left := server.Messages("dead-guesthand-q"); len(left) != 0 {
		t.Errorf("%d dead letters are left", len(left))
	}
	start := time.Now()
	p.stop()
	if took := time.Since(start); took > patience {
		t.Errorf("stopping took %s", took)
	}
}
