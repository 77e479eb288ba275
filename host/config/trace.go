package config

import (
	"net/url"
	"regexp"
)

// Trace is [trace]: where spans are sent.
type Trace struct {
	Endpoint string  // of a collector that speaks OTLP over HTTP; "": nothing is traced
	Sample   float64 // of the messages that come without a sampling decision, 0 to 1
	Headers  Secrets // of each request to the collector
}

func readTrace(n node, t *Trace) {
	given := n.table(fields{
		"endpoint": endpoint(&t.Endpoint),
		"sample":   ratio(&t.Sample),
		"headers":  texts((*map[string]string)(&t.Headers), secret),
	})
	for name := range t.Headers {
		if !headerName.MatchString(name) {
			n.key("headers").fail("%q is no name of a header", name)
		}
	}
	if given["headers"] && !given["endpoint"] {
		n.key("headers").warn("has no effect without endpoint")
	}
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// endpoint is an http or https URL. Passwords do not belong there, but into headers.
func endpoint(p *string) setter {
	const example = "http://127.0.0.1:4318"
	return func(n node) {
		s, ok := n.text(example)
		if !ok {
			return
		}
		u, err := url.Parse(s)
		if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
			n.fail("is no address of a collector; write one such as %s, and what it wants to log in into headers", example)
			return
		}
		*p = s
	}
}

// ratio is a number from 0 to 1.
func ratio(p *float64) setter {
	return func(n node) {
		f, ok := n.v.(float64)
		if i, whole := n.v.(int64); whole {
			f, ok = float64(i), true
		}
		switch {
		case !ok:
			n.fail("%s is %s; write a number such as 0.1, without quotes", n.quote(), kindOf(n.v))
		case !(f >= 0 && f <= 1): // NaN is neither
			n.fail("%v is not from 0 to 1", f)
		default:
			*p = f
		}
	}
}
