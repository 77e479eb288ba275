package drivertest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// listDead lists all dead letters, page by page.
func (s *suite) listDead(dl drivers.DeadLetters, page int) []drivers.DeadLetter {
	s.Helper()
	var all []drivers.DeadLetter
	seen := map[string]bool{}
	for after := ""; ; {
		ls, err := dl.ListDead(s.Context(), after, page)
		if err != nil {
			s.Fatalf("list dead letters after %q: %v", after, err)
		}
		if len(ls) > page {
			s.Fatalf("asked for %d dead letters, got %d", page, len(ls))
		}
		for _, l := range ls {
			if after = l.Entry; after == "" || seen[after] {
				s.Fatalf("entry %q of %s is empty or repeats", after, l.ID)
			}
			seen[after] = true
		}
		all = append(all, ls...)
		if len(ls) == 0 || !s.caps.BrowseDead {
			return all
		}
	}
}

// bury sends a message for each id and lets it die.
func (s *suite) bury(q drivers.Queue, ids ...string) {
	s.Helper()
	for _, id := range ids {
		s.send(q, id)
		s.settle(q, drivers.Settlement{Delivery: s.take(q, 1)[0], Verdict: drivers.Dead, Death: aDeath()})
	}
	s.eventually(func() (bool, string) {
		c, err := q.Counts(s.Context())
		return err == nil && c.Dead >= len(ids) && c.Depth == 0, fmt.Sprintf("counts %+v, %v, want %d dead", c, err, len(ids))
	})
}

func (s *suite) entries(dl drivers.DeadLetters, want ...string) []string {
	s.Helper()
	var entries, found []string
	for _, l := range s.listDead(dl, 100) {
		entries, found = append(entries, l.Entry), append(found, l.ID)
	}
	if !slices.Equal(found, want) {
		s.Fatalf("dead letters of %q, want %q", found, want)
	}
	return entries
}

// deadLetter dies with everything that can be known about a message.
func deadLetter(s *suite) {
	q := s.worker("a")
	dl := s.deadLetters(q)
	sent := drivers.Header{"X-Multi": {"1", "2"}, "X-Utf8": {"grüße"}, abi.HeaderMaxAttempts: {"3"}}
	for _, payload := range [][]byte{[]byte(`{"order": 7}`), {0xff, 0x00, 0xfe}, nil} {
		before := time.Now()
		s.sendMessages(q, drivers.Message{ID: "m", Job: "com.acme/Order", Headers: sent, Payload: payload})
		d := s.take(q, 1)[0]
		after := time.Now()
		st := drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Carry: fullCarry(), Death: aDeath()}
		s.settle(q, st)
		s.hasCounts(q, drivers.Counts{Dead: 1})
		ls, err := dl.ListDead(s.Context(), "", 10)
		if err != nil || len(ls) != 1 {
			s.Fatalf("%d dead letters, %v", len(ls), err)
		}
		l := ls[0]
		s.enqueuedBetween(l.Enqueued, before, after)
		s.hasHeaders(l.Headers, sent)
		for name := range l.Headers {
			if strings.HasPrefix(name, "Guesthand-Death-") {
				s.Errorf("header %s is not the original's own", name)
			}
		}
		s.isBuried(l, st, payload)
		s.isJSON(l, payload)
		if err := dl.DropDead(s.Context(), l.Entry); err != nil {
			s.Fatalf("drop: %v", err)
		}
	}
}

func (s *suite) isBuried(l drivers.DeadLetter, st drivers.Settlement, payload []byte) {
	s.Helper()
	want := drivers.DeadLetter{
		ID: st.Delivery.ID, Job: st.Delivery.Job, Queue: s.name, Reason: st.Death.Reason, Outcome: st.Death.Outcome,
		Cause: st.Death.Cause, Tally: st.Carry.Tally, Digest: st.Death.Digest, Worker: st.Death.Worker,
	}
	if !l.Died.Equal(st.Death.Time) {
		s.Errorf("died at %s, want %s", l.Died, st.Death.Time)
	}
	if !bytes.Equal(l.Payload, payload) {
		s.Errorf("payload %q, want %q", l.Payload, payload)
	}
	if !slices.EqualFunc(l.Errors, st.Carry.Errors, sameError) {
		s.Errorf("errors %+v, want %+v", l.Errors, st.Carry.Errors)
	}
	// A tally that was put back without a handler is history; what was noticed inexactly
	// may differ.
	want.Tally.Unrouted = l.Tally.Unrouted
	if !s.caps.ExactCounts {
		want.Tally.Stalls = l.Tally.Stalls
	}
	got := fmt.Sprintf("%+v", []any{l.ID, l.Job, l.Queue, l.Reason, l.Outcome, l.Cause, l.Tally, l.Replays, l.Digest, l.Worker})
	if w := fmt.Sprintf("%+v", []any{want.ID, want.Job, want.Queue, want.Reason, want.Outcome, want.Cause, want.Tally, want.Replays, want.Digest, want.Worker}); got != w {
		s.Errorf("dead letter %s,\nwant %s", got, w)
	}
}

