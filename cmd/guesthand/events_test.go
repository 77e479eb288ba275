package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/hosttest"
)

// Nobody handles the events here, so that they end as dead letters of their queue, to be read.
const eventsConfig = `events = "ops"
on_dead = "graves/bury"
[brokers.b]
driver = "embedded"
[queues.q]
broker = "b"
lease = "5s"
retry = {}
[queues.ops]
broker = "b"
unknown_job = { wait = "10ms", tries = 1 }
[queues.graves]
broker = "b"
unknown_job = { wait = "10ms", tries = 1 }
[admin]
listen = "none"
`

func TestEvents(t *testing.T) {
	s := newSite(t, eventsConfig)
	s.puppet("puppet")
	p := s.start()
	dead := s.sendTo("q", "puppet", "12;no such order")
	rejected := s.sendTo("q", "puppet", "13")
	stalled := s.sendTo("q", "puppet", "hang|0")
	p.waitFor("puppet hangs")
	// Only what the broker has accepted is an event, so the others come before the kill.
	told := func(kinds ...string) func() bool {
		return func() bool {
			for _, kind := range kinds {
				if !slices.ContainsFunc(s.dead("ops"), func(l drivers.DeadLetter) bool { return l.Job == kind }) {
					return false
				}
			}
			return true
		}
	}
	hosttest.Eventually(t, patience, "events of the ends", told("dead-lettered", "rejected"))
	p.kill()
	s.start()
	if err := os.WriteFile(filepath.Join(s.dir, "plugins", "puppet.wasm"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	hosttest.Eventually(t, patience, "events of a stall and a reload", told("stalled", "reloaded"))

	byKind := map[string]host.Event{}
	for _, l := range s.dead("ops") {
		var ev host.Event
		if err := json.Unmarshal(l.Payload, &ev); err != nil || ev.Kind != l.Job || ev.Time.IsZero() || ev.Worker == "" {
			t.Errorf("event %s: %s: %v", l.Job, l.Payload, err)
		}
		if ev.Queue == "graves" { // what on_dead sent has died as well
			continue
		}
		if _, twice := byKind[ev.Kind]; twice {
			t.Errorf("two events %s", ev.Kind)
		}
		byKind[ev.Kind] = ev
	}
	for kind, id := range map[string]string{"dead-lettered": dead, "rejected": rejected, "stalled": stalled} {
		if ev := byKind[kind]; ev.ID != id || ev.Queue != "q" || ev.Job != "puppet" || ev.Attempt != 1 {
			t.Errorf("%s: %+v", kind, ev)
		}
	}
	if ev := byKind["dead-lettered"]; ev.Reason != "permanent: no such order" || ev.Outcome != "permanent" || ev.Digest == "" {
		t.Errorf("%+v", ev)
	}
	if ev := byKind["reloaded"]; ev.Job != "puppet" || ev.Error == "" {
		t.Errorf("%+v", ev)
	}
	text, err := s.get("/metrics")
	if err != nil || !strings.Contains(text, `guesthand_events_total{kind="stalled"} 1`) {
		t.Errorf("no events in the metrics: %v", err)
	}
}

// The job that on_dead names gets the dead letter itself, once, and its own dead ones do not
// come back to it.
func TestOnDead(t *testing.T) {
	s := newSite(t, eventsConfig)
	s.puppet("puppet")
	s.start()
	id := s.sendTo("q", "puppet", "12;no such order")
	hosttest.Eventually(t, patience, "the dead letter's message to die", func() bool { return len(s.dead("graves")) > 0 })
	s.idle()
	graves := s.dead("graves")
	if len(graves) != 1 || graves[0].Job != "bury" {
		t.Fatalf("%+v", graves)
	}
	var l drivers.DeadLetter
	if err := json.Unmarshal(graves[0].Payload, &l); err != nil {
		t.Fatal(err)
	}
	if l.ID != id || l.Queue != "q" || l.Job != "puppet" || string(l.Payload) != "12;no such order" ||
		l.Reason != "permanent: no such order" || l.Tally.Failures != 1 || len(l.Errors) != 1 {
		t.Errorf("%+v", l)
	}
	if parent, _ := graves[0].Headers.Get("Guesthand-Parent"); parent != id {
		t.Errorf("parent %q, want %q", parent, id)
	}
}

// A job whose every message fails does not bury the log: the lines are bounded, and a later
// one says how many were left out.
func TestFailuresDoNotBuryTheLog(t *testing.T) {
	s := newSite(t, "[brokers.b]\ndriver = \"embedded\"\n[queues.q]\nbroker = \"b\"\nretry = {}\n[admin]\nlisten = \"none\"\n")
	s.puppet("puppet")
	p := s.start()
	s.must("send", "q", "puppet", "--payload", "12", "--count", "500")
	s.idle()
	if n := p.count(`"msg":"dead-lettered"`); n < 20 || n > 100 {
		t.Errorf("%d lines for 500 dead letters", n)
	}
	hosttest.Eventually(t, patience, "a line that tells of those left out", func() bool {
		s.must("send", "q", "puppet", "--payload", "12")
		return p.count(`"hidden":`) > 0
	})
}
