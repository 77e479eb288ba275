package ledger

import (
	"context"
	"errors"
	"time"
)

// writing is the writer goroutine's own state.
type writing struct {
	*Ledger
	pending batch // taken from the buffer and not written yet
	spare   batch // an empty one, whose memory the buffer can have
	failing bool  // the last write failed, and that was logged
	retain  retainer

	reported                   time.Time // when drops were logged last
	reportedSucc, reportedOthr uint64
}

// writer writes batches until the ledger is closed.
func (l *Ledger) writer(ctx context.Context) {
	defer close(l.done)
	defer l.cancel()
	w := &writing{Ledger: l}
	ticker := time.NewTicker(retainEvery)
	defer ticker.Stop()
	due := time.After(0) // what an earlier process left may be over the limits
	for {
		var reply chan error
		select {
		case <-l.wake:
			if due == nil {
				due = time.After(batchWait)
			}
			continue
		case <-l.full:
		case <-due:
		case <-ticker.C:
		case err := <-l.damage:
			if err := w.renew(ctx, err); err != nil {
				w.failed(err)
			}
			continue
		case reply = <-l.flushes:
		case <-l.closing:
			l.failure = errors.Join(w.write(ctx), w.end())
			return
		}
		due = nil
		err := w.write(ctx)
		if reply != nil {
			reply <- err
		}
		w.reportDrops(time.Now())
		switch {
		case err != nil:
			due = time.After(retryWait)
		case w.retain.step(ctx, w.store.Load(), l.o, time.Now()):
			due = time.After(0)
		case w.retain.err != nil:
			w.failed(w.retain.err)
			w.damaged(w.retain.err)
		}
	}
}

// write writes what is pending from a failed write, and then what waits. Rows whose write
// failed are kept: while they are, the buffer fills up and drops, successes first.
func (w *writing) write(ctx context.Context) error {
	for {
		if w.pending.empty() {
			w.pending = w.take()
			if w.pending.empty() {
				return nil
			}
		}
		if err := w.add(ctx, w.pending); err != nil {
			w.failed(err)
			return err
		}
		w.recovered()
		w.spare, w.pending = w.pending.emptied(), batch{}
	}
}

// take empties the buffer.
func (w *writing) take() batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.waiting
	w.waiting, w.spare = w.spare, batch{}
	return b
}

// emptied is a batch without rows that keeps the memory of an ordinary one.
func (b batch) emptied() batch {
	var e batch
	if cap(b.successes) <= 2*batchRows {
		clear(b.successes)
		e.successes = b.successes[:0]
	}
	if cap(b.others) <= 2*batchRows {
		clear(b.others)
		e.others = b.others[:0]
	}
	return e
}

// add writes a batch, into a new file if the old one turns out to be damaged.
func (w *writing) add(ctx context.Context, b batch) error {
	old := w.store.Load()
	err := old.add(ctx, b)
	if !corrupt(err) {
		return err
	}
	if err := w.renew(ctx, err); err != nil {
		return err
	}
	return w.store.Load().add(ctx, b)
}

func (w *writing) renew(ctx context.Context, damage error) error {
	old := w.store.Load()
	if err := old.close(); err != nil {
		w.log.Debug("close the damaged ledger", "error", err)
	}
	s, err := w.replace(ctx, damage)
	if err != nil {
		return err
	}
	w.store.Store(s)
	return nil
}

// failed logs the first of a row of failures: the same disk is full every second.
func (w *writing) failed(err error) {
	if w.failing || errors.Is(err, context.Canceled) {
		return
	}
	w.failing = true
	w.log.Error("the ledger cannot be written; trying again every second", "path", w.o.Path, "error", err)
}

func (w *writing) recovered() {
	if !w.failing {
		return
	}
	w.failing = false
	successes, others := w.Dropped()
	w.log.Info("the ledger is written again", "path", w.o.Path, "dropped_successes", successes, "dropped_others", others)
}

// reportDrops logs what was dropped since the last time, at most once a minute.
func (w *writing) reportDrops(now time.Time) {
	successes, others := w.Dropped()
	newSucc, newOthr := successes-w.reportedSucc, others-w.reportedOthr
	if newSucc+newOthr == 0 || now.Sub(w.reported) < reportDropsEvery {
		return
	}
	w.reported, w.reportedSucc, w.reportedOthr = now, successes, others
	if newOthr > 0 {
		w.log.Error("the ledger dropped runs that were no successes", "others", newOthr, "successes", newSucc)
		return
	}
	w.log.Warn("the ledger cannot keep up and dropped successes", "successes", newSucc)
}

// end counts what is lost for good, says what was dropped, and closes the file.
func (w *writing) end() error {
	for _, b := range []batch{w.pending, w.take()} {
		w.droppedSuccesses.Add(uint64(len(b.successes)))
		w.droppedOthers.Add(uint64(len(b.others)))
	}
	w.reported = time.Time{}
	w.reportDrops(time.Now())
	return w.store.Load().close()
}
