package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/host/ledger"
)

const deadConfig = `
%s
[queues.q]
broker = "b"
lease = "5s"
retry = { max_attempts = 2, base = "10ms", max_delays = 2 }
[handlers.puppet]
timeout = "400ms"
[admin]
listen = "none"
`

// end is a way for a message to end: what its payload makes of every run, and what the
// ledger and the dead letters say of it.
type end struct {
	payload string
	// Of each run: outcome, cause, code, delay in milliseconds.
	run        string
	runs       int
	settlement string // of the last run; of those before it, again
	again      string
	reason     string // how the dead letter's begins; "" where there is none
	tally      drivers.Tally
}

var ends = []end{
	{"0", "success returned 0 0", 1, ledger.Acked, "", "", drivers.Tally{}},
	{"1;upstream said 503", "retry returned 1 0", 2, ledger.DeadLtr, ledger.Retried,
		"max attempts (2) exhausted after failure 2: retry: upstream said 503", drivers.Tally{Failures: 2}},
	{"10 20;busy", "retry-after returned 10 20", 2, ledger.DeadLtr, ledger.Retried,
		"max attempts (2) exhausted after failure 2: retry-after: busy", drivers.Tally{Failures: 2}},
	{"11 20;waiting for settlement", "delay returned 11 20", 3, ledger.DeadLtr, ledger.Delayed,
		"max delays (2) exhausted: delay 20ms: waiting for settlement", drivers.Tally{Delays: 3}},
	{"12;no such customer", "permanent returned 12 0", 1, ledger.DeadLtr, "",
		"permanent: no such customer", drivers.Tally{Failures: 1}},
	{"13;not for us", "reject returned 13 0", 1, ledger.Rejected, "", "", drivers.Tally{}},
	{"trap", "retry trap -1 0", 2, ledger.DeadLtr, ledger.Retried,
		"max attempts (2) exhausted after failure 2: trap: ", drivers.Tally{Failures: 2}},
	{"loop", "retry timeout -1 0", 2, ledger.DeadLtr, ledger.Retried,
		"max attempts (2) exhausted after failure 2: timeout", drivers.Tally{Failures: 2}},
}

// check compares a message's runs from attempt first on, and its dead letter, with what its
// end says.
func (e end) check(t *testing.T, rows []ledger.Row, letters []drivers.DeadLetter, digest string, first int) {
	t.Helper()
	if len(rows) != first-1+e.runs {
		t.Fatalf("%s: %d runs, want %d: %+v", e.payload, len(rows), first-1+e.runs, rows)
	}
	for i, r := range rows { // newest first
		want := e.again
		if i%e.runs == 0 {
			want = e.settlement
		}
		if got := fmt.Sprint(r.Outcome, " ", r.Cause, " ", r.Code, " ", r.Delay.Milliseconds()); got != e.run {
			t.Errorf("%s: run %d is %s, want %s", e.payload, r.Attempt, got, e.run)
		}
		if r.Attempt != len(rows)-i || r.Settlement != want || r.Digest != digest || r.Queue != "q" || r.Job != "puppet" {
			t.Errorf("%s: run %d, want attempt %d, %s by %s: %+v", e.payload, i, len(rows)-i, want, digest, r)
		}
	}
	if e.reason == "" {
		if len(letters) != 0 {
			t.Errorf("%s: dead letter %+v", e.payload, letters[0])
		}
		return
	}
	if len(letters) != 1 {
		t.Fatalf("%s: %d dead letters", e.payload, len(letters))
	}
	l, tally := letters[0], e.tally
	tally.Prior = first - 1
	if !strings.HasPrefix(l.Reason, e.reason) || l.Tally != tally || l.Digest != digest ||
		string(l.Payload) != e.payload || l.Outcome != rows[0].Outcome || l.Cause != rows[0].Cause {
		t.Errorf("%s: want %q, tally %+v, digest %s: %+v", e.payload, e.reason, tally, digest, l)
	}
}

