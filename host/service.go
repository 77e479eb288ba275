package host

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/ledger"
	"github.com/guesthand/guesthand/host/plugindir"
)

// Operations answers what people ask of queues, with or without a running host.
type Operations struct {
	config  func() *config.Config
	brokers *Brokers
	ledger  *ledger.Ledger
	flush   bool // the ledger is being written by this process
	pauses  func() (*pauses, error)
	gates   *gates // nil where no host runs
}

var (
	_ admin.Service = (*Operations)(nil)
	_ admin.Host    = (*Host)(nil)
)

// NewOperations works on brokers and ledger directly, for commands while no host runs.
func NewOperations(c *config.Config, b *Brokers, l *ledger.Ledger) *Operations {
	return &Operations{config: func() *config.Config { return c }, brokers: b, ledger: l,
		pauses: func() (*pauses, error) { return openPauses(pausesFile(c)) }}
}

func (h *Host) operations() *Operations {
	return &Operations{config: h.Config, brokers: h.brokers, ledger: h.ledger, flush: true,
		pauses: func() (*pauses, error) { return h.pauses, nil }, gates: &h.gates}
}

// Send implements admin.Service.
func (o *Operations) Send(ctx context.Context, queue string, ms []drivers.Message) ([]string, []error, error) {
	q, err := o.brokers.Queue(ctx, queue)
	if err != nil {
		return nil, nil, err
	}
	ids := make([]string, len(ms))
	for i := range ms {
		if ms[i].ID == "" {
			id, err := uuid.NewV7()
			if err != nil {
				return nil, nil, fmt.Errorf("new id: %w", err)
			}
			ms[i].ID = id.String()
		}
		ids[i] = ms[i].ID
	}
	return ids, q.Send(ctx, ms), nil
}

// Queues implements admin.Service. A broker that does not answer is shown in its queues'
// lines and keeps the others from nothing.
func (o *Operations) Queues(ctx context.Context) ([]admin.QueueStatus, error) {
	c := o.config()
	names := slices.Sorted(maps.Keys(c.Queues))
	paused, err := o.pauses()
	if err != nil {
		return nil, err
	}
	out := make([]admin.QueueStatus, len(names))
	ctx, cancel := context.WithTimeout(ctx, countBudget)
	defer cancel()
	var counting sync.WaitGroup
	for i, name := range names {
		counting.Go(func() {
			broker := c.Queues[name].Broker
			s := admin.QueueStatus{Queue: name, Broker: broker, Driver: c.Brokers[broker].Driver}
			s.Pauses, s.Paused = o.paused(paused, c.Queues[name])
			n, err := o.counts(ctx, name)
			if err != nil {
				s.Error = err.Error()
			}
			s.Depth, s.InFlight, s.Delayed, s.Dead, s.Oldest = n.Depth, n.InFlight, n.Delayed, n.Dead, n.Oldest
			out[i] = s
		})
	}
	counting.Wait()
	return out, nil
}

// paused is what is paused of a queue, and whether that is all of it.
func (o *Operations) paused(p *pauses, q config.Queue) (some []admin.Pause, all bool) {
	some = p.of(q.Name)
	if o.gates != nil {
		some = append(some, o.gates.pauses(q.Name, q.Handler)...)
	}
	return some, slices.ContainsFunc(some, func(p admin.Pause) bool { return p.Job == "" || p.Job == q.Handler })
}

// Pause implements admin.Service.
func (o *Operations) Pause(_ context.Context, p admin.Pause) error {
	c := o.config()
	if _, ok := c.Queues[p.Queue]; !ok {
		return &UnknownQueueError{Name: p.Queue, Known: slices.Sorted(maps.Keys(c.Queues))}
	}
	if p.Job != "" && !config.ValidJob(p.Job) {
		return fmt.Errorf("%w: %q is no job's name", drivers.ErrInvalid, p.Job)
	}
	store, err := o.pauses()
	if err != nil {
		return err
	}
	p.Since, p.ByHandler = time.Now(), false
	return store.set(p)
}

