package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/hosttest"
)

// What a running host counted is what was sent to it, and names that producers make up are
// no labels.
func TestMetrics(t *testing.T) {
	s := newSite(t, "[brokers.b]\ndriver = \"embedded\"\n[queues.q]\nbroker = \"b\"\nretry = { max_attempts = 2, base = \"10ms\" }\n"+
		"unknown_job = { wait = \"10ms\", tries = 1 }\n[admin]\nlisten = \"none\"\n")
	s.puppet("puppet")
	s.start()
	s.must("send", "q", "puppet", "--payload", "0", "--count", "5")
	s.must("send", "q", "puppet", "--payload", "1|0")
	s.must("send", "q", "puppet", "--payload", "12")
	for i := range 3 {
		s.must("send", "q", fmt.Sprintf("made-up-%d", i))
	}
	var text string
	scraped := func(lines ...string) func() bool {
		return func() bool {
			var err error
			text, err = s.get("/metrics")
			for _, line := range lines {
				if err != nil || !strings.Contains(text, "\n"+line+"\n") {
					return false
				}
			}
			return true
		}
	}
	defer func() {
		if t.Failed() {
			t.Log(text)
		}
	}()
	hosttest.Eventually(t, patience, "the metrics of what was sent", scraped(
		`guesthand_runs_total{job="puppet",outcome="success",queue="q"} 6`,
		`guesthand_runs_total{job="puppet",outcome="retry",queue="q"} 1`,
		`guesthand_runs_total{job="puppet",outcome="permanent",queue="q"} 1`,
		`guesthand_runs_total{job="unknown",outcome="permanent",queue="q"} 3`,
		`guesthand_dead_letters_total{job="puppet",queue="q"} 1`,
		`guesthand_dead_letters_total{job="unknown",queue="q"} 3`,
		`guesthand_run_seconds_count{job="puppet",queue="q"} 8`,
		`guesthand_wait_seconds_count{job="puppet",queue="q"} 7`,
		`guesthand_reloads_total{job="puppet",result="ok"} 1`,
		`guesthand_in_flight{queue="q"} 0`,
		`guesthand_queue_depth{queue="q"} 0`,
		`guesthand_queue_dead_letters{queue="q"} 4`,
		`guesthand_queue_up{queue="q"} 1`,
		`guesthand_queue_oldest_seconds{queue="q"} 0`,
	))
	if strings.Contains(text, "made-up") {
		t.Errorf("a job that a producer made up is a label")
	}
}
