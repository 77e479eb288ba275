package natsdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// headerRoom is kept of the server's message limit for headers: payloads may be that
// much smaller than max_payload.
const headerRoom = 16 << 10

// queue implements drivers.Queue and drivers.DeadLetters.
type queue struct {
	d       *Driver
	o       drivers.QueueOptions
	n       names
	log     *slog.Logger
	info    drivers.Info
	limits  bool // the stream keeps what is finished
	writer  string
	tally   *tally   // nil when opened for sending only
	session *session // nil without a journal

	inc     atomic.Pointer[incarnation]
	ackWait atomic.Int64 // the lease, ns
	pullMax atomic.Int64 // most messages per pull request
	acked   *ackedSet
	bounds  deadBounds

	pump pump
	held heldList
	// receiving is held by Receive, so that Close gives back what it has in hands.
	receiving sync.Mutex
	// lastOrder is the consumer's number of the last delivery; Receive's own.
	lastOrder uint64

	closing   atomic.Bool
	done      chan struct{} // closed when nothing may be received any more
	closeOnce sync.Once
	closeErr  error
	working   sync.WaitGroup // the maintenance goroutine
	settling  sync.RWMutex   // held for reading by Settle, for writing while Close gives back
}

// journaledQueue is a queue whose started messages are journaled.
type journaledQueue struct{ *queue }

var (
	_ drivers.Queue         = (*queue)(nil)
	_ drivers.DeadLetters   = (*queue)(nil)
	_ drivers.StartRecorder = journaledQueue{}
)

func (d *Driver) newQueue(ctx context.Context, o drivers.QueueOptions) (*queue, error) {
	n, err := namesOf(o)
	if err != nil {
		return nil, err
	}
	q := &queue{
		d: d, o: o, n: n, writer: newWriter(), done: make(chan struct{}),
		log: d.log.With(slog.String("queue", o.Name)),
	}
	q.info = drivers.Info{Caps: Caps(), Lease: o.Lease, MaxPayload: max(1, int(d.nc.MaxPayload())-headerRoom)}
	q.info.Caps.MaxDelay = d.o.MaxDelay
	q.ackWait.Store(int64(o.Lease))
	if !o.SendOnly {
		q.tally = newTally(d, n, q.log)
		q.acked = &ackedSet{}
		if q.session, err = d.session(n.stream, n.consumer); err != nil {
			return nil, err
		}
	}
	if err = q.setup(ctx); err == nil && !o.SendOnly {
		q.info.Lease = time.Duration(q.ackWait.Load())
		err = q.startPump()
	}
	if err != nil {
		return nil, errors.Join(err, d.release(q.session))
	}
	return q, nil
}

// Info implements drivers.Queue.
func (q *queue) Info() drivers.Info {
	info := q.info
	info.Findings = slices.Clone(info.Findings)
	return info
}

// token is what a delivery is settled with.
type token struct {
	q     *queue
	d     *drivers.Delivery
	reply string // the acknowledgement's subject
	// The message's own, whatever the caller does to the delivery.
	messageID, job string
	seq            uint64
	n              uint64 // the delivery's number
	stream         int64  // when the stream was made, as far as known at delivery
	stamp          int64  // when the stream took the message, Unix ns
	rev            uint64 // the tally's revision, 0 for none
	rec            *record
	prior          int
	slot           atomic.Int32 // in the journal, from 1; 0 for none
	state          atomic.Uint32
	lost           atomic.Bool // handed out again
	tracked        bool        // the session knows its first delivery

	prev, next *token // in heldList
}

// The states of a token: one of these, or settledAs plus the verdict.
const (
	tokenHeld uint32 = iota
	tokenBusy
	settledAs
)

// carry is what the delivery came with, whatever the caller did to it since.
func (t *token) carry() drivers.Carry {
	if t.rec != nil {
		return t.rec.carry()
	}
	return drivers.Carry{Tally: drivers.Tally{Prior: t.prior}}
}

// heldList is what was handed out and not settled, oldest first.
type heldList struct {
	mu    sync.Mutex
	first *token
	last  *token
}

func (l *heldList) add(ts []*drivers.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range ts {
		l.append(d.Token.(*token))
	}
}

func (l *heldList) append(t *token) {
	t.prev, t.next = l.last, nil
	if l.last != nil {
		l.last.next = t
	} else {
		l.first = t
	}
	l.last = t
}

func (l *heldList) remove(t *token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.prev == nil && t.next == nil && l.first != t {
		return
	}
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		l.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		l.last = t.prev
	}
	t.prev, t.next = nil, nil
}

// takenOver marks earlier deliveries of the same message as lost. Their numbers say nothing:
// a server that was killed may count from one again.
func (l *heldList) takenOver(by *token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for t := l.first; t != nil; t = t.next {
		if t.seq == by.seq && t.stamp == by.stamp && t != by {
			t.lost.Store(true)
		}
	}
}

func (l *heldList) all() []*token {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ts []*token
	for t := l.first; t != nil; t = t.next {
		ts = append(ts, t)
	}
	return ts
}

