package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
	"github.com/guesthand/guesthand/host/hosttest"
)

const embedded = `
[brokers.b]
driver = "embedded"
dir = "data/broker"
`

const killConfig = `
drain = "300ms"
%s
[queues.q]
broker = "b"
concurrency = %d
lease = "2s"
retry = { max_attempts = 3, base = "50ms" }
[handlers.puppet]
timeout = "2m"
[admin]
listen = "none"
`

// eachBroker runs a test on the embedded broker and on a server of its own.
func eachBroker(t *testing.T, test func(t *testing.T, broker string)) {
	t.Run("embedded", func(t *testing.T) { test(t, embedded) })
	t.Run("nats", func(t *testing.T) {
		server := natstest.Start(t)
		test(t, fmt.Sprintf("[brokers.b]\ndriver = \"nats\"\nurl = %q\n", server.URL))
	})
}

// A host that dies in the middle of a thousand slow runs loses none of them and blames none.
func TestKilledHostLosesNothing(t *testing.T) {
	eachBroker(t, func(t *testing.T, broker string) {
		// Long enough that no lease ends by itself on a machine that is short of time.
		s := newSite(t, strings.Replace(fmt.Sprintf(killConfig, broker, 40), `"2s"`, `"10s"`, 1))
		s.puppet("puppet")
		p := s.start()
		s.must("send", "q", "puppet", "--payload", "sleep 150", "--count", "1000")
		hosttest.Eventually(t, patience, "200 runs", func() bool { return len(s.runs("--outcome", "success", "-n", "1000")) > 200 })
		p.kill()
		s.start()
		hosttest.Eventually(t, 2*patience, "the queue to be empty", func() bool { return s.queue("q").Depth == 0 })
		if d := s.dead("q"); len(d) != 0 {
			t.Errorf("%d dead letters, the first: %+v", len(d), d[0])
		}
		stalls := s.runs("--outcome", "stalled", "-n", "1000")
		if len(stalls) == 0 || len(stalls) > 40+settling {
			t.Errorf("%d stalls, want one for each of the at most 40 runs that were cut", len(stalls))
		}
		for _, stall := range stalls {
			rows := s.runs("--id", stall.ID)
			if rows[0].Outcome != "success" || rows[0].Attempt != 2 || stall.Attempt != 1 {
				t.Fatalf("%s: %+v", stall.ID, rows)
			}
		}
		if n := len(s.runs("--outcome", "retry", "-n", "1000")); n != 0 {
			t.Errorf("%d failures", n)
		}
	})
}

// settling is how many runs may have ended without the broker's confirmation when the host
// was killed: they ran to their end, and count as stalled all the same.
const settling = 40

// A message whose run kills its worker is given up after max_stalls, and takes no other
// message with it.
func TestMessageThatKillsItsWorker(t *testing.T) {
	eachBroker(t, func(t *testing.T, broker string) {
		s := newSite(t, fmt.Sprintf(killConfig, broker, 4))
		s.puppet("puppet")
		p := s.start()
		poison := strings.TrimSpace(s.must("send", "q", "puppet", "--payload", "hang"))
		p.waitFor("puppet hangs")
		healthy := strings.TrimSpace(s.must("send", "q", "puppet", "--payload", "0", "--wait"))
		if healthy != "attempt 1" {
			t.Errorf("the healthy one beside it: %q", healthy)
		}
		for range 6 { // the first run and max_stalls = 5 more
			p.waitFor("puppet hangs")
			p.kill()
			p = s.start()
		}
		hosttest.Eventually(t, patience, "the dead letter", func() bool { return len(s.dead("q")) == 1 })
		l := s.dead("q")[0]
		if l.ID != poison || l.Tally.Stalls != 6 || l.Tally.Failures != 0 || !strings.Contains(l.Reason, "max stalls (5) exhausted after stall 6") {
			t.Errorf("%s, tally %+v", l.Reason, l.Tally)
		}
	})
}

// The first signal lets runs finish; what does not within the drain comes back at once and
// spends no attempt.
func TestTwoStepStop(t *testing.T) {
	s := newSite(t, fmt.Sprintf(killConfig, embedded, 4))
	s.puppet("puppet")
	p := s.start()
	short := strings.TrimSpace(s.must("send", "q", "puppet", "--payload", "sleep 100"))
	long := strings.TrimSpace(s.must("send", "q", "puppet", "--payload", "hang|0"))
	p.waitFor("puppet hangs")
	p.stop()
	s.start()
	hosttest.Eventually(t, patience, "both to end", func() bool { return s.queue("q").Depth == 0 })
	if rows := s.runs("--id", short); len(rows) != 1 || rows[0].Outcome != "success" {
		t.Errorf("%+v", rows)
	}
	if rows := s.runs("--id", long); len(rows) != 2 || rows[0].Outcome != "success" || rows[1].Outcome != "interrupted" || rows[0].Attempt != 2 {
		t.Errorf("%+v", rows)
	}
}

func TestSecondSignalExitsNow(t *testing.T) {
	s := newSite(t, strings.Replace(fmt.Sprintf(killConfig, embedded, 4), "300ms", "10m", 1))
	s.puppet("puppet")
	p := s.start()
	s.must("send", "q", "puppet", "--payload", "hang")
	p.waitFor("puppet hangs")
	p.signal(syscall.SIGTERM)
	p.waitFor("draining")
	p.signal(syscall.SIGINT)
	if status := p.wait(); status != 128+int(syscall.SIGINT) {
		t.Errorf("status %d", status)
	}
}

// Messages of every kind outlive a host that is killed again and again.
func TestKilledAgainAndAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("several restarts")
	}
	s := newSite(t, fmt.Sprintf(killConfig, embedded, 8))
	s.puppet("puppet")
	p := s.start()
	s.must("send", "q", "puppet", "--payload", "1|11 30|0", "--count", "200")
	s.must("send", "q", "puppet", "--payload", "sleep 20", "--count", "200")
	s.must("send", "q", "puppet", "--payload", "12;hopeless", "--count", "20")
	for range 4 {
		time.Sleep(300 * time.Millisecond) // somewhere in the middle: there is no state to wait for
		p.kill()
		p = s.start()
	}
	hosttest.Eventually(t, 2*patience, "the queue to be empty", func() bool { return s.queue("q").Depth == 0 })
	dead := s.dead("q")
	if len(dead) != 20 {
		t.Errorf("%d dead letters, want 20", len(dead))
	}
	for _, l := range dead {
		if !strings.Contains(l.Reason, "hopeless") || l.Tally.Failures != 1 {
			t.Errorf("%s %+v", l.Reason, l.Tally)
		}
	}
}
