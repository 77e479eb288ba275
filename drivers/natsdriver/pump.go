package natsdriver

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// pullExpiry is how long a request stays open at the server. Closing a queue waits
	// for it, and nothing withdraws it.
	pullExpiry = time.Second
	// pullGrace is how much later than that the server's word of the end may come.
	pullGrace = time.Second
	maxPull   = 4096
	// pullBytes bounds what one request may bring, and with it the memory of what waits.
	pullBytes = 64 << 20
)

// arrival is a message as it came.
type arrival struct {
	msg  *nats.Msg
	at   time.Time // when its lease began, or a little before
	seen bool      // its order was looked at
}

// pump holds requests for messages open and keeps what came until it is taken.
type pump struct {
	q     *queue
	sub   *nats.Subscription
	inbox string
	next  string // the API subject to ask at
	wake  chan struct{}

	mu          sync.Mutex
	buf         []arrival
	outstanding int       // asked for and neither come nor ended
	void        time.Time // when what is outstanding must have ended
	rtt         time.Duration
	verify      bool      // the consumer must be looked at before more is asked for
	retryAt     time.Time // nothing is asked for before
	troubles    int       // in a row
	receiving   bool
	left        time.Time // when Receive was last left
	drained     chan struct{}
}

func (q *queue) startPump() error {
	p := &q.pump
	p.q, p.wake = q, make(chan struct{}, 1)
	p.inbox = q.d.nc.NewInbox()
	p.next = "$JS.API.CONSUMER.MSG.NEXT." + q.n.stream + "." + q.n.consumer
	p.left = time.Now()
	p.measure()
	sub, err := q.d.nc.Subscribe(p.inbox, p.arrived)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	// The client would throw away what is over its limit, and the server would count it
	// as delivered; requests bound it by number and bytes.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	p.sub = sub
	q.working.Go(p.maintain)
	return nil
}

// measure takes the round trip, by which a lease may have begun before its message came.
func (p *pump) measure() {
	rtt, err := p.q.d.nc.RTT()
	if err != nil {
		rtt = 50 * time.Millisecond
	}
	p.mu.Lock()
	p.rtt = min(rtt, time.Second)
	p.mu.Unlock()
}

func (p *pump) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// arrived is called by the client for each message, in order.
func (p *pump) arrived(m *nats.Msg) {
	if !strings.HasPrefix(m.Reply, "$JS.ACK.") {
		p.status(m)
		return
	}
	now := time.Now()
	p.mu.Lock()
	p.buf = append(p.buf, arrival{msg: m, at: now.Add(-p.rtt)})
	p.ended(1)
	first := len(p.buf) == 1
	p.troubles = 0
	p.mu.Unlock()
	if first {
		p.signal()
	}
}

// ended takes n off what is outstanding; p.mu is held.
func (p *pump) ended(n int) {
	p.outstanding = max(0, p.outstanding-n)
	if p.outstanding == 0 && p.drained != nil {
		close(p.drained)
		p.drained = nil
	}
}

// status handles the server's word about a request: mostly that its time is over.
func (p *pump) status(m *nats.Msg) {
	status, text := m.Header.Get("Status"), m.Header.Get("Description")
	left, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
	known := err == nil
	p.mu.Lock()
	if known {
		p.ended(left)
	}
	switch {
	case status == "100": // a heartbeat
	case known && (status == "408" || strings.HasPrefix(text, "Message Size Exceeds") || strings.HasPrefix(text, "Batch Completed")):
	default:
		// The consumer or its leader is gone, or the request was refused.
		p.ended(p.outstanding)
		p.verify = true
		p.trouble()
	}
	p.mu.Unlock()
	if status != "408" {
		p.q.log.Debug("pull request ended", slog.String("status", status), slog.String("text", text))
	}
	p.signal()
}

// trouble postpones the next request, more each time; p.mu is held.
func (p *pump) trouble() time.Duration {
	most := min(4*time.Second, 50*time.Millisecond<<min(p.troubles, 8))
	wait := most/2 + rand.N(most/2)
	p.troubles++
	p.retryAt = time.Now().Add(wait)
	return wait
}

// postpone is trouble from outside; first is true for the first in a row.
func (p *pump) postpone() (wait time.Duration, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first = p.troubles == 0
	return p.trouble(), first
}

func (p *pump) disturb() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.verify = true
	p.trouble()
}

func (p *pump) mustVerify() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.verify && !time.Now().Before(p.retryAt)
}

func (p *pump) verified() {
	p.mu.Lock()
	p.verify = false
	p.mu.Unlock()
	p.q.lastOrder = 0
	p.measure()
}

// unattended is how long nobody may ask before the consumer is looked at again.
const unattended = 3 * time.Second

