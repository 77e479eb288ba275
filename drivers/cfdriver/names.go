package cfdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/cloudflare/cloudflare-go/v6/option"
	"github.com/cloudflare/cloudflare-go/v6/queues"

	"github.com/guesthand/guesthand/drivers"
)

// Keys of QueueOptions.Names.
const (
	NameQueue     = "queue"      // name or id; default guesthand-NAME
	NameDeadQueue = "dead_queue" // name or id; default dead-guesthand-NAME
)

const (
	// ownPrefix marks a queue as ours, whoever made it.
	ownPrefix  = "guesthand-"
	deadPrefix = "dead-" + ownPrefix
	// longestRetention is Cloudflare's, and what queues we create get; shortestRetention too.
	longestRetention  = 14 * 24 * time.Hour
	shortestRetention = time.Minute
	// createdRetries is Cloudflare's largest max_retries: on a queue of ours only stalls and
	// rejects use it up, on others every retry and delay does.
	createdRetries = 100

	typePull   = "http_pull"
	typeWorker = "worker"
)

// names are a queue's names at Cloudflare, and the ids they stand for.
type names struct {
	queue, dead string // as configured: names or ids
	id, deadID  string
	own         bool
}

var (
	queueName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,47}$`)
	ownName   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	queueID   = regexp.MustCompile(`^[0-9a-f]{32}$`)
	anyName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)
)

func namesOf(o drivers.QueueOptions) (names, error) {
	if !queueName.MatchString(o.Name) {
		return names{}, fmt.Errorf("a queue's name is up to 48 of a-z, 0-9, _ and -, not %q", o.Name)
	}
	n := names{queue: o.Names[NameQueue], dead: o.Names[NameDeadQueue]}
	for key, value := range o.Names {
		switch {
		case key != NameQueue && key != NameDeadQueue:
			return n, fmt.Errorf("unknown name %q, Cloudflare queues have queue and dead_queue", key)
		case !anyName.MatchString(value):
			return n, fmt.Errorf("%s %q: Cloudflare's names have up to 63 letters, digits and -", key, value)
		}
	}
	if (n.queue == "" || n.dead == "") && !ownName.MatchString(o.Name) {
		return n, fmt.Errorf("no name at Cloudflare, of letters, digits and - inside, follows from %q: "+
			"set queue and dead_queue in [queues.%s.cloudflare]", o.Name, o.Name)
	}
	if n.queue == "" {
		n.queue = ownPrefix + o.Name
	}
	if n.dead == "" {
		n.dead = deadPrefix + o.Name
	}
	if n.queue == n.dead {
		return n, fmt.Errorf("queue and dead_queue are both %q", n.queue)
	}
	return n, nil
}

// description is a queue as Cloudflare describes it.
type description struct {
	ID       string `json:"queue_id"`
	Name     string `json:"queue_name"`
	Settings struct {
		Delay     float64 `json:"delivery_delay"`
		Paused    bool    `json:"delivery_paused"`
		Retention float64 `json:"message_retention_period"`
	} `json:"settings"`
	Consumers []consumer `json:"consumers"`
}

// consumer is one of a queue's.
type consumer struct {
	Type     string `json:"type"`
	Script   string `json:"script_name"`
	Dead     string `json:"dead_letter_queue"`
	Settings struct {
		MaxRetries *float64 `json:"max_retries"`
		RetryDelay float64  `json:"retry_delay"`
	} `json:"settings"`
}

func (d *description) retention() time.Duration {
	return time.Duration(d.Settings.Retention) * time.Second
}

// pull is the queue's HTTP pull consumer, nil for none, and whether a Worker consumes it.
func (d *description) pull() (c *consumer, worker bool) {
	for i := range d.Consumers {
		switch d.Consumers[i].Type {
		case typePull:
			c = &d.Consumers[i]
		case typeWorker:
			worker = true
		}
	}
	return c, worker
}

// list names the account's queues.
func (c *client) list(ctx context.Context) ([]description, error) {
	var p queues.QueueListParams
	p.AccountID.Value = c.account
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	page, err := c.service.List(ctx, p)
	if err != nil {
		return nil, apiError(err)
	}
	ds := make([]description, len(page.Result))
	for i := range page.Result {
		ds[i].ID, ds[i].Name = page.Result[i].QueueID, page.Result[i].QueueName
	}
	return ds, nil
}

func (c *client) get(ctx context.Context, id string) (description, error) {
	var p queues.QueueGetParams
	p.AccountID.Value = c.account
	d, err := call[description](ctx, c, func(ctx context.Context, o option.RequestOption) error {
		_, err := c.service.Get(ctx, id, p, o)
		return err
	})
	if err != nil {
		return d, err
	}
	var cp queues.ConsumerListParams
	cp.AccountID.Value = c.account
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	page, err := c.service.Consumers.List(ctx, id, cp)
	if err != nil {
		return d, wrap(apiError(err), "its consumers")
	}
	d.Consumers = nil
	for _, con := range page.Result {
		got := consumer{Type: string(con.Type), Script: con.ScriptName, Dead: con.DeadLetterQueue}
		if s, ok := con.Settings.(queues.ConsumerMqHTTPConsumerResponseSettings); ok {
			got.Settings.MaxRetries, got.Settings.RetryDelay = &s.MaxRetries, s.RetryDelay
		}
		d.Consumers = append(d.Consumers, got)
	}
	return d, nil
}

// create makes a queue that keeps its messages as long as it may.
func (c *client) create(ctx context.Context, name string, keep time.Duration, log *slog.Logger) (string, error) {
	var p queues.QueueNewParams
	p.AccountID.Value = c.account
	p.QueueName.Value, p.QueueName.Present = name, true
	d, err := call[description](ctx, c, func(ctx context.Context, o option.RequestOption) error {
		_, err := c.service.New(ctx, p, o)
		return err
	})
	if err != nil {
		return "", wrap(err, "create")
	}
	var e queues.QueueEditParams
	e.AccountID.Value = c.account
	e.Queue.Settings.Present = true
	retention := &e.Queue.Settings.Value.MessageRetentionPeriod
	retention.Value, retention.Present = float64(seconds(keep)), true
	_, err = call[struct{}](ctx, c, func(ctx context.Context, o option.RequestOption) error {
		_, err := c.service.Edit(ctx, d.ID, e, o)
		return err
	})
	if isRefused(err) { // a free plan has a day
		log.Info("Cloudflare keeps a new queue's messages for its own default time", slog.String("cloudflare_queue", name), slog.Any("error", err))
		err = nil
	}
	return d.ID, wrap(err, "set its message retention")
}

// addConsumer makes a queue pullable. dead is a queue's name, "" for none.
func (c *client) addConsumer(ctx context.Context, id, dead string) error {
	var b queues.ConsumerNewParamsBodyMqHTTPConsumerRequest
	b.Type.Value, b.Type.Present = queues.ConsumerNewParamsBodyMqHTTPConsumerRequestTypeHTTPPull, true
	if dead != "" {
		b.DeadLetterQueue.Value, b.DeadLetterQueue.Present = dead, true
	}
	b.Settings.Present = true
	s := &b.Settings.Value
	s.MaxRetries.Value, s.MaxRetries.Present = createdRetries, true
	p := queues.ConsumerNewParams{Body: b}
	p.AccountID.Value = c.account
	_, err := call[struct{}](ctx, c, func(ctx context.Context, o option.RequestOption) error {
		_, err := c.service.Consumers.New(ctx, id, p, o)
		return err
	})
	return wrap(err, "add an HTTP pull consumer")
}

// setup finds both queues, makes what is missing, and reads what Cloudflare says about them.
func (q *queue) setup(ctx context.Context) error {
	keep := longestRetention
	if q.o.DeadKeep > 0 {
		keep = min(keep, max(q.o.DeadKeep, shortestRetention))
	}
	dead, err := q.ensure(ctx, q.n.dead, keep)
	if err == nil {
		err = q.ensurePull(ctx, &dead, "", true)
	}
	if err != nil {
		return fmt.Errorf("dead_queue %s: %w", q.n.dead, err)
	}
	work, err := q.ensure(ctx, q.n.queue, longestRetention)
	if err == nil {
		err = q.ensurePull(ctx, &work, dead.Name, q.o.SendOnly)
	}
	if err != nil {
		return fmt.Errorf("queue %s: %w", q.n.queue, err)
	}
	if work.ID == dead.ID {
		return fmt.Errorf("queue and dead_queue are both %s", work.Name)
	}
	q.n.id, q.n.deadID = work.ID, dead.ID
	q.n.own = strings.HasPrefix(work.Name, ownPrefix)
	q.describe(&work, &dead)
	return nil
}

// ensure describes a queue, made where it is missing and may be.
func (q *queue) ensure(ctx context.Context, nameOrID string, keep time.Duration) (description, error) {
	if queueID.MatchString(nameOrID) {
		d, err := q.d.c.get(ctx, nameOrID)
		if isMissing(err) {
			err = fmt.Errorf("no queue has this id: %w", err)
		}
		return d, err
	}
	id, err := q.find(ctx, nameOrID)
	if err != nil {
		return description{}, err
	}
	if id == "" && !q.o.Create {
		return description{}, errors.New("it does not exist; create it, or set create = true")
	}
	if id == "" {
		made, err := q.d.c.create(ctx, nameOrID, keep, q.log)
		if isRefused(err) { // somebody else may have been faster
			var ferr error
			if made, ferr = q.find(ctx, nameOrID); ferr != nil || made == "" {
				return description{}, errors.Join(err, ferr)
			}
			err = nil
		}
		if err != nil {
			return description{}, err
		}
		id = made
	}
	return q.d.c.get(ctx, id)
}

func (q *queue) find(ctx context.Context, name string) (string, error) {
	ds, err := q.d.c.list(ctx)
	if err != nil {
		return "", wrap(err, "list the account's queues")
	}
	for _, d := range ds {
		if d.Name == name {
			return d.ID, nil
		}
	}
	return "", nil
}

// ensurePull sees to it that a queue can be pulled from, where it need not be if spared.
func (q *queue) ensurePull(ctx context.Context, d *description, dead string, spared bool) error {
	c, worker := d.pull()
	switch {
	case c != nil:
		return nil
	case worker && spared:
		return nil
	case worker:
		return errors.New("a Worker consumes it, and Cloudflare has one kind of consumer per queue: " +
			"remove the Worker's consumer and add an HTTP pull consumer, or name another queue")
	case !q.o.Create && spared:
		return nil
	case !q.o.Create:
		return fmt.Errorf("it has no HTTP pull consumer; add one (wrangler queues consumer http add %s), or set create = true", d.Name)
	}
	err := q.d.c.addConsumer(ctx, d.ID, dead)
	again, gerr := q.d.c.get(ctx, d.ID)
	if gerr != nil {
		return errors.Join(err, gerr)
	}
	*d = again
	if c, _ := d.pull(); c != nil {
		return nil // somebody else may have been faster
	}
	return err
}
