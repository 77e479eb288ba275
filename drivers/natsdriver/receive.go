package natsdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// Receive implements drivers.Queue.
func (q *queue) Receive(ctx context.Context, max int) ([]*drivers.Delivery, error) {
	switch {
	case max < 1:
		return nil, fmt.Errorf("receive %s: asked for %d messages", q.n.queue, max)
	case q.o.SendOnly:
		return nil, fmt.Errorf("receive %s: the queue was opened for sending only", q.n.queue)
	}
	q.receiving.Lock()
	defer q.receiving.Unlock()
	q.pump.enter()
	defer q.pump.leave()
	for {
		if q.closing.Load() {
			return nil, drivers.ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if q.pump.mustVerify() {
			if err := q.verify(ctx); err != nil {
				return nil, err
			}
			continue
		}
		batch := q.pump.take(max)
		q.pull(max - len(batch))
		if len(batch) > 0 {
			if ds := q.deliver(ctx, batch); len(ds) > 0 && !q.closing.Load() {
				return ds, nil
			}
			continue // when closing, Close gives them back
		}
		q.pump.wait(ctx, q.done)
	}
}

// verify makes sure after a disturbance that stream and consumer are those we know, and
// makes the consumer again where that is ours to do. It returns an error only where
// waiting cannot help.
func (q *queue) verify(ctx context.Context) error {
	err := q.setupAgain(ctx)
	if err == nil {
		q.pump.verified()
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, errGone) && q.limits {
		return fmt.Errorf("receive %s: %w", q.n.queue, err)
	}
	if wait, first := q.pump.postpone(); first {
		q.log.Warn("the queue cannot be read, trying again", slog.Duration("in", wait), slog.Any("error", err))
	}
	q.pump.wait(ctx, q.done)
	return nil
}

func (q *queue) setupAgain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	defer cancel()
	if !q.d.nc.IsConnected() {
		return nats.ErrDisconnected
	}
	err := q.setupConsumer(ctx, false)
	if !errors.Is(err, jetstream.ErrStreamNotFound) || !q.o.Create {
		return err
	}
	q.log.Warn("a stream of this queue was deleted and is made again", slog.String("stream", q.n.stream))
	if _, err := q.setupStream(ctx); err != nil {
		return err
	}
	if err := q.setupDead(ctx); err != nil {
		return err
	}
	if err := q.setupTally(ctx); err != nil {
		return err
	}
	return q.setupConsumer(ctx, false)
}

// item is a delivery and its token in one allocation.
type item struct {
	d drivers.Delivery
	t token
	// rest is the producer's own not-before time, Unix ns, 0 for none.
	rest int64
	// order is the delivery's number in the consumer.
	order uint64
}

// deliver makes deliveries of messages that arrived. Those the server hands out again, or
// may have handed out in an earlier life of the consumer, are looked up first; the others
// cost no request.
func (q *queue) deliver(ctx context.Context, batch []arrival) []*drivers.Delivery {
	batch = q.dropExpired(batch)
	items := make([]item, len(batch))
	ds := make([]*drivers.Delivery, 0, len(batch))
	for i := range batch {
		it := &items[i]
		if err := q.fill(it, &batch[i]); err != nil {
			q.log.Error("message with an unknown acknowledgement subject", slog.String("reply", batch[i].msg.Reply), slog.Any("error", err))
		}
	}
	if q.wentBack(batch, items) {
		if err := q.setupAgain(ctx); err != nil {
			for i := range batch {
				q.pump.putBack(batch[i])
			}
			q.pump.disturb()
			return nil
		}
	}
	var slow []int
	birth := q.inc.Load().birth
	now := time.Now().UnixNano()
	for i := range items {
		it := &items[i]
		if it.t.q == nil {
			continue
		}
		if it.t.n > 1 || it.t.seq <= birth || it.rest > now {
			slow = append(slow, i)
			continue
		}
		ds = append(ds, &it.d)
	}
	if len(slow) > 0 {
		ds = q.deliverSlow(ctx, batch, items, slow, ds)
	}
	q.held.add(ds)
	return ds
}