func (p *pump) enter() {
	p.mu.Lock()
	p.receiving = true
	if time.Since(p.left) > unattended {
		p.verify = true // nobody would have told us that the consumer was made anew
	}
	p.mu.Unlock()
}

func (p *pump) leave() {
	p.mu.Lock()
	p.receiving, p.left = false, time.Now()
	p.mu.Unlock()
}

// take hands over at most n of what came.
func (p *pump) take(n int) []arrival {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.buf) == 0 || time.Now().Before(p.retryAt) && p.buf[0].seen {
		return nil
	}
	if n >= len(p.buf) {
		out := p.buf
		p.buf = nil
		return out
	}
	out := p.buf[:n:n]
	p.buf = p.buf[n:]
	return out
}

func (p *pump) takeAll() []arrival {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.buf
	p.buf = nil
	return out
}

// putBack keeps a message for the next call.
func (p *pump) putBack(a arrival) {
	p.mu.Lock()
	p.buf = append([]arrival{a}, p.buf...)
	p.mu.Unlock()
}

// pull asks for more, so that what waits and is outstanding comes to n. Requests are not
// made smaller than half of that, so that each brings a good number.
func (q *queue) pull(n int) {
	p := &q.pump
	now := time.Now()
	p.mu.Lock()
	if p.outstanding > 0 && now.After(p.void) {
		p.ended(p.outstanding) // its end got lost
	}
	have := p.outstanding + len(p.buf)
	want := min(n, int(q.pullMax.Load())) - have
	if want <= 0 || have > n/2 || p.verify || now.Before(p.retryAt) || q.closing.Load() {
		p.mu.Unlock()
		return
	}
	p.outstanding += want
	p.void = now.Add(pullExpiry + pullGrace)
	p.mu.Unlock()

	bytes := max(pullBytes, 2*q.d.nc.MaxPayload())
	body := append(make([]byte, 0, 80), `{"expires":`...)
	body = strconv.AppendInt(body, int64(pullExpiry), 10)
	body = append(body, `,"batch":`...)
	body = strconv.AppendInt(body, int64(want), 10)
	body = append(body, `,"max_bytes":`...)
	body = strconv.AppendInt(body, bytes, 10)
	body = append(body, '}')
	if err := q.d.nc.PublishRequest(p.next, p.inbox, body); err != nil {
		p.mu.Lock()
		p.ended(want)
		p.trouble()
		p.mu.Unlock()
	}
}

// wait returns when something may have changed.
func (p *pump) wait(ctx context.Context, done <-chan struct{}) {
	p.mu.Lock()
	now := time.Now()
	until := now.Add(pullExpiry)
	if p.outstanding > 0 {
		until = p.void
	}
	if p.retryAt.After(now) && p.retryAt.Before(until) {
		until = p.retryAt
	}
	p.mu.Unlock()
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-p.wake:
	case <-t.C:
	case <-ctx.Done():
	case <-done:
	}
}

// drain waits until nothing is outstanding.
func (p *pump) drain(ctx context.Context) {
	p.mu.Lock()
	if p.outstanding == 0 || !p.q.d.nc.IsConnected() {
		p.mu.Unlock()
		return
	}
	drained := make(chan struct{})
	p.drained = drained
	t := time.NewTimer(time.Until(p.void))
	p.mu.Unlock()
	p.signal() // Receive sees that the queue is closing
	defer t.Stop()
	select {
	case <-drained:
	case <-t.C:
	case <-ctx.Done():
	}
}

func (p *pump) stop() {
	if err := p.sub.Unsubscribe(); err != nil {
		p.q.log.Debug("unsubscribe", slog.Any("error", err))
	}
}

// maintain gives back what came and is not asked for: its lease runs, and another worker
// may be free.
func (p *pump) maintain() {
	keep := min(pullExpiry, p.q.info.Lease/3)
	tick := time.NewTicker(max(keep/2, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-p.q.done:
			return
		case <-tick.C:
			p.returnUnasked(keep)
		}
	}
}

func (p *pump) returnUnasked(keep time.Duration) {
	p.mu.Lock()
	var late []arrival
	if !p.receiving && time.Since(p.left) > keep && len(p.buf) > 0 {
		late, p.buf = p.buf, nil
	}
	p.mu.Unlock()
	if len(late) == 0 {
		return
	}
	q := p.q
	ctx, cancel := context.WithTimeout(context.Background(), 2*requestTimeout)
	defer cancel()
	ts, err := q.tokensOf(late)
	if err == nil {
		err = inParallel(len(ts), func(i int) error { return q.giveBack(ctx, ts[i], true) })
	}
	if err != nil {
		q.log.Warn("messages that were not asked for could not be given back: they come again after their lease", slog.Any("error", err))
	}
}
