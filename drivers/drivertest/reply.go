package drivertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// RunReplies is the conformance suite of drivers.Inboxes, and of drivers.Replier through
// them. open makes a connection to the broker under test and closes it with t.Cleanup; it is
// called twice in each case, for who asks and who answers, and may return one for both.
func RunReplies(t *testing.T, open func(t *testing.T) drivers.Driver) {
	for name, run := range map[string]func(s *replySuite){
		"Answered": answered, "Addresses": replyAddresses, "NobodyListens": nobodyListens,
		"Waiting": inboxWaiting, "Overflow": inboxOverflow, "DeadReplay": replyAfterReplay,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &replySuite{suite: &suite{T: t}, asker: open(t)}
			s.fresh()
			s.q = s.openQueue(open(t), drivers.QueueOptions{})
			run(s)
		})
	}
}

type replySuite struct {
	*suite
	asker drivers.Driver
	q     drivers.Queue // the answering side
}

func (s *replySuite) inbox() drivers.Inbox {
	s.Helper()
	boxes, ok := s.asker.(drivers.Inboxes)
	if !ok {
		s.Fatal("the driver is no drivers.Inboxes")
	}
	i, err := boxes.OpenInbox(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := i.Close(); err != nil {
			s.Errorf("close inbox: %v", err)
		}
	})
	return i
}

// ask sends a message that wants an answer and receives it on the other side.
func (s *replySuite) ask(id, address string) *drivers.Delivery {
	s.Helper()
	s.sendMessages(s.q, drivers.Message{ID: id, Job: "job", Headers: drivers.Header{abi.HeaderReplyTo: {address}}})
	d := s.take(s.q, 1)[0]
	if d.ReplyTo != address {
		s.Fatalf("reply to %q, want %q", d.ReplyTo, address)
	}
	return d
}

func (s *replySuite) reply(d *drivers.Delivery, r drivers.Reply) {
	s.Helper()
	replier, ok := s.q.(drivers.Replier)
	if !ok {
		s.Fatal("the queue is no drivers.Replier")
	}
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	if err := replier.Reply(ctx, d, r); err != nil {
		s.Fatal(err)
	}
}

func (s *replySuite) next(i drivers.Inbox, want drivers.Answer) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	got, err := i.Next(ctx)
	if err != nil || got.ID != want.ID || got.Outcome != want.Outcome || string(got.Payload) != string(want.Payload) {
		s.Fatalf("got %+v, %v; want %+v", got, err, want)
	}
}

func answered(s *replySuite) {
	i, other := s.inbox(), s.inbox()
	for n, r := range []drivers.Reply{
		{Outcome: "success", Payload: []byte("\x00result\xff")}, {Outcome: "permanent", Payload: []byte("no such order")}, {Outcome: "reject"},
	} {
		id := fmt.Sprint("id ", n)
		d := s.ask(id, i.Address())
		s.reply(d, r)
		s.next(i, drivers.Answer{ID: id, Reply: r})
		s.settle(s.q, drivers.Settlement{Delivery: d, Verdict: drivers.Ack})
	}
	ctx, cancel := context.WithTimeout(s.Context(), 50*time.Millisecond)
	defer cancel()
	if a, err := other.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		s.Errorf("another inbox got %+v, %v", a, err)
	}
}

func replyAddresses(s *replySuite) {
	if a, b := s.inbox().Address(), s.inbox().Address(); a == "" || a == b {
		s.Errorf("addresses %q and %q", a, b)
	}
	s.send(s.q, "plain")
	if d := s.take(s.q, 1)[0]; d.ReplyTo != "" {
		s.Errorf("reply to %q of a message that wants none", d.ReplyTo)
	}
}

func nobodyListens(s *replySuite) {
	i := s.inbox()
	address := i.Address()
	if err := i.Close(); err != nil {
		s.Fatal(err)
	}
	s.reply(s.ask("a", address), drivers.Reply{Outcome: "success"})
}

func inboxWaiting(s *replySuite) {
	i := s.inbox()
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	if _, err := i.Next(ctx); !errors.Is(err, context.Canceled) {
		s.Errorf("next under an ended context: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { i.Close() })
	if _, err := i.Next(s.Context()); !errors.Is(err, drivers.ErrClosed) {
		s.Errorf("next of a closed inbox: %v", err)
	}
}

// inboxOverflow: a reader that went away must not hold up who answers.
func inboxOverflow(s *replySuite) {
	i := s.inbox()
	d := s.ask("a", i.Address())
	for range 1000 {
		s.reply(d, drivers.Reply{Outcome: "success"})
	}
	s.next(i, drivers.Answer{ID: "a", Reply: drivers.Reply{Outcome: "success"}})
}

// replyAfterReplay: a dead letter that is sent again still wants its answer.
func replyAfterReplay(s *replySuite) {
	dl, ok := s.q.(drivers.DeadLetters)
	if !ok {
		s.Skip("the queue is no drivers.DeadLetters")
	}
	i := s.inbox()
	d := s.ask("a", i.Address())
	s.settle(s.q, drivers.Settlement{Delivery: d, Verdict: drivers.Dead, Death: &drivers.Death{Reason: "because", Time: time.Now()}})
	ls, err := dl.GetDead(s.Context(), "a")
	if err != nil || len(ls) != 1 {
		s.Fatalf("dead letters %v, %v", ls, err)
	}
	if err := dl.ReplayDead(s.Context(), ls[0].Entry); err != nil {
		s.Fatal(err)
	}
	if d := s.take(s.q, 1)[0]; d.ReplyTo != i.Address() {
		s.Errorf("reply to %q, want %q", d.ReplyTo, i.Address())
	}
}
