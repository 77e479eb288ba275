package sqsdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/guesthand/guesthand/drivers"
)

// maxMessage is SQS's limit for body and attributes, and for a whole batch.
const maxMessage = 1 << 20

// queue is one worker's way to an SQS queue and its dead letters.
type queue struct {
	d    *Driver
	o    drivers.QueueOptions
	n    names
	log  *slog.Logger
	info drivers.Info

	lease    time.Duration // whole seconds
	maxDelay time.Duration // whole seconds
	longest  time.Duration // a message's visibility from the receive on
	maxSize  int           // body and attributes
	deadSize int
	place    place // counts of messages that cannot carry them

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
	held    map[string]*token // by MessageId, the newest
	swept   time.Time
	recent  *recent[drivers.Verdict]
	refused *recent[int] // deliveries that ended with a reject, by MessageId
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
	q := &queue{
		d: d, o: o, n: n, log: d.log.With(slog.String("queue", o.Name)),
		lease: time.Duration(seconds(o.Lease)) * time.Second, longest: maxVisibility - visibilityMargin,
		done: make(chan struct{}), held: map[string]*token{},
		recent: newRecent[drivers.Verdict](recentKeep), refused: newRecent[int](countsKeep),
	}
	if d.o.MaxVisibility > 0 {
		q.longest = d.o.MaxVisibility
	}
	if q.lease > q.longest/2 {
		return nil, fmt.Errorf("a lease of %s: SQS keeps a message for 12 hours at most, renewals included; take 6 hours or less", o.Lease)
	}
	if err := q.setup(ctx); err != nil {
		return nil, err
	}
	q.life, q.end = context.WithCancel(context.Background())
	q.pump.init()
	return q, nil
}

// describe derives from the queues' attributes what this queue can do.
func (q *queue) describe(work, dead description) {
	q.maxSize, q.deadSize = min(work.maxSize, maxMessage), min(dead.maxSize, maxMessage)
	caps := Caps()
	if q.n.fifo {
		caps = FIFOCaps(q.d.o.Store != nil)
		caps.MaxDelay = min(caps.MaxDelay, q.longest-q.longest%time.Second)
	}
	if most := q.d.o.MaxDelay; most > 0 {
		caps.MaxDelay = min(caps.MaxDelay, max(time.Second, most.Truncate(time.Second)))
	}
	q.maxDelay = caps.MaxDelay
	q.info = drivers.Info{
		Caps: caps, Lease: q.lease,
		// Bytes that must be encoded take a third more.
		MaxPayload: max(0, q.maxSize-reserve) / 4 * 3,
		Findings:   q.findings(work, dead),
	}
	if q.n.fifo {
		// On a standard queue each copy starts the time anew.
		q.info.Retention = work.retention
	}
	if work.redrive > 0 {
		q.info.DeliveryLimit = drivers.DeliveryLimit{
			Deliveries: work.redrive, Setting: "maxReceiveCount of queue " + work.name, PerCopy: !q.n.fifo,
		}
	}
	q.place = &localPlace{records: newRecent[placed](countsKeep)}
	if q.d.o.Store != nil {
		q.place = &storedPlace{store: q.d.o.Store, name: bucketOf(work.arn, q.n.url), log: q.log}
	}
}

func (q *queue) findings(work, dead description) (fs []drivers.Finding) {
	add := func(warning bool, format string, a ...any) {
		fs = append(fs, drivers.Finding{Warning: warning, Text: fmt.Sprintf(format, a...)})
	}
	if q.n.fifo && q.d.o.Store == nil {
		add(true, "FIFO queue %s has no [store]: its messages cannot carry their counts, so delay, pause and max_delays are refused, "+
			"and what another host or an earlier process did counts as stalled; name a broker in [store]", work.name)
	}
	switch {
	case work.redrive == 0:
		add(false, "queue %s has no redrive policy: a rejected message comes back until it is %s old", work.name, work.retention)
	case work.redriveTo != dead.arn:
		add(false, "queue %s moves what was received %d times to %s, which is not its dead_queue", work.name, work.redrive, work.redriveTo)
	}
	if !q.n.fifo {
		add(false, "SQS drops a message of queue %s that nobody settles for %s (MessageRetentionPeriod); every retry and delay starts that anew",
			work.name, work.retention)
	}
	if work.delay > 0 {
		add(true, "queue %s delays every message by %s (DelaySeconds), retries at once included", work.name, work.delay)
	}
	if work.groupScope {
		add(false, "queue %s drops a repeated key only within a message group (DeduplicationScope)", work.name)
	}
	switch keep := q.o.DeadKeep; {
	case keep == 0:
		add(false, "SQS drops dead letters of %s after %s (MessageRetentionPeriod)", dead.name, dead.retention)
	case keep > dead.retention:
		// More than SQS can do is nothing to mend, less than it was told is.
		add(dead.retention < min(keep, longestRetention), "dead.keep is %s, but SQS drops dead letters of %s after %s (MessageRetentionPeriod, at most 14 days)",
			keep, dead.name, dead.retention)
	case keep < dead.retention:
		add(true, "dead.keep is %s, but SQS keeps dead letters of %s for %s (MessageRetentionPeriod, at least a minute)", keep, dead.name, dead.retention)
	}
	if q.o.DeadMax > 0 {
		add(false, "dead.max is %d, but SQS does not bound the number of messages in %s", q.o.DeadMax, dead.name)
	}
	return fs
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

// Counts implements drivers.Queue. SQS's figures are approximate and may lag.
func (q *queue) Counts(ctx context.Context) (drivers.Counts, error) {
	if q.isClosing() {
		return drivers.Counts{}, drivers.ErrClosed
	}
	work, err := q.attributes(ctx, q.n.url)
	if err != nil {
		return drivers.Counts{}, fmt.Errorf("counts of %s: %w", q.o.Name, err)
	}
	dead, err := q.attributes(ctx, q.n.deadURL)
	if err != nil {
		return drivers.Counts{}, fmt.Errorf("counts of %s: dead letters: %w", q.o.Name, err)
	}
	ready, flight, delayed := figures(work)
	c := drivers.Counts{Depth: ready + flight + delayed, InFlight: flight, Delayed: delayed}
	ready, flight, delayed = figures(dead)
	c.Dead = ready + flight + delayed
	return c, nil
}

func figures(a map[string]string) (ready, flight, delayed int) {
	n := func(key types.QueueAttributeName) int {
		v, err := strconv.Atoi(a[string(key)])
		if err != nil {
			return 0 // not told
		}
		return v
	}
	return n(types.QueueAttributeNameApproximateNumberOfMessages),
		n(types.QueueAttributeNameApproximateNumberOfMessagesNotVisible),
		n(types.QueueAttributeNameApproximateNumberOfMessagesDelayed)
}

// Close implements drivers.Queue. What is held goes back at once; then it waits for the poll
// that may be open, whose messages go back too.
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
		err = errors.Join(err, fmt.Errorf("close %s: an open poll: %w", q.o.Name, perr))
	}
	q.receiving.Lock() // a Receive that is making deliveries of it
	err = errors.Join(err, q.giveBackBuffered(ctx), q.giveBackHeld(ctx))
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
