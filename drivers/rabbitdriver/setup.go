package rabbitdriver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/drivers"
)

const (
	argType          = "x-queue-type"
	argTTL           = "x-message-ttl"
	argMaxLength     = "x-max-length"
	argOverflow      = "x-overflow"
	argDeadExchange  = "x-dead-letter-exchange"
	argDeadKey       = "x-dead-letter-routing-key"
	argDeadStrategy  = "x-dead-letter-strategy"
	argDeliveryLimit = "x-delivery-limit"
	argConsumerWait  = "x-consumer-timeout"

	// limitSince is the version from which quorum queues have a delivery limit unless told
	// otherwise, and defaultLimit is it.
	limitSince   = "4.0"
	defaultLimit = 20
	// Largest bodies unless configured otherwise, before 4.0 and since.
	maxBody3 = 128 << 20
	maxBody4 = 16 << 20
)

var errNoQueue = errors.New("no such queue")

// workArgs are the arguments of queues that we make.
func (q *queue) workArgs() amqp.Table {
	a := amqp.Table{argType: q.n.kind}
	if q.n.kind == typeQuorum && q.limited() {
		a[argDeliveryLimit] = int32(-1) // the host's policy counts
	}
	return a
}

func (q *queue) limited() bool { return q.version != "" && atLeast(q.version, limitSince) }

func (q *queue) deadArgs() amqp.Table {
	a := q.workArgs()
	if q.o.DeadKeep > 0 {
		a[argTTL] = ttl(q.o.DeadKeep)
	}
	if q.o.DeadMax > 0 {
		a[argMaxLength] = int64(q.o.DeadMax)
		a[argOverflow] = "drop-head"
	}
	return a
}

// ttl is a time in ms, as long as RabbitMQ takes one.
func ttl(d time.Duration) int64 { return min(max(1, d.Milliseconds()), 1<<32-1) }

// holdArgs make a queue whose messages go to the work queue when their time is over. It must
// never expire itself: it would take its messages along.
func (q *queue) holdArgs(step int) amqp.Table {
	a := q.workArgs()
	a[argTTL] = ttl(holdTime(step))
	a[argDeadExchange] = ""
	a[argDeadKey] = q.n.work
	if q.n.kind == typeQuorum {
		a[argDeadStrategy] = "at-least-once"
		a[argOverflow] = "reject-publish"
	}
	return a
}

// holds are the hold queues known to be there.
type holds struct {
	mu    sync.Mutex
	known map[int]*session // on which connection that was seen
}

func (h *holds) has(step int, s *session) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known[step] == s
}

func (h *holds) add(step int, s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil {
		h.known = map[int]*session{}
	}
	h.known[step] = s
}

// holdFor is the queue that a copy goes to: the work queue, or the hold queue for what is
// left of its wait, which is made where it is missing.
func (q *queue) holdFor(ctx context.Context, r *record) (string, error) {
	left := time.Until(time.UnixMilli(r.Rest))
	if r.Rest == 0 || left <= 0 {
		return q.n.work, nil
	}
	step := hop(left, time.Duration(r.Whole)*time.Millisecond, q.maxStep)
	name := q.n.holdName(step)
	s, err := q.d.publishing.get(ctx)
	if err != nil {
		return "", err
	}
	if !q.o.Create || q.holds.has(step, s) {
		return name, nil
	}
	err = q.withChannel(ctx, s, func(ch *amqp.Channel) error { return declare(ch, name, q.holdArgs(step)) })
	if code(err) == amqp.PreconditionFailed {
		err = nil // it is there; what others made is used as it is
	}
	if err != nil {
		return "", fmt.Errorf("hold queue %s: %w", name, err)
	}
	q.holds.add(step, s)
	return name, nil
}

// withChannel runs requests on a channel of their own, which an error may close.
func (q *queue) withChannel(ctx context.Context, s *session, f func(*amqp.Channel) error) error {
	ch, err := s.channel(ctx)
	if err != nil {
		return err
	}
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	defer func() {
		s.closeChannel(ch)
		for range closes { // until the library has closed it
		}
	}()
	return s.call(ctx, func() error { return f(ch) })
}