// isJSON checks the tool's view of a dead letter.
func (s *suite) isJSON(l drivers.DeadLetter, payload []byte) {
	s.Helper()
	b, err := json.Marshal(l)
	if err != nil {
		s.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		s.Fatal(err)
	}
	want := map[string]any{"id": "m", "job": "com.acme/Order", "queue": s.name, "failures": 5., "delays": 4.,
		"interruptions": 2., "attempt": 20., "replays": 0., "outcome": "retry", "died": "2026-03-04T05:06:07.089Z"}
	if bytes.Equal(payload, []byte{0xff, 0x00, 0xfe}) {
		want["payload_base64"] = base64.StdEncoding.EncodeToString(payload)
	} else {
		want["payload"] = string(payload)
	}
	if !s.caps.ExactCounts {
		delete(want, "attempt")
	}
	for k, v := range want {
		if got[k] != v {
			s.Errorf("%s is %v in JSON, want %v", k, got[k], v)
		}
	}
}

func deadList(s *suite) {
	q := s.worker("a")
	dl := s.deadLetters(q)
	if !s.caps.BrowseDead {
		s.Skip("not Caps.BrowseDead: a list is a sample")
	}
	s.entries(dl)
	want := numbered("m", 7)
	s.bury(q, want...)
	entries := s.entries(dl, want...)
	s.entries(dl, want...) // listing consumes nothing
	for _, page := range []int{1, 3, 7} {
		var got []string
		for _, l := range s.listDead(dl, page) {
			got = append(got, l.ID)
		}
		if !slices.Equal(got, want) {
			s.Errorf("by %d: %q, want %q", page, got, want)
		}
	}
	// An entry that has gone still marks its place.
	if err := dl.DropDead(s.Context(), entries[2]); err != nil {
		s.Fatal(err)
	}
	ls, err := dl.ListDead(s.Context(), entries[2], 2)
	if err != nil || len(ls) != 2 || ls[0].ID != want[3] || ls[1].ID != want[4] {
		s.Errorf("after the entry dropped: %d letters, %v", len(ls), err)
	}
	// Another worker sees the same.
	other := s.workerWith("b", drivers.QueueOptions{SendOnly: true})
	s.entries(s.deadLetters(other), append(want[:2:2], want[3:]...)...)
}

func deadGet(s *suite) {
	q := s.worker("a")
	dl := s.deadLetters(q)
	s.bury(q, "x", "twice", "twice")
	ls, err := dl.GetDead(s.Context(), "twice")
	if err != nil || len(ls) != 2 || ls[0].ID != "twice" || ls[1].ID != "twice" || ls[0].Entry == ls[1].Entry {
		s.Fatalf("by id: %+v, %v", ls, err)
	}
	one, err := dl.GetDead(s.Context(), ls[1].Entry)
	if err != nil || len(one) != 1 || one[0].Entry != ls[1].Entry || one[0].Reason != aDeath().Reason {
		s.Errorf("by entry: %+v, %v", one, err)
	}
	if ls, err := dl.GetDead(s.Context(), "nobody"); !errors.Is(err, drivers.ErrNotFound) {
		s.Errorf("of nobody: %d letters, %v, want ErrNotFound", len(ls), err)
	}
}

// deadReplay sends a dead letter again, twice over, and lets another worker run it.
func deadReplay(s *suite) {
	q := s.worker("a")
	dl, b := s.deadLetters(q), s.worker("b")
	sent := drivers.Header{"X-Multi": {"1", "2"}}
	s.sendMessages(q, drivers.Message{ID: "m", Job: "job", Headers: sent, Payload: []byte("payload")})
	d := s.take(q, 1)[0]
	carry := drivers.Carry{Tally: drivers.Tally{Failures: 3, Delays: 2, Interruptions: 1}, State: []byte("state"),
		Errors: []drivers.RunError{{Attempt: 6, Outcome: "retry"}}}
	// It grows old enough to tell whether a replay starts its age anew.
	s.settle(q, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: carry, Delay: 2500 * time.Millisecond})
	d = s.take(q, 1)[0]
	for replay := 1; replay <= 2; replay++ {
		next := carry.Attempt()
		s.settle(q, drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Carry: carry, Death: aDeath()})
		s.hasCounts(q, drivers.Counts{Dead: 1})
		ls, err := dl.GetDead(s.Context(), "m")
		if err != nil || len(ls) != 1 || ls[0].Replays != replay-1 || ls[0].LastAttempt() != next-1 {
			s.Fatalf("before replay %d: %+v, %v", replay, ls, err)
		}
		before := time.Now()
		if err := dl.ReplayDead(s.Context(), ls[0].Entry); err != nil {
			s.Fatalf("replay %d: %v", replay, err)
		}
		s.hasCounts(q, drivers.Counts{Depth: 1})
		d = s.take(b, 1)[0]
		s.hasReplayed(d, replay, next, before)
		s.hasHeaders(d.Headers, sent)
		// The counts of the runs since are its own again, over a retry, too.
		carry = drivers.Carry{Tally: drivers.Tally{Failures: 1, Prior: d.Carry.Prior}, State: []byte("new")}
		s.settle(b, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: carry})
		d = s.take(q, 1)[0]
		s.hasCarry(d, carry)
		if v, _ := d.Headers.Get(abi.HeaderReplays); v != fmt.Sprint(replay) {
			s.Errorf("%s is %q after a retry, want %d", abi.HeaderReplays, v, replay)
		}
		s.enqueuedBetween(d.EnqueuedAt, before, time.Now())
	}
	s.ack(q, d)
	s.hasCounts(q, drivers.Counts{})
	if err := dl.ReplayDead(s.Context(), "nobody"); !errors.Is(err, drivers.ErrNotFound) {
		s.Errorf("replay of nobody: %v, want ErrNotFound", err)
	}
}

