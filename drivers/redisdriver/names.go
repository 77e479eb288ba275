package redisdriver

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/guesthand/guesthand/drivers"
)

// NamePrefix is the key of QueueOptions.Names that sets the beginning of a queue's keys.
const NamePrefix = "prefix"

// ReplyPrefix is what keys must begin with to be written as a reply.
const ReplyPrefix = "guesthand:reply:"

var (
	queueName  = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,47}$`)
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)
	hashTag    = regexp.MustCompile(`^[^{}]*\{[^{}]+\}[^{}]*$`)
)

// prefixOf is what a queue's keys begin with.
func prefixOf(o drivers.QueueOptions) (string, error) {
	for key := range o.Names {
		if key != NamePrefix {
			return "", fmt.Errorf("unknown name %q, the driver has %q", key, NamePrefix)
		}
	}
	prefix := o.Names[NamePrefix]
	if prefix == "" {
		if !queueName.MatchString(o.Name) {
			return "", fmt.Errorf("queue name %q: want [a-z0-9][a-z0-9_-]{0,47}", o.Name)
		}
		return "guesthand:{" + o.Name + "}", nil
	}
	switch {
	case !hashTag.MatchString(prefix):
		return "", fmt.Errorf("prefix %q: it needs one hash tag in braces, which keeps a queue's keys together, as in %q", prefix, "guesthand:{"+o.Name+"}")
	case strings.HasPrefix(prefix, ReplyPrefix), strings.HasPrefix(prefix, bucketPrefix):
		return "", fmt.Errorf("prefix %q: keys that begin so are replies or buckets", prefix)
	case strings.ContainsFunc(prefix, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return "", fmt.Errorf("prefix %q: no spaces or control characters", prefix)
	}
	return prefix, nil
}

// globEscape is s for MATCH.
var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
