package sqsdriver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/guesthand/guesthand/drivers"
)

// Keys of QueueOptions.Names.
const (
	NameQueue     = "queue"      // name or URL; default guesthand_NAME
	NameDeadQueue = "dead_queue" // name or URL; default guesthand-dead_NAME
)

const (
	queuePrefix = "guesthand_"
	deadPrefix  = "guesthand-dead_"
	fifoSuffix  = ".fifo"
	// longestRetention is SQS's, and what queues we create get.
	longestRetention = 14 * 24 * time.Hour
	// shortestRetention is SQS's.
	shortestRetention = time.Minute
	// createdReceives bounds how often a rejected message comes back on a standard queue of
	// ours: above any sensible max_stalls, the only other thing that counts there. On a FIFO
	// queue every delivery counts, so it gets SQS's largest.
	createdReceives     = 20
	createdReceivesFIFO = 1000
)

// names are a queue's names at SQS.
type names struct {
	queue, dead    string // names
	url, deadURL   string
	fifo, deadFIFO bool
	givenURL       bool
}

var (
	queueName  = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,47}$`)
	brokerName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,75}(\.fifo)?$|^[A-Za-z0-9_-]{1,80}$`)
)

func namesOf(o drivers.QueueOptions) (names, error) {
	if !queueName.MatchString(o.Name) {
		return names{}, fmt.Errorf("a queue's name is up to 48 of a-z, 0-9, _ and -, not %q", o.Name)
	}
	n := names{queue: queuePrefix + o.Name}
	for key, value := range o.Names {
		switch {
		case value == "":
			return n, fmt.Errorf("the name %s is empty", key)
		case key == NameQueue:
			n.queue, n.url = nameAndURL(value)
			n.givenURL = n.url != ""
		case key == NameDeadQueue:
			n.dead, n.deadURL = nameAndURL(value)
		default:
			return n, fmt.Errorf("unknown name %q, SQS queues have queue and dead_queue", key)
		}
	}
	n.fifo = strings.HasSuffix(n.queue, fifoSuffix)
	if n.dead == "" {
		n.dead = deadPrefix + o.Name
		if n.fifo { // a redrive policy wants the same kind
			n.dead += fifoSuffix
		}
	}
	n.deadFIFO = strings.HasSuffix(n.dead, fifoSuffix)
	for key, name := range map[string]string{NameQueue: n.queue, NameDeadQueue: n.dead} {
		if !brokerName.MatchString(name) {
			return n, fmt.Errorf("%s %q: SQS names have up to 80 letters, digits, _ and -, and may end in .fifo", key, name)
		}
	}
	if n.queue == n.dead {
		return n, fmt.Errorf("queue and dead_queue are both %q", n.queue)
	}
	return n, nil
}

// nameAndURL tells a queue's URL from its name.
func nameAndURL(s string) (name, url string) {
	if !strings.Contains(s, "://") {
		return s, ""
	}
	return s[strings.LastIndexByte(s, '/')+1:], s
}

// setup finds both queues, makes what is missing, and reads what SQS says about them.
func (q *queue) setup(ctx context.Context) error {
	dead, err := q.ensure(ctx, &q.n.deadURL, q.n.dead, func() map[string]string { return q.deadAttributes() })
	if err != nil {
		return fmt.Errorf("dead_queue %s: %w", q.n.dead, err)
	}
	work, err := q.ensure(ctx, &q.n.url, q.n.queue, func() map[string]string { return q.workAttributes(dead.arn) })
	if err != nil {
		return fmt.Errorf("queue %s: %w", q.n.queue, err)
	}
	q.n.fifo, q.n.deadFIFO = work.fifo, dead.fifo
	q.describe(work, dead)
	return nil
}

// ensure fills in a queue's URL and returns what it is like.
func (q *queue) ensure(ctx context.Context, url *string, name string, like func() map[string]string) (description, error) {
	if *url == "" {
		found, err := q.find(ctx, name)
		if isMissing(err) && q.o.Create {
			found, err = q.create(ctx, name, like())
		}
		if isMissing(err) {
			return description{}, fmt.Errorf("it does not exist; create it, or set create = true: %w", err)
		}
		if err != nil {
			return description{}, err
		}
		*url = found
	}
	a, err := q.attributes(ctx, *url)
	if err != nil {
		return description{}, err
	}
	return describe(name, a)
}

