package cfdriver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/cfdriver"
	"github.com/guesthand/guesthand/drivers/cfdriver/cftest"
)

// heavy is a carry of the most that a message may bring along, in bytes that are no text.
func heavy() drivers.Carry {
	c := drivers.Carry{Tally: drivers.Tally{Failures: 4}, State: make([]byte, abi.MaxState)}
	for range drivers.MaxErrors {
		c.Errors = append(c.Errors, drivers.RunError{Text: strings.Repeat("\x01", drivers.MaxErrorText)})
	}
	return c
}

func binary(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(b) // never fails
	return b
}

// Payloads of every kind, up to the limit of Send, survive a retry with all that a message can
// carry, and a death.
func TestLargestPayloads(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	most := b.q.Info().MaxPayload
	for name, payload := range map[string][]byte{
		"binary":   binary(most - 200),
		"text":     bytes.Repeat([]byte("text "), 22_000),
		"quotes":   bytes.Repeat([]byte(`"`), most-200),
		"markup":   bytes.Repeat([]byte("<&>"), 37_000),
		"controls": bytes.Repeat([]byte{1}, most-200),
	} {
		b.send(drivers.Message{ID: name, Job: "job", Payload: payload})
		b.mustSettle(requeue(b.take(1)[0], heavy(), 0))
		d := b.take(1)[0]
		if !bytes.Equal(d.Payload, payload) || d.Broken != "" || d.Carry.Failures != 4 {
			t.Fatalf("%s: %d bytes of %d, broken %q, %+v", name, len(d.Payload), len(payload), d.Broken, d.Carry.Tally)
		}
		s := bury(d)
		s.Death.Reason = strings.Repeat("\x02", 10_000)
		b.mustSettle(s)
		ls, err := b.dead().GetDead(t.Context(), name)
		if err != nil || len(ls) != 1 || !bytes.Equal(ls[0].Payload, payload) || ls[0].Tally.Failures != 4 || ls[0].Reason == "" {
			t.Fatalf("%s: %d dead letters, %v", name, len(ls), err)
		}
		if err := b.dead().ReplayDead(t.Context(), ls[0].Entry); err != nil {
			t.Fatal(err)
		}
		d = b.take(1)[0]
		if !bytes.Equal(d.Payload, payload) {
			t.Fatalf("%s: replayed with %d bytes", name, len(d.Payload))
		}
		b.mustSettle(ack(d))
	}
	if err := b.q.Send(t.Context(), []drivers.Message{{Job: "job", Payload: binary(most + 1)}})[0]; !errors.Is(err, drivers.ErrTooLarge) {
		t.Errorf("over the limit: %v", err)
	}
}

// A foreign body that fills a message leaves no room: it is retried where it is, and its dead
// letter is the body alone.
func TestFullBody(t *testing.T) {
	t.Parallel()
	log := &logged{}
	b := newBench(t, setting{Options: cfdriver.Options{Logger: log.logger()}})
	full := bytes.Repeat([]byte("full "), 25_580)
	asJSON, err := json.Marshal(string(full[:127_800]))
	if err != nil {
		t.Fatal(err)
	}
	for kind, body := range map[string][]byte{"text": full[:127_890], "json": asJSON} {
		b.s.Inject(b.name, kind, body)
		failed := heavy()
		b.mustSettle(requeue(b.take(1)[0], failed, 0))
		d := b.take(1)[0]
		if !bytes.Equal(d.Payload, body) || d.Carry.Tally != failed.Tally || d.Stalled != 0 {
			t.Fatalf("%s: %d bytes, %+v", kind, len(d.Payload), d.Carry.Tally)
		}
		b.mustSettle(bury(d))
		ls, err := b.dead().ListDead(t.Context(), "", 10)
		if err != nil || len(ls) != 1 || !bytes.Equal(ls[0].Payload, body) || !strings.HasPrefix(ls[0].Reason, "unknown") {
			t.Fatalf("%s: %d dead letters, %v", kind, len(ls), err)
		}
		if ms := b.s.Messages(deadName); ms[0].Type != kind {
			t.Errorf("%s died as %s", kind, ms[0].Type)
		}
		if err := b.dead().DropDead(t.Context(), ls[0].Entry); err != nil {
			t.Fatal(err)
		}
	}
	b.depth(0)
	if text := log.text(); strings.Count(text, "kept in place") != 2 || strings.Count(text, "anything but its body") != 2 {
		t.Errorf("logged %.2000s", text)
	}
}

