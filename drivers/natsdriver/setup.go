package natsdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/drivers"
)

// Metadata of what we create: ours may be changed when the configuration changes.
const (
	metaOwner = "guesthand"
	metaOurs  = "1"
)

func ours(metadata map[string]string) bool { return metadata[metaOwner] == metaOurs }

func ourMetadata() map[string]string { return map[string]string{metaOwner: metaOurs} }

// setup finds or creates everything a queue needs.
func (q *queue) setup(ctx context.Context) error {
	stream, err := q.setupStream(ctx)
	if err != nil {
		return err
	}
	if err := q.setupDead(ctx); err != nil {
		return err
	}
	q.streamLimits(stream)
	if q.o.SendOnly {
		q.inc.Store(&incarnation{stream: stream.Created.UnixNano()})
		return nil
	}
	if err := q.setupTally(ctx); err != nil {
		return err
	}
	return q.setupConsumer(ctx, true)
}

func (q *queue) setupStream(ctx context.Context) (*jetstream.StreamInfo, error) {
	s, err := q.d.js.Stream(ctx, q.n.stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && !q.o.Create:
		return nil, fmt.Errorf("stream %s does not exist: create it with subjects %s, or set create = true", q.n.stream, q.wanted())
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return q.createStream(ctx)
	case err != nil:
		return nil, fmt.Errorf("stream %s: %w", q.n.stream, err)
	}
	info := s.CachedInfo()
	if q.n.subject == "" {
		if len(info.Config.Subjects) != 1 {
			return nil, fmt.Errorf("stream %s has the subjects %q: set subject to the one this queue is to read", q.n.stream, info.Config.Subjects)
		}
		q.n.subject = info.Config.Subjects[0]
	}
	if !coveredBy(info.Config.Subjects, q.n.subject) {
		return nil, fmt.Errorf("stream %s has the subjects %q, and none of them covers %s: set subject to one of the stream's own",
			q.n.stream, info.Config.Subjects, q.n.subject)
	}
	return info, nil
}

func (q *queue) wanted() string {
	if q.n.subject == "" {
		return "of your choice"
	}
	return q.n.subject
}

func (q *queue) createStream(ctx context.Context) (*jetstream.StreamInfo, error) {
	if q.n.subject == "" {
		q.n.subject = subjectRoot + q.n.queue + ".>"
	}
	want := jetstream.StreamConfig{
		Name: q.n.stream, Subjects: []string{q.n.subject},
		Description: "work of the guesthand queue " + q.n.queue,
		Retention:   jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage,
		Metadata: ourMetadata(),
	}
	s, err := q.d.js.CreateStream(ctx, want)
	if err != nil {
		return nil, fmt.Errorf("create stream %s with subject %s: %w", q.n.stream, q.n.subject, err)
	}
	info := s.CachedInfo()
	if info.Config.Retention != jetstream.WorkQueuePolicy || !ours(info.Config.Metadata) {
		return nil, fmt.Errorf("the server made stream %s with other settings than asked for: is a server of the cluster older than %s?", q.n.stream, MinimumServer)
	}
	return info, nil
}

func (q *queue) streamLimits(info *jetstream.StreamInfo) {
	c := info.Config
	q.limits = c.Retention == jetstream.LimitsPolicy
	q.info.Retention = c.MaxAge
	if c.MaxMsgSize > 0 {
		q.info.MaxPayload = min(q.info.MaxPayload, max(1, int(c.MaxMsgSize)-headerRoom))
	}
	if c.MaxAge > 0 {
		q.find(true, "stream %s drops messages older than %s, finished or not", q.n.stream, c.MaxAge)
	}
	if c.Discard == jetstream.DiscardOld && (c.MaxMsgs > 0 || c.MaxBytes > 0 || c.MaxMsgsPerSubject > 0) {
		q.find(true, "stream %s drops its oldest messages, finished or not, when it reaches its limits: set its discard policy to new", q.n.stream)
	}
	if q.limits {
		q.find(false, "stream %s keeps what is finished until its limits are reached (retention limits)", q.n.stream)
	}
	if c.Storage == jetstream.MemoryStorage {
		q.find(true, "stream %s lives in memory: its messages end with the server", q.n.stream)
	}
}

