package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/hosttest"
)

const cancelConfig = `
events = "ops"
[brokers.b]
driver = %q
[queues.q]
broker = "b"
concurrency = 2
retry = { max_attempts = 3, base = "10ms" }
[queues.ops]
broker = "b"
retry = {}
[handlers.slow]
timeout = "1h"
concurrency = 1
[admin]
listen = "none"
`

// A running message is stopped, and then it is finished: not retried, not dead, recorded, and
// known to whoever waits for it and for events.
func TestCancelARun(t *testing.T) {
	for _, driver := range []string{"embedded", "memory"} {
		t.Run(driver, func(t *testing.T) {
			s := newSite(t, fmt.Sprintf(cancelConfig, driver))
			s.puppet("slow")
			s.puppet("cancelled") // what the events queue brings
			p := s.start()
			id := s.sendTo("q", "slow", "loop")
			hosttest.Eventually(t, patience, "a run", func() bool {
				text, err := s.get("/metrics")
				return err == nil && strings.Contains(text, `guesthand_in_flight{queue="q"} 1`)
			})
			// It waits for the handler's only slot.
			waits := s.sendTo("q", "slow", "loop")
			hosttest.Eventually(t, patience, "both to be here", func() bool { return s.queue("q").Depth == 2 })
			s.must("cancel", "q", id)
			rows := s.runs("--id", id)
			if len(rows) != 1 || rows[0].Outcome != "cancelled" || rows[0].Settlement != "acked" || rows[0].Attempt != 1 {
				t.Errorf("the ledger says %+v", rows)
			}
			fate, err := s.get("/v1/messages/" + id)
			if err != nil || !strings.Contains(fate, `"state":"cancelled"`) {
				t.Errorf("its fate: %s, %v", fate, err)
			}
			hosttest.Eventually(t, patience, "the other one to run, and to be cancelled", func() bool {
				_, _, status := s.do("cancel", "q", waits)
				return status == 0
			})
			hosttest.Eventually(t, patience, "the events", func() bool { return len(s.runs("--queue", "ops", "--job", "cancelled")) == 2 })
			if q := s.queue("q"); q.Depth != 0 || q.Dead != 0 {
				t.Errorf("left over: %+v", q)
			}
			p.stop()
		})
	}
}

// A message that waits is dropped by a memory broker; elsewhere the command says that it cannot.
func TestCancelAWaitingMessage(t *testing.T) {
	for _, tc := range []struct {
		driver string
		status int
		talk   string
	}{
		{"memory", 0, "cancelled 1 of 1"},
		{"embedded", exitNotFine, "the broker of queue q cannot drop one that waits"},
	} {
		t.Run(tc.driver, func(t *testing.T) {
			s := newSite(t, fmt.Sprintf(cancelConfig, tc.driver))
			s.puppet("slow")
			s.start()
			id := strings.TrimSpace(s.must("send", "q", "slow", "--delay", "1h"))
			// It may be in our hands for a moment, where a delay is the host's to carry out.
			hosttest.Eventually(t, patience, "it to wait", func() bool { return s.queue("q").Delayed == 1 })
			_, talk, status := s.do("cancel", "q", id)
			if status != tc.status || !strings.Contains(talk, tc.talk) {
				t.Errorf("status %d: %s", status, talk)
			}
			if tc.status != 0 {
				return
			}
			if rows := s.runs("--id", id); len(rows) != 1 || rows[0].Outcome != "cancelled" || rows[0].Attempt != 0 {
				t.Errorf("the ledger says %+v", rows)
			}
			if depth := s.queue("q").Depth; depth != 0 {
				t.Errorf("%d messages are left", depth)
			}
			if _, talk, status := s.do("cancel", "q", id); status != exitNotFine || !strings.Contains(talk, "not found") {
				t.Errorf("once more: status %d: %s", status, talk)
			}
			if _, talk, status := s.do("cancel", "nosuch", id); status != exitUsage || !strings.Contains(talk, "no queue") {
				t.Errorf("no such queue: status %d: %s", status, talk)
			}
		})
	}
}
