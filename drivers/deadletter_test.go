package drivers_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/guesthand/guesthand/drivers"
)

var update = flag.Bool("update", false, "write the golden files")

func TestDeadLetterGolden(t *testing.T) {
	full := drivers.DeadLetter{
		ID: "018f3c5a-0000-7000-8000-000000000001", Entry: "17", Job: "com.acme.Order", Queue: "orders",
		Reason:  "max attempts (3) exhausted after failure 3: retry: upstream said 503",
		Outcome: "retry", Cause: "returned",
		Tally:    drivers.Tally{Failures: 3, Delays: 2, Stalls: 1, Interruptions: 1, Unrouted: 4, Prior: 5},
		Replays:  1,
		Enqueued: time.Date(2026, 3, 4, 6, 6, 7, 123456789, time.FixedZone("", 3600)),
		Died:     time.Date(2026, 3, 4, 5, 7, 0, 0, time.UTC),
		Digest:   "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", Worker: "host-1",
		Headers: drivers.Header{"X-Multi": {"1", "2"}, "traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
		Payload: []byte(`{"order": 7, "text": "<déjà & vu>"}`),
		Errors: []drivers.RunError{
			{Attempt: 11, At: time.Date(2026, 3, 4, 5, 6, 59, 0, time.UTC), Outcome: "retry", Cause: "trap", Text: "unreachable"},
			{Attempt: 12, At: time.Date(2026, 3, 4, 5, 7, 0, 0, time.UTC), Outcome: "retry", Cause: "returned", Text: "upstream said 503"},
		},
	}
	binary := drivers.DeadLetter{ID: "b", Entry: "18", Payload: []byte{0xff, 0, 1}}
	empty := drivers.DeadLetter{ID: "e", Entry: "19"}
	got, err := json.MarshalIndent([]drivers.DeadLetter{full, binary, empty}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	const golden = "testdata/deadletter.golden.json"
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("dead letters are\n%s\nwant\n%s", got, want)
	}
}

func TestDeadLetterBadJSON(t *testing.T) {
	for _, bad := range []string{`[]`, `{"id": 7}`, `{"payload_base64": "*"}`} {
		var d drivers.DeadLetter
		if err := json.Unmarshal([]byte(bad), &d); err == nil {
			t.Errorf("%s was read as %+v", bad, d)
		}
	}
}

func tallies() *rapid.Generator[drivers.Tally] {
	n := rapid.IntRange(0, 1_000_000)
	return rapid.Custom(func(t *rapid.T) drivers.Tally {
		return drivers.Tally{Failures: n.Draw(t, "failures"), Delays: n.Draw(t, "delays"), Stalls: n.Draw(t, "stalls"),
			Interruptions: n.Draw(t, "interruptions"), Unrouted: n.Draw(t, "unrouted"), Prior: n.Draw(t, "prior")}
	})
}

func times() *rapid.Generator[time.Time] {
	return rapid.Map(rapid.Int64Range(0, 1<<32), func(s int64) time.Time { return time.Unix(s, s%1e9).UTC() })
}

// What a dead letter shows survives JSON; what it does not show (how often no handler was
// there) is the only thing lost, and the number of the next attempt is not.
func TestDeadLetterRoundTrip(t *testing.T) {
	texts := rapid.String()
	rapid.Check(t, func(t *rapid.T) {
		d := drivers.DeadLetter{
			ID: texts.Draw(t, "id"), Entry: texts.Draw(t, "entry"), Job: texts.Draw(t, "job"), Queue: texts.Draw(t, "queue"),
			Reason: texts.Draw(t, "reason"), Outcome: texts.Draw(t, "outcome"), Cause: texts.Draw(t, "cause"),
			Tally: tallies().Draw(t, "tally"), Replays: rapid.IntRange(0, 100).Draw(t, "replays"),
			Enqueued: times().Draw(t, "enqueued"), Died: times().Draw(t, "died"),
			Digest: texts.Draw(t, "digest"), Worker: texts.Draw(t, "worker"),
			Headers: rapid.MapOf(texts, rapid.SliceOfN(texts, 1, 3)).Draw(t, "headers"),
			Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
			Errors: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) drivers.RunError {
				return drivers.RunError{Attempt: rapid.Int().Draw(t, "attempt"), At: times().Draw(t, "at"), Text: texts.Draw(t, "text")}
			}), 0, drivers.MaxErrors).Draw(t, "errors"),
		}
		b, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var got drivers.DeadLetter
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		d.Tally.Unrouted = 0
		if !reflect.DeepEqual(got, d) {
			t.Fatalf("got  %+v\nwant %+v", got, d)
		}
		if got.Tally.Attempt() != d.Tally.Attempt() || got.LastAttempt() != d.LastAttempt() {
			t.Fatalf("attempt %d, want %d", got.Tally.Attempt(), d.Tally.Attempt())
		}
	})
}

func TestTally(t *testing.T) {
	if got := (drivers.Tally{}).Attempt(); got != 1 {
		t.Errorf("the first attempt is %d", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		c := tallies().Draw(t, "tally")
		if got, want := c.Attempt(), 1+c.Failures+c.Delays+c.Stalls+c.Interruptions+c.Prior; got != want {
			t.Fatalf("attempt %d, want %d", got, want)
		}
		r := c.Replayed()
		if r != (drivers.Tally{Prior: c.Attempt() - 1}) || r.Attempt() != c.Attempt() {
			t.Fatalf("replayed as %+v, attempt %d, want %d", r, r.Attempt(), c.Attempt())
		}
		if again := r.Replayed(); again != r {
			t.Fatalf("replayed without a run it becomes %+v", again)
		}
		unrouted := c
		unrouted.Unrouted++
		if unrouted.Attempt() != c.Attempt() {
			t.Fatal("being put back without a handler counts as an attempt")
		}
	})
}

func TestVerdictString(t *testing.T) {
	for v, want := range map[drivers.Verdict]string{
		0: "no verdict", drivers.Ack: "ack", drivers.Requeue: "requeue", drivers.Dead: "dead", drivers.Reject: "reject", 9: "no verdict",
	} {
		if v.String() != want {
			t.Errorf("verdict %d is %q, want %q", v, v, want)
		}
	}
}