func (q *queue) find(warning bool, format string, args ...any) {
	q.info.Findings = append(q.info.Findings, drivers.Finding{Warning: warning, Text: fmt.Sprintf(format, args...)})
}

func (q *queue) setupTally(ctx context.Context) error {
	name := q.tally.stream
	_, err := q.d.js.Stream(ctx, name)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return wrap(err, "stream "+name)
	}
	if !q.o.Create {
		return fmt.Errorf("key-value bucket %s does not exist: create it (nats kv add %s --history 1), or set create = true", q.n.bucket, q.n.bucket)
	}
	// A bucket of which single keys can really be deleted, and which only its leader
	// answers for: a follower may not have the latest tally yet.
	_, err = q.d.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{"$KV." + q.n.bucket + ".>"},
		Description: "tallies of the guesthand queue " + q.n.queue,
		Storage:     jetstream.FileStorage, Discard: jetstream.DiscardNew,
		MaxMsgsPerSubject: 1, MaxAge: tallyKeep, AllowRollup: true,
		Metadata: ourMetadata(),
	})
	return wrap(err, "create stream "+name)
}

func (q *queue) setupDead(ctx context.Context) error {
	want := jetstream.StreamConfig{
		Name: q.n.deadStream, Subjects: []string{q.n.deadPrefix + ">"},
		Description: "dead letters of the guesthand queue " + q.n.queue,
		Storage:     jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
		MaxAge: q.o.DeadKeep, MaxMsgs: -1, Metadata: ourMetadata(),
	}
	if q.o.DeadMax > 0 {
		want.MaxMsgs = int64(q.o.DeadMax)
	}
	s, err := q.d.js.Stream(ctx, q.n.deadStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if !q.o.Create {
			return fmt.Errorf("stream %s for dead letters does not exist: create it with subject %s, or set create = true", q.n.deadStream, q.n.deadPrefix+">")
		}
		_, err = q.d.js.CreateStream(ctx, want)
		return wrap(err, "create stream "+q.n.deadStream)
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", q.n.deadStream, err)
	}
	have := s.CachedInfo().Config
	if !coveredBy(have.Subjects, q.n.deadPrefix+">") {
		return fmt.Errorf("stream %s has the subjects %q and does not take %s: add that subject", q.n.deadStream, have.Subjects, q.n.deadPrefix+">")
	}
	if !ours(have.Metadata) || !q.o.Create || have.MaxAge == want.MaxAge && have.MaxMsgs == want.MaxMsgs {
		return nil
	}
	q.log.Info("the bounds of the dead letters change", slog.String("stream", q.n.deadStream),
		slog.Duration("keep", want.MaxAge), slog.Int64("max", want.MaxMsgs))
	have.MaxAge, have.MaxMsgs = want.MaxAge, want.MaxMsgs
	if have.Duplicates > have.MaxAge && have.MaxAge > 0 {
		have.Duplicates = have.MaxAge
	}
	_, err = q.d.js.UpdateStream(ctx, have)
	return wrap(err, "stream "+q.n.deadStream)
}