func (q *queue) find(ctx context.Context, name string) (string, error) {
	ctx, cancel := q.call(ctx)
	defer cancel()
	out, err := q.d.c.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String(name)})
	if err != nil {
		return "", err
	}
	return deref(out.QueueUrl), nil
}

func (q *queue) create(ctx context.Context, name string, a map[string]string) (string, error) {
	create, cancel := q.call(ctx)
	defer cancel()
	out, err := q.d.c.CreateQueue(create, &sqs.CreateQueueInput{QueueName: aws.String(name), Attributes: a})
	var exists *types.QueueNameExists
	if code := codeOf(err); errors.As(err, &exists) || code == codeNameExists || code == codeNameExistsQuery {
		return q.find(ctx, name) // somebody else was faster, with other attributes
	}
	if err != nil {
		return "", fmt.Errorf("create: %w", err)
	}
	return deref(out.QueueUrl), nil
}

func (q *queue) workAttributes(deadARN string) map[string]string {
	receives := createdReceives
	a := map[string]string{string(types.QueueAttributeNameMessageRetentionPeriod): strconv.Itoa(int(longestRetention.Seconds()))}
	if q.n.fifo {
		a[string(types.QueueAttributeNameFifoQueue)] = "true"
		receives = createdReceivesFIFO
	}
	if q.n.fifo == q.n.deadFIFO {
		a[string(types.QueueAttributeNameRedrivePolicy)] = fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, deadARN, receives)
	}
	return a
}

func (q *queue) deadAttributes() map[string]string {
	keep := longestRetention
	if q.o.DeadKeep > 0 {
		keep = min(keep, max(q.o.DeadKeep, shortestRetention))
	}
	a := map[string]string{string(types.QueueAttributeNameMessageRetentionPeriod): strconv.Itoa(int(seconds(keep)))}
	if q.n.deadFIFO {
		a[string(types.QueueAttributeNameFifoQueue)] = "true"
	}
	return a
}

// attributes reads all of a queue's.
func (q *queue) attributes(ctx context.Context, url string) (map[string]string, error) {
	ctx, cancel := q.call(ctx)
	defer cancel()
	out, err := q.d.c.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: aws.String(url), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		return nil, err
	}
	return out.Attributes, nil
}

// description is what matters of a queue's attributes.
type description struct {
	name, arn  string
	fifo       bool
	maxSize    int
	retention  time.Duration
	delay      time.Duration
	redrive    int // maxReceiveCount, 0 for no policy
	redriveTo  string
	groupScope bool // deduplication within a message group only
}

func describe(name string, a map[string]string) (description, error) {
	number := func(key types.QueueAttributeName, otherwise int) int {
		if n, err := strconv.Atoi(a[string(key)]); err == nil {
			return n
		}
		return otherwise
	}
	d := description{
		name: name, arn: a[string(types.QueueAttributeNameQueueArn)],
		fifo:       a[string(types.QueueAttributeNameFifoQueue)] == "true",
		maxSize:    number(types.QueueAttributeNameMaximumMessageSize, maxMessage),
		retention:  time.Duration(number(types.QueueAttributeNameMessageRetentionPeriod, 0)) * time.Second,
		delay:      time.Duration(number(types.QueueAttributeNameDelaySeconds, 0)) * time.Second,
		groupScope: a[string(types.QueueAttributeNameDeduplicationScope)] == "messageGroup",
	}
	policy := a[string(types.QueueAttributeNameRedrivePolicy)]
	if policy == "" {
		return d, nil
	}
	var p struct {
		Target string `json:"deadLetterTargetArn"`
		Max    any    `json:"maxReceiveCount"` // a number, or a text where tools wrote it so
	}
	if err := json.Unmarshal([]byte(policy), &p); err != nil {
		return d, fmt.Errorf("redrive policy: %w", err)
	}
	n, err := strconv.Atoi(fmt.Sprint(p.Max))
	if err != nil {
		return d, fmt.Errorf("redrive policy: maxReceiveCount: %w", err)
	}
	d.redrive, d.redriveTo = n, p.Target
	return d, nil
}

// bucketOf names the store's bucket after the queue, so that all its hosts share it.
func bucketOf(arn, url string) string {
	if arn == "" {
		arn = url
	}
	sum := sha256.Sum256([]byte(arn))
	return "sqs-tally." + hex.EncodeToString(sum[:12])
}
