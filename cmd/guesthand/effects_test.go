package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/host/ledger"
)

// effects installs the guest that does what each message says.
func (s *site) effects(jobs ...string) {
	for _, job := range jobs {
		hosttest.Install(s.t, filepath.Join(s.dir, "plugins"), job, hosttest.Effects(s.t))
	}
}

// payload writes operations to a file and returns how --payload names it.
func (s *site) payload(ops ...string) string {
	s.write("payload", strings.Join(ops, ""))
	return "@payload"
}

const effectsConfig = `
%s
[queues.q]
broker = "b"
retry = { max_attempts = 2, base = "10ms" }
[handlers.a]
send = ["q"]
kv = {}
[admin]
listen = "none"
`

func TestInvokeEffects(t *testing.T) {
	s := newSite(t, fmt.Sprintf(effectsConfig, embedded))
	s.effects("a")
	op := hosttest.Op
	ops := s.payload(op('c', "k", 0, "v"), op('c', "k", 0, "v"), op('s', "q next\nDelay: 1m\nKey: k\nX: y", 0, "text"), op('s', "q next", 0, "\xff"))
	v := lines[invocation](t, s.must("invoke", "plugins/a.wasm", "--payload", ops, "--json"))[0]
	if got := hosttest.Results([]byte(v.Result)); !slices.Equal(got, []int32{0, 1, 0, 0}) {
		t.Errorf("results %v", got)
	}
	if len(v.Sends) != 2 || v.Sends[0].DelayMS != 60000 || v.Sends[0].Key != "k" || v.Sends[0].Payload != "text" ||
		v.Sends[0].Headers["X"][0] != "y" || v.Sends[0].Queue != "q" || v.Sends[0].Job != "next" || v.Sends[1].PayloadBase64 != "/w==" {
		t.Errorf("sends %+v", v.Sends)
	}
	if out := s.must("invoke", "plugins/a.wasm", "--payload", ops); !strings.Contains(out, "\nsend      q next in 1m0s key k X=y: text\n") {
		t.Errorf("printed %s", out)
	}
	out, _, status := s.do("invoke", "plugins/a.wasm", "--payload", s.payload(op('s', "q next", 0, "x"), op('r', "", 12, "")))
	if status != 1 || !strings.Contains(out, "\nnot sent  q next: x\n") {
		t.Errorf("status %d: %s", status, out)
	}
}

// Where the broker carries replies, the end of a message is known whatever host ran it; where
// it does not, the ledger tells.
func TestSendWaits(t *testing.T) {
	eachBroker(t, func(t *testing.T, broker string) {
		s := newSite(t, fmt.Sprintf(effectsConfig, broker))
		s.puppet("puppet")
		s.start()
		for _, tt := range []struct {
			payload, out, talk string
			status             int
		}{
			{"0", "attempt 1", "", 0},
			{"1|0", "attempt 2", "", 0},
			{"11 50|0", "attempt 2", "", 0},
			{"1;broken", "", "ended in retry: max attempts (2) exhausted after failure 2: retry: broken", 1},
			{"12;hopeless", "", "ended in permanent: permanent: hopeless", 1},
			{"13;not mine", "", "ended in reject: not mine", 1},
			{"trap", "", "max attempts (2) exhausted", 1},
		} {
			out, talk, status := s.do("send", "q", "puppet", "--payload", tt.payload, "--wait", "--timeout", "1m")
			if out != tt.out || status != tt.status || !strings.Contains(talk, tt.talk) {
				t.Errorf("%s: status %d, %q, %q", tt.payload, status, out, talk)
			}
		}
		out, talk, status := s.do("send", "q", "puppet", "--payload", "sleep 60000", "--wait", "--timeout", "200ms")
		if out != "" || status != exitUnreachable || !strings.Contains(talk, "has not ended within 200ms") {
			t.Errorf("timeout: status %d, %q, %q", status, out, talk)
		}
	})
}

// The message runs on a host whose ledger is nowhere near.
func TestSendWaitsForAnotherHost(t *testing.T) {
	server := natstest.Start(t)
	broker := fmt.Sprintf("[brokers.b]\ndriver = \"nats\"\nurl = %q\n", server.URL)
	far, near := newSite(t, fmt.Sprintf(effectsConfig, broker)), newSite(t, fmt.Sprintf(effectsConfig, broker)+"[ledger]\ndriver = \"none\"\n")
	far.puppet("puppet")
	far.start()
	if out := near.must("send", "q", "puppet", "--payload", "0", "--wait"); out != "attempt 1" {
		t.Errorf("got %q", out)
	}
	out, _, status := near.do("send", "q", "puppet", "--payload", "12;hopeless", "--wait", "--json")
	row := lines[ledger.Row](t, out)[0]
	if status != 1 || row.Outcome != "permanent" || row.Settlement != ledger.DeadLtr || row.Error != "permanent: hopeless" {
		t.Errorf("status %d: %s", status, out)
	}
}

// A message counts its own delays in its state, on every broker, over a restart of the host.
func TestStateOverBrokers(t *testing.T) {
	eachBroker(t, func(t *testing.T, broker string) {
		s := newSite(t, fmt.Sprintf(effectsConfig, broker))
		s.effects("a")
		p := s.start()
		id := strings.TrimSpace(s.must("send", "q", "a", "--payload", s.payload(hosttest.Op('t', "", 200, ""))))
		hosttest.Eventually(t, patience, "some runs", func() bool { return len(s.runs("--id", id, "-n", "1000")) > 20 })
		p.stop()
		s.start()
		var rows []ledger.Row
		hosttest.Eventually(t, patience, "the end", func() bool {
			rows = s.runs("--id", id, "-n", "1000")
			return rows[0].Outcome == "success"
		})
		if got := hosttest.Results(rows[0].Result); !slices.Equal(got, []int32{200}) || len(rows) != 201 {
			t.Errorf("counted %v in %d runs", got, len(rows))
		}
	})
}

// A message goes on to a queue of another broker, and values are where [store] says: they
// outlive a broker in memory.
func TestOtherBrokers(t *testing.T) {
	s := newSite(t, fmt.Sprintf(effectsConfig, embedded)+`
[brokers.m]
driver = "memory"
[queues.m]
broker = "m"
retry = {}
[handlers.there]
send = ["q", "m"]
kv = {}
[store]
broker = "b"
`)
	s.effects("a", "there")
	p := s.start()
	op := hosttest.Op
	id := strings.TrimSpace(s.must("send", "m", "there", "--payload", s.payload(op('s', "q a", 0, op('g', "k", 0, "")), op('s', "m a", 0, ""), op('c', "k", 0, "v"))))
	for _, follow := range []string{id + ".0", id + ".1"} {
		hosttest.Eventually(t, patience, "the end of "+follow, func() bool {
			rows := s.runs("--id", follow)
			return len(rows) == 1 && rows[0].Outcome == "success" && rows[0].Job == "a"
		})
	}
	if got := hosttest.Results(s.runs("--id", id+".0")[0].Result); !slices.Equal(got, []int32{-1}) {
		t.Errorf("another handler's value: %v", got)
	}
	p.stop()
	s.start()
	again := strings.TrimSpace(s.must("send", "m", "there", "--payload", s.payload(op('c', "k", 0, "w"))))
	hosttest.Eventually(t, patience, "the end of "+again, func() bool { return len(s.runs("--id", again)) == 1 })
	if got := hosttest.Results(s.runs("--id", again)[0].Result); !slices.Equal(got, []int32{1}) {
		t.Errorf("after a restart: %v", got)
	}
}
