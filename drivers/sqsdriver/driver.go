package sqsdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/guesthand/guesthand/drivers"
)

const (
	defaultLease = 30 * time.Second
	defaultWait  = 10 * time.Second
	// callTimeout bounds every call but a long poll, and is what a long poll may take beyond
	// its wait: the SDK's client has no read timeout of its own.
	callTimeout = 10 * time.Second
	// maxVisibility is SQS's limit from the receive on, whatever is renewed.
	maxVisibility = 12 * time.Hour
	// visibilityMargin is kept from that limit, for clocks and requests on their way.
	visibilityMargin = time.Minute
	// longestRun is what a lease can be relied on for.
	longestRun = 11*time.Hour + 50*time.Minute
	maxDelay   = 900 * time.Second
	// parallel is how many batches are on their way at a time.
	parallel = 8
)

// Options say how to reach SQS. The zero value is the SDK's own configuration: environment,
// shared files, instance role.
type Options struct {
	// Endpoint overrides where requests go, for emulators and private endpoints; "" for what
	// the SDK says (AWS_ENDPOINT_URL included).
	Endpoint string
	// Region; "" for what the SDK says.
	Region string
	// Worker names this host in dead letters and logs.
	Worker string
	// Store keeps the counts of messages that cannot carry them; nil for none.
	Store drivers.KeyValue
	// Logger takes what has no caller to go to; default none.
	Logger *slog.Logger

	// Wait is how long a poll waits at SQS, in whole seconds up to 20; 10 s. Close waits for
	// it.
	Wait time.Duration
	// MaxDelay, if not 0, is the longest delay given to SQS at once, at least a second; longer
	// ones hop.
	MaxDelay time.Duration
	// MaxVisibility, if not 0, shrinks SQS's limit of 12 hours on a message's visibility, and
	// CallTimeout the 10 s for a call. Tests use them.
	MaxVisibility, CallTimeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Wait == 0 {
		o.Wait = defaultWait
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = callTimeout
	}
	return o
}

// Validate names the first option that cannot be.
func (o Options) Validate() error {
	switch {
	case o.Wait < 0 || o.Wait > 20*time.Second || o.Wait%time.Second != 0:
		return fmt.Errorf("wait is whole seconds up to 20, not %s", o.Wait)
	case o.MaxDelay < 0 || o.MaxVisibility < 0 || o.CallTimeout < 0:
		return errors.New("a negative MaxDelay, MaxVisibility or CallTimeout")
	}
	return nil
}

// Caps is what every standard queue can do.
func Caps() drivers.Caps {
	return drivers.Caps{
		MaxDelay:    maxDelay,
		Granularity: time.Second,
		Renewable:   true,
		ExactCounts: true,
		Durable:     true,
	}
}

// FIFOCaps is what every FIFO queue can do, with a store and without. Order holds within a
// message group, which is the producer's to name, so Ordered is false for the queue as a whole.
func FIFOCaps(store bool) drivers.Caps {
	return drivers.Caps{
		MaxDelay:    longestRun,
		Granularity: time.Second,
		Renewable:   true,
		ExactCounts: store,
		StableIDs:   true,
		Durable:     true,
		Keys:        true,
	}
}

// Driver is a client of SQS in one region.
type Driver struct {
	o   Options
	c   *sqs.Client
	log *slog.Logger

	mu     sync.Mutex
	queues map[*queue]struct{}
	closed bool
}

var _ drivers.Driver = (*Driver)(nil)

// Open makes a client and asks SQS whether it answers.
func Open(ctx context.Context, o Options) (*Driver, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("SQS: %w", err)
	}
	o = o.withDefaults()
	var load []func(*config.LoadOptions) error
	if o.Region != "" {
		load = append(load, config.WithRegion(o.Region))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("SQS: configuration of the AWS SDK: %w", err)
	}
	if cfg.Region == "" && o.Endpoint == "" && cfg.BaseEndpoint == nil {
		return nil, errors.New("SQS: no region: set region in the broker's section, or AWS_REGION")
	}
	if cfg.Region == "" {
		cfg.Region = "us-east-1" // emulators do not care, signatures need one
	}
	d := &Driver{o: o, log: o.Logger, queues: map[*queue]struct{}{}, c: newClient(cfg, o)}
	if err := d.Ping(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

func newClient(cfg aws.Config, o Options) *sqs.Client {
	return sqs.NewFromConfig(cfg, func(c *sqs.Options) {
		if o.Endpoint != "" {
			c.BaseEndpoint = aws.String(o.Endpoint)
		}
		// A repeated receive leases a second batch and leaves the first unseen, a repeated
		// send makes a second message: the caller decides what is worth another try.
		c.Retryer = aws.NopRetryer{}
		if b, ok := cfg.HTTPClient.(*awshttp.BuildableClient); ok {
			c.HTTPClient = pooled(b)
		} else if cfg.HTTPClient == nil {
			c.HTTPClient = pooled(awshttp.NewBuildableClient())
		}
	})
}

// OpenQueue implements drivers.Driver.
func (d *Driver) OpenQueue(ctx context.Context, o drivers.QueueOptions) (drivers.Queue, error) {
	if o.Lease <= 0 {
		o.Lease = defaultLease
	}
	if o.Worker == "" {
		o.Worker = d.o.Worker
	}
	if d.isClosed() {
		return nil, fmt.Errorf("queue %s: %w", o.Name, drivers.ErrClosed)
	}
	q, err := d.newQueue(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("queue %s: %w", o.Name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		q.abandon()
		return nil, fmt.Errorf("queue %s: %w", o.Name, drivers.ErrClosed)
	}
	d.queues[q] = struct{}{}
	return q, nil
}

func (d *Driver) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

func (d *Driver) openQueues() []*queue {
	d.mu.Lock()
	defer d.mu.Unlock()
	qs := make([]*queue, 0, len(d.queues))
	for q := range d.queues {
		qs = append(qs, q)
	}
	return qs
}

func (d *Driver) forget(q *queue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.queues, q)
}

// Ping implements drivers.Driver. Without a queue open it asks for one that need not be
// there, and takes a refusal for an answer: rights may cover single queues only.
func (d *Driver) Ping(ctx context.Context) error {
	if d.isClosed() {
		return drivers.ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, d.o.CallTimeout)
	defer cancel()
	for _, q := range d.openQueues() {
		_, err := q.attributes(ctx, q.n.url)
		return wrap(err, "SQS")
	}
	_, err := d.c.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String("guesthand-ping")})
	if isMissing(err) || isDenied(err) {
		return nil
	}
	return wrap(err, "SQS")
}

// Close implements drivers.Driver.
func (d *Driver) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	qs := d.openQueues()
	errs := make([]error, len(qs))
	var wg sync.WaitGroup
	for i, q := range qs {
		wg.Go(func() { errs[i] = q.Close(ctx) })
	}
	wg.Wait()
	d.closeIdle()
	return errors.Join(errs...)
}

// Abandon ends everything as the death of the process would: nothing is given back. Tests of
// what a crash leaves use it.
func (d *Driver) Abandon() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	for _, q := range d.openQueues() {
		q.abandon()
	}
	d.closeIdle()
}
