package config

import (
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/guesthand/guesthand/host/egress"
)

// HTTP is a handler's http: the servers it may ask.
type HTTP struct {
	Allow   []egress.Target
	Private []netip.Prefix // allow_private
	// Inject are the headers that the host adds, by the target they are for.
	Inject      map[egress.Target]Secrets
	Roots       string // a file of certificates trusted beside the system's; "" for none
	Request     int    // bytes of a request's body
	Response    int    // bytes of a response's body
	Calls       int    // requests of one run
	Connections int    // to one server
	Timeout     time.Duration
	// PEM is what the roots' file holds, so that a change of it is one of the configuration.
	PEM string
}

// Pool is what is trusted: the system's certificates and those of roots. nil stands for the
// system's alone.
func (h HTTP) Pool() *x509.CertPool {
	if h.PEM == "" {
		return nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil { // a system without any, as some images are
		pool = x509.NewCertPool()
	}
	pool.AppendCertsFromPEM([]byte(h.PEM))
	return pool
}

// httpGrants reads http = { ... }.
func httpGrants(p **HTTP) setter {
	return func(n node) {
		h := HTTP{Request: 8 << 20, Response: 8 << 20, Calls: 100, Connections: 100}
		given := n.table(fields{
			"allow":         list(&h.Allow, "api.example.com", egress.ParseTarget),
			"allow_private": list(&h.Private, "10.0.0.0/8", privateNetwork),
			"inject":        h.injections,
			"roots":         h.roots,
			"request":       sizeInt(&h.Request, 1, maxBytes),
			"response":      sizeInt(&h.Response, 1, maxBytes),
			"calls":         integer(&h.Calls, 1, 10000),
			"connections":   integer(&h.Connections, 1, maxConcurrency),
			"timeout":       optional(&h.Timeout, duration(&h.Timeout)),
		})
		if _, table := n.v.(map[string]any); table && !given["allow"] {
			n.fail(`has no allow, so it allows nothing; write allow = ["api.example.com"], or remove it`)
		}
		h.checkLiterals(n)
		h.checkInjections(n)
		*p = &h
	}
}

// list reads a list of strings that are read by read, each of them once.
func list[T comparable](p *[]T, example string, read func(string) (T, error)) setter {
	return func(n node) {
		values, ok := n.v.([]any)
		if !ok {
			n.fail("%s is %s; write a list such as [%q]", n.quote(), kindOf(n.v), example)
			return
		}
		for _, v := range values {
			entry := n
			entry.v = v
			s, ok := entry.text(example)
			if !ok {
				continue
			}
			t, err := read(s)
			switch {
			case err != nil:
				n.fail("%s %v", entry.quote(), err)
			case slices.Contains(*p, t):
				n.fail("has %s twice; write it once", entry.quote())
			default:
				*p = append(*p, t)
			}
		}
	}
}

// privateNetwork is a network, or one address.
func privateNetwork(s string) (netip.Prefix, error) {
	network, err := netip.ParsePrefix(s)
	if err != nil {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("is no network; write one such as 10.0.0.0/8")
		}
		network = netip.PrefixFrom(addr, addr.BitLen())
	}
	return network, egress.CheckPrivate(network)
}

// checkLiterals wants addresses that can never be reached to be seen here, not in a run.
func (h *HTTP) checkLiterals(n node) {
	o := egress.Options{Private: h.Private}
	for _, t := range h.Allow {
		addr, literal := t.Addr()
		if !literal {
			continue
		}
		if reason := o.Refuses(addr); reason != "" {
			n.key("allow").fail("%q cannot be reached: %s", t, reason)
		}
	}
}

// injections reads inject = { "api.example.com" = { Authorization = "env:NAME" } }.
func (h *HTTP) injections(n node) {
	h.Inject = map[egress.Target]Secrets{}
	for _, child := range n.children() {
		t, err := egress.ParseTarget(child.name())
		if err == nil {
			err = t.CheckInject()
		}
		if err != nil {
			child.fail("%q %v", child.name(), err)
			continue
		}
		if _, twice := h.Inject[t]; twice {
			child.fail("is %s, which stands here twice; write all its headers in one place", t)
			continue
		}
		h.Inject[t] = injectedHeaders(child)
	}
}

func injectedHeaders(n node) Secrets {
	headers := Secrets{}
	for _, child := range n.children() {
		var value string
		secret(&value)(child)
		name := http.CanonicalHeaderKey(child.name())
		_, twice := headers[name]
		switch {
		case !egress.ValidHeaderName(child.name()):
			child.fail("is no header that can be set; write one such as Authorization")
		case twice:
			child.fail("stands here twice; a header's name has no case")
		case !egress.ValidHeaderValue(value):
			child.fail("its value has a line's end or another control character, which no header can hold")
		case value != "":
			headers[name] = value
		}
	}
	return headers
}

// checkInjections wants what is told a secret to be allowed at all.
func (h *HTTP) checkInjections(n node) {
	if len(h.Allow) == 0 {
		return // said already
	}
	for _, t := range slices.SortedFunc(maps.Keys(h.Inject), compareTargets) {
		if !slices.ContainsFunc(h.Allow, func(a egress.Target) bool { return a.Allows(t) }) {
			n.key("inject").fail("%s is not in allow, so nothing would be sent to it; add it there", t)
		}
	}
}

func compareTargets(a, b egress.Target) int { return strings.Compare(a.String(), b.String()) }

// maxRoots is the most bytes of a file of certificates: all of a system's fit.
const maxRoots = 4 << 20

func (h *HTTP) roots(n node) {
	path(&h.Roots, "ca.pem")(n)
	if h.Roots == "" {
		return
	}
	info, err := os.Stat(h.Roots)
	switch {
	case err != nil:
		n.fail("%v", err)
		return
	case !info.Mode().IsRegular() || info.Size() > maxRoots:
		n.fail("%s is no regular file of at most %s", h.Roots, FormatSize(maxRoots))
		return
	}
	data, err := os.ReadFile(h.Roots)
	if err != nil {
		n.fail("%v", err)
		return
	}
	if !x509.NewCertPool().AppendCertsFromPEM(data) {
		n.fail("%s has no certificate in it; write a PEM file of them", h.Roots)
		return
	}
	h.PEM = string(data)
}

// clone is a copy that shares nothing that could be changed.
func (h *HTTP) clone() *HTTP {
	if h == nil {
		return nil
	}
	c := *h
	c.Allow, c.Private = slices.Clone(h.Allow), slices.Clone(h.Private)
	c.Inject = maps.Clone(h.Inject)
	return &c
}