func wrap(err error, what string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// incarnation tells one life of stream and consumer from the next.
type incarnation struct {
	stream, consumer int64 // when they were created, Unix ns
	// birth is the sequence up to which a first delivery may have a tally.
	birth uint64
}

// setupConsumer finds or creates the consumer and establishes the birth mark. opening is
// false when it has to be found again at run time.
func (q *queue) setupConsumer(ctx context.Context, opening bool) error {
	stream, err := q.d.js.Stream(ctx, q.n.stream)
	if err != nil {
		return fmt.Errorf("stream %s: %w", q.n.stream, err)
	}
	cons, err := stream.Consumer(ctx, q.n.consumer)
	created := false
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		created = true
		cons, err = q.createConsumer(ctx, stream, opening)
	}
	if err != nil {
		return fmt.Errorf("consumer %s of stream %s: %w", q.n.consumer, q.n.stream, err)
	}
	info := cons.CachedInfo()
	if info, err = q.adjustConsumer(ctx, stream, info, opening); err != nil {
		return err
	}
	// Asked for after the consumer: what came later was handed out by this one only.
	sinfo, err := stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("stream %s: %w", q.n.stream, err)
	}
	if !created && opening && q.ahead(info, sinfo) {
		return q.replaceDeafConsumer(ctx, stream)
	}
	return q.mark(ctx, info, sinfo)
}

func (q *queue) createConsumer(ctx context.Context, stream jetstream.Stream, opening bool) (jetstream.Consumer, error) {
	known, _, err := q.tally.readBirth(ctx)
	if err != nil {
		return nil, err
	}
	again := !opening || known != nil && known.Consumer != 0 && known.Stream == stream.CachedInfo().Created.UnixNano()
	if again && q.limits {
		return nil, fmt.Errorf("%w: it was deleted, and on a stream that keeps finished messages a new one would run all of them again; "+
			"create it yourself with the start sequence you want", errGone)
	}
	if !q.o.Create {
		return nil, fmt.Errorf("%w: create it as a durable pull consumer with explicit acknowledgement and unlimited deliveries, or set create = true", errGone)
	}
	if again {
		q.log.Warn("the consumer was deleted and is made again", slog.String("consumer", q.n.consumer))
	}
	filter := q.n.subject
	return stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: q.n.consumer, FilterSubject: filter,
		Description: "workers of the guesthand queue " + q.n.queue,
		AckPolicy:   jetstream.AckExplicitPolicy, AckWait: q.o.Lease,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		// The host decides when a message has had enough, never the server, and a
		// back-off there would bend every delay.
		MaxDeliver: -1, MaxAckPending: maxAckPending,
		Metadata: ourMetadata(),
	})
}

// errGone: the consumer is missing and must not be made by us.
var errGone = errors.New("it does not exist")

// adjustConsumer checks a consumer. When the queue is opened it also applies a changed lease to
// one of ours, and notes what bends a policy.
func (q *queue) adjustConsumer(ctx context.Context, stream jetstream.Stream, info *jetstream.ConsumerInfo, opening bool) (*jetstream.ConsumerInfo, error) {
	c := info.Config
	switch {
	case c.AckPolicy != jetstream.AckExplicitPolicy:
		return nil, fmt.Errorf("consumer %s acknowledges %s: explicit acknowledgement is needed", q.n.consumer, c.AckPolicy)
	case c.DeliverSubject != "":
		return nil, fmt.Errorf("consumer %s is a push consumer: a pull consumer is needed", q.n.consumer)
	}
	if !opening {
		return info, nil
	}
	if ours(c.Metadata) && q.o.Create && c.AckWait != q.o.Lease {
		c.AckWait, c.Metadata = q.o.Lease, maps.Clone(c.Metadata)
		updated, err := stream.UpdateConsumer(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("set the lease of consumer %s: %w", q.n.consumer, err)
		}
		info = updated.CachedInfo()
		c = info.Config
	}
	q.consumerFindings(c)
	return info, nil
}

// consumerFindings notes what a consumer's settings do to policies.
func (q *queue) consumerFindings(c jetstream.ConsumerConfig) {
	if len(c.BackOff) > 0 {
		q.find(true, "consumer %s has a back-off %v, which adds to every delay and is its lease", q.n.consumer, c.BackOff)
	}
	if c.MaxDeliver > 0 {
		q.info.DeliveryLimit = drivers.DeliveryLimit{Deliveries: c.MaxDeliver, Setting: "max_deliver of consumer " + q.n.consumer}
	}
	if c.MaxAckPending > 0 && c.MaxAckPending < 10_000 {
		q.find(true, "consumer %s stands still with %d messages delayed or in flight: set max_ack_pending to %d", q.n.consumer, c.MaxAckPending, maxAckPending)
	}
	if c.AckWait != q.o.Lease {
		q.find(true, "consumer %s has a lease (ack_wait) of %s, not the %s configured", q.n.consumer, c.AckWait, q.o.Lease)
	}
}

