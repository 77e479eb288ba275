package memdriver

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// dropReportEvery is how often a queue says that it drops dead letters.
const dropReportEvery = time.Minute

// deadEntry is a dead letter and its number, which is its entry.
type deadEntry struct {
	number uint64
	stored time.Time
	letter drivers.DeadLetter // never changed in place
}

// deadList is a queue's dead letters, oldest first, within its bounds.
type deadList struct {
	max      int
	maxBytes int
	keep     time.Duration // 0 for ever

	entries []*deadEntry
	number  uint64
	bytes   int

	dropped    int // over a bound, and not reported yet
	expired    int // older than keep, and not reported yet
	reportedAt time.Time
}

func (l *deadList) add(d drivers.DeadLetter, now time.Time) {
	l.number++
	d.Entry = strconv.FormatUint(l.number, 10)
	l.entries = append(l.entries, &deadEntry{number: l.number, stored: now, letter: d})
	l.bytes += len(d.Payload)
	l.expire(now)
	l.trim()
}

// trim drops the oldest beyond the bounds; the newest always stays.
func (l *deadList) trim() {
	for len(l.entries) > 1 && (len(l.entries) > l.max || l.bytes > l.maxBytes) {
		l.remove(0)
		l.dropped++
	}
}

func (l *deadList) expire(now time.Time) {
	for l.keep > 0 && len(l.entries) > 0 && now.Sub(l.entries[0].stored) >= l.keep {
		l.remove(0)
		l.expired++
	}
}

func (l *deadList) remove(i int) {
	l.bytes -= len(l.entries[i].letter.Payload)
	if i == 0 { // the usual one, and free of moving all the others
		l.entries[0] = nil
		l.entries = l.entries[1:]
		return
	}
	l.entries = slices.Delete(l.entries, i, i+1)
}

// find returns where the entry of that name is, or would be.
func (l *deadList) find(entry string) (int, bool, error) {
	n, err := strconv.ParseUint(entry, 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("dead letter %q: %w", entry, drivers.ErrNotFound)
	}
	i, ok := slices.BinarySearchFunc(l.entries, n, func(e *deadEntry, n uint64) int {
		return cmp.Compare(e.number, n)
	})
	return i, ok, nil
}

// at returns the place of an entry that is there, or ErrNotFound.
func (l *deadList) at(entry string) (int, error) {
	i, ok, err := l.find(entry)
	if err == nil && !ok {
		err = fmt.Errorf("dead letter %q: %w", entry, drivers.ErrNotFound)
	}
	return i, err
}

// boundDead sets the bounds for dead letters; 0 is the driver's own, and for ever.
func (s *store) boundDead(most int, keep time.Duration) {
	s.mu.Lock()
	s.dead.max, s.dead.keep = s.o.DeadMax, keep
	if most > 0 {
		s.dead.max = min(most, s.o.DeadMax)
	}
	s.dead.expire(time.Now())
	s.dead.trim()
	s.mu.Unlock()
	s.reportDropped(false)
}

// reportDropped says how many dead letters were dropped since it last did, the first time
// at once and then not more often than dropReportEvery, unless forced.
func (s *store) reportDropped(force bool) {
	s.mu.Lock()
	dropped, expired, most, now := s.dead.dropped, s.dead.expired, s.dead.max, time.Now()
	if dropped+expired == 0 || !force && !s.dead.reportedAt.IsZero() && now.Sub(s.dead.reportedAt) < dropReportEvery {
		s.mu.Unlock()
		return
	}
	s.dead.dropped, s.dead.expired, s.dead.reportedAt = 0, 0, now
	s.mu.Unlock()
	if dropped > 0 {
		s.log.Warn("oldest dead letters dropped: the bound is reached",
			slog.Int("count", dropped), slog.Int("max", most))
	}
	if expired > 0 {
		s.log.Info("dead letters dropped: older than dead.keep", slog.Int("count", expired))
	}
}

