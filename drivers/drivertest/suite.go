package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// send publishes a message for each id, with the id as its payload.
func (s *suite) send(q drivers.Queue, ids ...string) {
	s.Helper()
	ms := make([]drivers.Message, len(ids))
	for i, id := range ids {
		ms[i] = drivers.Message{ID: id, Job: "job", Payload: []byte(id)}
	}
	s.sendMessages(q, ms...)
}

func (s *suite) sendMessages(q drivers.Queue, ms ...drivers.Message) {
	s.Helper()
	for i, err := range s.sendResults(q, ms...) {
		if err != nil {
			s.Fatalf("send message %d (%s): %v", i, ms[i].ID, err)
		}
	}
}

func (s *suite) sendResults(q drivers.Queue, ms ...drivers.Message) []error {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	errs := q.Send(ctx, ms)
	if len(errs) != len(ms) {
		s.Fatalf("send of %d messages has %d results", len(ms), len(errs))
	}
	return errs
}

// take receives exactly n, so that no request stays open at the broker.
func (s *suite) take(q drivers.Queue, n int) []*drivers.Delivery {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	var got []*drivers.Delivery
	for len(got) < n {
		ds, err := q.Receive(ctx, n-len(got))
		if err != nil {
			s.Fatalf("receive %d messages: %v after %s", n, err, ids(got))
		}
		if len(ds) == 0 || len(ds) > n-len(got) {
			s.Fatalf("asked for %d messages, got %d", n-len(got), len(ds))
		}
		got = append(got, ds...)
	}
	return got
}

// takeByID is take, in the order of these ids.
func (s *suite) takeByID(q drivers.Queue, want ...string) []*drivers.Delivery {
	s.Helper()
	got := s.take(q, len(want))
	sorted := make([]*drivers.Delivery, len(want))
	for i, id := range want {
		at := slices.IndexFunc(got, func(d *drivers.Delivery) bool { return d.ID == id })
		if at < 0 {
			s.Fatalf("received %s, want %s", ids(got), strings.Join(want, " "))
		}
		sorted[i] = got[at]
	}
	return sorted
}

// nothing fails where a message comes within d.
func (s *suite) nothing(q drivers.Queue, d time.Duration) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), d)
	defer cancel()
	got, err := q.Receive(ctx, 10)
	if len(got) > 0 {
		s.Fatalf("received %s, want nothing", ids(got))
	}
	if err == nil || !errors.Is(err, ctx.Err()) {
		s.Fatalf("receive of nothing: %v, want the context's error", err)
	}
}

// settle carries out settlements that must succeed.
func (s *suite) settle(q drivers.Queue, ss ...drivers.Settlement) {
	s.Helper()
	for i, err := range s.settleResults(q, ss...) {
		if err != nil {
			s.Fatalf("%s of %s: %v", ss[i].Verdict, ss[i].Delivery.ID, err)
		}
	}
}

func (s *suite) settleResults(q drivers.Queue, ss ...drivers.Settlement) []error {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	errs := q.Settle(ctx, ss)
	if len(errs) != len(ss) {
		s.Fatalf("%d settlements have %d results", len(ss), len(errs))
	}
	return errs
}

func (s *suite) ack(q drivers.Queue, ds ...*drivers.Delivery) {
	s.Helper()
	for _, d := range ds {
		s.settle(q, drivers.Settlement{Delivery: d, Verdict: drivers.Ack})
	}
}

