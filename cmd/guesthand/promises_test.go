package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/host/ledger"
)

const promiseConfig = `
%s
[queues.q]
broker = "b"
retry = { max_attempts = 2, base = "20ms" }
unknown_job = { wait = "10s", tries = 0 }
[handlers.puppet]
timeout = "1s"
payload = "4KiB"
[admin]
listen = "none"
`

// ended waits for a message's end and returns its last run.
func (s *site) ended(id string) (last ledger.Row) {
	s.t.Helper()
	hosttest.Eventually(s.t, patience, "the end of "+id, func() bool {
		rows := s.runs("--id", id)
		if len(rows) == 0 {
			return false
		}
		last = rows[0]
		return final(last)
	})
	return last
}

// letter is a message's only dead letter.
func (s *site) letter(id string) drivers.DeadLetter {
	s.t.Helper()
	ls := lines[drivers.DeadLetter](s.t, s.must("dead", "show", "q", id, "--json"))
	if len(ls) != 1 {
		s.t.Fatalf("%d dead letters of %s", len(ls), id)
	}
	return ls[0]
}

// What is sent badly gets a clear answer, and nothing is lost.
func TestPromisedBadInput(t *testing.T) {
	eachBroker(t, func(t *testing.T, broker string) {
		s := newSite(t, fmt.Sprintf(promiseConfig, broker))
		s.puppet("puppet")
		s.start()
		big := strings.Repeat("0", 4<<10+1)
		id := strings.TrimSpace(s.must("send", "q", "puppet", "--payload", big))
		s.ended(id)
		if l := s.letter(id); l.Reason != "payload of 4097 bytes is over the limit of 4096" || string(l.Payload) != big || l.LastAttempt() != 0 {
			t.Errorf("%s, attempt %d, %d bytes", l.Reason, l.LastAttempt(), len(l.Payload))
		}
		headers := []string{"send", "q", "puppet", "--payload", "0", "--wait"}
		for i := range 1000 {
			headers = append(headers, "--header", fmt.Sprintf("X-Number-%d=%d", i, i))
		}
		if out := s.must(headers...); out != "attempt 1" {
			t.Errorf("1000 headers: %q", out)
		}
		if out := s.must("send", "q", "puppet", "--wait"); out != "attempt 1" {
			t.Errorf("no payload: %q", out)
		}
		if _, talk, status := s.do("send", "q", "puppet", "--header", "X-Bad=\xff\xfe"); status != exitUsage || !strings.Contains(talk, "X-Bad") {
			t.Errorf("a header that is no UTF-8: status %d, %s", status, talk)
		}
		if _, talk, status := s.do("send", "q", "puppet", "--header", "X Bad=1"); status != exitUsage || !strings.Contains(talk, "X Bad") {
			t.Errorf("a header's name with a space: status %d, %s", status, talk)
		}
		path := strings.TrimSpace(s.must("send", "q", "../../etc/passwd", "--payload", "0"))
		hosttest.Eventually(t, patience, "the nameless job to wait", func() bool { return s.queue("q").Delayed == 1 })
		if rows := s.runs("--id", path); len(rows) != 0 {
			t.Errorf("%+v", rows)
		}
		if d := s.dead("q"); len(d) != 1 {
			t.Errorf("%d dead letters, want the one over the limit", len(d))
		}
	})
}

// emptied tells whether a queue is empty, while its broker may be away.
func (s *site) emptied(queue string) bool {
	out, _, status := s.do("queues", "--json")
	return status == 0 && strings.Contains(out, fmt.Sprintf(`"queue":%q,"broker":"b","driver":"nats","depth":0,`, queue))
}

// A server that is killed and comes back costs no message and no attempt, whatever was
// going on at the time.
func TestPromisedReconnection(t *testing.T) {
	server := natstest.Start(t)
	s := newSite(t, strings.Replace(fmt.Sprintf(killConfig, fmt.Sprintf("[brokers.b]\ndriver = \"nats\"\nurl = %q\n", server.URL), 8), `"2s"`, `"5s"`, 1))
	s.puppet("puppet")
	p := s.start()
	bounce := func(during string) {
		t.Helper()
		server.Kill()
		if _, _, status := s.do("--host", "http://127.0.0.1:1", "queues"); status != exitUnreachable {
			t.Errorf("%s: status %d", during, status)
		}
		server.Restart()
	}
	bounce("idle")
	s.must("send", "q", "puppet", "--payload", "sleep 5", "--count", "400")
	hosttest.Eventually(t, patience, "some runs", func() bool { return len(s.runs("--outcome", "success")) > 20 })
	bounce("receiving and settling")
	hosttest.Eventually(t, patience, "the queue to be empty", func() bool { return s.emptied("q") })
	s.must("send", "q", "puppet", "--payload", "sleep 1500", "--count", "8")
	hosttest.Eventually(t, patience, "slow runs", func() bool { return s.queue("q").InFlight == 8 })
	bounce("running")
	hosttest.Eventually(t, patience, "the queue to be empty again", func() bool { return s.emptied("q") })
	if d := s.dead("q"); len(d) != 0 {
		t.Errorf("%d dead letters, the first: %s", len(d), d[0].Reason)
	}
	if n := len(s.runs("--outcome", "retry")); n != 0 {
		t.Errorf("%d failures", n)
	}
	p.stop()
}
