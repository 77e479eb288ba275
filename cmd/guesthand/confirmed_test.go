package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/admin"
)

func TestGoneLettersDoNotEndAll(t *testing.T) {
	entries := []drivers.DeadLetter{{Entry: "1"}, {Entry: "gone"}, {Entry: "3"}}
	change := func(l drivers.DeadLetter) error {
		if l.Entry == "gone" {
			return drivers.ErrNotFound
		}
		return nil
	}
	for _, all := range []bool{true, false} {
		var done []string
		n, err := changeAll(entries, all, change, func(_ int, l drivers.DeadLetter) error { done = append(done, l.Entry); return nil })
		switch {
		case all && (err != nil || n != 2 || !slices.Equal(done, []string{"1", "3"})):
			t.Errorf("all: %d, %q, %v", n, done, err)
		case !all && (!errors.Is(err, drivers.ErrNotFound) || n != 1):
			t.Errorf("by name: %d, %q, %v", n, done, err)
		}
	}
}

// partial is a host whose broker confirms every second message.
type partial struct{ admin.Service }

func (partial) Send(_ context.Context, _ string, ms []drivers.Message) (ids []string, errs []error, err error) {
	for i := range ms {
		ids, errs = append(ids, strconv.Itoa(i)), append(errs, nil)
		if i%2 == 0 {
			errs[i] = errors.New("no answer")
		}
	}
	return ids, errs, nil
}

func TestSendCountsWhatWasConfirmed(t *testing.T) {
	ids, err := sendSome(t.Context(), partial{}, "q", drivers.Message{Job: "j"}, 6)
	if err == nil || !slices.Equal(ids, []string{"1", "3", "5"}) {
		t.Errorf("%q, %v", ids, err)
	}
}
