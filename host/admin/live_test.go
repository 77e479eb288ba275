package admin_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/ledger"
)

// The stream tells how things stand at once and again, and ends with the host.
func TestLive(t *testing.T) {
	address, _, stop := serve(t, &fake{}, "")
	res, err := http.Get("http://" + address + "/v1/live")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("content type %q", got)
	}
	lines := bufio.NewScanner(res.Body)
	seen := 0
	for seen < 2 && lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var o admin.Overview
			if err := json.Unmarshal([]byte(data), &o); err != nil || o.Version != "v1" {
				t.Fatalf("%s: %v", data, err)
			}
			seen++
		}
	}
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- stop() }()
	for lines.Scan() {
	}
	if err := <-ended; err != nil {
		t.Errorf("serve: %v", err)
	}
	if seen != 2 || time.Since(began) > 20*time.Second {
		t.Errorf("%d events, and %s to stop", seen, time.Since(began))
	}
}

// Pages that are open are bounded.
func TestLiveIsBounded(t *testing.T) {
	address, _, _ := serve(t, &fake{}, "")
	for i := range 33 {
		res, err := http.Get("http://" + address + "/v1/live")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if want := map[bool]int{true: 200, false: 503}[i < 32]; res.StatusCode != want {
			t.Fatalf("page %d: status %d, want %d", i+1, res.StatusCode, want)
		}
	}
}

func TestMessageFate(t *testing.T) {
	letter := drivers.DeadLetter{ID: "m", Entry: "1", Queue: "q", Reason: "permanent"}
	row := func(settlement, queue string) ledger.Row {
		return ledger.Row{ID: "m", Queue: queue, Job: "job", Settlement: settlement, Finished: time.Now()}
	}
	for name, tt := range map[string]struct {
		rows  []ledger.Row
		state string
		dead  int
	}{
		"never ran":          {nil, "unknown", 0},
		"succeeded":          {[]ledger.Row{row(ledger.Acked, "q"), row(ledger.Retried, "q")}, "succeeded", 0},
		"to run again":       {[]ledger.Row{row(ledger.Delayed, "q")}, "pending", 0},
		"not confirmed":      {[]ledger.Row{row(ledger.Failed, "q")}, "pending", 0},
		"rejected":           {[]ledger.Row{row(ledger.Rejected, "q")}, "rejected", 0},
		"dead":               {[]ledger.Row{row(ledger.DeadLtr, "q"), row(ledger.Retried, "q")}, "dead", 1},
		"replayed":           {[]ledger.Row{row(ledger.Acked, "q"), row(ledger.DeadLtr, "q")}, "succeeded", 1},
		"of a queue of old":  {[]ledger.Row{row(ledger.DeadLtr, "gone")}, "dead", 0},
		"dead here and long": {[]ledger.Row{row(ledger.DeadLtr, "q"), row(ledger.DeadLtr, "q")}, "dead", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{rows: tt.rows, letters: []drivers.DeadLetter{letter}}
			address, _, _ := serve(t, f, "")
			status, answer := request(t, "GET", "http://"+address+"/v1/messages/m", "", nil)
			var fate admin.Fate
			if err := json.Unmarshal([]byte(answer), &fate); err != nil || status != 200 {
				t.Fatalf("status %d, %s: %v", status, answer, err)
			}
			if fate.ID != "m" || fate.State != tt.state || len(fate.Dead) != tt.dead || len(fate.Runs) != len(tt.rows) || f.filter.ID != "m" {
				t.Errorf("%+v", fate)
			}
		})
	}
}

// The page is one document that may load nothing else, and holds no data: it needs no token.
func TestPageDocument(t *testing.T) {
	address, _, _ := serve(t, &fake{}, "token")
	res, err := http.Get("http://" + address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	policy := res.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'sha256-", "frame-ancestors 'none'", "connect-src 'self'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("policy %q lacks %s", policy, want)
		}
	}
	if res.StatusCode != 200 || strings.Contains(policy, "unsafe") {
		t.Errorf("status %d, policy %s", res.StatusCode, policy)
	}
	for _, path := range []string{"/v1/live", "/v1/overview", "/v1/setup", "/metrics", "/v1/messages/m"} {
		if status, _ := request(t, "GET", "http://"+address+path, "", nil); status != 401 {
			t.Errorf("%s without a token: status %d", path, status)
		}
	}
	if status, _ := request(t, "GET", fmt.Sprintf("http://%s/", address), "", map[string]string{"Host": "evil.example"}); status != 403 {
		t.Errorf("page for a foreign host name: status %d", status)
	}
}
