package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

func sendIDs(s *suite) {
	q := s.worker("a")
	ms := make([]drivers.Message, 50)
	for i := range ms {
		ms[i].Job = "job"
	}
	s.sendMessages(q, ms...)
	seen := map[string]bool{}
	for _, d := range s.take(q, len(ms)) {
		u, err := uuid.Parse(d.ID)
		if err != nil || u.Version() != 7 {
			s.Errorf("id %q is no UUIDv7: %v", d.ID, err)
		}
		seen[d.ID] = true
		s.ack(q, d)
	}
	if len(seen) != len(ms) {
		s.Errorf("%d different ids for %d messages", len(seen), len(ms))
	}

	given := []string{"order/7", "ü 世界", "a.b*c>", "$x", "%2e", strings.Repeat("x", 200)}
	s.send(q, given...)
	s.ack(q, s.takeByID(q, given...)...)
	// An id is a name and suppresses nothing.
	s.send(q, "same", "same")
	for _, d := range s.take(q, 2) {
		if d.ID != "same" {
			s.Errorf("id %q", d.ID)
		}
	}
}

// sendBatch: each message has its own result, and a bad one spoils no other.
func sendBatch(s *suite) {
	q := s.worker("a")
	errs := s.sendResults(q,
		drivers.Message{ID: "1", Job: "job"},
		drivers.Message{ID: "nojob"},
		drivers.Message{ID: "2", Job: "job"},
		drivers.Message{ID: "badheader", Job: "job", Headers: drivers.Header{"X-Bad": {"a\nb"}}},
		drivers.Message{ID: "3", Job: "job"},
	)
	for i, err := range errs {
		if (err != nil) != (i%2 == 1) {
			s.Errorf("message %d: %v", i, err)
		}
	}
	s.ack(q, s.takeByID(q, "1", "2", "3")...)
	s.finished(q)
	if errs := q.Send(s.Context(), nil); len(errs) != 0 {
		s.Errorf("no messages have the results %v", errs)
	}
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	if err := q.Send(ended, []drivers.Message{{ID: "late", Job: "job"}})[0]; err == nil {
		s.ack(q, s.takeByID(q, "late")...)
	}
}

// sendOnly: a producer may be there before any consumer.
func sendOnly(s *suite) {
	p := s.workerWith("producer", drivers.QueueOptions{SendOnly: true})
	s.send(p, "1", "2")
	s.hasCounts(p, drivers.Counts{Depth: 2})
	if ds, err := p.Receive(s.Context(), 1); err == nil {
		s.Errorf("received %s from a queue opened for sending", ids(ds))
	}
	q := s.worker("consumer")
	for _, d := range s.takeByID(q, "1", "2") {
		s.hasCarry(d, drivers.Carry{})
		s.ack(q, d)
	}
	s.hasCounts(p, drivers.Counts{})
}

// create: without QueueOptions.Create nothing is made, and the error names what is missing.
func create(s *suite) {
	d := s.openDriver("a", Tuning{})
	o := drivers.QueueOptions{Name: s.name, Lease: longLease}
	if s.caps.Durable {
		for range 2 {
			q, err := d.OpenQueue(s.Context(), o)
			if err == nil {
				s.close(q)
				s.Fatal("opened a queue that is not there")
			}
			if !strings.Contains(err.Error(), s.name) {
				s.Errorf("the error does not name what is missing: %v", err)
			}
		}
	}
	s.send(s.openQueue(d, drivers.QueueOptions{}), "m")
	q, err := d.OpenQueue(s.Context(), o)
	if err != nil {
		s.Fatalf("open what is there: %v", err)
	}
	s.ack(q, s.take(q, 1)...)
}