// eventually polls a broker's own figures, which may lag, until ok.
func (s *suite) eventually(ok func() (bool, string)) {
	s.Helper()
	end := time.Now().Add(patience)
	for {
		done, state := ok()
		if done {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("after %s still %s", patience, state)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// hasCounts waits until the queue shows them.
func (s *suite) hasCounts(q drivers.Queue, want drivers.Counts) {
	s.Helper()
	if s.h.DelayedInFlight {
		want.InFlight, want.Delayed = want.InFlight+want.Delayed, 0
	}
	if s.h.DepthOnly {
		want.InFlight, want.Delayed = 0, 0
	}
	s.eventually(func() (bool, string) {
		ctx, cancel := context.WithTimeout(s.Context(), patience)
		defer cancel()
		got, err := q.Counts(ctx)
		if err != nil {
			return false, "counts: " + err.Error()
		}
		if old := got.Oldest; !old.IsZero() && (want.Depth == 0 || time.Since(old) > time.Hour || time.Until(old) > time.Minute) {
			return false, fmt.Sprintf("the oldest of %d messages is from %s", want.Depth, old)
		}
		got.Oldest = time.Time{} // not every broker tells
		want := want
		if s.h.OwnInFlight && got.InFlight <= want.InFlight {
			want.Depth -= want.InFlight - got.InFlight
			want.InFlight = got.InFlight
		}
		return got == want, fmt.Sprintf("counts %+v, want %+v", got, want)
	})
}

// finished waits until nothing unfinished is left.
func (s *suite) finished(q drivers.Queue) {
	s.Helper()
	s.eventually(func() (bool, string) {
		ctx, cancel := context.WithTimeout(s.Context(), patience)
		defer cancel()
		got, err := q.Counts(ctx)
		if err != nil {
			return false, "counts: " + err.Error()
		}
		return got.Depth == 0, fmt.Sprintf("counts %+v, want depth 0", got)
	})
}

// hasCarry checks what a delivery brings from earlier runs. Stalls count only where the
// broker keeps them exactly.
func (s *suite) hasCarry(d *drivers.Delivery, want drivers.Carry) {
	s.Helper()
	got := d.Carry
	if !s.caps.ExactCounts || s.h.StallsOfHeld && d.Held && got.Stalls > want.Stalls {
		got.Stalls = want.Stalls
	}
	if got.Tally != want.Tally {
		s.Errorf("%s: tally %+v, want %+v", d.ID, got.Tally, want.Tally)
	}
	if !bytes.Equal(got.State, want.State) {
		s.Errorf("%s: state %q, want %q", d.ID, got.State, want.State)
	}
	if !slices.EqualFunc(got.Errors, want.Errors, sameError) {
		s.Errorf("%s: errors %+v, want %+v", d.ID, got.Errors, want.Errors)
	}
}

func sameError(a, b drivers.RunError) bool {
	same := a.At.Equal(b.At)
	a.At, b.At = time.Time{}, time.Time{}
	return same && a == b
}

// hasHeaders checks that the producer's headers are there, whatever ours stand beside them.
func (s *suite) hasHeaders(got, want drivers.Header) {
	s.Helper()
	for name, values := range want {
		if !slices.Equal(got[name], values) {
			s.Errorf("header %s is %q, want %q", name, got[name], values)
		}
	}
}

// notBefore fails where now is too early.
func (s *suite) notBefore(what string, earliest time.Time) {
	s.Helper()
	if early := time.Until(earliest); early > slack {
		s.Errorf("%s came %s too early", what, early)
	}
}

// soonAfter fails where now is later than liveness allows.
func (s *suite) soonAfter(what string, due time.Time, wait time.Duration) {
	s.Helper()
	most := 10 * max(time.Second, wait/20)
	if s.bubble {
		most = s.caps.Granularity
	}
	if late := time.Since(due); late > most {
		s.Errorf("%s came %s late", what, late)
	}
}

func ids(ds []*drivers.Delivery) string {
	out := make([]string, len(ds))
	for i, d := range ds {
		out[i] = d.ID
	}
	return fmt.Sprintf("%q", out)
}

func numbered(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%03d", prefix, i)
	}
	return out
}

// underway lets a Receive in another goroutine begin to wait, which nothing outside shows.
func (s *suite) underway() {
	if s.bubble {
		synctest.Wait()
	} else {
		time.Sleep(50 * time.Millisecond)
	}
}

// together runs f in n goroutines and waits for them.
func (s *suite) together(n int, f func(ctx context.Context, i int) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 2*patience)
	defer cancel()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if errs[i] = f(ctx, i); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		s.Fatal(err)
	}
}

// aDeath is a death with every field set, and a reason that headers cannot hold as it is.
func aDeath() *drivers.Death {
	return &drivers.Death{
		Reason:  "max attempts (3) exhausted after failure 3: retry: upstream said\n\t\"503\" – déjà vu",
		Outcome: "retry", Cause: "returned",
		Time:   time.Date(2026, 3, 4, 5, 6, 7, 89_000_000, time.UTC),
		Digest: strings.Repeat("0123456789abcdef", 4), Worker: "worker-7",
	}
}
