package main

import (
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/hosttest"
)

const pauseConfig = `[brokers.b]
driver = "embedded"
[queues.q]
broker = "b"
retry = {}
[queues.only]
broker = "b"
handler = "puppet"
retry = {}
[admin]
listen = "none"
`

// ran waits until a message has its only row, a first attempt that succeeded.
func (s *site) ran(id string) {
	s.t.Helper()
	hosttest.Eventually(s.t, patience, "the end of "+id, func() bool { return len(s.runs("--id", id)) > 0 })
	if rows := s.runs("--id", id); len(rows) != 1 || rows[0].Outcome != "success" || rows[0].Attempt != 1 {
		s.t.Errorf("%s: %+v", id, rows)
	}
}

func (s *site) sendTo(queue, job, payload string) string {
	s.t.Helper()
	return strings.TrimSpace(s.must("send", queue, job, "--payload", payload))
}

// What is paused is put back uncounted and stays at the broker, over a restart too; the
// others are served; a resume lets it run.
func TestPauseByHand(t *testing.T) {
	for name, tt := range map[string]struct{ pause, queue, served string }{
		"queue":               {"q", "q", ""},
		"job":                 {"q/puppet", "q", "other"},
		"the only handler":    {"only/puppet", "only", ""},
		"queue of one, whole": {"only", "only", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, pauseConfig)
			s.puppet("puppet")
			s.puppet("other")
			p := s.start()
			s.must("pause", tt.pause)
			ids := []string{s.sendTo(tt.queue, "puppet", "0"), s.sendTo(tt.queue, "puppet", "0")}
			if tt.served != "" {
				s.ran(s.sendTo(tt.queue, tt.served, "0"))
			}
			check := func() {
				t.Helper()
				if q := s.queue(tt.queue); q.Depth != 2 || len(q.Pauses) != 1 || q.Paused == (tt.served != "") {
					t.Errorf("%+v", q)
				}
				for _, id := range ids {
					if rows := s.runs("--id", id); len(rows) != 0 {
						t.Errorf("ran while paused: %+v", rows)
					}
				}
			}
			check()
			p.stop()
			s.start()
			check()
			s.must("resume", tt.pause)
			for _, id := range ids {
				s.ran(id)
			}
			if q := s.queue(tt.queue); q.Paused || len(q.Pauses) != 0 {
				t.Errorf("%+v", q)
			}
		})
	}
}

func TestPauseEndsByItself(t *testing.T) {
	s := newSite(t, pauseConfig)
	s.puppet("puppet")
	s.start()
	s.must("pause", "q", "--for", "1500ms")
	id := s.sendTo("q", "puppet", "0")
	if q := s.queue("q"); !q.Paused || q.Pauses[0].Until.IsZero() {
		t.Errorf("%+v", q)
	}
	s.ran(id)
	if q := s.queue("q"); q.Paused {
		t.Errorf("%+v", q)
	}
}

// A pause that a handler asked for keeps its job from this host until a person resumes it.
func TestPauseByHandler(t *testing.T) {
	s := newSite(t, pauseConfig)
	s.puppet("puppet")
	s.puppet("other")
	s.start()
	first := s.sendTo("q", "puppet", "14 3600000|0")
	hosttest.Eventually(t, patience, "the pause", func() bool { return len(s.runs("--id", first)) == 1 })
	second := s.sendTo("q", "puppet", "0")
	s.ran(s.sendTo("q", "other", "0"))
	if q := s.queue("q"); q.Paused || len(q.Pauses) != 1 || q.Pauses[0].Job != "puppet" || !q.Pauses[0].ByHandler {
		t.Errorf("%+v", q)
	}
	if q := s.queue("only"); !q.Paused {
		t.Errorf("the queue whose only handler is paused: %+v", q)
	}
	if rows := s.runs("--id", second); len(rows) != 0 {
		t.Errorf("ran while paused: %+v", rows)
	}
	s.must("resume", "q/puppet")
	third := s.sendTo("q", "puppet", "0")
	s.ran(third)
}

// Without a host the next one starts paused.
func TestPauseWithoutHost(t *testing.T) {
	s := newSite(t, pauseConfig)
	s.puppet("puppet")
	s.must("pause", "q")
	id := s.sendTo("q", "puppet", "0")
	s.start()
	if q := s.queue("q"); !q.Paused || q.Depth != 1 {
		t.Errorf("%+v", q)
	}
	s.must("resume", "q")
	s.ran(id)
}

func TestPauseRefusals(t *testing.T) {
	s := newSite(t, pauseConfig)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"pause", "nowhere"}, `no queue "nowhere"`},
		{[]string{"resume", "nowhere"}, `no queue "nowhere"`},
		{[]string{"pause", "q/"}, "write QUEUE or QUEUE/JOB"},
		{[]string{"pause", "q/../x"}, `"../x" is no job's name`},
		{[]string{"pause", "q", "--for", "soon"}, "soon"},
		{[]string{"pause", "q", "--for", "-1m"}, "not above 0"},
	} {
		if _, talk, status := s.do(tt.args...); status != exitUsage || !strings.Contains(talk, tt.want) {
			t.Errorf("%v: status %d, %s", tt.args, status, talk)
		}
	}
	s.must("pause", "q")
	s.write("data/pauses.json", "{half")
	if _, talk, status := s.do("run"); status == 0 || !strings.Contains(talk, "pauses.json does not say which queues are paused") {
		t.Errorf("run with a broken file: status %d, %s", status, talk)
	}
}
