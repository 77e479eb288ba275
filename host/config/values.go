package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// none is the word that switches an optional limit off.
const none = "none"

var (
	queueName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,47}$`)
	jobName   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)
	digest    = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// What a name looks like, for issues.
const (
	queueNameRule = "a name has 1 to 48 of a-z, 0-9, _ and -, and starts with a letter or digit"
	jobNameRule   = "a job's name has only a-z, 0-9, dot, _ and -, and starts with a letter or digit"
)

// ValidQueue tells whether a queue or broker may be called so. "dead" is taken: its subjects
// would be those of the dead letters.
func ValidQueue(name string) bool { return queueName.MatchString(name) && name != "dead" }

// ValidJob tells whether a job may be called so.
func ValidJob(name string) bool { return jobName.MatchString(name) }

func text(p *string, example string) setter {
	return func(n node) {
		s, ok := n.text(example)
		if ok && s == "" {
			n.fail("is empty; write a string such as %q, or remove the key", example)
			return
		}
		if ok {
			*p = s
		}
	}
}

// path is a file's or directory's name, made absolute.
func path(p *string, example string) setter {
	return func(n node) {
		var s string
		if text(&s, example)(n); s != "" {
			*p = within(n.dir, s)
		}
	}
}

func secret(p *string) setter {
	return func(n node) {
		if _, ok := n.v.(string); !ok {
			n.fail("is %s; write env:NAME or file:PATH", kindOf(n.v)) // the value is not shown
			return
		}
		ref, ok := n.text("")
		if !ok {
			return
		}
		s, err := resolveSecret(ref, n.dir, n.getenv)
		if err != nil {
			n.fail("%v", err)
			return
		}
		*p = s
	}
}

// oneOf is a word of a closed list.
func oneOf(p *string, words ...string) setter {
	return func(n node) {
		s, ok := n.text(words[0])
		if !ok {
			return
		}
		for _, w := range words {
			if s == w {
				*p = s
				return
			}
		}
		n.fail("%s is not known; %s", n.quote(), choose(s, words))
	}
}

// choose is the end of a sentence about a word that is none of those known.
func choose(written string, words []string) string {
	if near := Nearest(written, words); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = strconv.Quote(w)
	}
	return "write " + strings.Join(quoted, " or ")
}

func boolean(p *bool) setter {
	return func(n node) {
		b, ok := n.v.(bool)
		if !ok {
			n.fail("%s is %s; write true or false, without quotes", n.quote(), kindOf(n.v))
			return
		}
		*p = b
	}
}

func integer(p *int, least, most int) setter {
	return func(n node) {
		i, ok := n.v.(int64)
		switch {
		case !ok:
			n.fail("%s is %s; write an integer from %d to %d, without quotes", n.quote(), kindOf(n.v), least, most)
		case i < int64(least) || i > int64(most):
			n.fail("%d is out of range; write an integer from %d to %d", i, least, most)
		default:
			*p = int(i)
		}
	}
}

// factor is a finite float, at least 1.
func factor(p *float64) setter {
	return func(n node) {
		f, ok := n.v.(float64)
		if i, whole := n.v.(int64); whole {
			f, ok = float64(i), true
		}
		switch {
		case !ok:
			n.fail("%s is %s; write a number such as 2.0, without quotes", n.quote(), kindOf(n.v))
		case !(f >= 1) || math.IsInf(f, 0): // NaN is not at least 1 either
			n.fail("%v is no finite number of at least 1; waits do not shrink", f)
		default:
			*p = f
		}
	}
}

// duration is above zero.
func duration(p *time.Duration) setter { return durationFrom(p, 1) }

// durationFrom is at least least.
func durationFrom(p *time.Duration, least time.Duration) setter {
	return func(n node) {
		d, ok := n.duration()
		switch {
		case !ok:
		case d <= 0:
			n.fail("%s is not above zero; write 500ms, 10s, 5m, 2h or 1d", n.quote())
		case d < least:
			n.fail("%s is too short; write at least %s", n.quote(), FormatDuration(least))
		default:
			*p = d
		}
	}
}

// optional lets "none" stand for zero, which means no limit.
func optional[T any](p *T, set setter) setter {
	return func(n node) {
		var zero T
		switch v := n.v.(type) {
		case string:
			if v == none {
				*p = zero
				return
			}
		case int64:
			if v == 0 {
				n.fail(`0 is not above zero; write "none" for no limit`)
				return
			}
		}
		set(n)
	}
}

func (n node) duration() (time.Duration, bool) {
	if i, ok := n.v.(int64); ok {
		if i > int64(math.MaxInt64/time.Second) || i < -int64(math.MaxInt64/time.Second) {
			n.fail("%d is %s", i, longDuration)
			return 0, false
		}
		return time.Duration(i) * time.Second, true
	}
	if _, ok := n.v.(string); !ok {
		n.fail("%s is %s; write a duration such as \"10s\", or an integer of seconds", n.quote(), kindOf(n.v))
		return 0, false
	}
	return parse(n, ParseDuration)
}

// size is from least to most bytes.
func size(p *uint64, least, most uint64) setter {
	return func(n node) {
		b, ok := n.size()
		switch {
		case !ok:
		case b < least || b > most:
			n.fail("%s is out of range; write a size from %s to %s", n.quote(), FormatSize(least), FormatSize(most))
		default:
			*p = b
		}
	}
}

// sizeInt is for what is counted in an int.
func sizeInt[T int | int64](p *T, least, most uint64) setter {
	return func(n node) {
		var b uint64
		if size(&b, least, most)(n); b != 0 {
			*p = T(b)
		}
	}
}

func (n node) size() (uint64, bool) {
	if i, ok := n.v.(int64); ok {
		if i < 0 {
			n.fail("%d is negative; write a size such as \"64MiB\"", i)
			return 0, false
		}
		return uint64(i), true
	}
	if _, ok := n.v.(string); !ok {
		n.fail("%s is %s; write a size such as \"64MiB\", or an integer of bytes", n.quote(), kindOf(n.v))
		return 0, false
	}
	return parse(n, ParseSize)
}

func rate(p *Rate) setter {
	return func(n node) {
		if _, ok := n.v.(string); !ok {
			n.fail("%s is %s; write a string such as \"10/s\"", n.quote(), kindOf(n.v))
			return
		}
		if r, ok := parse(n, ParseRate); ok {
			*p = r
		}
	}
}

// parse reads a string in which the environment may stand, and reports what is wrong with it
// in the words of the file.
func parse[T any](n node, read func(string) (T, error)) (T, bool) {
	var zero T
	s, ok := n.text("")
	if !ok {
		return zero, false
	}
	v, err := read(s)
	var bad *valueError
	if errors.As(err, &bad) {
		n.fail("%s is %s", n.quote(), bad.reason)
		return zero, false
	}
	return v, true
}

// texts is a table of strings by names the file's author chose.
func texts(p *map[string]string, read func(*string) setter) setter {
	return func(n node) {
		m := map[string]string{}
		for _, child := range n.children() {
			var s string
			read(&s)(child)
			m[child.name()] = s
		}
		*p = m
	}
}

// anyText is a string that may be empty.
func anyText(p *string) setter {
	return func(n node) {
		if s, ok := n.text(""); ok {
			*p = s
		}
	}
}

// jobText is a legal job's name.
func jobText(p *string) setter {
	return func(n node) {
		var s string
		text(&s, "resize")(n)
		switch {
		case s == "":
		case !ValidJob(s):
			n.fail("%s is no job's name; %s", n.quote(), jobNameRule)
		default:
			*p = s
		}
	}
}

func sha256Text(p *string) setter {
	return func(n node) {
		s, ok := n.text("9f86d0...")
		switch s = strings.ToLower(s); {
		case !ok:
		case !digest.MatchString(s):
			n.fail("%s is no SHA-256 digest; write the 64 hexadecimal digits that `guesthand inspect` prints", n.quote())
		default:
			*p = s
		}
	}
}

// address is host:port; "none" or "" is no address.
func address(p *string) setter {
	return func(n node) {
		s, ok := n.text("127.0.0.1:7070")
		if !ok {
			return
		}
		if s == none || s == "" {
			*p = ""
			return
		}
		_, port, err := net.SplitHostPort(s)
		if _, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil {
			n.fail("%s is no address; write one such as \"127.0.0.1:7070\", or \"none\"", n.quote())
			return
		}
		*p = s
	}
}

// loopback tells whether only this machine reaches an address. A name other than localhost
// could resolve to anything.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