func (s *suite) hasReplayed(d *drivers.Delivery, replay, next int, since time.Time) {
	s.Helper()
	if d.ID != "m" || d.Job != "job" || string(d.Payload) != "payload" {
		s.Errorf("replayed as id %q, job %q, payload %q", d.ID, d.Job, d.Payload)
	}
	if got := d.Carry.Tally; got != (drivers.Tally{Prior: next - 1}) || d.Carry.Attempt() != next {
		s.Errorf("replayed with the tally %+v, want a fresh one and attempt %d", got, next)
	}
	if len(d.Carry.State) > 0 {
		s.Errorf("replayed with the state %q", d.Carry.State)
	}
	if v, _ := d.Headers.Get(abi.HeaderReplays); v != fmt.Sprint(replay) {
		s.Errorf("%s is %q, want %d", abi.HeaderReplays, v, replay)
	}
	if d.Stalled != 0 || d.Held {
		s.Errorf("replayed with stalled %d, held %t", d.Stalled, d.Held)
	}
	s.enqueuedBetween(d.EnqueuedAt, since, time.Now())
}

func deadDrop(s *suite) {
	q := s.worker("a")
	dl := s.deadLetters(q)
	s.bury(q, "1", "2", "3")
	ls, err := dl.GetDead(s.Context(), "2")
	if err != nil {
		s.Fatal(err)
	}
	if err := dl.DropDead(s.Context(), ls[0].Entry); err != nil {
		s.Fatalf("drop: %v", err)
	}
	s.hasCounts(q, drivers.Counts{Dead: 2})
	if _, err := dl.GetDead(s.Context(), ls[0].Entry); !errors.Is(err, drivers.ErrNotFound) {
		s.Errorf("get what was dropped: %v, want ErrNotFound", err)
	}
	for _, entry := range []string{ls[0].Entry, "nobody"} {
		if err := dl.DropDead(s.Context(), entry); !errors.Is(err, drivers.ErrNotFound) {
			s.Errorf("drop %q again: %v, want ErrNotFound", entry, err)
		}
		if err := dl.ReplayDead(s.Context(), entry); !errors.Is(err, drivers.ErrNotFound) {
			s.Errorf("replay %q: %v, want ErrNotFound", entry, err)
		}
	}
	s.nothing(q, 100*time.Millisecond)
}

func deadMax(s *suite) {
	s.needsDeadBounds()
	q := s.workerWith("a", drivers.QueueOptions{DeadMax: 3})
	dl := s.deadLetters(q)
	for _, id := range numbered("m", 5) {
		s.send(q, id)
		s.settle(q, drivers.Settlement{Delivery: s.take(q, 1)[0], Verdict: drivers.Dead, Death: aDeath()})
	}
	s.hasCounts(q, drivers.Counts{Dead: 3})
	if s.caps.BrowseDead {
		s.entries(dl, "m002", "m003", "m004")
	}
}

// needsDeadBounds skips the case where the broker bounds dead letters its own way.
func (s *suite) needsDeadBounds() {
	s.Helper()
	if s.h.DeadBounds != "" {
		s.Skip(s.h.DeadBounds)
	}
}

func deadKeep(s *suite) {
	s.needsDeadBounds()
	q := s.workerWith("a", drivers.QueueOptions{DeadKeep: time.Second})
	s.deadLetters(q)
	s.send(q, "m")
	s.settle(q, drivers.Settlement{Delivery: s.take(q, 1)[0], Verdict: drivers.Dead, Death: aDeath()})
	s.hasCounts(q, drivers.Counts{})
}

// deadTwice: a message that dies after a replay has one dead letter, with its whole history.
func deadTwice(s *suite) {
	q := s.worker("a")
	dl := s.deadLetters(q)
	s.bury(q, "m")
	ls, err := dl.GetDead(s.Context(), "m")
	if err != nil {
		s.Fatal(err)
	}
	if err := dl.ReplayDead(s.Context(), ls[0].Entry); err != nil {
		s.Fatal(err)
	}
	d := s.take(q, 1)[0]
	carry := d.Carry
	carry.Failures++
	s.settle(q, drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Carry: carry, Death: aDeath()})
	again, err := dl.GetDead(s.Context(), "m")
	if err != nil || len(again) != 1 || again[0].Replays != 1 || again[0].Tally != carry.Tally || again[0].Entry == ls[0].Entry {
		s.Errorf("died again as %+v, %v", again, err)
	}
}
