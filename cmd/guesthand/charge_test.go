package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/hosttest"
)

const chargeConfig = `
drain = "300ms"
%s
[queues.q]
broker = "b"
concurrency = 4
lease = "2s"
retry = { max_attempts = 10, base = "20ms", max_stalls = 100000 }
[handlers.charge]
kv = {}
[admin]
listen = "none"
`

// charge builds testdata/charge.
func (s *site) charge() {
	s.t.Helper()
	out := filepath.Join(s.t.TempDir(), "charge.wasm")
	c := exec.Command("go", "build", "-buildmode=c-shared", "-o", out, "./testdata/charge")
	c.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if text, err := c.CombinedOutput(); err != nil {
		s.t.Fatalf("build charge: %v\n%s", err, text)
	}
	wasm, err := os.ReadFile(out)
	if err != nil {
		s.t.Fatal(err)
	}
	hosttest.Install(s.t, filepath.Join(s.dir, "plugins"), "charge", wasm)
}

var chargeCall = regexp.MustCompile(`"msg":"charge ([^ "]+) ([^ "]+)"`)

// payments is a payment service that charges once for each idempotency key: what it is asked
// for arrives as the host's log, of which a killed host's last line is as good as any.
type payments struct {
	calls int
	keys  map[string]map[string]bool // by order
}

func (p *payments) read(host *process) {
	host.mu.Lock()
	defer host.mu.Unlock()
	for _, line := range host.lines {
		if m := chargeCall.FindStringSubmatch(line); m != nil {
			p.calls++
			if p.keys[m[1]] == nil {
				p.keys[m[1]] = map[string]bool{}
			}
			p.keys[m[1]][m[2]] = true
		}
	}
}

// Each order is charged once, though there are two messages for it and the host is killed in
// the worst places: between claim, charge and record.
func TestChargeOnceUnderKill(t *testing.T) {
	kills := 9
	if soak() {
		kills = 200
	}
	const perKill = 8
	eachBroker(t, func(t *testing.T, broker string) {
		s := newSite(t, fmt.Sprintf(chargeConfig, broker))
		s.charge()
		service := payments{keys: map[string]map[string]bool{}}
		steps := []string{`"msg":"claimed `, `"msg":"charge `, `"msg":"recorded `}
		p := s.start()
		for k := range kills {
			var ms []drivers.Message
			for i := range perKill {
				m := drivers.Message{Job: "charge", Payload: fmt.Appendf(nil, "order-%d-%d", k, i)}
				ms = append(ms, m, m)
			}
			s.sendAll("q", ms)
			p.waitForCount(steps[k%len(steps)], 1+k/len(steps)%4)
			p.kill()
			service.read(p)
			p = s.start()
		}
		hosttest.Eventually(t, 5*patience, "the queue to be empty", func() bool { return s.depth("q") == 0 })
		p.stop()
		service.read(p)
		if len(service.keys) != kills*perKill {
			t.Errorf("%d orders were charged, want %d", len(service.keys), kills*perKill)
		}
		for order, keys := range service.keys {
			if len(keys) != 1 {
				t.Errorf("%s was charged %d times", order, len(keys))
			}
		}
		if service.calls == len(service.keys) {
			t.Errorf("no charge was repeated in %d kills: they came in no bad place", kills)
		}
		t.Logf("%d calls for %d orders", service.calls, len(service.keys))
	})
}

// waitForCount waits until so many log lines hold the text.
func (p *process) waitForCount(text string, n int) {
	p.t.Helper()
	hosttest.Eventually(p.t, patience, fmt.Sprintf("%d lines with %s", n, text), func() bool { return p.count(text) >= n })
}
