package cfdriver_test

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudflare/cloudflare-go/v6/option"
	"github.com/cloudflare/cloudflare-go/v6/queues"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/cfdriver"
	"github.com/guesthand/guesthand/drivers/cfdriver/cftest"
)

const payloadSize = 1 << 10

// BenchmarkDrain takes and acknowledges 1 KiB messages through the driver, and the same messages
// with the plain SDK (pull 100, acknowledge them, four loops) from the same server, and reports
// the driver's rate as a part of the SDK's.
func BenchmarkDrain(b *testing.B) {
	s := cftest.Start(b)
	d := open(b, s.URL, cfdriver.Options{})
	b.Cleanup(func() { closeAll(b, d) })
	q, err := d.OpenQueue(context.Background(), drivers.QueueOptions{Name: "drain", Create: true, Lease: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	fill(b, q, b.N)
	plain := rate(b.N, func() { drainPlain(b, s, "guesthand-drain", b.N) })
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

// drainDriver receives like the host does, with four settling goroutines.
func drainDriver(t testing.TB, q drivers.Queue, n int) {
	batches := make(chan []*drivers.Delivery)
	var wg sync.WaitGroup
	for range 4 {
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
		ds, err := q.Receive(context.Background(), min(n, 400))
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

func drainPlain(b *testing.B, s *cftest.Server, name string, n int) {
	service := queues.NewQueueService(option.WithBaseURL(s.URL), option.WithAPIToken(cftest.Token))
	var list queues.QueueListParams
	list.AccountID.Value = cftest.Account
	page, err := service.List(context.Background(), list)
	if err != nil {
		b.Fatal(err)
	}
	id := ""
	for _, q := range page.Result {
		if q.QueueName == name {
			id = q.QueueID
		}
	}
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for left.Load() > 0 {
				if err := pullAndAck(service, id, &left); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func pullAndAck(service *queues.QueueService, id string, left *atomic.Int64) error {
	var pull queues.MessagePullParams
	pull.AccountID.Value = cftest.Account
	pull.BatchSize.Value, pull.BatchSize.Present = 100, true
	got, err := service.Messages.Pull(context.Background(), id, pull)
	if err != nil || len(got.Messages) == 0 {
		return err
	}
	var ack queues.MessageAckParams
	ack.AccountID.Value = cftest.Account
	for _, m := range got.Messages {
		var a queues.MessageAckParamsAck
		a.LeaseID.Value, a.LeaseID.Present = m.LeaseID, true
		ack.Acks.Value, ack.Acks.Present = append(ack.Acks.Value, a), true
	}
	_, err = service.Messages.Ack(context.Background(), id, ack)
	left.Add(-int64(len(got.Messages)))
	return err
}

// TestMemoryIsFlat sends and drains messages by the thousand and compares the heap. It takes some
// seconds more than others, so it runs only where GUESTHAND_SOAK is set.
func TestMemoryIsFlat(t *testing.T) {
	if os.Getenv("GUESTHAND_SOAK") == "" {
		t.Skip("GUESTHAND_SOAK is not set: 50,000 messages would be the slowest test here")
	}
	s := cftest.Start(t)
	d := open(t, s.URL, cfdriver.Options{})
	t.Cleanup(func() { closeAll(t, d) })
	q, err := d.OpenQueue(context.Background(), drivers.QueueOptions{Name: "soak", Create: true, Lease: time.Hour})
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
