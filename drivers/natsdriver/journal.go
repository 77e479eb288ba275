package natsdriver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
)

// Journal remembers which messages were started, over an unclean end of the process. It is
// needed where the server dies together with the worker: the server's delivery counts
// of the last moments are then lost.
type Journal interface {
	// Epoch numbers the journal's openings, from 1.
	Epoch() uint64
	// Start notes a started delivery and returns its slot. It makes no system call.
	Start(s Started) (slot int)
	// Clear forgets a slot.
	Clear(slot int)
	// Unclean reports whether the last life did not end with Close, and what was started
	// then and not finished. It stays so until Recovered.
	Unclean() (bool, []Started)
	Recovered() error
	// Close ends the journal cleanly.
	Close() error
}

// Started is one started delivery.
type Started struct {
	Seq       uint64 // in the stream
	Stamp     int64  // when the stream took it, Unix ns: seq and stamp are the message's identity
	Delivered uint64 // the delivery's number
	Epoch     uint64 // of the journal; set by the journal
}

// session is what all open queues of one consumer in this process share.
type session struct {
	key     string
	journal Journal
	refs    int
	ready   sync.Once
	err     error
	// raise, if not 0, is what the birth mark has to be raised to after an unclean end.
	raise uint64

	mu sync.Mutex
	// mark is the stream's last sequence when the journal was opened: the delivery
	// counts of older messages say nothing about this life.
	mark uint64
	// first is the number of the first delivery in this life, of messages up to mark that
	// have no tally of this life. Bounded by what is in flight.
	first map[uint64]uint64
}

// session returns the shared part for a consumer, nil where there is no journal.
func (d *Driver) session(stream, consumer string) (*session, error) {
	if d.o.Journal == nil {
		return nil, nil
	}
	key := stream + "." + consumer
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.sessions[key]; s != nil {
		s.refs++
		return s, nil
	}
	j, err := d.o.Journal(stream, consumer)
	if err != nil {
		return nil, fmt.Errorf("journal of started messages: %w", err)
	}
	s := &session{key: key, journal: j, refs: 1, first: map[uint64]uint64{}}
	d.sessions[key] = s
	return s, nil
}

// release closes the journal with the last queue that uses it.
func (d *Driver) release(s *session) error {
	if s == nil {
		return nil
	}
	d.mu.Lock()
	s.refs--
	last := s.refs == 0
	if last {
		delete(d.sessions, s.key)
	}
	d.mu.Unlock()
	if !last {
		return nil
	}
	return s.journal.Close()
}

// epoch is 0 without a journal.
func (s *session) epoch() uint64 {
	if s == nil {
		return 0
	}
	return s.journal.Epoch()
}

// accounted is how many deliveries before number n of a message without a tally of this life
// are known not to be stalls of this life.
func (s *session) accounted(seq, n uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seq > s.mark {
		return 0
	}
	first, known := s.first[seq]
	if !known {
		first = n
		s.first[seq] = n
	}
	return first - 1
}

func (s *session) forget(seq uint64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	delete(s.first, seq)
	s.mu.Unlock()
}

// recover turns what was started when the process died into stalls, once per session.
func (q *queue) recover(ctx context.Context, lastSeq uint64) error {
	s := q.session
	s.ready.Do(func() {
		s.mark = lastSeq
		unclean, started := s.journal.Unclean()
		if !unclean {
			return
		}
		s.raise = lastSeq
		s.err = inParallel(len(started), func(i int) error { return q.addStall(ctx, started[i]) })
		if s.err == nil && len(started) > 0 {
			q.log.Warn("the last process did not end cleanly: its started runs count as stalled",
				slog.Int("count", len(started)))
		}
	})
	return s.err
}

// addStall counts a run that was cut by the end of the process, unless it was settled, or
// counted already.
func (q *queue) addStall(ctx context.Context, s Started) error {
	m, err := q.d.rawMessage(ctx, q.n.stream, byNumber(s.Seq))
	if isAPIError(err, codeNoMessage) || err == nil && m.Time.UnixNano() != s.Stamp {
		return nil // it was finished
	}
	if err != nil {
		return err
	}
	key := q.tally.key(s.Seq, s.Stamp)
	for range casTries {
		rec, rev, err := q.tally.get(ctx, key)
		if err != nil {
			return err
		}
		if rec == nil {
			rec = &record{Prior: priorOf(m.Header)}
		}
		if rec.V > recordVersion || rec.E == s.Epoch && rec.N >= s.Delivered {
			return nil
		}
		rec.Stalls++
		rec.Fresh, rec.E, rec.N, rec.W = 1, s.Epoch, s.Delivered, q.writer
		if _, err = q.tally.put(ctx, key, rec, rev); !isConflict(err) {
			return err
		}
	}
	return fmt.Errorf("tally of message %d changes under the recovery", s.Seq)
}
