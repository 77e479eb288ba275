package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/hosttest"
)

// The drain benchmarks empty a queue of 1 KiB messages with a handler that does nothing.
// One op is one message. The host is held against plain nats.go consumers of the same
// shape: nats.go's own Consume with pulls of 256 kept open, 16 goroutines, and an
// acknowledgement that the server confirms, in groups as the host's or one by one as most
// programs do.
//
//	go test ./cmd/guesthand -run '^$' -bench Drain -benchtime 100000x -count 5

const (
	drainWorkers = 16
	drainFetch   = 256
	drainGroup   = 64
)

func BenchmarkDrain(b *testing.B) {
	payload := make([]byte, 1024)
	b.Run("embedded/host", func(b *testing.B) { drainHost(b, payload, "driver = \"embedded\"\n") })
	b.Run("embedded/plain-groups", func(b *testing.B) { drainPlain(b, payload, inProcess(b), ackGroups) })
	b.Run("embedded/plain-each", func(b *testing.B) { drainPlain(b, payload, inProcess(b), ackEach) })
	b.Run("nats/host", func(b *testing.B) {
		drainHost(b, payload, fmt.Sprintf("driver = \"nats\"\nurl = %q\n", natstest.Start(b).URL))
	})
	b.Run("nats/plain-groups", func(b *testing.B) { drainPlain(b, payload, connect(b, natstest.Start(b).URL), ackGroups) })
	b.Run("nats/plain-each", func(b *testing.B) { drainPlain(b, payload, connect(b, natstest.Start(b).URL), ackEach) })
}

func drainHost(b *testing.B, payload []byte, broker string) {
	dir := b.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "plugins"), 0o700); err != nil {
		b.Fatal(err)
	}
	hosttest.Install(b, filepath.Join(dir, "plugins"), "noop", hosttest.Noop(b))
	text := "[brokers.b]\n" + broker + "[queues.q]\nbroker = \"b\"\n[handlers.noop]\ninstances = \"reuse\"\n" + os.Getenv("GUESTHAND_BENCH_CONFIG")
	c, err := config.Parse(filepath.Join(dir, "config.toml"), []byte(text), os.LookupEnv)
	if err != nil {
		b.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	h, err := host.New(b.Context(), host.Options{Config: c, Openers: openers, Logger: log})
	if err != nil {
		b.Fatal(err)
	}
	for left := b.N; left > 0; left -= sendBatch {
		ms := make([]drivers.Message, min(left, sendBatch))
		for i := range ms {
			ms[i] = drivers.Message{Job: "noop", Payload: payload}
		}
		_, errs, err := h.Send(b.Context(), "q", ms)
		if err = errors.Join(append(errs, err)...); err != nil {
			b.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	b.ReportAllocs()
	b.ResetTimer()
	go func() { done <- h.Run(ctx) }()
	for h.Settled() < int64(b.N) {
		time.Sleep(time.Millisecond)
	}
	b.StopTimer()
	rate(b)
	stop()
	if err := errors.Join(<-done, h.Close(context.Background())); err != nil {
		b.Fatal(err)
	}
}

func rate(b *testing.B) { b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s") }

func inProcess(b *testing.B) *nats.Conn {
	s, err := server.NewServer(&server.Options{ServerName: "bench", JetStream: true, StoreDir: b.TempDir(), DontListen: true,
		NoSigs: true, NoLog: true, SyncInterval: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		b.Fatal("server does not start")
	}
	b.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return connect(b, "", nats.InProcessServer(s))
}

func connect(b *testing.B, url string, o ...nats.Option) *nats.Conn {
	nc, err := nats.Connect(url, o...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	return nc
}

// drainPlain is what a Go programmer would write with nats.go: Consume, a pool of
// goroutines with a handler that does nothing, and confirmed acknowledgements.
func drainPlain(b *testing.B, payload []byte, nc *nats.Conn, ack func(*nats.Conn, <-chan jetstream.Msg, *atomic.Int64)) {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(1024))
	if err != nil {
		b.Fatal(err)
	}
	s, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "bench", Subjects: []string{"bench"}, Retention: jetstream.WorkQueuePolicy})
	if err != nil {
		b.Fatal(err)
	}
	c, err := s.CreateConsumer(b.Context(), jetstream.ConsumerConfig{Durable: "bench", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 100_000})
	if err != nil {
		b.Fatal(err)
	}
	for i := range b.N {
		m := &nats.Msg{Subject: "bench", Data: payload, Header: nats.Header{ // the messages the host gets
			abi.HeaderID: {fmt.Sprintf("01a22e9b-7f10-7000-8000-%012d", i)}, abi.HeaderJob: {"noop"}}}
		if _, err := js.PublishMsgAsync(m); err != nil {
			b.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	work, finished := make(chan jetstream.Msg, drainFetch), make(chan jetstream.Msg, drainFetch)
	var settled atomic.Int64
	var workers, ackers sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range drainWorkers {
		workers.Go(func() {
			for m := range work {
				noop(m.Data())
				finished <- m
			}
		})
	}
	ackers.Go(func() { ack(nc, finished, &settled) })
	var got atomic.Int64
	all := make(chan struct{})
	consuming, err := c.Consume(func(m jetstream.Msg) {
		work <- m
		if got.Add(1) == int64(b.N) {
			close(all)
		}
	}, jetstream.PullMaxMessages(drainFetch))
	if err != nil {
		b.Fatal(err)
	}
	<-all
	consuming.Stop()
	close(work)
	workers.Wait()
	close(finished)
	ackers.Wait()
	if n := settled.Load(); n != int64(b.N) {
		b.Fatalf("%d of %d settled", n, b.N)
	}
	b.StopTimer()
	rate(b)
}

var sink int

//go:noinline
func noop(p []byte) { sink = len(p) }

// ackEach confirms every message by itself, 16 at a time.
func ackEach(_ *nats.Conn, finished <-chan jetstream.Msg, settled *atomic.Int64) {
	var wg sync.WaitGroup
	for range drainWorkers {
		wg.Go(func() {
			for m := range finished {
				if m.DoubleAck(context.Background()) == nil {
					settled.Add(1)
				}
			}
		})
	}
	wg.Wait()
}

// ackGroups takes what is there, up to 64, and asks for an answer to the last one only; two
// groups are in flight.
func ackGroups(nc *nats.Conn, finished <-chan jetstream.Msg, settled *atomic.Int64) {
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for m := range finished {
				group := []jetstream.Msg{m}
				for more := true; more && len(group) < drainGroup; {
					select {
					case m, ok := <-finished:
						if more = ok; ok {
							group = append(group, m)
						}
					default:
						more = false
					}
				}
				last := len(group) - 1
				for _, m := range group[:last] {
					m.Ack()
				}
				if group[last].DoubleAck(context.Background()) == nil {
					settled.Add(int64(len(group)))
				}
			}
		})
	}
	wg.Wait()
}
