package natsdriver_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/natsdriver"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
)

// TestDeadBoundIsSaid: dead letters are not dropped silently.
func TestDeadBoundIsSaid(t *testing.T) {
	s := natstest.Start(t)
	log, said := logTo()
	q := opened(t, s, natsdriver.Options{Logger: log}, drivers.QueueOptions{DeadMax: 2})
	for range 3 {
		send(t, q, drivers.Message{Job: "job"})
	}
	for _, d := range receive(t, q, 3) {
		settle(t, q, bury(d))
	}
	if c, err := q.Counts(t.Context()); err != nil || c.Dead != 2 {
		t.Errorf("counts %+v, %v", c, err)
	}
	send(t, q, drivers.Message{Job: "job"})
	eventually(t, "a warning", func() bool {
		for _, d := range receive(t, q, 1) {
			settle(t, q, bury(d))
		}
		send(t, q, drivers.Message{Job: "job"})
		return strings.Contains(said.String(), "at their bound")
	})
}

// TestDeadLetterIsNative: other consumers read a dead letter as the message it was.
func TestDeadLetterIsNative(t *testing.T) {
	s := natstest.Start(t)
	q := opened(t, s, natsdriver.Options{Worker: "w1"}, drivers.QueueOptions{})
	send(t, q, drivers.Message{ID: "m", Job: "job", Key: "k", Payload: []byte(`{"a":1}`), Headers: drivers.Header{"X-A": {"1", "2"}}})
	d := receive(t, q, 1)[0]
	st := bury(d)
	st.Death.Reason = "100% \n bad"
	st.Carry.Errors = []drivers.RunError{{Attempt: 1, Outcome: "retry", Text: "x\ny"}}
	settle(t, q, st)
	_, js := client(t, s)
	stream, err := js.Stream(t.Context(), "guesthand-dead_q")
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if string(m.Data) != `{"a":1}` || !slices.Equal(m.Header["X-A"], []string{"1", "2"}) || !strings.HasPrefix(m.Subject, "guesthand.dead.q.") {
		t.Errorf("%s %v %q", m.Subject, m.Header, m.Data)
	}
	if got := m.Header.Get("Guesthand-Death-Reason"); got != "100%25 %0A bad" {
		t.Errorf("reason %q", got)
	}
	if m.Header.Get("Nats-Msg-Id") != "" || m.Header.Get("Guesthand-Key") != "k" || m.Header.Get("Guesthand-Death-Worker") != "w1" {
		t.Errorf("headers %v", m.Header)
	}
	var errs []drivers.RunError
	if err := json.Unmarshal([]byte(m.Header.Get("Guesthand-Death-Errors")), &errs); err != nil || errs[0].Text != "x\ny" {
		t.Errorf("errors %+v, %v", errs, err)
	}
}

// TestDeadHasNoRoom: what is ours gives way, the payload does not.
func TestDeadHasNoRoom(t *testing.T) {
	s := natstest.Start(t)
	q := opened(t, s, natsdriver.Options{}, drivers.QueueOptions{})
	payload := bytes.Repeat([]byte("x"), 1<<20-4000)
	_, js := client(t, s)
	if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "guesthand.q.job", Data: payload, Header: nats.Header{"X-A": {"kept"}}}); err != nil {
		t.Fatal(err)
	}
	st := bury(receive(t, q, 1)[0])
	st.Death.Reason = strings.Repeat("r", 2000)
	for i := range drivers.MaxErrors {
		st.Carry.Errors = append(st.Carry.Errors, drivers.RunError{Attempt: i + 1, Text: strings.Repeat("e", drivers.MaxErrorText)})
	}
	settle(t, q, st)
	dead, err := q.(drivers.DeadLetters).ListDead(t.Context(), "", 1)
	if err != nil || len(dead) != 1 {
		t.Fatalf("%d dead letters, %v", len(dead), err)
	}
	d := dead[0]
	if !bytes.Equal(d.Payload, payload) || d.Headers["X-A"][0] != "kept" || d.Reason == "" {
		t.Errorf("%d bytes, headers %v, reason %q", len(d.Payload), d.Headers, d.Reason)
	}
	if n := len(d.Errors); n == 0 || n == drivers.MaxErrors || d.Errors[n-1].Attempt != drivers.MaxErrors {
		t.Errorf("errors %+v", d.Errors)
	}
}