// What producers of every kind may put into a queue.
func TestBodies(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	for name, c := range map[string]struct {
		kind, body           string
		payload, job, broken string
		header               string // X-A
	}{
		"text":          {kind: "text", body: "plain", payload: "plain"},
		"json":          {kind: "json", body: `{"order": 7}`, payload: `{"order": 7}`},
		"bytes":         {kind: "bytes", body: "\xff\x00", payload: "\xff\x00"},
		"empty":         {kind: "text"},
		"v8":            {kind: "v8", body: "\xff\x0f", payload: "/w8=", broken: `content type "v8"`},
		"envelope":      {kind: "text", body: `{"guesthand":1,"job":"resize","headers":{"X-A":"a"},"text":"t"}`, payload: "t", job: "resize", header: "a"},
		"of json":       {kind: "json", body: ` {"json":{"a":[1]},"guesthand":1,"headers":{"X-A":["a","b"]}}`, payload: `{"a":[1]}`, header: "a"},
		"of bytes":      {kind: "text", body: `{"guesthand":1,"base64":"/wA="}`, payload: "\xff\x00"},
		"of nothing":    {kind: "text", body: `{"guesthand":1,"headers":{"ce-type":"order"}}`, job: "order"},
		"theirs":        {kind: "text", body: `{"guesthand":"a name"}`, payload: `{"guesthand":"a name"}`},
		"not at top":    {kind: "text", body: `{"a":{"guesthand":1}}`, payload: `{"a":{"guesthand":1}}`},
		"truncated":     {kind: "text", body: `{"guesthand":1,"te`, payload: `{"guesthand":1,"te`},
		"broken base64": {kind: "text", body: `{"guesthand":1,"base64":"%"}`, payload: `{"guesthand":1,"base64":"%"}`, broken: "base64"},
		"broken header": {kind: "text", body: `{"guesthand":1,"headers":7}`, payload: `{"guesthand":1,"headers":7}`, broken: "envelope"},
	} {
		b.s.Inject(b.name, c.kind, []byte(c.body))
		for round := range 2 { // a retry mends nothing
			d := b.take(1)[0]
			got, _ := d.Headers.Get("X-A")
			if string(d.Payload) != c.payload || d.Job != c.job || got != c.header || (d.Broken != "") != (c.broken != "") || !strings.Contains(d.Broken, c.broken) {
				t.Errorf("%s, round %d: payload %q, job %q, header %q, broken %q", name, round, d.Payload, d.Job, got, d.Broken)
			}
			if round == 0 {
				b.mustSettle(requeue(d, d.Carry, 0))
				continue
			}
			b.mustSettle(bury(d))
		}
		ls, err := b.dead().ListDead(t.Context(), "", 10)
		if err != nil || len(ls) != 1 || string(ls[0].Payload) != c.payload || ls[0].Reason != "it died" {
			t.Fatalf("%s: dead letters %+v, %v", name, ls, err)
		}
		if err := b.dead().DropDead(t.Context(), ls[0].Entry); err != nil {
			t.Fatal(err)
		}
	}
	b.depth(0)
}

// A version that is not known yet is left to those who know it.
func TestNewerEnvelope(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	b.s.Inject(b.name, "text", []byte(`{"guesthand":2,"text":[]}`))
	b.nothing(300 * time.Millisecond)
	if ms := b.s.Messages(b.name); len(ms) != 1 || ms[0].Attempts != 1 || ms[0].Body != `{"guesthand":2,"text":[]}` {
		t.Errorf("messages %+v", ms)
	}
}

func TestKeysAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	for i, err := range b.q.Send(t.Context(), []drivers.Message{
		{Job: "job", Key: "k"}, {Job: "job", Headers: drivers.Header{"guesthand-key": {"k"}}},
	}) {
		if !errors.Is(err, drivers.ErrUnsupported) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	b.depth(0)
}