func headers(s *suite) {
	q := s.worker("a")
	want := drivers.Header{
		"X-Plain": {"a"}, "x-lower": {"b"}, "X-UPPER": {"c"}, "X.dots_and-under~": {"d"},
		"X-Multi":                 {"1", "2", "1"},
		"Content-Type":            {"application/json; charset=utf-8"},
		"X-Utf8":                  {"grüße, 世界 🎉"},
		"X-Empty":                 {""},
		"X-Json":                  {`{"a":"b, c; d=e","f":[1,2]}`},
		"X-Colon":                 {"a: b:c"},
		"X-Tab":                   {"a\tb"},
		"X-Escapes":               {`%41%0a\n\\=?utf-8?q?x?=`},
		"X-Long":                  {strings.Repeat("x", 4096)},
		abi.HeaderTraceparent:     {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		abi.HeaderMaxAttempts:     {"2"},
		abi.HeaderReplyTo:         {"reply.here"},
		"guesthand-something-new": {"passes"},
	}
	s.sendMessages(q, drivers.Message{ID: "m", Job: "job", Headers: want})
	d := s.take(q, 1)[0]
	s.hasHeaders(d.Headers, want)
	if v, _ := d.Headers.Get("X-LOWER"); v != "b" {
		s.Errorf("X-LOWER is %q", v)
	}
	s.settle(q, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue})
	d = s.take(q, 1)[0]
	s.hasHeaders(d.Headers, want)
	s.ack(q, d)
}

func invalidHeaders(s *suite) {
	q := s.worker("a")
	var ms []drivers.Message
	var names []string
	for _, name := range []string{"", "a b", "a:b", "a\nb", "a\r", "ü", "\xff"} {
		names = append(names, name)
		ms = append(ms, drivers.Message{Job: "job", Headers: drivers.Header{name: {"v"}}})
	}
	for i, v := range []string{"a\nb", "a\rb", "a\x00b", "\x7f", "\xff", " lead", "trail ", "\t", "ok\r\n"} {
		name := fmt.Sprintf("X-%d", i)
		names = append(names, name)
		ms = append(ms, drivers.Message{Job: "job", Headers: drivers.Header{name: {"fine", v}}})
	}
	for i, err := range s.sendResults(q, ms...) {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", names[i])) {
			s.Errorf("headers %q: %v, want an error that names %q", ms[i].Headers, err, names[i])
		}
	}
	s.hasCounts(q, drivers.Counts{})
}

// manyHeaders either arrive or are refused.
func manyHeaders(s *suite) {
	q := s.worker("a")
	want := drivers.Header{}
	for i := range 1000 {
		want[fmt.Sprintf("X-Header-%d", i)] = []string{fmt.Sprintf("value %d", i)}
	}
	if err := s.sendResults(q, drivers.Message{ID: "m", Job: "job", Headers: want})[0]; err != nil {
		s.Logf("refused: %v", err)
		s.hasCounts(q, drivers.Counts{})
		return
	}
	d := s.take(q, 1)[0]
	s.hasHeaders(d.Headers, want)
	s.ack(q, d)
}

func payloads(s *suite) {
	q := s.worker("a")
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	big := 1 << 20
	if most := q.Info().MaxPayload; most > 0 {
		big = min(big, most-4<<10) // room for headers, where they count
	}
	for name, p := range map[string][]byte{
		"nil": nil, "empty": {}, "bytes": every, "text": []byte("déjà vu\r\n"), "broken": {0xff, 0xfe, 'a'},
		"zero": {0}, "big": bytes.Repeat(every, big/256),
	} {
		s.sendMessages(q, drivers.Message{ID: name, Job: "job", Payload: p})
		for range 2 { // over a retry, too
			d := s.take(q, 1)[0]
			if !bytes.Equal(d.Payload, p) || d.Broken != "" {
				s.Errorf("%s: got %d bytes, want %d (%q)", name, len(d.Payload), len(p), d.Broken)
			}
			s.settle(q, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue})
		}
		s.ack(q, s.take(q, 1)...)
	}
}

func tooLarge(s *suite) {
	q := s.worker("a")
	most := q.Info().MaxPayload
	if most == 0 || most > 64<<20 {
		s.Skipf("Info.MaxPayload is %d", most)
	}
	errs := s.sendResults(q, drivers.Message{ID: "1", Job: "job"},
		drivers.Message{ID: "big", Job: "job", Payload: make([]byte, most+1)},
		drivers.Message{ID: "2", Job: "job"})
	if errs[0] != nil || !errors.Is(errs[1], drivers.ErrTooLarge) || errs[2] != nil {
		s.Errorf("results %v, want ErrTooLarge for the second", errs)
	}
	s.ack(q, s.takeByID(q, "1", "2")...)
	s.finished(q)
}

