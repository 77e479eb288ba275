package sqsdriver_test

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/sqsdriver"
	"github.com/guesthand/guesthand/drivers/sqsdriver/sqstest"
)

const payloadSize = 1 << 10

// BenchmarkDrain takes and acknowledges 1 KiB messages through the driver, and the same number
// with the plain SDK (receive 10, delete the batch, four loops) on the same emulator, and reports the driver's rate as a part of the SDK's.
func BenchmarkDrain(b *testing.B) {
	e := sqstest.StartEmulator(b)
	d := open(b, e.URL, sqsdriver.Options{})
	b.Cleanup(func() { closeAll(b, d) })
	q, err := d.OpenQueue(context.Background(), drivers.QueueOptions{Name: "drain", Create: true})
	if err != nil {
		b.Fatal(err)
	}
	fill(b, q, b.N)
	plain := rate(b.N, func() { drainPlain(b, e.URL, "guesthand_drain", b.N) })
	fill(b, q, b.N)
	b.ResetTimer()
	ours := rate(b.N, func() { drainDriver(b, q, b.N) })
	b.StopTimer()
	b.ReportMetric(ours, "msg/s")
	b.ReportMetric(plain, "plain-msg/s")
	b.ReportMetric(ours/plain, "ratio")
}

func rate(n int, f func()) float64 {
	start := time.Now()
	f()
	return float64(n) / time.Since(start).Seconds()
}

func fill(t testing.TB, q drivers.Queue, n int) {
	t.Helper()
	ms := make([]drivers.Message, 200)
	for i := range ms {
		ms[i] = drivers.Message{Job: "job", Payload: bytes.Repeat([]byte("x"), payloadSize)}
	}
	for n > 0 {
		for _, err := range q.Send(context.Background(), ms[:min(n, len(ms))]) {
			if err != nil {
				t.Fatal(err)
			}
		}
		n -= min(n, len(ms))
	}
}

// drainDriver receives like the host does, with two settling goroutines.
func drainDriver(t testing.TB, q drivers.Queue, n int) {
	batches := make(chan []*drivers.Delivery)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for ds := range batches {
				ss := make([]drivers.Settlement, len(ds))
				for i, d := range ds {
					ss[i] = ack(d)
				}
				for _, err := range q.Settle(context.Background(), ss) {
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for n > 0 {
		ds, err := q.Receive(context.Background(), min(n, 64))
		if err != nil {
			t.Error(err)
			break
		}
		n -= len(ds)
		batches <- ds
	}
	close(batches)
	wg.Wait()
}

// drainPlain has four loops of the SDK, without long polls, so that none waits at the end.
func drainPlain(b *testing.B, url, name string, n int) {
	c := client(b, url)
	queue := urlOf(b, c, name)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				mu.Lock()
				over := n <= 0
				mu.Unlock()
				if over {
					return
				}
				out, err := c.ReceiveMessage(context.Background(), &sqs.ReceiveMessageInput{QueueUrl: queue, MaxNumberOfMessages: 10,
					MessageAttributeNames: []string{"All"}, MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll}})
				if err != nil {
					b.Error(err)
					return
				}
				if len(out.Messages) == 0 {
					continue
				}
				in := &sqs.DeleteMessageBatchInput{QueueUrl: queue}
				for i, m := range out.Messages {
					in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(string(rune('0' + i))), ReceiptHandle: m.ReceiptHandle})
				}
				if _, err := c.DeleteMessageBatch(context.Background(), in); err != nil {
					b.Error(err)
					return
				}
				mu.Lock()
				n -= len(out.Messages)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// TestMemoryIsFlat sends and drains messages by the thousand and compares the heap. It takes some
// seconds more than others, so it runs only where GUESTHAND_SOAK is set.
func TestMemoryIsFlat(t *testing.T) {
	if os.Getenv("GUESTHAND_SOAK") == "" {
		t.Skip("GUESTHAND_SOAK is not set: 50,000 messages would be the slowest test here")
	}
	e := sqstest.StartEmulator(t)
	d := open(t, e.URL, sqsdriver.Options{})
	t.Cleanup(func() { closeAll(t, d) })
	q, err := d.OpenQueue(context.Background(), drivers.QueueOptions{Name: "soak", Create: true})
	if err != nil {
		t.Fatal(err)
	}
	const step, steps = 5_000, 10
	var first uint64
	for i := range steps {
		fill(t, q, step)
		drainDriver(t, q, step)
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		t.Logf("after %d messages: heap %d KiB", (i+1)*step, m.HeapAlloc>>10)
		// What is remembered of finished messages is bounded, and full after two steps.
		if i == 1 {
			first = m.HeapAlloc
		} else if i > 1 && m.HeapAlloc > first+4<<20 {
			t.Fatalf("the heap grew from %d to %d KiB", first>>10, m.HeapAlloc>>10)
		}
	}
}