// dropExpired leaves out what could not be looked up for so long that its lease is over: it
// comes again.
func (q *queue) dropExpired(batch []arrival) []arrival {
	lease := time.Duration(q.ackWait.Load())
	return slices.DeleteFunc(batch, func(a arrival) bool { return a.seen && time.Since(a.at) > lease })
}

// wentBack reports that the consumer's own numbering did not go forward: it was made anew, or
// its server forgot some of its state.
func (q *queue) wentBack(batch []arrival, items []item) bool {
	back := false
	for i := range items {
		if items[i].t.q == nil || batch[i].seen {
			continue
		}
		batch[i].seen = true
		back = back || items[i].order <= q.lastOrder
		q.lastOrder = items[i].order
	}
	return back
}

// deliverSlow looks messages up and appends those to hand out. What could not be looked up
// stays for the next call.
func (q *queue) deliverSlow(ctx context.Context, batch []arrival, items []item, slow []int, ds []*drivers.Delivery) []*drivers.Delivery {
	views := make([]view, len(slow))
	empty, err := q.emptyFor(ctx, items, slow)
	if err == nil {
		err = q.lookAt(ctx, items, slow, views, empty)
	}
	if err != nil && ctx.Err() == nil {
		if _, first := q.pump.postpone(); first {
			q.log.Warn("tallies cannot be read, trying again", slog.Any("error", err))
		}
	}
	for k, i := range slow {
		switch views[k] {
		case ready:
			ds = append(ds, &items[i].d)
		case unknown:
			q.pump.putBack(batch[i])
		}
	}
	return ds
}

// lookAt fills in views; those of what could not be looked up stay unknown.
func (q *queue) lookAt(ctx context.Context, items []item, slow []int, views []view, empty bool) error {
	return inParallel(len(slow), func(k int) error {
		it := &items[slow[k]]
		q.held.takenOver(&it.t)
		if empty && it.first() && !q.acked.has(it.t.seq) {
			if q.session != nil {
				q.session.accounted(it.t.seq, 1)
				it.t.tracked = true
			}
			views[k] = ready
			return nil
		}
		v, err := q.look(ctx, &it.t, it.rest)
		if err == nil && v == resting {
			err = q.rest(ctx, &it.t)
		}
		if err == nil {
			views[k] = v
		}
		return err
	})
}

// first reports a message that is slow only for being below the birth mark.
func (it *item) first() bool { return it.t.n == 1 && it.rest == 0 }

// emptyFor saves a look-up each for many first deliveries, as of a backlog after the server's
// restart: one request shows that there is no tally at all.
func (q *queue) emptyFor(ctx context.Context, items []item, slow []int) (bool, error) {
	firsts := 0
	for _, i := range slow {
		if items[i].first() {
			firsts++
		}
	}
	if firsts < 4 {
		return false, nil
	}
	has, err := q.hasTallies(ctx)
	return !has && err == nil, err
}

// view is what a look at a message's tally shows.
type view uint8

const (
	unknown view = iota // it could not be read
	ready               // to be handed out
	resting             // its time has not come
	gone                // finished already
)

