package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/plugins/examples/examplestest"
)

const githubConfig = `
[brokers.b]
driver = "embedded"
[queues.github]
broker = "b"
handler = "github"
[admin]
listen = "none"
`

// Every webhook payload that GitHub's own examples hold goes through the broker and the
// sample handler, as a receiver would enqueue it: raw, with the event's name in a header.
func TestGitHubWebhooks(t *testing.T) {
	payloads := examplestest.Payloads(t)
	s := newSite(t, githubConfig)
	module, err := os.ReadFile(examplestest.Build(t, "github")["github"])
	if err != nil {
		t.Fatal(err)
	}
	hosttest.Install(t, filepath.Join(s.dir, "plugins"), "github", module)
	s.start()
	client, ok := admin.DialSocket(t.Context(), filepath.Join(s.dir, "data", "guesthand.sock"))
	if !ok {
		t.Fatal("no host on the socket")
	}
	ms := make([]drivers.Message, len(payloads))
	for i, p := range payloads {
		ms[i] = drivers.Message{ID: fmt.Sprintf("%s-%s-%d", p.Event, p.Name, i), Job: "push", Payload: p.Body,
			Headers: drivers.Header{"X-GitHub-Event": {p.Event}}}
	}
	ids, errs, err := client.Send(t.Context(), "github", ms)
	if err = errors.Join(append(errs, err)...); err != nil || len(ids) != len(ms) {
		t.Fatalf("%d of %d sent: %v", len(ids), len(ms), err)
	}
	hosttest.Eventually(t, patience, "all to be handled", func() bool { return s.queue("github").Depth == 0 })
	if dead := s.dead("github"); len(dead) > 0 {
		t.Errorf("%d of %d died, the first %s: %s", len(dead), len(ms), dead[0].ID, dead[0].Reason)
	}
	rows := s.runs("--outcome", "success", "-n", "1000")
	if len(rows) != len(ms) {
		t.Errorf("%d successes for %d payloads", len(rows), len(ms))
	}
	for _, r := range rows {
		if len(r.Result) == 0 || r.Job != "github" || r.Attempt != 1 {
			t.Errorf("%s: %+v", r.ID, r)
		}
	}
}