func (q *queue) deadLetter(m *message, s drivers.Settlement, now time.Time) drivers.DeadLetter {
	carry := cloneCarry(s.Carry)
	d := drivers.DeadLetter{
		ID: m.id, Job: m.job, Queue: q.o.Name,
		Reason: s.Death.Reason, Outcome: s.Death.Outcome, Cause: s.Death.Cause,
		Tally: carry.Tally, Replays: m.replays, Enqueued: m.enqueued, Died: s.Death.Time.Round(0),
		Digest: s.Death.Digest, Worker: s.Death.Worker,
		Headers: m.headers, Payload: m.payload, Errors: carry.Errors,
	}
	if s.Death.Time.IsZero() {
		d.Died = now.Round(0)
	}
	if d.Worker == "" {
		d.Worker = q.o.Worker
	}
	return d
}

// copyLetter is a dead letter for the caller to own.
func copyLetter(d drivers.DeadLetter) drivers.DeadLetter {
	d.Headers, d.Payload, d.Errors = d.Headers.Clone(), slices.Clone(d.Payload), slices.Clone(d.Errors)
	return d
}

// withDead runs f on the dead letters of today.
func (q *queue) withDead(ctx context.Context, f func(l *deadList, now time.Time) error) error {
	defer q.s.reportDropped(false)
	return q.each(ctx, 1, func(_ int, now time.Time) error {
		q.s.dead.expire(now)
		return f(&q.s.dead, now)
	})[0]
}

// ListDead lists dead letters; after may name an entry that is there no more.
func (q *queue) ListDead(ctx context.Context, after string, limit int) ([]drivers.DeadLetter, error) {
	var found []drivers.DeadLetter
	err := q.withDead(ctx, func(l *deadList, _ time.Time) error {
		from := 0
		if after != "" {
			i, ok, err := l.find(after)
			if err != nil {
				return err
			}
			if from = i; ok {
				from++
			}
		}
		for _, e := range l.entries[from:min(len(l.entries), from+max(0, limit))] {
			found = append(found, e.letter)
		}
		return nil
	})
	for i := range found {
		found[i] = copyLetter(found[i])
	}
	return found, err
}

func (q *queue) GetDead(ctx context.Context, entryOrID string) ([]drivers.DeadLetter, error) {
	var found []drivers.DeadLetter
	err := q.withDead(ctx, func(l *deadList, _ time.Time) error {
		if i, err := l.at(entryOrID); err == nil {
			found = []drivers.DeadLetter{copyLetter(l.entries[i].letter)}
			return nil
		}
		for _, e := range l.entries {
			if e.letter.ID == entryOrID {
				found = append(found, copyLetter(e.letter))
			}
		}
		if len(found) == 0 {
			return fmt.Errorf("dead letter %q: %w", entryOrID, drivers.ErrNotFound)
		}
		return nil
	})
	return found, err
}

func (q *queue) ReplayDead(ctx context.Context, entry string) error {
	return q.withDead(ctx, func(l *deadList, now time.Time) error {
		i, err := l.at(entry)
		if err != nil {
			return err
		}
		if err := q.s.admit(replayed(l.entries[i].letter, now), time.Time{}, now); err != nil {
			return fmt.Errorf("replay %q: %w", entry, err)
		}
		l.remove(i)
		return nil
	})
}

// replayed is the message that a dead letter is sent as again.
func replayed(d drivers.DeadLetter, now time.Time) *message {
	m := &message{
		id: d.ID, job: d.Job, headers: d.Headers.Clone(), payload: d.Payload,
		enqueued: now.Round(0), carry: drivers.Carry{Tally: d.Tally.Replayed()}, replays: d.Replays + 1,
	}
	m.headers.Del(abi.HeaderNotBefore)
	m.replyTo, _ = m.headers.Get(abi.HeaderReplyTo)
	m.headers.Set(abi.HeaderReplays, strconv.Itoa(m.replays))
	m.headers.Set(abi.HeaderPrior, strconv.Itoa(m.carry.Prior))
	m.headers.Set(abi.HeaderEnqueued, m.enqueued.UTC().Format(time.RFC3339Nano))
	return m
}

func (q *queue) DropDead(ctx context.Context, entry string) error {
	return q.withDead(ctx, func(l *deadList, _ time.Time) error {
		i, err := l.at(entry)
		if err == nil {
			l.remove(i)
		}
		return err
	})
}