func jobNames(s *suite) {
	q := s.worker("a")
	for _, job := range []string{
		"resize", "com.acme.Order", "a/b/../c", `back\slash`, "two words", "grüße", "世界", "*", ">", "a.*.>",
		"a..b", ".hidden", "trailing.", "$JS.API.INFO", "%2e%2E", "UPPER", "=", "_x5f_", strings.Repeat("long.", 40) + "x",
	} {
		s.sendMessages(q, drivers.Message{ID: "m", Job: job})
		d := s.take(q, 1)[0]
		if d.Job != job || d.Broken != "" {
			s.Errorf("job %q came as %q (%s)", job, d.Job, d.Broken)
		}
		s.ack(q, d)
	}
	if err := s.sendResults(q, drivers.Message{Job: ""})[0]; err == nil {
		s.Error("sent a message without a job")
	}
}

func sendKeys(s *suite) {
	q, other := s.worker("a"), s.worker("b")
	keyed := func(q drivers.Queue, id, key string) error {
		s.Helper()
		return s.sendResults(q, drivers.Message{ID: id, Job: "job", Key: key})[0]
	}
	if !s.caps.Keys {
		if err := keyed(q, "1", "k"); !errors.Is(err, drivers.ErrUnsupported) {
			s.Errorf("key: %v, want ErrUnsupported since Caps.Keys is false", err)
		}
		s.finished(q)
		return
	}
	for i, err := range []error{keyed(q, "1", "k"), keyed(q, "again", "k"), keyed(other, "other worker", "k"), keyed(q, "2", "k two/ü")} {
		if err != nil {
			s.Errorf("send %d: %v", i, err)
		}
	}
	ds := s.takeByID(q, "1", "2")
	// A key never suppresses a redelivery, and is remembered after the end.
	s.settle(q, drivers.Settlement{Delivery: ds[0], Verdict: drivers.Requeue})
	s.ack(q, s.takeByID(q, "1")[0], ds[1])
	if err := keyed(other, "after the end", "k"); err != nil {
		s.Error(err)
	}
	s.send(q, "no key", "no key either")
	s.ack(q, s.takeByID(q, "no key", "no key either")...)
	s.nothing(q, 100*time.Millisecond)
	s.finished(q)
}

// foreign messages are as good as ours.
func foreign(s *suite) {
	if s.h.Native == nil {
		s.Skip("the broker has no other way in than Send")
	}
	q := s.worker("a")
	for name, c := range map[string]struct {
		headers drivers.Header
		id, job string // "": the broker's own
	}{
		"bare":        {},
		"headers":     {headers: drivers.Header{"X-A": {"1", "2"}, "X-B": {"grüße"}}},
		"cloudevents": {headers: drivers.Header{"ce-id": {"event/1"}, "ce-type": {"com.acme.Order"}}, id: "event/1", job: "com.acme.Order"},
		"ours":        {headers: drivers.Header{abi.HeaderID: {"own id"}, abi.HeaderJob: {"own job"}, "ce-type": {"other"}}, id: "own id", job: "own job"},
	} {
		payload := []byte("\xff\x00" + name)
		s.h.Native(s.T, s.name, payload, c.headers)
		d := s.take(q, 1)[0]
		first := d.ID
		for range 2 {
			s.hasHeaders(d.Headers, c.headers)
			if d.ID == "" || d.ID != first || c.id != "" && d.ID != c.id || c.job != "" && d.Job != c.job {
				s.Errorf("%s: id %q, job %q, want %q, %q", name, d.ID, d.Job, c.id, c.job)
			}
			if !bytes.Equal(d.Payload, payload) || d.Broken != "" || d.EnqueuedAt.IsZero() {
				s.Errorf("%s: payload %q, broken %q, enqueued %s", name, d.Payload, d.Broken, d.EnqueuedAt)
			}
			s.settle(q, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: fullCarry()})
			d = s.take(q, 1)[0]
			s.hasCarry(d, fullCarry())
		}
		s.ack(q, d)
	}
	s.finished(q)
}