// of are the dead letters of one message.
func of(letters []drivers.DeadLetter, id string) (mine []drivers.DeadLetter) {
	for _, l := range letters {
		if l.ID == id {
			mine = append(mine, l)
		}
	}
	return mine
}

// idle waits until nothing is left in the queue.
func (s *site) idle() {
	s.t.Helper()
	hosttest.Eventually(s.t, patience, "the queue to be empty", func() bool { return s.queue("q").Depth == 0 })
}

// send sends to the puppet and returns the id.
func (s *site) send(payload string) string {
	s.t.Helper()
	return strings.TrimSpace(s.must("send", "q", "puppet", "--payload", payload))
}

// digest is what the host says serves a job.
func (s *site) digest(job string) string {
	s.t.Helper()
	return s.handler(job).Digest
}

// Every outcome, as a user sees it; and what died runs again with a fresh budget and goes on
// counting attempts.
func TestOutcomesAndReplay(t *testing.T) {
	eachBroker(t, func(t *testing.T, broker string) {
		s := newSite(t, fmt.Sprintf(deadConfig, broker))
		s.puppet("puppet")
		s.start()
		digest := s.digest("puppet")
		ids := make([]string, len(ends))
		for i, e := range ends {
			ids[i] = s.send(e.payload)
		}
		s.idle()
		letters := s.dead("q")
		for i, e := range ends {
			e.check(t, s.runs("--id", ids[i]), of(letters, ids[i]), digest, 1)
		}

		s.must("dead", "replay", "q", "--all")
		s.idle()
		again := s.dead("q")
		if len(again) != len(letters) {
			t.Errorf("%d dead letters after a replay of %d", len(again), len(letters))
		}
		for i, e := range ends {
			if e.reason == "" {
				continue
			}
			mine := of(again, ids[i])
			e.check(t, s.runs("--id", ids[i]), mine, digest, e.runs+1)
			if mine[0].Replays != 1 || mine[0].Entry == of(letters, ids[i])[0].Entry {
				t.Errorf("%s: %+v", e.payload, mine[0])
			}
		}
	})
}

// A replay, show and drop by entry and by the message's id.
func TestDeadLettersByName(t *testing.T) {
	eachBroker(t, func(t *testing.T, broker string) {
		s := newSite(t, fmt.Sprintf(deadConfig, broker))
		s.puppet("puppet")
		s.start()
		id := s.send("12;hopeless|0")
		other := s.send("12;hopeless too")
		s.idle()
		letters := s.dead("q")
		if len(letters) != 2 || letters[0].ID != id || letters[1].ID != other {
			t.Fatalf("%+v", letters)
		}
		for _, name := range []string{id, letters[0].Entry} {
			shown := lines[drivers.DeadLetter](t, s.must("dead", "show", "q", name, "--json"))
			if len(shown) != 1 || shown[0].Entry != letters[0].Entry || string(shown[0].Payload) != "12;hopeless|0" {
				t.Errorf("show %s: %+v", name, shown)
			}
			if text := s.must("dead", "show", "q", name); !strings.Contains(text, "permanent: hopeless") || !strings.Contains(text, id) {
				t.Errorf("show %s:\n%s", name, text)
			}
		}
		s.must("dead", "replay", "q", letters[0].Entry)
		s.idle()
		rows := s.runs("--id", id)
		if len(rows) != 2 || rows[0].Attempt != 2 || rows[0].Outcome != "success" || rows[0].Settlement != ledger.Acked {
			t.Errorf("replayed: %+v", rows)
		}
		s.must("dead", "drop", "q", other)
		if left := s.dead("q"); len(left) != 0 {
			t.Errorf("left: %+v", left)
		}
		for _, verb := range []string{"show", "replay", "drop"} {
			_, talk, status := s.do("dead", verb, "q", other)
			if status != exitNotFine || !strings.Contains(talk, "queue q has no dead letter "+other) {
				t.Errorf("%s of one that is gone: status %d, %s", verb, status, talk)
			}
		}
		if rows := s.runs("--id", other); len(rows) != 1 {
			t.Errorf("dropped, and run again: %+v", rows)
		}
	})
}
