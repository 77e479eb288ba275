package natsdriver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/guesthand/guesthand/drivers"
)

// Keys of QueueOptions.Names.
const (
	NameStream     = "stream"      // an existing or new stream; default guesthand_NAME
	NameSubject    = "subject"     // its subject filter; default guesthand.NAME.>
	NameConsumer   = "consumer"    // the durable consumer; default guesthand
	NameDeadStream = "dead_stream" // the stream of dead letters; default guesthand-dead_NAME
)

const (
	streamPrefix     = "guesthand_"
	deadStreamPrefix = "guesthand-dead_"
	tallyPrefix      = "guesthand-tally_"
	consumerName     = "guesthand"
	subjectRoot      = "guesthand."
	deadRoot         = "guesthand.dead."
	// maxSubject keeps a publish within the server's control line of 4096 bytes.
	maxSubject = 2048
)

// names are a queue's names on the broker.
type names struct {
	queue      string
	stream     string
	subject    string // the consumer's filter; empty until the stream is known
	consumer   string
	deadStream string
	deadPrefix string // guesthand.dead.NAME.
	bucket     string
}

var queueName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,47}$`)

func namesOf(o drivers.QueueOptions) (names, error) {
	if !queueName.MatchString(o.Name) {
		return names{}, fmt.Errorf("a queue's name is up to 48 of a-z, 0-9, _ and -, not %q", o.Name)
	}
	if o.Name == "dead" {
		return names{}, fmt.Errorf("a queue cannot be called dead on NATS: its subjects guesthand.dead.> are those of the dead letters; rename the queue")
	}
	n := names{
		queue: o.Name, stream: streamPrefix + o.Name, consumer: consumerName,
		deadStream: deadStreamPrefix + o.Name, deadPrefix: deadRoot + o.Name + ".",
	}
	fields := map[string]*string{
		NameStream: &n.stream, NameSubject: &n.subject, NameConsumer: &n.consumer, NameDeadStream: &n.deadStream,
	}
	for key, value := range o.Names {
		field, known := fields[key]
		if !known {
			return n, fmt.Errorf("unknown name %q, NATS queues have stream, subject, consumer and dead_stream", key)
		}
		if value == "" {
			return n, fmt.Errorf("the name %s is empty", key)
		}
		*field = value
	}
	for key, value := range map[string]string{NameStream: n.stream, NameConsumer: n.consumer, NameDeadStream: n.deadStream} {
		if strings.ContainsAny(value, " \t\r\n.*>/\\") || len(value) > 200 {
			return n, fmt.Errorf("%s %q: NATS names have no spaces, dots, wildcards or slashes, and here at most 200 bytes", key, value)
		}
	}
	if n.subject == "" && o.Names[NameStream] == "" {
		n.subject = subjectRoot + o.Name + ".>"
	}
	if n.subject != "" && !validFilter(n.subject) {
		return n, fmt.Errorf("subject %q is no NATS subject", n.subject)
	}
	if n.deadStream == n.stream {
		return n, fmt.Errorf("stream and dead_stream are both %q", n.stream)
	}
	n.bucket = bucketOf(o.Name, n.stream)
	return n, nil
}

var bucketName = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// bucketOf names the tally's bucket after the stream, since consumers are told apart by
// its keys.
func bucketOf(queue, stream string) string {
	switch {
	case stream == streamPrefix+queue:
		return tallyPrefix + queue
	case bucketName.MatchString(stream):
		return tallyPrefix + "stream_" + stream
	}
	sum := sha256.Sum256([]byte(stream))
	return tallyPrefix + "stream-" + hex.EncodeToString(sum[:12])
}

// keyToken makes a consumer's name a token of a key.
func keyToken(s string) string {
	if bucketName.MatchString(s) {
		return s
	}
	return "=" + hex.EncodeToString([]byte(s))
}

func validFilter(s string) bool {
	if strings.ContainsAny(s, " \t\r\n") || len(s) > maxSubject {
		return false
	}
	tokens := strings.Split(s, ".")
	for i, t := range tokens {
		if t == "" || t == ">" && i < len(tokens)-1 {
			return false
		}
	}
	return true
}

// covers reports whether every subject of filter matches pattern.
func covers(pattern, filter string) bool {
	p, f := strings.Split(pattern, "."), strings.Split(filter, ".")
	for i, t := range p {
		switch {
		case t == ">":
			return len(f) > i
		case i >= len(f) || f[i] == ">":
			return false
		case t != "*" && t != f[i]:
			return false
		}
	}
	return len(p) == len(f)
}

func coveredBy(patterns []string, filter string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return covers(p, filter) })
}

// target is where messages of a queue are sent.
type target struct {
	prefix string // ends with a dot, or is the whole subject
	exact  bool   // every job goes to the one subject
	none   bool   // the filter has inner wildcards: nothing can be sent
}

func targetOf(filter string) target {
	for _, wild := range []string{".>", ".*"} {
		if p, ok := strings.CutSuffix(filter, wild); ok && !wildcard(p) {
			return target{prefix: p + "."}
		}
	}
	switch {
	case filter == ">" || filter == "*":
		return target{}
	case wildcard(filter):
		literal, _, _ := strings.Cut(filter, "*")
		return target{prefix: literal, none: true}
	}
	return target{prefix: filter, exact: true}
}

func wildcard(s string) bool {
	return slices.ContainsFunc(strings.Split(s, "."), func(t string) bool { return t == "*" || t == ">" })
}

// subjectFor is where a message of that job goes.
func (n names) subjectFor(job string) (string, error) {
	t := targetOf(n.subject)
	switch {
	case t.none:
		return "", fmt.Errorf("subject %q has wildcards inside, nothing can be sent there: %w", n.subject, drivers.ErrUnsupported)
	case t.exact:
		return t.prefix, nil
	}
	token := escapeJob(job)
	if strings.HasSuffix(n.subject, "*") {
		token = strings.ReplaceAll(token, ".", "%2E")
	}
	if s := t.prefix + token; len(s) <= maxSubject {
		return s, nil
	}
	return "", fmt.Errorf("job name of %d bytes makes too long a subject", len(job))
}

// jobOf is the job a foreign producer's subject names; empty where it names none.
func (n names) jobOf(subject string) string {
	t := targetOf(n.subject)
	rest, ok := strings.CutPrefix(subject, t.prefix)
	if !ok || t.exact {
		return ""
	}
	return unescapeJob(rest)
}

// escapeJob makes a job name safe as the tail of a subject: bytes that mean something to NATS,
// and dots that would leave a token empty, are percent-encoded.
func escapeJob(job string) string {
	var b strings.Builder
	for i := range len(job) {
		c := job[i]
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', c == '-':
			b.WriteByte(c)
		case c == '.' && i > 0 && i < len(job)-1 && job[i-1] != '.':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// unescapeJob reads escapeJob; what is no escape stays as it is.
func unescapeJob(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if c, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				b.WriteByte(c[0])
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
