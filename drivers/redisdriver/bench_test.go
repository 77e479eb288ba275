package redisdriver_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/redisdriver"
	"github.com/guesthand/guesthand/drivers/redisdriver/redistest"
)

const (
	drainTotal       = 50_000
	drainConcurrency = 16
	payloadSize      = 1 << 10
)

// BenchmarkDrain drains 50,000 messages of 1 KiB with a handler that does nothing, in turn
// through the driver, with plain go-redis as a list queue is written with it (BLMOVE to a list
// of those in progress, then LREM), and with the least Lua that does the same in batches, for
// information. All use one server, in one run, at one concurrency; only the ratios tell.
func BenchmarkDrain(b *testing.B) {
	s := redistest.Start(b)
	c := client(b, s)
	var took [3]time.Duration
	n := 0
	for b.Loop() {
		for i, drain := range []func(*testing.B, *redistest.Server, *redis.Client) time.Duration{drainDriver, drainPlain, drainLua} {
			took[i] += drain(b, s, c)
			raw(b, c, "flushall")
		}
		n += drainTotal
	}
	rate := func(i int) float64 { return float64(n) / took[i].Seconds() }
	b.ReportMetric(rate(0), "driver-msg/s")
	b.ReportMetric(rate(1), "blmove-msg/s")
	b.ReportMetric(rate(2), "lua-msg/s")
	b.ReportMetric(rate(0)/rate(1), "driver/blmove")
	b.ReportMetric(rate(0)/rate(2), "driver/lua")
}

func drainDriver(b *testing.B, s *redistest.Server, _ *redis.Client) time.Duration {
	d := open(b, s, redisdriver.Options{})
	q := openQueue(b, d, drivers.QueueOptions{})
	ms := make([]drivers.Message, 500)
	for i := range ms {
		ms[i] = drivers.Message{Job: "job", Payload: bytes.Repeat([]byte("x"), payloadSize)}
	}
	for left := drainTotal; left > 0; left -= len(ms) {
		send(b, q, ms...)
	}
	begun := time.Now()
	run := make(chan *drivers.Delivery, 256)
	ended := make(chan *drivers.Delivery, 256)
	var workers, settlers sync.WaitGroup
	for range drainConcurrency {
		workers.Go(func() {
			for d := range run {
				ended <- d // the handler
			}
		})
	}
	for range 2 {
		settlers.Go(func() { settleBatches(b, q, ended) })
	}
	for n := 0; n < drainTotal; {
		ds, err := q.Receive(b.Context(), 256)
		if err != nil {
			b.Fatal(err)
		}
		n += len(ds)
		for _, d := range ds {
			run <- d
		}
	}
	close(run)
	workers.Wait()
	close(ended)
	settlers.Wait()
	took := time.Since(begun)
	hasCounts(b, q, drivers.Counts{})
	closeAll(b, d)
	return took
}

// settleBatches acknowledges what has ended by now, together.
func settleBatches(b *testing.B, q drivers.Queue, ended <-chan *drivers.Delivery) {
	for d := range ended {
		ss := []drivers.Settlement{{Delivery: d, Verdict: drivers.Ack}}
		for more := true; more && len(ss) < 256; {
			select {
			case d, ok := <-ended:
				if more = ok; ok {
					ss = append(ss, drivers.Settlement{Delivery: d, Verdict: drivers.Ack})
				}
			default:
				more = false
			}
		}
		for _, err := range q.Settle(b.Context(), ss) {
			if err != nil {
				b.Error(err)
			}
		}
	}
}

// fillList puts the messages into a plain list.
func fillList(b *testing.B, c *redis.Client) {
	b.Helper()
	payload := bytes.Repeat([]byte("x"), payloadSize)
	for n := 0; n < drainTotal; {
		pipe := c.Pipeline()
		for range 500 {
			pipe.RPush(b.Context(), "plain", fmt.Appendf(nil, "%08d%s", n, payload[8:]))
			n++
		}
		if _, err := pipe.Exec(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// together runs f in as many goroutines as there are handlers, until it is false.
func together(f func(ctx context.Context, worker int) bool) time.Duration {
	begun := time.Now()
	var wg sync.WaitGroup
	for i := range drainConcurrency {
		wg.Go(func() {
			for f(context.Background(), i) {
			}
		})
	}
	wg.Wait()
	return time.Since(begun)
}

func drainPlain(b *testing.B, _ *redistest.Server, c *redis.Client) time.Duration {
	fillList(b, c)
	var left atomic.Int64
	left.Store(drainTotal)
	return together(func(ctx context.Context, i int) bool {
		if left.Add(-1) < 0 {
			return false
		}
		busy := fmt.Sprint("busy:", i)
		m, err := c.BLMove(ctx, "plain", busy, "LEFT", "RIGHT", time.Second).Result()
		if err == nil {
			err = c.LRem(ctx, busy, 1, m).Err()
		}
		if err != nil {
			b.Error(err)
		}
		return err == nil
	})
}

var (
	takeMany = redis.NewScript(`local ms = redis.call('LPOP', KEYS[1], ARGV[1])
if ms then redis.call('RPUSH', KEYS[2], unpack(ms)) end
return ms`)
	ackMany = redis.NewScript(`for _, m in ipairs(ARGV) do redis.call('LREM', KEYS[1], 1, m) end`)
)

func drainLua(b *testing.B, _ *redistest.Server, c *redis.Client) time.Duration {
	fillList(b, c)
	return together(func(ctx context.Context, i int) bool {
		busy := fmt.Sprint("busy:", i)
		ms, err := takeMany.Run(ctx, c, []string{"plain", busy}, 16).Slice()
		if err == redis.Nil {
			return false
		}
		if err == nil {
			err = ackMany.Run(ctx, c, []string{busy}, ms...).Err()
		}
		if err != nil && err != redis.Nil {
			b.Error(err)
			return false
		}
		return true
	})
}
