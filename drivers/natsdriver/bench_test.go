package natsdriver_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/natsdriver"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
)

// BenchmarkDrain compares the driver with plain nats.go loops on a server of its own: 1 KiB
// messages, acknowledgements confirmed. Compare the msg/s of one run only.
func BenchmarkDrain(b *testing.B) {
	for _, size := range []int{256, 64} {
		b.Run(fmt.Sprintf("plain-group/%d", size), func(b *testing.B) { drainPlain(b, size) })
		b.Run(fmt.Sprintf("driver/%d", size), func(b *testing.B) { drainDriver(b, size, 1) })
		b.Run(fmt.Sprintf("driver-2-settling/%d", size), func(b *testing.B) { drainDriver(b, size, 2) })
	}
	b.Run("plain-consume-ack", drainConsume)
}

const payloadSize = 1 << 10

// filled is a server with a queue of b.N messages.
func filled(b *testing.B) (*natstest.Server, drivers.Queue) {
	b.Helper()
	s := natstest.Start(b)
	d := open(b, s, natsdriver.Options{})
	b.Cleanup(func() { closeAll(b, d) })
	q := openQueue(b, d, drivers.QueueOptions{})
	ms := make([]drivers.Message, 512)
	for i := range ms {
		ms[i] = drivers.Message{Job: "job", Payload: bytes.Repeat([]byte("x"), payloadSize)}
	}
	for left := b.N; left > 0; left -= len(ms) {
		send(b, q, ms[:min(left, len(ms))]...)
	}
	b.ResetTimer()
	return s, q
}

func perSecond(b *testing.B) {
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

func drainDriver(b *testing.B, size, settling int) {
	_, q := filled(b)
	batches := make(chan []*drivers.Delivery)
	var wg sync.WaitGroup
	for range settling {
		wg.Go(func() {
			for ds := range batches {
				ss := make([]drivers.Settlement, len(ds))
				for i, d := range ds {
					ss[i] = drivers.Settlement{Delivery: d, Verdict: drivers.Ack}
				}
				for _, err := range q.Settle(b.Context(), ss) {
					if err != nil {
						b.Error(err)
					}
				}
			}
		})
	}
	calls := 0
	for n := 0; n < b.N; {
		ds, err := q.Receive(b.Context(), size)
		if err != nil {
			b.Fatal(err)
		}
		n += len(ds)
		calls++
		batches <- ds
	}
	close(batches)
	wg.Wait()
	perSecond(b)
	b.ReportMetric(float64(b.N)/float64(calls), "msg/receive")
}

// drainPlain fetches and acknowledges in groups by hand, two groups on their way.
func drainPlain(b *testing.B, size int) {
	s, _ := filled(b)
	nc, js := client(b, s)
	c, err := js.Consumer(b.Context(), "guesthand_q", "guesthand")
	if err != nil {
		b.Fatal(err)
	}
	groups := make(chan []jetstream.Msg)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for g := range groups {
				for _, m := range g[:len(g)-1] {
					if err := nc.Publish(m.Reply(), []byte("+ACK")); err != nil {
						b.Error(err)
					}
				}
				if _, err := nc.Request(g[len(g)-1].Reply(), []byte("+ACK"), 5*time.Second); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for n := 0; n < b.N; {
		batch, err := c.Fetch(min(size, b.N-n), jetstream.FetchMaxWait(time.Second))
		if err != nil {
			b.Fatal(err)
		}
		var g []jetstream.Msg
		for m := range batch.Messages() {
			n++
			if g = append(g, m); len(g) == 64 {
				groups <- g
				g = nil
			}
		}
		if len(g) > 0 {
			groups <- g
		}
	}
	close(groups)
	wg.Wait()
	perSecond(b)
}

// drainConsume is the library's fastest way, without confirmations.
func drainConsume(b *testing.B) {
	s, _ := filled(b)
	nc, js := client(b, s)
	c, err := js.Consumer(b.Context(), "guesthand_q", "guesthand")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	n := 0
	cc, err := c.Consume(func(m jetstream.Msg) {
		if err := m.Ack(); err != nil {
			b.Error(err)
		}
		if n++; n == b.N {
			close(done)
		}
	}, jetstream.PullMaxMessages(256))
	if err != nil {
		b.Fatal(err)
	}
	defer cc.Stop()
	<-done
	if err := nc.Flush(); err != nil {
		b.Fatal(err)
	}
	perSecond(b)
}
