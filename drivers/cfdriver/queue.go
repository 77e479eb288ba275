package cfdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// queue is one worker's way to a queue and its dead letters.
type queue struct {
	d    *Driver
	o    drivers.QueueOptions
	n    names
	log  *slog.Logger
	info drivers.Info

	lease    time.Duration // whole milliseconds
	maxDelay time.Duration // whole seconds
	place    place         // counts of messages that cannot carry them
	looksMax int           // deliveries after which a dead letter is renewed

	// life ends when no request of the queue may go on.
	life context.Context
	end  context.CancelFunc
	done chan struct{} // closed when Close is over

	settling  sync.RWMutex // held for writing while Close takes over what is left
	receiving sync.Mutex
	looking   sync.Mutex // one look into the dead queue at a time
	pump      pump

	mu      sync.Mutex
	closing bool
	held    map[string]*token // by message id, the newest
	swept   time.Time
	recent  *recent[drivers.Verdict] // finished here, by message id
	refused *recent[int]             // attempts that ended with a reject, by message id
}

var (
	_ drivers.Queue       = (*queue)(nil)
	_ drivers.DeadLetters = (*queue)(nil)
)

func (d *Driver) newQueue(ctx context.Context, o drivers.QueueOptions) (*queue, error) {
	n, err := namesOf(o)
	if err != nil {
		return nil, err
	}
	if o.Lease > maxLease {
		return nil, fmt.Errorf("a lease of %s: Cloudflare's longest is %s", o.Lease, maxLease)
	}
	q := &queue{
		d: d, o: o, n: n, log: d.log.With(slog.String("queue", o.Name)),
		lease: max(time.Millisecond, o.Lease.Truncate(time.Millisecond)),
		done:  make(chan struct{}), held: map[string]*token{},
		recent: newRecent[drivers.Verdict](recentKeep), refused: newRecent[int](countsKeep),
	}
	if err := q.setup(ctx); err != nil {
		return nil, err
	}
	q.life, q.end = context.WithCancel(context.Background())
	q.pump.init(d.o.FirstPoll)
	return q, nil
}

// describe derives from the queues' descriptions what this queue can do.
func (q *queue) describe(work, dead *description) {
	caps := Caps()
	if !q.n.own {
		caps = ForeignCaps(q.d.o.Store != nil)
	}
	if most := q.d.o.MaxDelay; most > 0 {
		caps.MaxDelay = min(caps.MaxDelay, max(time.Second, most.Truncate(time.Second)))
	}
	if keep := work.retention(); keep > 0 {
		// What waits longer than it is kept would be gone.
		caps.MaxDelay = min(caps.MaxDelay, max(time.Second, (keep/2).Truncate(time.Second)))
	}
	q.maxDelay = caps.MaxDelay
	q.info = drivers.Info{
		Caps: caps, Lease: q.lease,
		// Bytes that must be encoded take a third more.
		MaxPayload: (maxMessage - metadataBytes - reserve) / 4 * 3,
		Findings:   q.findings(work, dead),
	}
	if !q.n.own {
		q.info.Retention = work.retention() // of ours each copy starts the time anew
	}
	if c, _ := work.pull(); c != nil && c.Settings.MaxRetries != nil {
		q.info.DeliveryLimit = drivers.DeliveryLimit{
			Deliveries: int(*c.Settings.MaxRetries) + 1, PerCopy: q.n.own,
			Setting: fmt.Sprintf("the number of deliveries that max_retries = %d of queue %s allows", int(*c.Settings.MaxRetries), work.Name),
		}
	}
	q.looksMax = createdRetries / 2
	if c, _ := dead.pull(); c != nil && c.Settings.MaxRetries != nil {
		q.looksMax = max(1, int(*c.Settings.MaxRetries)/2)
	}
	q.place = &localPlace{records: newRecent[placed](countsKeep)}
	if q.d.o.Store != nil {
		q.place = &storedPlace{store: q.d.o.Store, name: "cf-tally." + work.ID, log: q.log}
	}
}

func (q *queue) findings(work, dead *description) (fs []drivers.Finding) {
	add := func(warning bool, format string, a ...any) {
		fs = append(fs, drivers.Finding{Warning: warning, Text: fmt.Sprintf(format, a...)})
	}
	if !q.n.own {
		store := "the [store] keeps their counts"
		if q.d.o.Store == nil {
			store = "without a [store] this host knows its own counts only, and takes what others did for stalls"
		}
		add(q.d.o.Store == nil, "queue %s is not ours (its name does not begin with %s), so its messages are not rewritten: "+
			"every retry, delay and message put back spends one of max_retries, and %s", work.Name, ownPrefix, store)
	}
	q.consumerFindings(add, work, dead)
	keep := work.retention()
	if q.n.own && keep > 0 {
		add(false, "Cloudflare drops a message of queue %s that nobody settles for %s (message_retention_period); every retry and delay starts that anew",
			work.Name, keep)
	}
	if d := work.Settings.Delay; d > 0 {
		add(false, "queue %s delays what others send by %s (delivery_delay)", work.Name, time.Duration(d)*time.Second)
	}
	if work.Settings.Paused {
		add(true, "queue %s is paused (delivery_paused): it hands out nothing", work.Name)
	}
	q.deadFindings(add, dead)
	return fs
}

