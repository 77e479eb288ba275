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

// eachShared runs a test on every broker whose messages outlive a host and whose lease can be
// short.
func eachShared(t *testing.T, test func(t *testing.T, broker string)) {
	for name, b := range everyBroker {
		if name != "memory" && name != "cloudflare" {
			t.Run(name, func(t *testing.T) { test(t, b.start(t)) })
		}
	}
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
	eachShared(t, func(t *testing.T, broker string) {
		s := newSite(t, fmt.Sprintf(killConfig, broker, 4))
		s.puppet("puppet")
		p := s.start()
		poison := strings.TrimSpace(s.must("send", "q", "puppet", "--payload", "hang"))
		p.waitFor("puppet hangs")
		healthy := strings.TrimSpace(s.must("send", "q", "puppet", "--payload", "0", "--wait"))
		if healthy != "attempt 1" {
			t.Errorf("the healthy one beside it: %q", healthy)
		}
		kills := 0
		for p.count("dead-lettered") == 0 {
			hosttest.Eventually(t, patience, "another run, or the dead letter", func() bool {
				return p.count("puppet hangs")+p.count("dead-lettered") > 0
			})
			if p.count("puppet hangs") > 0 {
				p.kill()
				p = s.start()
				kills++
			}
		}
		// The first run and max_stalls = 5 more. SQS may hand a message to the open request of a
		// worker that is dead already, which costs a stall as well.
		if kills != 6 && !(kills < 6 && strings.Contains(broker, `"sqs"`)) {
			t.Errorf("%d workers were killed", kills)
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

// Two hosts share a queue; when one is killed the other takes over what it held, within a
// lease, and both see the same counts.
func TestKilledHostHandsOver(t *testing.T) {
	eachShared(t, func(t *testing.T, broker string) {
		if broker == embedded {
			t.Skip("an embedded broker has one host")
		}
		config := strings.Replace(fmt.Sprintf(killConfig, broker, 4), `"2s"`, `"5s"`, 1)
		one, other := newSite(t, config), newSite(t, config)
		one.puppet("puppet")
		other.puppet("puppet")
		p := one.start()
		hang := one.sendTo("q", "puppet", "hang|0")
		p.waitFor("puppet hangs")
		other.start()
		one.must("send", "q", "puppet", "--payload", "sleep 50", "--count", "100")
		hosttest.Eventually(t, patience, "both to work", func() bool {
			return len(one.runs("--outcome", "success")) > 3 && len(other.runs("--outcome", "success")) > 3
		})
		p.kill()
		hosttest.Eventually(t, 2*patience, "what the dead host held to be done", func() bool {
			rows := other.runs("--id", hang)
			return len(rows) > 0 && rows[0].Outcome == "success"
		})
		// SQS may count one more, for a request of the dead host's that was still open.
		if r := other.runs("--id", hang)[0]; r.Attempt != 2 && !(r.Attempt == 3 && strings.Contains(broker, `"sqs"`)) {
			t.Errorf("%+v", r)
		}
		hosttest.Eventually(t, 2*patience, "the queue to be empty", func() bool { return other.queue("q").Depth == 0 })
		done := map[string]bool{}
		for _, r := range append(one.runs("--outcome", "success", "-n", "1000"), other.runs("--outcome", "success", "-n", "1000")...) {
			done[r.ID] = true
		}
		// What ended in the dead host's last moments is not in its ledger.
		if len(done) < 101-settling {
			t.Errorf("%d of 101 messages succeeded", len(done))
		}
		for _, s := range []*site{one, other} {
			if n := len(s.runs("--outcome", "retry")); n != 0 {
				t.Errorf("%d failures", n)
			}
		}
		if d := other.dead("q"); len(d) != 0 {
			t.Errorf("%d dead letters, the first: %+v", len(d), d[0])
		}
	})
}
