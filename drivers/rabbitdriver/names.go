package rabbitdriver

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/guesthand/guesthand/drivers"
)

// Keys of QueueOptions.Names.
const (
	NameQueue      = "queue"       // an existing or new queue; default guesthand.NAME
	NameType       = "type"        // of queues that are made: quorum (default) or classic
	NameDeadQueue  = "dead_queue"  // the queue of dead letters; default guesthand.dead.NAME
	NameHoldPrefix = "hold_prefix" // what the hold queues' names begin with; default guesthand.hold.NAME.
)

const (
	typeQuorum  = "quorum"
	typeClassic = "classic"
	ourPrefix   = "guesthand."
	// maxName leaves room for what is added to a prefix; AMQP's names have 255 bytes.
	maxName = 200
)

// names are a queue's names on the broker.
type names struct {
	queue      string // in the configuration
	work       string
	kind       string
	dead       string
	holdPrefix string
}

var queueName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,47}$`)

func namesOf(o drivers.QueueOptions) (names, error) {
	if !queueName.MatchString(o.Name) {
		return names{}, fmt.Errorf("a queue's name is up to 48 of a-z, 0-9, _ and -, not %q", o.Name)
	}
	n := names{
		queue: o.Name, work: ourPrefix + o.Name, kind: typeQuorum,
		dead: ourPrefix + "dead." + o.Name, holdPrefix: ourPrefix + "hold." + o.Name + ".",
	}
	fields := map[string]*string{NameQueue: &n.work, NameType: &n.kind, NameDeadQueue: &n.dead, NameHoldPrefix: &n.holdPrefix}
	for key, value := range o.Names {
		field, known := fields[key]
		switch {
		case !known:
			return n, fmt.Errorf("unknown name %q, RabbitMQ queues have queue, type, dead_queue and hold_prefix", key)
		case value == "":
			return n, fmt.Errorf("the name %s is empty", key)
		case len(value) > maxName:
			return n, fmt.Errorf("the name %s has %d bytes, at most %d will do", key, len(value), maxName)
		case strings.HasPrefix(value, "amq.") && key != NameType:
			return n, fmt.Errorf("%s %q: names that begin with amq. are the broker's own", key, value)
		}
		*field = value
	}
	if n.kind != typeQuorum && n.kind != typeClassic {
		return n, fmt.Errorf("type %q: a queue is quorum or classic", n.kind)
	}
	if n.dead == n.work {
		return n, fmt.Errorf("queue and dead_queue are both %q", n.work)
	}
	return n, nil
}