func (q *queue) consumerFindings(add func(bool, string, ...any), work, dead *description) {
	c, worker := work.pull()
	switch {
	case worker:
		add(true, "queue %s has a Worker as its consumer, so nothing can be pulled from it", work.Name)
	case c == nil:
	case c.Dead == "":
		add(true, "queue %s has no dead_letter_queue: Cloudflare deletes a rejected message, and one that was delivered too often; set it to %s", work.Name, dead.Name)
	case c.Dead != dead.Name:
		add(false, "queue %s moves what was delivered too often to %s, which is not its dead_queue", work.Name, c.Dead)
	}
	if c, _ := dead.pull(); c == nil {
		add(true, "dead_queue %s has no HTTP pull consumer: dead letters can be written, and not be read", dead.Name)
	}
}

func (q *queue) deadFindings(add func(bool, string, ...any), dead *description) {
	keep, kept := q.o.DeadKeep, dead.retention()
	switch {
	case kept <= 0:
	case keep > kept:
		add(true, "dead.keep is %s, but Cloudflare drops dead letters of %s after %s (message_retention_period, at most 14 days)", keep, dead.Name, kept)
	case keep == 0:
		add(false, "Cloudflare drops dead letters of %s after %s (message_retention_period, at most 14 days)", dead.Name, kept)
	case keep < kept:
		add(true, "dead.keep is %s, but Cloudflare keeps dead letters of %s for %s (message_retention_period, at least a minute)", keep, dead.Name, kept)
	}
	if q.o.DeadMax > 0 {
		add(false, "dead.max is %d, but Cloudflare does not bound the number of messages in %s", q.o.DeadMax, dead.Name)
	}
}

func (q *queue) Info() drivers.Info {
	info := q.info
	info.Findings = slices.Clone(info.Findings)
	return info
}

func (q *queue) isClosing() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closing
}

// Counts implements drivers.Queue. Cloudflare's figures are approximate; it does not tell which
// messages are delayed or in flight.
func (q *queue) Counts(ctx context.Context) (drivers.Counts, error) {
	if q.isClosing() {
		return drivers.Counts{}, drivers.ErrClosed
	}
	work, err := q.d.c.metrics(ctx, q.n.id)
	if err != nil {
		return drivers.Counts{}, fmt.Errorf("counts of %s: %w", q.o.Name, err)
	}
	dead, err := q.d.c.metrics(ctx, q.n.deadID)
	if err != nil {
		return drivers.Counts{}, fmt.Errorf("counts of %s: dead letters: %w", q.o.Name, err)
	}
	c := drivers.Counts{Depth: int(work.Count), Dead: int(dead.Count)}
	if work.Count > 0 && work.Oldest > 0 {
		c.Oldest = time.UnixMilli(int64(work.Oldest))
	}
	return c, nil
}

// Renew implements drivers.Queue: a lease of Cloudflare's cannot be renewed.
func (q *queue) Renew(_ context.Context, ds []*drivers.Delivery) []error {
	errs := make([]error, len(ds))
	for i, d := range ds {
		if _, errs[i] = q.token(d); errs[i] == nil && q.isClosing() {
			errs[i] = drivers.ErrClosed
		}
	}
	return errs
}

// Close implements drivers.Queue. What is held goes back at once; then it waits for pulls that
// may be open, whose messages go back too.
func (q *queue) Close(ctx context.Context) error {
	q.mu.Lock()
	again := q.closing
	q.closing = true
	q.mu.Unlock()
	if again {
		select {
		case <-q.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	q.pump.close()
	q.settling.Lock() // whoever settles now is done first
	err := q.giveBackHeld(ctx)
	q.settling.Unlock()
	if perr := q.pump.wait(ctx); perr != nil {
		q.end()
		q.pump.polls.Wait()
		err = errors.Join(err, fmt.Errorf("close %s: an open pull: %w", q.o.Name, perr))
	}
	q.receiving.Lock() // a Receive that is making deliveries of it
	err = errors.Join(err, q.giveBack(ctx, q.pump.takeAll()), q.giveBackHeld(ctx))
	q.receiving.Unlock()
	q.end()
	close(q.done)
	q.d.forget(q)
	return err
}

// abandon ends everything and gives nothing back.
func (q *queue) abandon() {
	q.mu.Lock()
	again := q.closing
	q.closing = true
	q.mu.Unlock()
	q.end()
	q.pump.close()
	q.pump.polls.Wait()
	if !again {
		close(q.done)
	}
	q.d.forget(q)
}