// look fills in what earlier deliveries left.
func (q *queue) look(ctx context.Context, t *token, rest int64) (view, error) {
	if q.acked.has(t.seq) {
		if again, err := q.ackAgain(ctx, t); again || err != nil {
			return gone, err
		}
	}
	rec, rev, err := q.tally.get(ctx, q.tally.key(t.seq, t.stamp))
	if err != nil {
		return unknown, err
	}
	if rec != nil && rec.V > recordVersion {
		q.log.Error("a message's tally is of a newer version of guesthand: it is left for a newer host",
			slog.String("id", t.d.ID), slog.Int("version", rec.V))
		return gone, q.putBack(ctx, t, newerTallyRest)
	}
	stalled := q.stalls(t, rec)
	t.rev = rev
	told := 0
	if rec == nil {
		rec = &record{Prior: t.prior}
	} else {
		told = rec.Fresh
	}
	rec.Rest = max(rec.Rest, rest)
	rec.Stalls += stalled
	rec.Fresh = 0
	t.rec = rec
	t.d.Carry = cloneCarry(rec.carry())
	// All but the last were noticed with the deliveries before this one.
	t.d.Stalled = min(stalled, 1) + told
	t.d.Held = stalled > 0
	t.d.Redelivered = t.d.Redelivered || rev > 0
	if rec.Rest > time.Now().Add(time.Millisecond).UnixNano() {
		return resting, nil
	}
	return ready, nil
}

// newerTallyRest is how long a message is put back that only a newer host can read.
const newerTallyRest = 30 * time.Second

// stalls is how many earlier deliveries left no trace: they were handed out and nobody
// recorded what came of it.
func (q *queue) stalls(t *token, rec *record) int {
	accounted := uint64(0)
	inc := q.inc.Load()
	switch {
	case q.session != nil:
		if rec != nil && rec.E == q.session.epoch() && rec.N < t.n {
			accounted = rec.N
			break
		}
		accounted = q.session.accounted(t.seq, t.n)
		t.tracked = true
	case rec != nil && rec.C == inc.consumer && rec.N < t.n:
		accounted = rec.N
	case rec != nil && rec.C == inc.consumer:
		accounted = t.n - 1 // the server's count went back
	}
	if accounted+1 >= t.n {
		return 0
	}
	return int(t.n - 1 - accounted)
}

// rest puts back a message whose time has not come, uncounted.
func (q *queue) rest(ctx context.Context, t *token) error {
	rec := q.newRecord(t, t.rec.carry())
	rec.Rest, rec.Fresh = t.rec.Rest, t.d.Stalled
	if _, err := q.write(ctx, t, rec); err != nil {
		if errors.Is(err, drivers.ErrLeaseLost) {
			return nil
		}
		return err
	}
	if t.tracked {
		q.session.forget(t.seq)
	}
	return q.putBack(ctx, t, time.Until(time.Unix(0, rec.Rest)))
}

// ackAgain acknowledges a message that was acknowledged before and came back all the same.
// It is false where the sequence belongs to another stream of the same name.
func (q *queue) ackAgain(ctx context.Context, t *token) (bool, error) {
	s, err := q.d.js.Stream(ctx, q.n.stream)
	if err != nil {
		return false, fmt.Errorf("stream %s: %w", q.n.stream, err)
	}
	if made := s.CachedInfo().Created.UnixNano(); made != q.inc.Load().stream {
		q.acked.reset(made)
		return false, nil
	}
	if _, err := q.d.request(ctx, t.reply, ackBody); err != nil {
		return false, fmt.Errorf("acknowledge again: %w", err)
	}
	q.log.Debug("an acknowledgement the server had lost was repeated", slog.String("id", t.d.ID))
	return true, nil
}

func cloneCarry(c drivers.Carry) drivers.Carry {
	if len(c.State) > 0 {
		c.State = append([]byte(nil), c.State...)
	}
	if len(c.Errors) > 0 {
		c.Errors = append([]drivers.RunError(nil), c.Errors...)
	}
	return c
}

// tokensOf reads arrivals that will not be handed out.
func (q *queue) tokensOf(batch []arrival) (ts []*token, err error) {
	items := make([]item, len(batch))
	for i := range batch {
		if ferr := q.fill(&items[i], &batch[i]); ferr != nil {
			err = errors.Join(err, ferr)
			continue
		}
		ts = append(ts, &items[i].t)
	}
	return ts, err
}

