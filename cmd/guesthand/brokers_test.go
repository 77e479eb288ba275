package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers/cfdriver/cftest"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
	"github.com/guesthand/guesthand/drivers/pgdriver/pgtest"
	"github.com/guesthand/guesthand/drivers/rabbitdriver/rabbittest"
	"github.com/guesthand/guesthand/drivers/redisdriver/redistest"
	"github.com/guesthand/guesthand/drivers/sqsdriver/sqstest"
	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/host/ledger"
)

// everyBroker is a configuration of a broker b for each kind there is, and what about its
// table is not as everywhere, which is what its Caps exclude.
var everyBroker = map[string]struct {
	start func(t *testing.T) string
	// returns: a rejected message is left to the broker's own policy, and comes back until that
	// takes it.
	returns bool
}{
	"memory":   {start: func(*testing.T) string { return "[brokers.b]\ndriver = \"memory\"\n" }},
	"embedded": {start: func(*testing.T) string { return embedded }},
	"nats": {start: func(t *testing.T) string {
		return fmt.Sprintf("[brokers.b]\ndriver = \"nats\"\nurl = %q\n", natstest.Start(t).URL)
	}},
	"redis": {start: func(t *testing.T) string {
		return fmt.Sprintf("[brokers.b]\ndriver = \"redis\"\nurl = %q\n", redistest.Start(t).URL)
	}},
	"postgres": {start: func(t *testing.T) string {
		return fmt.Sprintf("[brokers.b]\ndriver = \"postgres\"\nurl = %q\n", pgtest.Start(t).URL)
	}},
	"rabbitmq": {start: func(t *testing.T) string {
		return fmt.Sprintf("[brokers.b]\ndriver = \"rabbitmq\"\nurl = %q\n", rabbittest.Start(t, rabbittest.Options{}).URL)
	}},
	"sqs": {returns: true, start: func(t *testing.T) string {
		sqstest.Credentials()
		return fmt.Sprintf("[brokers.b]\ndriver = \"sqs\"\nregion = \"eu-central-1\"\nurl = %q\n", sqstest.StartEmulator(t).URL)
	}},
	"cloudflare": {returns: true, start: func(t *testing.T) string {
		t.Setenv("CLOUDFLARE_TOKEN", cftest.Token)
		return fmt.Sprintf("[brokers.b]\ndriver = \"cloudflare\"\nurl = %q\naccount = %q\ntoken = \"env:CLOUDFLARE_TOKEN\"\n",
			cftest.Start(t).URL, cftest.Account)
	}},
}

// The same handler and the same messages come to the same table on every broker.
func TestSameTableOnEveryBroker(t *testing.T) {
	messages := []struct{ name, payload string }{
		{"success", "0"},
		{"fails twice", "1;out of order|1;still|0"},
		{"retry after", "10 200;wait for it|0"},
		{"delayed twice", "11 200|11 200|0"},
		{"delayed, then exhausted", "11 200|1;a|1;b|1;c"},
		{"permanent", "12;no such order"},
		{"trap", "trap|0"},
		{"state", "state"},
		{"reject", "13;not mine"},
	}
	want := strings.TrimLeft(`
success: 1 success/acked
fails twice: 1 retry/retried, 2 retry/retried, 3 success/acked
retry after: 1 retry-after/retried, 2 success/acked
delayed twice: 1 delay/delayed, 2 delay/delayed, 3 success/acked
delayed, then exhausted: 1 delay/delayed, 2 retry/retried, 3 retry/retried, 4 retry/retried, 5 retry/dead
permanent: 1 permanent/dead
trap: 1 retry/retried, 2 success/acked
state: 1 retry/retried, 2 retry/retried, 3 retry/retried, 4 success/acked
reject: 1 reject/rejected
dead: delayed, then exhausted: max attempts (4) exhausted after failure 4: retry: c; 4 failures, 1 delays, 0 stalls, attempt 5
dead: permanent: permanent: no such order; 1 failures, 0 delays, 0 stalls, attempt 1
replayed: 6 retry/retried, 7 retry/retried, 8 retry/retried, 9 retry/dead; 4 failures, 0 delays, attempt 9, 1 replays
`, "\n")
	for name, broker := range everyBroker {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, broker.start(t)+"[queues.q]\nbroker = \"b\"\nlease = \"75s\"\nretry = { max_attempts = 4, base = \"50ms\", max = \"100ms\" }\n[admin]\nlisten = \"none\"\n")
			s.puppet("puppet")
			s.start()
			ids := map[string]string{}
			for _, m := range messages {
				ids[m.name] = s.sendTo("q", "puppet", m.payload)
			}
			var table strings.Builder
			for _, m := range messages {
				hosttest.Eventually(t, 3*patience, "the end of "+m.name, func() bool {
					rows := s.runs("--id", ids[m.name])
					return len(rows) > 0 && final(rows[0])
				})
				fmt.Fprintf(&table, "%s: %s\n", m.name, history(s.runs("--id", ids[m.name]), 0))
			}
			letters := s.dead("q")
			byID := map[string]string{}
			for _, l := range letters {
				byID[l.ID] = fmt.Sprintf("%s; %d failures, %d delays, %d stalls, attempt %d", l.Reason, l.Tally.Failures, l.Tally.Delays, l.Tally.Stalls, l.LastAttempt())
			}
			for _, m := range messages {
				if text, ok := byID[ids[m.name]]; ok {
					fmt.Fprintf(&table, "dead: %s: %s\n", m.name, text)
				}
			}
			id := ids["delayed, then exhausted"]
			s.must("dead", "replay", "q", id)
			hosttest.Eventually(t, 3*patience, "the replay's end", func() bool {
				rows := s.runs("--id", id)
				return rows[0].Settlement == ledger.DeadLtr && rows[0].Attempt == 9
			})
			for _, l := range s.dead("q") {
				if l.ID == id {
					fmt.Fprintf(&table, "replayed: %s; %d failures, %d delays, attempt %d, %d replays\n", history(s.runs("--id", id), 6), l.Tally.Failures, l.Tally.Delays, l.LastAttempt(), l.Replays)
				}
			}
			if got := table.String(); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			for _, l := range s.dead("q") {
				s.must("dead", "drop", "q", l.Entry)
			}
			if n := len(s.dead("q")); n != 0 {
				t.Errorf("%d dead letters after all were dropped", n)
			}
			if broker.returns {
				return // the rejected message is still about
			}
			hosttest.Eventually(t, time.Minute, "an empty queue", func() bool { return s.queue("q").Depth == 0 })
		})
	}
}

// history is a message's runs from an attempt on, oldest first.
func history(rows []ledger.Row, from int) string {
	slices.SortFunc(rows, func(a, b ledger.Row) int { return cmp.Compare(a.Attempt, b.Attempt) })
	var parts []string
	for _, r := range rows {
		if r.Attempt >= from {
			parts = append(parts, fmt.Sprintf("%d %s/%s", r.Attempt, r.Outcome, r.Settlement))
		}
	}
	return strings.Join(parts, ", ")
}
