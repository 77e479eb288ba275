package rabbitdriver_test

import (
	"bytes"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/rabbitdriver"
)

const (
	drainMessages = 50_000
	drainBytes    = 1 << 10
	drainPrefetch = 256
)

// BenchmarkDrain empties a queue of 50,000 messages of 1 KiB through the driver, and one with the
// plain client library, consume and acknowledge one by one, at the same prefetch on the same
// node. Run it with -benchtime 1x and compare the ratio only. The driver proves its
// acknowledgements, the library does not.
func BenchmarkDrain(b *testing.B) {
	for _, kind := range []string{"quorum", "classic"} {
		b.Run(kind, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				d := opened(b, plain.get(b).URL, rabbitdriver.Options{})
				ours, theirs := fill(b, d, kind+"-driver"), fill(b, d, kind+"-plain")
				closeAll(b, theirs)
				b.StartTimer()
				start := time.Now()
				drainDriver(b, ours)
				driver := time.Since(start)
				start = time.Now()
				drainPlain(b, "guesthand."+kind+"-plain")
				library := time.Since(start)
				b.ReportMetric(drainMessages/driver.Seconds(), "driver-msg/s")
				b.ReportMetric(drainMessages/library.Seconds(), "plain-msg/s")
				b.ReportMetric(library.Seconds()/driver.Seconds(), "ratio")
			}
		})
	}
}

func fill(b *testing.B, d drivers.Driver, name string) drivers.Queue {
	b.Helper()
	kind, _, _ := bytes.Cut([]byte(name), []byte("-"))
	q := openQueue(b, d, drivers.QueueOptions{Name: name, Create: true, Names: map[string]string{"type": string(kind)}})
	ms := make([]drivers.Message, 500)
	for i := range ms {
		ms[i] = drivers.Message{Job: "job", Payload: bytes.Repeat([]byte("x"), drainBytes)}
	}
	for range drainMessages / len(ms) {
		send(b, q, ms...)
	}
	return q
}

// drainDriver settles in one goroutine what another receives, as a host does.
func drainDriver(b *testing.B, q drivers.Queue) {
	var wg sync.WaitGroup
	batches := make(chan []*drivers.Delivery, 4)
	free := make(chan int, drainPrefetch) // settled and free again
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
			free <- len(ds)
		}
	})
	room := drainPrefetch
	for n := 0; n < drainMessages; {
		for room == 0 || len(free) > 0 {
			room += <-free
		}
		ds, err := q.Receive(b.Context(), min(room, drainMessages-n))
		if err != nil {
			b.Fatal(err)
		}
		n += len(ds)
		room -= len(ds)
		batches <- ds
	}
	close(batches)
	wg.Wait()
}

func drainPlain(b *testing.B, queue string) {
	ch := channel(b, plain.get(b).URL)
	if err := ch.Qos(drainPrefetch, 0, false); err != nil {
		b.Fatal(err)
	}
	var messages <-chan amqp.Delivery
	messages, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		b.Fatal(err)
	}
	for range drainMessages {
		m := <-messages
		if err := m.Ack(false); err != nil {
			b.Fatal(err)
		}
	}
	if err := ch.Close(); err != nil { // the last acknowledgements are with the broker
		b.Fatal(err)
	}
}