// Cloudflare would delete a dead letter that was looked at as often as the dead queue's
// max_retries allows.
func TestLookingWearsNothingOut(t *testing.T) {
	t.Parallel()
	s := cftest.Start(t)
	s.Add(cftest.Queue{Name: deadName, Consumer: "http_pull", MaxRetries: 4})
	b := benchOn(t, s, setting{})
	b.sendIDs("ours")
	b.mustSettle(bury(b.take(1)[0]))
	s.Inject(deadName, "json", []byte(`"native"`))
	s.Inject(deadName, "v8", []byte(`unreadable`))
	var entries string
	for n := range 12 {
		ls, err := b.dead().ListDead(t.Context(), "", 10)
		if err != nil || len(ls) != 3 {
			t.Fatalf("look %d: %d dead letters, %v", n, len(ls), err)
		}
		got := ""
		for _, l := range ls {
			if l.Reason == "it died" || string(l.Payload) == `"native"` {
				got += fmt.Sprintln(l.Entry, l.ID, l.Reason, l.Died.UnixMilli(), string(l.Payload))
			}
		}
		if entries == "" {
			entries = got
		} else if got != entries {
			t.Fatalf("look %d shows\n%s, not\n%s", n, got, entries)
		}
	}
}

func TestSetup(t *testing.T) {
	t.Parallel()
	s := cftest.Start(t)
	s.Add(cftest.Queue{Name: "guesthand-pushed", Consumer: "worker"})
	s.Add(cftest.Queue{Name: "guesthand-bare"})
	s.Add(cftest.Queue{Name: "guesthand-barer"})
	s.Add(cftest.Queue{Name: "guesthand-nodlq", Consumer: "http_pull", Paused: true, Delay: time.Minute})
	s.Add(cftest.Queue{Name: "guesthand-other", Consumer: "http_pull", Dead: "somewhere", MaxRetries: 7})
	s.Add(cftest.Queue{Name: "guesthand-brief", Consumer: "http_pull", Retention: time.Minute})
	id := s.Add(cftest.Queue{Name: "theirs", Consumer: "http_pull", Retention: time.Hour})
	s.Add(cftest.Queue{Name: "dead-guesthand-nodead"})
	d := open(t, s.URL, cfdriver.Options{})
	t.Cleanup(func() { closeAll(t, d) })
	for name, c := range map[string]struct {
		o     drivers.QueueOptions
		err   string
		finds []string // a warning where it begins with !
		check func(drivers.Info) bool
	}{
		"a Worker consumes it": {o: drivers.QueueOptions{Name: "pushed", Create: true}, err: "one kind of consumer per queue"},
		"a Worker, for a producer": {o: drivers.QueueOptions{Name: "pushed", Create: true, SendOnly: true},
			finds: []string{"!nothing can be pulled"}},
		"no consumer": {o: drivers.QueueOptions{Name: "barer", Names: map[string]string{"dead_queue": "theirs"}},
			err: "wrangler queues consumer http add guesthand-barer"},
		"a consumer is made": {o: drivers.QueueOptions{Name: "bare", Create: true},
			check: func(i drivers.Info) bool { return i.DeliveryLimit.Deliveries == 101 && i.DeliveryLimit.PerCopy }},
		"no dead letter queue": {o: drivers.QueueOptions{Name: "nodlq", Create: true, DeadMax: 5, DeadKeep: 30 * 24 * time.Hour},
			finds: []string{"!has no dead_letter_queue", "!is paused", "delivery_delay", "dead.max is 5", "!dead.keep is 720h0m0s"}},
		"another dead letter queue": {o: drivers.QueueOptions{Name: "other", Create: true},
			finds: []string{"moves what was delivered too often to somewhere"},
			check: func(i drivers.Info) bool { return i.DeliveryLimit.Deliveries == 8 }},
		"kept for a minute": {o: drivers.QueueOptions{Name: "brief", Create: true},
			check: func(i drivers.Info) bool { return i.Caps.MaxDelay == 30*time.Second && i.Retention == 0 }},
		"by id": {o: drivers.QueueOptions{Name: "by_id", Create: true, Names: map[string]string{"queue": id, "dead_queue": "their-dead"}},
			finds: []string{"!queue theirs is not ours"},
			check: func(i drivers.Info) bool { return i.Retention == time.Hour && !i.Caps.ExactCounts }},
		"no such id": {o: drivers.QueueOptions{Name: "x", Create: true, Names: map[string]string{"queue": strings.Repeat("0", 32)}},
			err: "no queue has this id"},
		"made": {o: drivers.QueueOptions{Name: "made", Create: true, DeadKeep: time.Hour},
			finds: []string{"for 336h0m0s (message_retention_period); every retry"},
			check: func(i drivers.Info) bool { return i.Lease == 30*time.Second && i.Caps == cfdriver.Caps() }},
		"not made":         {o: drivers.QueueOptions{Name: "missing"}, err: "dead_queue dead-guesthand-missing: it does not exist"},
		"an underscore":    {o: drivers.QueueOptions{Name: "a_b", Create: true}, err: "[queues.a_b.cloudflare]"},
		"an unknown name":  {o: drivers.QueueOptions{Name: "x", Names: map[string]string{"stream": "x"}}, err: `unknown name "stream"`},
		"the same twice":   {o: drivers.QueueOptions{Name: "x", Names: map[string]string{"dead_queue": "guesthand-x"}}, err: "are both"},
		"the same by id":   {o: drivers.QueueOptions{Name: "x", Names: map[string]string{"queue": id, "dead_queue": "theirs"}}, err: "are both theirs"},
		"too long a lease": {o: drivers.QueueOptions{Name: "x", Lease: 13 * time.Hour}, err: "longest is 12h0m0s"},
		"dead without a pull": {o: drivers.QueueOptions{Name: "made", Names: map[string]string{"dead_queue": "dead-guesthand-nodead"}},
			finds: []string{"!dead letters can be written, and not be read"}},
	} {
		if name == "dead without a pull" {
			c.o.Names["queue"] = "theirs"
		}
		q, err := d.OpenQueue(t.Context(), c.o)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", name, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, f := range c.finds {
			text, warning := strings.CutPrefix(f, "!")
			if !finds(q.Info(), warning, text) {
				t.Errorf("%s: no finding %q in %+v", name, f, q.Info().Findings)
			}
		}
		if c.check != nil && !c.check(q.Info()) {
			t.Errorf("%s: %+v", name, q.Info())
		}
	}
}

