package redisdriver

import (
	"context"
	"log/slog"
	"sync"

	"github.com/redis/go-redis/v9"
)

// waker listens for the word that a queue has something, over one connection for all queues.
// The client subscribes again by itself when the connection comes back.
type waker struct {
	d   *Driver
	sub *redis.PubSub

	mu       sync.Mutex
	channels map[string]map[*queue]struct{}
	done     sync.WaitGroup
}

func newWaker(d *Driver) *waker {
	w := &waker{d: d, sub: d.rdb.Subscribe(context.Background()), channels: map[string]map[*queue]struct{}{}}
	words := w.sub.Channel()
	w.done.Go(func() {
		for m := range words {
			w.spread(m.Channel)
		}
	})
	return w
}

func (w *waker) spread(channel string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for q := range w.channels[channel] {
		q.signal()
	}
}

// add subscribes a queue. Without the subscription it polls.
func (w *waker) add(ctx context.Context, q *queue) {
	if w == nil {
		return
	}
	channel := q.prefix + ":wake"
	w.mu.Lock()
	first := w.channels[channel] == nil
	if first {
		w.channels[channel] = map[*queue]struct{}{}
	}
	w.channels[channel][q] = struct{}{}
	w.mu.Unlock()
	if !first {
		return
	}
	if err := w.sub.Subscribe(ctx, channel); err != nil {
		q.log.Warn("the queue is polled every second: no subscription", slog.String("channel", channel), slog.Any("error", err))
	}
}

func (w *waker) remove(ctx context.Context, q *queue) {
	if w == nil {
		return
	}
	channel := q.prefix + ":wake"
	w.mu.Lock()
	delete(w.channels[channel], q)
	last := len(w.channels[channel]) == 0
	if last {
		delete(w.channels, channel)
	}
	w.mu.Unlock()
	if !last {
		return
	}
	if err := w.sub.Unsubscribe(ctx, channel); err != nil {
		q.log.Debug("unsubscribe", slog.Any("error", err))
	}
}

func (w *waker) close() {
	if w == nil {
		return
	}
	_ = w.sub.Close() // its connection is of no more use
	w.done.Wait()
}
