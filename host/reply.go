package host

import (
	"context"
	"errors"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// replyBudget is how long a reply may take, all tries included. It is short: who waits may
// look elsewhere, and a message is not run again for the sake of an answer. After a settlement
// it is shorter, since other settlements wait behind it, and so it is for a while once a
// reply has failed: the broker then takes no other either.
const (
	replyBudget   = 5 * time.Second
	settledBudget = time.Second
	failedBudget  = 20 * time.Millisecond
	failedFor     = 5 * time.Second
)

// reply answers whoever waits for the message's end: before the acknowledgement of a
// success, so that a crash in between answers twice rather than never; after the settlement
// of everything else, since only then is it true.
func (a *attempt) reply() {
	d := a.h.d
	if d.ReplyTo == "" {
		return
	}
	r, ok := a.q.driver.(drivers.Replier)
	if !ok {
		a.q.host.once.warn(a.q.log, "reply", "a message asks for a reply, which this broker cannot carry", keyID, d.ID, keyJob, a.job)
		return
	}
	answer, budget := drivers.Reply{Outcome: a.word, Payload: a.result.Output}, replyBudget
	if a.decision.Verdict != drivers.Ack {
		answer.Payload, budget = []byte(a.errorText()), settledBudget
	}
	if time.Since(time.Unix(0, a.q.replyFailed.Load())) < failedFor {
		budget = failedBudget
	}
	if err := sendReply(r, d, answer, budget); err != nil {
		if !refusedForGood(err) {
			a.q.replyFailed.Store(time.Now().UnixNano())
		}
		a.q.host.once.warn(a.q.log, "reply "+a.job, "a reply was not sent", keyID, d.ID, keyJob, a.job, keyError, err)
	}
}

func sendReply(r drivers.Replier, d *drivers.Delivery, answer drivers.Reply, budget time.Duration) error {
	until := time.Now().Add(budget)
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		err := r.Reply(ctx, d, answer)
		if err == nil || refusedForGood(err) || errors.Is(err, drivers.ErrClosed) || !time.Now().Add(wait).Before(until) {
			return err
		}
		time.Sleep(wait)
	}
}

// refusedForGood tells what no further try would change.
func refusedForGood(err error) bool {
	return errors.Is(err, drivers.ErrInvalid) || errors.Is(err, drivers.ErrTooLarge) || errors.Is(err, drivers.ErrUnsupported)
}

// succeeded tells whether a run's own end is a success.
func succeeded(end abi.End) bool {
	return end.Cause == abi.Returned && end.Outcome.Kind == abi.Success
}