// Resume implements admin.Service.
func (o *Operations) Resume(_ context.Context, queue, job string) error {
	c := o.config()
	if _, ok := c.Queues[queue]; !ok {
		return &UnknownQueueError{Name: queue, Known: slices.Sorted(maps.Keys(c.Queues))}
	}
	store, err := o.pauses()
	if err != nil {
		return err
	}
	if err := store.resume(queue, job); err != nil {
		return err
	}
	if o.gates != nil {
		if job == "" {
			job = c.Queues[queue].Handler
		}
		o.gates.resume(job)
	}
	return nil
}

// countBudget is how long brokers may take to say how much they hold.
const countBudget = 5 * time.Second

func (o *Operations) counts(ctx context.Context, queue string) (drivers.Counts, error) {
	q, err := o.brokers.Queue(ctx, queue)
	if err != nil {
		return drivers.Counts{}, err
	}
	return q.Counts(ctx)
}

// Handlers implements admin.Service.
func (o *Operations) Handlers(context.Context) ([]plugindir.Status, error) { return nil, nil }

// maxListedResult is the largest result in a list of many runs, bytes: larger ones come with
// one message's runs only.
const maxListedResult = 4 << 10

// Runs implements admin.Service.
func (o *Operations) Runs(ctx context.Context, f ledger.Filter) ([]ledger.Row, error) {
	switch {
	case o.config().Ledger.Driver == "none":
		return nil, admin.ErrNoLedger
	case o.ledger == nil: // nothing was run yet
		return nil, nil
	}
	if o.flush {
		if err := o.ledger.Flush(ctx); err != nil {
			return nil, err
		}
	}
	rows, err := o.ledger.Runs(ctx, f)
	for i := range rows {
		if f.ID == "" && len(rows[i].Result) > maxListedResult {
			rows[i].Result = nil
		}
	}
	return rows, err
}

// Dead implements admin.Service.
func (o *Operations) Dead(ctx context.Context, queue string) (drivers.DeadLetters, error) {
	q, err := o.brokers.Queue(ctx, queue)
	if err != nil {
		return nil, err
	}
	d, ok := q.(drivers.DeadLetters)
	if !ok {
		return nil, fmt.Errorf("dead letters of queue %s: %w", queue, drivers.ErrUnsupported)
	}
	return d, nil
}

// Send implements admin.Service.
func (h *Host) Send(ctx context.Context, queue string, ms []drivers.Message) ([]string, []error, error) {
	return h.operations().Send(ctx, queue, ms)
}

// Queues implements admin.Service.
func (h *Host) Queues(ctx context.Context) ([]admin.QueueStatus, error) {
	return h.operations().Queues(ctx)
}

// Handlers implements admin.Service.
func (h *Host) Handlers(context.Context) ([]plugindir.Status, error) { return h.plugins.Status(), nil }

// Runs implements admin.Service.
func (h *Host) Runs(ctx context.Context, f ledger.Filter) ([]ledger.Row, error) {
	return h.operations().Runs(ctx, f)
}

// Pause implements admin.Service.
func (h *Host) Pause(ctx context.Context, p admin.Pause) error {
	return h.operations().Pause(ctx, p)
}

// Resume implements admin.Service.
func (h *Host) Resume(ctx context.Context, queue, job string) error {
	return h.operations().Resume(ctx, queue, job)
}

// Dead implements admin.Service.
func (h *Host) Dead(ctx context.Context, queue string) (drivers.DeadLetters, error) {
	return h.operations().Dead(ctx, queue)
}

// Unready implements admin.Host: a broker is away, a queue's only handler is missing, or
// the host is stopping.
func (h *Host) Unready(ctx context.Context) []string {
	if h.stopping.Load() {
		return []string{"stopping"}
	}
	var why []string
	for name, err := range h.brokers.Ping(ctx) {
		why = append(why, fmt.Sprintf("broker %s does not answer: %v", name, err))
	}
	for name, q := range h.Config().Queues {
		if q.Handler == "" {
			continue
		}
		p, state := h.plugins.Acquire(q.Handler)
		if p == nil {
			why = append(why, fmt.Sprintf("queue %s: its handler %s is %s", name, q.Handler, state))
			continue
		}
		p.Release()
	}
	slices.Sort(why)
	return why
}
