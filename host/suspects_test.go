package host_test

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/hosttest"
)

// suspicious makes every message one that has stalled twice, at a broker that counts what
// was merely held, and watches what is held whenever a run starts.
type suspicious struct {
	mu     sync.Mutex
	held   map[string]bool
	beside int // the most suspects that were held beside one that started
	starts int
}

func (s *suspicious) stub() stub {
	return stub{
		receive: func(ctx context.Context, q drivers.Queue, max int) ([]*drivers.Delivery, error) {
			ds, err := q.Receive(ctx, max)
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, d := range ds {
				d.Held, d.Redelivered, d.Carry.Stalls = true, true, 2
				s.held[d.ID] = true
			}
			return ds, err
		},
		settle: func(ctx context.Context, q drivers.Queue, ss []drivers.Settlement) []error {
			time.Sleep(20 * time.Millisecond) // a broker's round trip
			errs := q.Settle(ctx, ss)
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, one := range ss {
				delete(s.held, one.Delivery.ID)
			}
			return errs
		},
		start: func(*drivers.Delivery) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.starts++
			s.beside = max(s.beside, len(s.held)-1)
		},
	}
}

// If a suspect kills this process, those that were held with it would be counted too.
func TestOtherSuspectsArePutBackFirst(t *testing.T) {
	r := newRig(t, quick)
	s := &suspicious{held: map[string]bool{}}
	r.with(s.stub())
	r.install("puppet")
	q, err := r.driver.OpenQueue(t.Context(), drivers.QueueOptions{Name: "q"})
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{"a", "b", "c", "d"}
	for _, id := range ids { // before the host starts, so that they come in one batch
		if err := q.Send(t.Context(), []drivers.Message{{ID: id, Job: "puppet", Payload: []byte("0")}})[0]; err != nil {
			t.Fatal(err)
		}
	}
	h := r.start()
	for _, id := range ids {
		if rows := h.end(id); outcomes(rows) != "success/acked" {
			t.Errorf("%s: %s", id, outcomes(rows))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.beside > 0 || s.starts != len(ids) {
		t.Errorf("%d suspects were held beside one that started; %d starts", s.beside, s.starts)
	}
}

func TestPauseHoldsForThoseThatWaitForASlot(t *testing.T) {
	r := newRig(t, quick+"[handlers.puppet]\nconcurrency = 1\n")
	r.install("puppet")
	h := r.start()
	// The second waits for the slot that the first one holds when it asks for the pause.
	h.send("puppet", "sleep 500")
	hosttest.Eventually(t, patience, "the only slot to be taken", func() bool { return inFlight(h) == 1 })
	first := h.send("puppet", "14 3000|0")
	hosttest.Eventually(t, patience, "the first to wait", func() bool { return inFlight(h) == 2 })
	second := h.send("puppet", "0")
	h.end(first)
	h.end(second)
	paused := h.history(first)[0]
	if row := h.history(second)[0]; row.Started.Before(paused.Started.Add(2500 * time.Millisecond)) {
		t.Errorf("started %s after a pause of 3s was asked for", row.Started.Sub(paused.Started))
	}
}

// A queue with a single handler holds nothing while that is paused: other hosts may run it.
func TestSingleHandlerPauseGivesBack(t *testing.T) {
	r := newRig(t, quick+"handler = \"puppet\"\n")
	var receiving atomic.Bool
	r.with(stub{receive: func(ctx context.Context, q drivers.Queue, max int) ([]*drivers.Delivery, error) {
		receiving.Store(true)
		defer receiving.Store(false)
		return q.Receive(ctx, max)
	}})
	r.install("puppet")
	h := r.start()
	first := h.send("x", "14 60000|0")
	hosttest.Eventually(t, patience, "the pause", func() bool { return len(h.history(first)) == 1 })
	for range 8 {
		h.send("x", "0")
	}
	hosttest.Eventually(t, patience, "the queue to stop receiving", func() bool { return !receiving.Load() })
	hosttest.Eventually(t, patience, "nothing to be held", func() bool {
		qs, err := h.Queues(t.Context())
		return err == nil && qs[0].Depth == 9 && qs[0].InFlight == 0
	})
}

// A message that waits for its handler's slot runs on the module that is there by then.
func TestWaitingMessageRunsOnTheNewModule(t *testing.T) {
	r := newRig(t, quick+"handler = \"puppet\"\n[handlers.puppet]\nconcurrency = 1\n")
	r.install("puppet")
	h := r.start()
	before, err := h.Handlers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.send("x", "sleep 4000")
	hosttest.Eventually(t, patience, "the only slot to be taken", func() bool { return inFlight(h) == 1 })
	waits := h.send("x", "1")
	hosttest.Eventually(t, patience, "the second to wait", func() bool { return inFlight(h) == 2 })
	hosttest.Install(t, filepath.Join(r.dir, "plugins"), "puppet", hosttest.Noop(t))
	hosttest.Eventually(t, patience, "the new module", func() bool {
		s, err := h.Handlers(t.Context())
		return err == nil && len(s) == 1 && s[0].Digest != before[0].Digest
	})
	rows := h.end(waits)
	if outcomes(rows) != "success/acked" {
		t.Errorf("%s", outcomes(rows))
	}
}
