package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Options configures a Ledger. Path is required.
type Options struct {
	Path     string
	Keep     time.Duration // how long rows are kept; 0: for ever
	MaxBytes int64         // of the database, free pages not counted; 0: no limit
	Logger   *slog.Logger  // slog.Default()
	// ReadOnly opens a file that is there for Runs only, also while a host writes it.
	ReadOnly bool
}

// What waits for the writer is bounded, and so is the memory it takes.
const (
	maxSuccesses     = 32 << 10
	maxSuccessBytes  = 16 << 20
	maxOthers        = 128 << 10
	maxOtherBytes    = 64 << 20
	batchRows        = 4096                   // this many waiting are written at once
	batchWait        = 200 * time.Millisecond // fewer wait this long for others
	retryWait        = time.Second            // after a failed write
	retainEvery      = 10 * time.Second
	reportDropsEvery = time.Minute
)

// Ledger is an open ledger. Its methods may be called concurrently, and do nothing on nil: a
// host without a ledger needs no other case.
type Ledger struct {
	o     Options
	log   *slog.Logger
	store atomic.Pointer[store]

	mu      sync.Mutex
	waiting batch
	closed  bool

	droppedSuccesses, droppedOthers atomic.Uint64

	wake    chan struct{}   // there is something to write
	full    chan struct{}   // there is a whole batch
	flushes chan chan error // somebody waits for everything to be written
	damage  chan error      // a reader found the file damaged
	closing chan struct{}
	done    chan struct{} // the writer has ended
	cancel  context.CancelFunc
	failure error // of the last write; the writer's, for others after done
}

// batch is rows on their way to the file.
type batch struct {
	successes, others         []Row
	successBytes, othersBytes int
}

func (b *batch) empty() bool { return len(b.successes)+len(b.others) == 0 }

// Open opens a ledger, making the file where it is missing. A file that is damaged is renamed
// and a new one made; a file of a newer version is an error. ctx bounds the opening only.
func Open(ctx context.Context, o Options) (*Ledger, error) {
	if o.Path == "" {
		return nil, errors.New("open ledger: no path")
	}
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	o.Path = path
	l := &Ledger{o: o, log: o.Logger,
		wake: make(chan struct{}, 1), full: make(chan struct{}, 1), flushes: make(chan chan error), damage: make(chan error, 1),
		closing: make(chan struct{}), done: make(chan struct{})}
	if l.log == nil {
		l.log = slog.Default()
	}
	s, err := openStore(ctx, path, o.ReadOnly)
	if corrupt(err) && !o.ReadOnly {
		s, err = l.replace(ctx, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	l.store.Store(s)
	if o.ReadOnly {
		close(l.done)
		return l, nil
	}
	writing, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	go l.writer(writing)
	return l, nil
}

// replace puts a new file in the place of a damaged one.
func (l *Ledger) replace(ctx context.Context, damage error) (*store, error) {
	aside, err := setAside(l.o.Path, time.Now())
	if err != nil {
		return nil, errors.Join(damage, err)
	}
	l.log.Warn("the ledger is damaged; it was set aside and a new one begun",
		"path", l.o.Path, "aside", aside, "error", damage)
	return openStore(ctx, l.o.Path, false)
}

// Record takes a row for writing. It never waits and does no I/O. r.Result must not change
// afterwards.
func (l *Ledger) Record(r Row) {
	if l == nil {
		return
	}
	success := r.plainSuccess()
	l.mu.Lock()
	if l.closed || l.o.ReadOnly || !l.waiting.put(r, success) {
		l.mu.Unlock()
		if success {
			l.droppedSuccesses.Add(1)
		} else {
			l.droppedOthers.Add(1)
		}
		return
	}
	n := len(l.waiting.successes) + len(l.waiting.others)
	l.mu.Unlock()
	switch n {
	case 1:
		signal(l.wake)
	case batchRows:
		signal(l.full)
	}
}

// put appends a row unless there is no room for its kind.
func (b *batch) put(r Row, success bool) bool {
	size := r.size()
	if success {
		if len(b.successes) >= maxSuccesses || b.successBytes+size > maxSuccessBytes {
			return false
		}
		b.successes = append(b.successes, r)
		b.successBytes += size
		return true
	}
	if len(b.others) >= maxOthers || b.othersBytes+size > maxOtherBytes {
		return false
	}
	b.others = append(b.others, r)
	b.othersBytes += size
	return true
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Dropped tells how many rows were lost since Open: plain successes, and all others.
func (l *Ledger) Dropped() (successes, others uint64) {
	if l == nil {
		return 0, 0
	}
	return l.droppedSuccesses.Load(), l.droppedOthers.Load()
}

// Flush returns once everything recorded before the call is in the file, or with the error
// that keeps it from there.
func (l *Ledger) Flush(ctx context.Context) error {
	if l == nil || l.o.ReadOnly {
		return nil
	}
	reply := make(chan error, 1)
	select {
	case l.flushes <- reply:
	case <-l.done:
		return l.failure
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close writes what is left and closes the file. What cannot be written, or not before ctx
// ends, is dropped, counted and the error returned. It is safe to call twice.
func (l *Ledger) Close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.mu.Unlock()
	if l.o.ReadOnly {
		if first {
			return l.store.Load().close()
		}
		return nil
	}
	if first {
		close(l.closing)
	}
	select {
	case <-l.done:
		return l.failure
	case <-ctx.Done():
		l.cancel()
		<-l.done // the statement in hand ends at once
		return errors.Join(ctx.Err(), l.failure)
	}
}