// What exists is never altered.
func TestOthersStayAsTheyAre(t *testing.T) {
	t.Parallel()
	b := newBench(t, setting{})
	s := cftest.Start(t)
	own(s, 5)
	s.Fault(nil)
	benchOn(t, s, setting{})
	for _, action := range []string{cftest.ActionCreate, cftest.ActionEdit, cftest.ActionNewConsumer} {
		if n := s.Calls(action); n != 0 {
			t.Errorf("%s was called %d times", action, n)
		}
	}
	// A refused retention leaves Cloudflare's own.
	b.s.Fault(on(cftest.ActionEdit, 0, cftest.Fault{Status: 400}))
	q, err := b.d.OpenQueue(t.Context(), drivers.QueueOptions{Name: "free", Create: true})
	if err != nil || !finds(q.Info(), false, "for 96h0m0s") {
		t.Errorf("on a free plan: %v", err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	s := cftest.Start(t)
	for name, c := range map[string]struct {
		o    cfdriver.Options
		want string
	}{
		"wrong token": {cfdriver.Options{URL: s.URL, Account: cftest.Account, Token: "wrong"}, "403 Forbidden: Authentication error (10000)"},
		"no token":    {cfdriver.Options{URL: s.URL, Account: cftest.Account}, "token is empty"},
		"no account":  {cfdriver.Options{URL: s.URL, Token: "t"}, "account is the account's id"},
		"a path":      {cfdriver.Options{URL: s.URL, Account: "../x", Token: "t"}, "account is the account's id"},
		"no url":      {cfdriver.Options{URL: "api.cloudflare.com", Account: "a", Token: "t"}, "url is the base of the API"},
		"unreachable": {cfdriver.Options{URL: "http://127.0.0.1:1", Account: "a", Token: "t"}, "connect"},
		"negative":    {cfdriver.Options{Account: "a", Token: "t", CallTimeout: -1}, "negative"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := cfdriver.Open(ctx, c.o)
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "wrong") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
