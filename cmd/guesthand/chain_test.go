package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/embeddeddriver"
	"github.com/guesthand/guesthand/host/hosttest"
)

// soak tells whether tests may take minutes.
func soak() bool { return os.Getenv("GUESTHAND_SOAK") != "" }

const chainConfig = `
drain = "300ms"
[brokers.b]
driver = "embedded"
dir = "data/broker"
[queues.q]
broker = "b"
concurrency = 8
lease = "5s"
retry = { max_attempts = 2, base = "10ms", max_stalls = 100000 }
[queues.done]
broker = "b"
handler = "nobody"
retry = {}
[handlers.first]
send = ["q"]
[handlers.second]
send = ["q"]
[handlers.third]
send = ["done"]
[admin]
listen = "none"
`

// sendAll sends messages, quicker than a command does.
func (s *site) sendAll(queue string, ms []drivers.Message) {
	s.t.Helper()
	_, errs, err := s.client().Send(s.t.Context(), queue, ms)
	for _, e := range append(errs, err) {
		if e != nil {
			s.t.Fatal(e)
		}
	}
}

func (s *site) depth(queue string) int {
	s.t.Helper()
	qs, err := s.client().Queues(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, q := range qs {
		if q.Queue == queue {
			return q.Depth
		}
	}
	s.t.Fatalf("no queue %s", queue)
	return 0
}

// A chain of three jobs under a host that is killed again and again: whatever became of it,
// every first message that succeeds leads to its last one, and one that fails to none.
func TestChainUnderKill(t *testing.T) {
	n, kills := 900, 6
	if soak() {
		n, kills = 10_000, 50
	}
	s := newSite(t, chainConfig)
	s.effects("first", "second", "third")
	p := s.start()
	op := hosttest.Op
	failing := func(i int) bool { return i%10 == 3 }
	ms := make([]drivers.Message, n)
	for i := range ms {
		third := op('s', "done end", 0, strconv.Itoa(i))
		second := op('s', "q third", 0, third)
		first := op('s', "q second", 0, second)
		if failing(i) {
			first += op('r', "", int64(1+11*(i/10%2)), "") // retry, or permanent
		}
		ms[i] = drivers.Message{Job: "first", Payload: []byte(first)}
	}
	done, unfinished := 0, 0
	for batch := range slices.Chunk(ms, n/kills) {
		s.sendAll("q", batch)
		ended := done + len(batch)/10
		hosttest.Eventually(t, patience, "some of them to end", func() bool { done = s.depth("done"); return done >= ended })
		unfinished += s.depth("q")
		p.kill()
		p = s.start()
	}
	hosttest.Eventually(t, 5*patience, "the queue to be empty", func() bool { return s.queue("q").Depth == 0 })
	p.stop()

	ends := s.received("done")
	repeats := 0
	for i := range n {
		count := ends[strconv.Itoa(i)]
		switch {
		case failing(i) && count > 0:
			t.Errorf("message %d failed, and its last job ran %d times", i, count)
		case !failing(i) && count == 0:
			t.Errorf("message %d succeeded, and its last job never ran", i)
		case count > 1:
			repeats += count - 1
		}
	}
	t.Logf("%d messages were unfinished at the %d kills, %d of %d ends were repeated", unfinished, kills, repeats, n)
}

// received counts the payloads of a queue's messages in a store that no host has open.
func (s *site) received(queue string) map[string]int {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	d, err := embeddeddriver.Open(ctx, embeddeddriver.Options{Dir: filepath.Join(s.dir, "data", "broker"), LockWait: patience})
	if err != nil {
		s.t.Fatal(err)
	}
	defer d.Close(context.WithoutCancel(ctx))
	q, err := d.OpenQueue(ctx, drivers.QueueOptions{Name: queue, Lease: 10 * time.Minute})
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := q.Counts(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	payloads := map[string]int{}
	for got := 0; got < c.Depth; {
		ds, err := q.Receive(ctx, c.Depth-got)
		if err != nil {
			s.t.Fatal(fmt.Errorf("%w after %d of %d", err, got, c.Depth))
		}
		for _, m := range ds {
			payloads[string(m.Payload)]++
		}
		got += len(ds)
	}
	return payloads
}