// RecordStart implements drivers.StartRecorder.
func (q journaledQueue) RecordStart(d *drivers.Delivery) {
	t, ok := d.Token.(*token)
	if !ok || t.q != q.queue || t.slot.Load() != 0 {
		return
	}
	slot := q.session.journal.Start(Started{Seq: t.seq, Stamp: t.stamp, Delivered: t.n})
	t.slot.Store(int32(slot) + 1)
}

// finished forgets a delivery that is settled.
func (q *queue) finished(t *token) {
	if slot := t.slot.Swap(0); slot != 0 {
		q.session.journal.Clear(int(slot) - 1)
	}
	if t.tracked {
		q.session.forget(t.seq)
	}
	q.held.remove(t)
}

// Close implements drivers.Queue.
func (q *queue) Close(ctx context.Context) error {
	q.closeOnce.Do(func() { q.closeErr = q.close(ctx) })
	return q.closeErr
}

func (q *queue) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeWait)
	defer cancel()
	q.closing.Store(true)
	var err error
	if !q.o.SendOnly {
		// What is asked for already is waited for: the server counts it as delivered.
		q.pump.drain(ctx)
		close(q.done)
		q.pump.stop()
		q.working.Wait()
		q.receiving.Lock()
		defer q.receiving.Unlock()
		q.settling.Lock()
		err = q.giveBackAll(ctx)
		q.settling.Unlock()
	} else {
		close(q.done)
	}
	q.d.mu.Lock()
	delete(q.d.queues, q)
	q.d.mu.Unlock()
	return errors.Join(err, q.d.release(q.session))
}

// giveBackAll returns everything that is not settled.
func (q *queue) giveBackAll(ctx context.Context) error {
	waiting, broken := q.tokensOf(q.pump.takeAll())
	held := q.held.all()
	all := append(waiting, held...)
	err := inParallel(len(all), func(i int) error { return q.giveBack(ctx, all[i], i < len(waiting)) })
	for _, t := range held {
		q.finished(t)
	}
	if err = errors.Join(err, broken); err != nil {
		return fmt.Errorf("queue %s: give back: %w", q.n.queue, err)
	}
	return nil
}

// giveBack returns a message uncounted: the delivery is noted as accounted for, then the
// message is put back. unseen is true where the caller never got it.
func (q *queue) giveBack(ctx context.Context, t *token, unseen bool) error {
	if !t.state.CompareAndSwap(tokenHeld, tokenBusy) {
		return nil
	}
	if t.lost.Load() {
		return nil
	}
	if unseen && (t.n > 1 || t.seq <= q.inc.Load().birth) {
		v, err := q.look(ctx, t, 0)
		if err != nil || v == gone {
			return err
		}
	}
	rec := q.newRecord(t, t.carry())
	if t.rec != nil {
		rec.Rest = t.rec.Rest
		if unseen {
			rec.Fresh = t.d.Stalled
		}
	}
	if _, err := q.write(ctx, t, rec); err != nil {
		if errors.Is(err, drivers.ErrLeaseLost) {
			return nil
		}
		return err
	}
	return q.putBack(ctx, t, minimumDelay)
}

// abandon ends the queue without giving anything back.
func (q *queue) abandon() {
	q.closeOnce.Do(func() {
		q.closing.Store(true)
		close(q.done)
		if !q.o.SendOnly {
			q.pump.stop()
			q.working.Wait()
		}
	})
}

// reconnected is called when the connection is back: what was asked for is void, and the server
// may be another, with older counts.
func (q *queue) reconnected() {
	if q.o.SendOnly {
		return
	}
	q.pump.mu.Lock()
	q.pump.outstanding = 0
	q.pump.verify = true
	q.pump.retryAt = time.Time{}
	q.pump.mu.Unlock()
	q.pump.signal()
}

// ackedSet remembers the sequences acknowledged lately, for the rare acknowledgement the
// server lost: its message comes again and must not run again. Two bitmaps of blocks take
// turns, so that it is bounded in age and size.
type ackedSet struct {
	mu       sync.Mutex
	stream   int64                  // when the stream was made whose sequences these are
	now, old map[uint64]*[64]uint64 // 4096 sequences a block
	turned   time.Time
}

const ackedBlocks = 4096

func (s *ackedSet) add(ts []*token, keep time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := time.Now(); s.now == nil || t.Sub(s.turned) > keep || len(s.now) >= ackedBlocks {
		s.old, s.now, s.turned = s.now, map[uint64]*[64]uint64{}, t
	}
	var block *[64]uint64
	at := ^uint64(0)
	for _, t := range ts {
		if t.stream != s.stream {
			continue
		}
		if t.seq>>12 != at {
			at = t.seq >> 12
			if block = s.now[at]; block == nil {
				block = new([64]uint64)
				s.now[at] = block
			}
		}
		block[t.seq>>6&63] |= 1 << (t.seq & 63)
	}
}

func (s *ackedSet) has(seq uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range []map[uint64]*[64]uint64{s.now, s.old} {
		if b := m[seq>>12]; b != nil && b[seq>>6&63]&(1<<(seq&63)) != 0 {
			return true
		}
	}
	return false
}

// reset begins anew for a stream that was made at another time.
func (s *ackedSet) reset(stream int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stream, s.now, s.old = stream, nil, nil
}
