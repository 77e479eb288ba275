package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/hosttest"
)

// BenchmarkOneMessage is one message at a time on the embedded broker, from sending it to its
// settlement: without effects, with a follow-up to another queue, with a value read, and
// with a reply. What the second costs more than the first should be about one publish, which
// is the last.
//
//	go test ./cmd/guesthand -run '^$' -bench OneMessage -benchtime 2000x
func BenchmarkOneMessage(b *testing.B) {
	dir := b.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "plugins"), 0o700); err != nil {
		b.Fatal(err)
	}
	hosttest.Install(b, filepath.Join(dir, "plugins"), "a", hosttest.Effects(b))
	c, err := config.Parse(filepath.Join(dir, "config.toml"), []byte(`
[brokers.b]
driver = "embedded"
[queues.q]
broker = "b"
[queues.out]
broker = "b"
handler = "nobody"
[handlers.a]
kv = {}
send = ["out"]
`), os.LookupEnv)
	if err != nil {
		b.Fatal(err)
	}
	h, err := host.New(b.Context(), host.Options{Config: c, Openers: openers, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		if err := errors.Join(<-done, h.Close(context.Background())); err != nil {
			b.Error(err)
		}
	})
	send := func(queue string, m drivers.Message) {
		_, errs, err := h.Send(b.Context(), queue, []drivers.Message{m})
		if err = errors.Join(append(errs, err)...); err != nil {
			b.Fatal(err)
		}
	}
	op := hosttest.Op
	for _, bm := range []struct{ name, payload, replyTo string }{
		{"plain", "", ""},
		{"follow-up", op('s', "out x", 0, "body"), ""},
		{"five-follow-ups", op('s', "out x", 0, "1") + op('s', "out x", 0, "2") + op('s', "out x", 0, "3") + op('s', "out x", 0, "4") + op('s', "out x", 0, "5"), ""},
		{"value", op('g', "key", 0, ""), ""},
		{"reply", "", "_INBOX.nobody"},
	} {
		b.Run(bm.name, func(b *testing.B) {
			for b.Loop() {
				m := drivers.Message{Job: "a", Payload: []byte(bm.payload)}
				if bm.replyTo != "" {
					m.Headers = drivers.Header{abi.HeaderReplyTo: {bm.replyTo}}
				}
				before := h.Settled()
				send("q", m)
				for h.Settled() == before {
					time.Sleep(10 * time.Microsecond)
				}
			}
		})
	}
	b.Run("publish", func(b *testing.B) {
		for b.Loop() {
			send("out", drivers.Message{Job: "x"})
		}
	})
}