// fill decodes one message.
func (q *queue) fill(it *item, a *arrival) error {
	m := a.msg
	t, d := &it.t, &it.d
	meta, err := parseReply(m.Reply)
	if err != nil {
		return err
	}
	t.q, t.d, t.reply = q, d, m.Reply
	it.order = meta.order
	t.seq, t.n, t.stamp, t.stream = meta.seq, meta.delivered, meta.stamp, q.inc.Load().stream
	d.Token = t
	d.Headers = drivers.Header(m.Header)
	d.Payload = m.Data
	d.EnqueuedAt = time.Unix(0, meta.stamp)
	d.Received = a.at
	d.Redelivered = meta.delivered > 1
	if m.Header == nil && brokenHeader(m) {
		d.Broken = "the header block cannot be decoded"
	}
	it.rest = q.readHeaders(t, d)
	if d.Job == "" {
		d.Job = q.n.jobOf(m.Subject)
	}
	if d.ID == "" {
		d.ID = q.n.stream + ":" + number(meta.seq)
	}
	t.messageID, t.job = d.ID, d.Job
	return nil
}

// brokenHeader reports a header block that the client could not decode and left out.
func brokenHeader(m *nats.Msg) bool {
	return m.Size() > len(m.Subject)+len(m.Reply)+len(m.Data)
}

// readHeaders takes job, id and prior attempts from the headers in one pass, and returns the
// not-before time, Unix ns.
func (q *queue) readHeaders(t *token, d *drivers.Delivery) (rest int64) {
	ceID, ceType := "", ""
	for name, values := range d.Headers {
		if len(values) == 0 || len(name) < len(abi.HeaderCEID) {
			continue
		}
		v := values[0]
		switch {
		case strings.EqualFold(name, abi.HeaderJob):
			d.Job = v
		case strings.EqualFold(name, abi.HeaderID):
			d.ID = v
		case strings.EqualFold(name, abi.HeaderCEType):
			ceType = v
		case strings.EqualFold(name, abi.HeaderCEID):
			ceID = v
		case strings.EqualFold(name, abi.HeaderPrior):
			t.prior = atoiOrZero(v)
			d.Carry.Prior = t.prior
		case strings.EqualFold(name, abi.HeaderReplyTo):
			d.ReplyTo = v
		case strings.EqualFold(name, abi.HeaderNotBefore):
			if at, err := time.Parse(time.RFC3339Nano, v); err == nil {
				rest = at.UnixNano()
			}
		}
	}
	if d.Job == "" {
		d.Job = ceType
	}
	if d.ID == "" {
		d.ID = ceID
	}
	return rest
}

func atoiOrZero(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func priorOf(h nats.Header) int {
	v, _ := drivers.Header(h).Get(abi.HeaderPrior)
	return atoiOrZero(v)
}

// replyMeta is what the acknowledgement's subject says about a delivery.
type replyMeta struct {
	delivered uint64
	seq       uint64 // in the stream
	order     uint64 // in the consumer
	stamp     int64
}

var errReply = errors.New("not $JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<order>.<time>.<pending>")

// parseReply reads both forms: nine tokens, or with domain and account hash eleven and more.
func parseReply(s string) (m replyMeta, err error) {
	const prefix = "$JS.ACK."
	if !strings.HasPrefix(s, prefix) {
		return m, errReply
	}
	var starts [14]int
	n := 0
	for i := len(prefix) - 1; i < len(s) && n < len(starts); i++ {
		if s[i] == '.' {
			starts[n] = i + 1
			n++
		}
	}
	at := 2 // after stream and consumer
	if n >= 9 {
		at = 4 // after domain, account hash, stream and consumer
	} else if n != 7 {
		return m, errReply
	}
	var v [4]uint64
	for k := range v {
		i, ok := starts[at+k], true
		if v[k], ok = digits(s[i : starts[at+k+1]-1]); !ok {
			return m, errReply
		}
	}
	return replyMeta{delivered: v[0], seq: v[1], order: v[2], stamp: int64(v[3])}, nil
}

func digits(s string) (n uint64, ok bool) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + uint64(s[i]-'0')
	}
	return n, len(s) > 0
}
