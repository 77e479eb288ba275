package pgdriver

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// noticeEvery is how often at most a driver sends hints: the server takes a lock of its own for
// each transaction that does.
const noticeEvery = 100 * time.Millisecond

// hints carries the word that a queue has something, both ways. All of it may get lost:
// workers look by themselves, too.
type hints struct {
	d *Driver

	mu        sync.Mutex
	pending   []string // queues to tell of
	listening bool
	kick      chan struct{}

	done    context.Context
	end     context.CancelFunc
	working sync.WaitGroup
}

func newHints(d *Driver) *hints {
	h := &hints{d: d, kick: make(chan struct{}, 1)}
	h.done, h.end = context.WithCancel(context.Background())
	h.working.Go(h.tell)
	return h
}

// announce tells other workers of a queue that there is something, soon.
func (d *Driver) announce(name string) {
	h := d.hints
	if d.server.shared || d.o.NoListen {
		return
	}
	h.mu.Lock()
	if !slices.Contains(h.pending, name) {
		h.pending = append(h.pending, name)
	}
	h.mu.Unlock()
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// wakeLocal makes this driver's own workers of a queue look.
func (d *Driver) wakeLocal(name string) {
	for _, q := range d.openQueues() {
		if q.name == name {
			q.signal()
		}
	}
}

// tell sends what is pending, not more often than noticeEvery.
func (h *hints) tell() {
	for {
		select {
		case <-h.done.Done():
			return
		case <-h.kick:
		}
		h.flush(h.done)
		select {
		case <-h.done.Done():
			return
		case <-time.After(noticeEvery):
		}
	}
}

func (h *hints) flush(ctx context.Context) {
	h.mu.Lock()
	names := h.pending
	h.pending = nil
	h.mu.Unlock()
	if len(names) == 0 {
		return
	}
	if _, err := h.d.exec(ctx, h.d.sql.notify, h.d.o.Schema, names); err != nil {
		h.d.log.Debug("notify", slog.Any("error", err))
	}
}

// listen starts to listen, once.
func (h *hints) listen() {
	if h.d.server.shared || h.d.o.NoListen {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.listening && h.done.Err() == nil {
		h.listening = true
		h.working.Go(h.hear)
	}
}

// hear listens on a connection of its own, again and again.
func (h *hints) hear() {
	for troubles := 0; ; troubles++ {
		heard, err := h.connection()
		if h.done.Err() != nil {
			return
		}
		h.d.log.Debug("listen", slog.Any("error", err))
		if heard {
			troubles = 0
		}
		select {
		case <-h.done.Done():
			return
		case <-time.After(backoff(troubles)):
		}
	}
}

// connection listens until its connection breaks. A silent one is tried now and then: half of
// it may be gone without a word.
func (h *hints) connection() (heard bool, err error) {
	c, err := h.d.o.poolConfig()
	if err != nil {
		return false, err
	}
	c.ConnConfig.DialFunc = h.d.links.through(c.ConnConfig.DialFunc)
	conn, err := pgx.ConnectConfig(h.done, withMode(c.ConnConfig, pgx.QueryExecModeSimpleProtocol))
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.done), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // of no more use
	}()
	if _, err := conn.Exec(h.done, `LISTEN "`+h.d.o.Schema+`"`); err != nil {
		return false, err
	}
	for _, q := range h.d.openQueues() {
		q.signal() // whatever was said meanwhile
	}
	for {
		ctx, cancel := context.WithTimeout(h.done, h.d.o.PingEvery)
		n, err := conn.WaitForNotification(ctx)
		silent := ctx.Err() != nil && h.done.Err() == nil
		cancel()
		switch {
		case err == nil:
			h.d.wakeLocal(n.Payload)
		case !silent || conn.IsClosed():
			return true, err
		default:
			err := h.d.do(h.done, conn.Ping)
			if err != nil {
				return true, err
			}
		}
	}
}

// close sends what is pending and ends.
func (h *hints) close(ctx context.Context) {
	h.end()
	h.working.Wait()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	h.flush(ctx)
}

func (h *hints) abandon() {
	h.end()
	h.working.Wait()
}