func declare(ch *amqp.Channel, name string, args amqp.Table) error {
	_, err := ch.QueueDeclare(name, true, false, false, false, args)
	return err
}

// code is AMQP's number of an error, 0 for none.
func code(err error) int {
	var e *amqp.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// inspect returns how many messages wait in a queue, or errNoQueue.
func (q *queue) inspect(ctx context.Context, s *session, name string) (n int, err error) {
	err = q.withChannel(ctx, s, func(ch *amqp.Channel) error {
		state, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		n = state.Messages
		return err
	})
	if code(err) == amqp.NotFound {
		err = fmt.Errorf("queue %s: %w", name, errNoQueue)
	}
	return n, err
}

// ensure makes sure that the queues are there, and makes ours where they are not.
func (q *queue) ensure(ctx context.Context, s *session) error {
	for _, want := range []struct {
		name string
		args amqp.Table
	}{{q.n.work, q.workArgs()}, {q.n.dead, q.deadArgs()}} {
		_, err := q.inspect(ctx, s, want.name)
		if err == nil || !errors.Is(err, errNoQueue) {
			if err != nil {
				return err
			}
			continue
		}
		if !q.o.Create {
			return fmt.Errorf("%w; make it, or set create = true", err)
		}
		err = q.withChannel(ctx, s, func(ch *amqp.Channel) error { return declare(ch, want.name, want.args) })
		if err != nil && code(err) != amqp.PreconditionFailed { // somebody was faster, with other arguments
			return fmt.Errorf("make queue %s: %w", want.name, err)
		}
	}
	return nil
}

// setup makes what is missing and looks at the broker's limits.
func (q *queue) setup(ctx context.Context) error {
	s, err := q.d.consuming.get(ctx)
	if err != nil {
		return err
	}
	q.version = s.version
	if err := q.ensure(ctx, s); err != nil {
		return err
	}
	q.info.MaxPayload = maxBody3
	if q.limited() {
		q.info.MaxPayload = maxBody4
	}
	work, err := q.argsOf(ctx, s, q.n.work, q.workArgs())
	if err != nil {
		return err
	}
	dead, err := q.argsOf(ctx, s, q.n.dead, q.deadArgs())
	if err != nil {
		return err
	}
	q.judge(work)
	q.judgeDead(dead)
	return q.judgeHolds(ctx, s)
}

// inequivalent reads the broker's complaint about a queue declared with other arguments than
// it has: "inequivalent arg 'x' for queue 'q' in vhost '/': received V but current is V".
var (
	inequivalent = regexp.MustCompile(`(?s)inequivalent arg '([^']+)'.* but current is (.*)$`)
	valueOfType  = regexp.MustCompile(`(?s)^(?:the value )?'(.*)'(?: of type '([a-z]+)')?$`)
)

// maxProbes bounds the questions about one queue.
const maxProbes = 24

// argsOf reads a queue's arguments, which AMQP has no question for: declared with others than
// it has, the broker names one that differs and its value, and so on until all agree. Text
// that cannot be read ends it, with what is known by then.
func (q *queue) argsOf(ctx context.Context, s *session, name string, ours amqp.Table) (amqp.Table, error) {
	args := maps.Clone(ours)
	for range maxProbes {
		err := q.withChannel(ctx, s, func(ch *amqp.Channel) error { return declare(ch, name, args) })
		if err == nil {
			return args, nil
		}
		if code(err) != amqp.PreconditionFailed {
			return nil, fmt.Errorf("queue %s: %w", name, err)
		}
		var e *amqp.Error
		errors.As(err, &e)
		m := inequivalent.FindStringSubmatch(e.Reason)
		if m == nil || m[1] == "durable" || m[1] == "auto_delete" || m[1] == "exclusive" {
			break
		}
		if v := valueOfType.FindStringSubmatch(m[2]); v == nil {
			delete(args, m[1]) // none
		} else if n, err := strconv.ParseInt(v[1], 10, 64); err == nil {
			args[m[1]] = n
		} else {
			args[m[1]] = v[1]
		}
	}
	return args, nil
}

func (q *queue) finding(warning bool, format string, args ...any) {
	q.info.Findings = append(q.info.Findings, drivers.Finding{Warning: warning, Text: fmt.Sprintf(format, args...)})
}

// judge says what the work queue's own limits mean for the host's policies.
func (q *queue) judge(args amqp.Table) {
	kind, known := args[argType].(string)
	if !known {
		kind = typeClassic // what a queue without the argument is
	}
	limit, setting := number(args[argDeliveryLimit]), argDeliveryLimit[2:]
	if args[argDeliveryLimit] == nil && kind == typeQuorum && q.limited() {
		limit, setting = defaultLimit, "the default delivery-limit"
	}
	exchange, has := args[argDeadExchange].(string)
	if limit > 0 {
		q.info.DeliveryLimit = drivers.DeliveryLimit{Deliveries: limit, Setting: setting + " of queue " + q.n.work, PerCopy: true}
		if !has {
			q.finding(true, "queue %s has a delivery limit of %d and no dead-letter exchange among its arguments: a message that reaches the limit is dropped without a trace; set x-dead-letter-exchange or a policy", q.n.work, limit)
		}
	}
	if has {
		q.finding(false, "rejected messages go to the dead-letter exchange %q", exchange)
	} else {
		q.finding(false, "queue %s has no dead-letter exchange among its arguments: a rejected message is dropped, unless a policy sets one", q.n.work)
	}
	if kind == typeClassic {
		q.info.Caps.ExactCounts = ClassicCaps().ExactCounts
		q.finding(q.n.kind != typeClassic, "queue %s is a classic queue: it is on one node only, and a message whose worker died goes to its end, replaced by a copy that counts the stall", q.n.work)
	}
	if n := number(args[argConsumerWait]); n > 0 {
		q.finding(true, "queue %s has a consumer timeout of %s: a handler that runs longer loses its message, and with it everything this host holds of the queue", q.n.work, time.Duration(n)*time.Millisecond)
	} else {
		q.finding(false, "the broker's consumer_timeout cannot be read over AMQP; it is 30m unless set, and a handler that runs longer loses its message, and with it everything this host holds of the queue")
	}
	if number(args[argTTL]) > 0 {
		q.info.Retention = time.Duration(number(args[argTTL])) * time.Millisecond
		q.finding(true, "queue %s drops messages after %s (x-message-ttl)", q.n.work, q.info.Retention)
	}
	if n := number(args[argMaxLength]); n > 0 && args[argOverflow] != "reject-publish" {
		q.finding(true, "queue %s drops its oldest message above %d (x-max-length), retries among them; set x-overflow to reject-publish", q.n.work, n)
	}
}

// judgeDead compares the bounds of the dead letters with those asked for: the queue of an
// earlier configuration keeps its own.
func (q *queue) judgeDead(args amqp.Table) {
	want := q.deadArgs()
	for _, bound := range []struct{ arg, key, unit string }{{argTTL, "dead.keep", " ms"}, {argMaxLength, "dead.max", ""}} {
		have, asked := number(args[bound.arg]), number(want[bound.arg])
		if have != asked {
			q.finding(true, "queue %s was made with %s = %d%s, and %s asks for %d%s (0: no bound): the queue stays as it is; replay or drop its letters and delete it, and it is made anew",
				q.n.dead, bound.arg, have, bound.unit, bound.key, asked, bound.unit)
		}
	}
	q.bounds.max = number(args[argMaxLength])
	q.bounds.keep = time.Duration(number(args[argTTL])) * time.Millisecond
}

// judgeHolds names the hold queues that are missing where we must not make them.
func (q *queue) judgeHolds(ctx context.Context, s *session) error {
	if q.o.Create {
		return nil
	}
	for step := range q.maxStep + 1 {
		_, err := q.inspect(ctx, s, q.n.holdName(step))
		if errors.Is(err, errNoQueue) {
			q.finding(true, "hold queue %s is missing, and create is false: a retry or delay that needs it is an error; declare it with x-message-ttl = %d, x-dead-letter-exchange = \"\" and x-dead-letter-routing-key = %q",
				q.n.holdName(step), ttl(holdTime(step)), q.n.work)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}
