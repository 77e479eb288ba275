package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
	"github.com/guesthand/guesthand/host/hosttest"
)

// fault is something that can be going on while the broker goes away.
type fault struct {
	name    string
	payload string
	count   int
	ready   func(s *site, p *process) // waits until it is going on
}

// A broker that goes away, whatever is going on, costs no message and no attempt, and the
// host says once that it went and once that it is back.
func TestBrokerGoesAway(t *testing.T) {
	for _, f := range []fault{
		{"idle", "", 0, func(*site, *process) {}},
		{"running", "sleep 1500", 8, func(s *site, _ *process) {
			hosttest.Eventually(s.t, patience, "slow runs", func() bool { return s.queue("q").InFlight == 8 })
		}},
		{"settling", "sleep 1", 500, func(s *site, _ *process) {
			hosttest.Eventually(s.t, patience, "short runs", func() bool { return len(s.runs("-n", "50")) == 50 })
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			server := natstest.Start(t)
			s := newSite(t, fmt.Sprintf(awayConfig, server.URL))
			s.puppet("puppet")
			p := s.start()
			want := map[string]bool{}
			if f.count > 0 {
				for id := range strings.Lines(s.must("send", "q", "puppet", "--payload", f.payload, "--count", fmt.Sprint(f.count))) {
					want[strings.TrimSpace(id)] = true
				}
			}
			f.ready(s, p)
			s.bounce(server, p)
			want[s.send("0")] = true
			s.allSucceeded(p, want)
		})
	}
}

const awayConfig = `
[brokers.b]
driver = "nats"
url = %q
[queues.q]
broker = "b"
concurrency = 8
lease = "5s"
retry = { max_attempts = 3, base = "50ms" }
[admin]
listen = "none"
`

// bounce kills the server, and starts it again once the host has noticed.
func (s *site) bounce(server *natstest.Server, p *process) {
	s.t.Helper()
	server.Kill()
	p.waitFor("connection to NATS lost")
	server.Restart()
	p.waitFor("connection to NATS is back")
}

// allSucceeded waits until the queue is empty and checks that every message succeeded, and
// nothing failed.
func (s *site) allSucceeded(p *process, ids map[string]bool) {
	s.t.Helper()
	s.idle()
	for _, r := range s.runs("-n", "1000") {
		switch r.Outcome {
		case "success":
			delete(ids, r.ID)
		case "stalled", "lease-lost":
		default:
			s.t.Errorf("%+v", r)
		}
	}
	for id := range ids {
		s.t.Errorf("%d messages never succeeded, %s for one: %+v", len(ids), id, s.runs("--id", id))
		break
	}
	if dead := s.dead("q"); len(dead) != 0 {
		s.t.Errorf("%d dead letters, the first: %+v", len(dead), dead[0])
	}
	for _, text := range []string{"connection to NATS lost", "connection to NATS is back"} {
		if n := p.count(text); n != 1 {
			s.t.Errorf("logged %d times: %s", n, text)
		}
	}
	if n := p.count(`"level":"ERROR"`); n != 0 {
		s.t.Errorf("%d errors logged, and none is for a person to mend", n)
	}
}

// While messages stream in, a sender that repeats what was not confirmed, under its key,
// loses none.
func TestBrokerGoesAwayWhileReceiving(t *testing.T) {
	server := natstest.Start(t)
	s := newSite(t, fmt.Sprintf(awayConfig, server.URL))
	s.puppet("puppet")
	p := s.start()
	client := s.client()
	sent, quit, ended := map[string]bool{}, make(chan struct{}), make(chan struct{})
	repeats := 0
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-quit:
				return
			case <-time.After(5 * time.Millisecond):
			}
			if len(sent) >= 600 {
				continue // until the server is back
			}
			id := fmt.Sprintf("stream-%d", i)
			for {
				_, errs, err := client.Send(t.Context(), "q", []drivers.Message{{ID: id, Key: id, Job: "puppet", Payload: []byte("0")}})
				if err == nil && errs[0] == nil {
					break
				}
				if repeats++; t.Context().Err() != nil {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
			sent[id] = true
		}
	}()
	hosttest.Eventually(t, patience, "the stream to flow", func() bool { return len(s.runs("-n", "50")) == 50 })
	server.Kill()
	p.waitFor("connection to NATS lost")
	out, talk, status := s.do("send", "q", "puppet", "--payload", "0")
	if status != exitUnreachable || out != "" || !strings.Contains(talk, "guesthand: send to q: ") ||
		!strings.Contains(talk, "whether the broker has the last one is not known") {
		t.Errorf("send while the broker is away: status %d, %q, %s", status, out, talk)
	}
	if text, err := s.get("/readyz"); err == nil && !strings.Contains(text, "broker b does not answer") {
		t.Errorf("ready without a broker: %s", text)
	}
	server.Restart()
	p.waitFor("connection to NATS is back")
	before := len(s.runs("-n", "1000"))
	hosttest.Eventually(t, patience, "the stream to flow again", func() bool { return len(s.runs("-n", "1000")) > before })
	close(quit)
	<-ended
	if repeats == 0 {
		t.Error("no send failed: the broker was not away")
	}
	s.allSucceeded(p, sent)
}