// ahead reports a consumer that counts beyond its stream's end, as a power cut may leave it:
// it would not see a message until the stream has caught up.
func (q *queue) ahead(c *jetstream.ConsumerInfo, s *jetstream.StreamInfo) bool {
	return c.AckFloor.Stream > s.State.LastSeq || c.Delivered.Stream > s.State.LastSeq
}

func (q *queue) replaceDeafConsumer(ctx context.Context, stream jetstream.Stream) error {
	if q.limits || !q.o.Create {
		return fmt.Errorf("consumer %s is ahead of its stream %s, as after a power cut, and would see no message: delete and create it with the start sequence you want", q.n.consumer, q.n.stream)
	}
	q.log.Warn("the consumer is ahead of its stream, as after a power cut: it is made again", slog.String("consumer", q.n.consumer))
	if err := stream.DeleteConsumer(ctx, q.n.consumer); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("consumer %s: %w", q.n.consumer, err)
	}
	return q.setupConsumer(ctx, false)
}

// mark takes over the birth mark, and raises it where the server's counts may have gone back:
// a new consumer, or a server process that was not seen before.
func (q *queue) mark(ctx context.Context, c *jetstream.ConsumerInfo, s *jetstream.StreamInfo) error {
	raise := uint64(0)
	if q.session != nil {
		if err := q.recover(ctx, s.State.LastSeq); err != nil {
			return fmt.Errorf("recover the started messages: %w", err)
		}
		raise = q.session.raise
	}
	server := q.d.nc.ConnectedServerId()
	b, err := q.tally.updateBirth(ctx, func(b *birth) bool {
		old := *b
		if b.Consumer != c.Created.UnixNano() || b.Stream != s.Created.UnixNano() {
			*b = birth{Seq: s.State.LastSeq, Consumer: c.Created.UnixNano(), Stream: s.Created.UnixNano(), Server: server}
		}
		if b.Server != server && q.session == nil {
			b.Seq = max(b.Seq, s.State.LastSeq)
		}
		b.Seq = max(b.Seq, raise)
		b.Server = server
		return *b != old
	})
	if err != nil {
		return err
	}
	if raise > 0 {
		if err := q.session.journal.Recovered(); err != nil {
			return fmt.Errorf("journal of started messages: %w", err)
		}
	}
	if old := q.inc.Load(); old == nil || old.stream != b.Stream {
		q.acked.reset(b.Stream)
	}
	q.inc.Store(&incarnation{stream: b.Stream, consumer: b.Consumer, birth: b.Seq})
	q.ackWait.Store(int64(leaseOf(c.Config)))
	q.pullMax.Store(int64(requestLimit(c.Config)))
	return nil
}

// hasTallies reports whether the bucket holds anything but the mark.
func (q *queue) hasTallies(ctx context.Context) (bool, error) {
	s, err := q.d.js.Stream(ctx, q.tally.stream)
	if err != nil {
		return false, fmt.Errorf("stream %s: %w", q.tally.stream, err)
	}
	return s.CachedInfo().State.Msgs > 1, nil
}

// leaseOf is the consumer's own lease; a back-off replaces it.
func leaseOf(c jetstream.ConsumerConfig) time.Duration {
	lease := c.AckWait
	for _, b := range c.BackOff {
		lease = min(lease, b)
	}
	if lease <= 0 {
		lease = defaultLease
	}
	return lease
}

func requestLimit(c jetstream.ConsumerConfig) int {
	if c.MaxRequestBatch > 0 {
		return min(c.MaxRequestBatch, maxPull)
	}
	return maxPull
}
