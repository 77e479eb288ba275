package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Target is a server that may be asked: a scheme, a host or everything below one, and a port.
// Targets that are equal are the same.
type Target struct {
	scheme string // "http" or "https"
	host   string // canonical; an address without brackets
	below  bool   // any name below host, host itself not
	port   uint16
	addr   netip.Addr // what host is, where it is no name
}

// ParseTarget reads what a configuration allows: api.example.com, which is https on port 443,
// *.example.com, or a scheme written out, with a port where it is not the scheme's own:
// http://10.1.2.3:8080. The error says what would be right.
func ParseTarget(s string) (Target, error) {
	t := Target{scheme: "https"}
	if strings.Trim(s, "*.") == "" && s != "" {
		return t, errors.New("is everybody; name the hosts, or what they are below, as in *.example.com")
	}
	rest := s
	if scheme, after, found := strings.Cut(s, "://"); found {
		t.scheme, rest = strings.ToLower(scheme), after
		if t.scheme != "http" && t.scheme != "https" {
			return Target{}, fmt.Errorf("has the scheme %q; write http or https", scheme)
		}
	} else if bare(s) {
		return Target{}, fmt.Errorf("names a port without a scheme; write https://%s or http://%s", s, s)
	}
	if strings.ContainsAny(rest, "/?#@\\") {
		return Target{}, errors.New("is more than a scheme, a host and a port; write one such as https://api.example.com:8443")
	}
	if after, found := strings.CutPrefix(rest, "*."); found {
		t.below, rest = true, after
	}
	host, port, err := splitPort(rest, t.scheme)
	if err != nil {
		return Target{}, err
	}
	t.port = port
	if t.host, t.addr, err = canonicalHost(host); err != nil {
		return Target{}, err
	}
	if _, literal := t.Addr(); literal && t.below {
		return Target{}, errors.New("is a wildcard of an address; only names have names below them")
	}
	return t, nil
}

// bare tells whether s is a host with a port, rather than a host or an IPv6 address.
func bare(s string) bool {
	if strings.HasPrefix(s, "[") {
		return !strings.HasSuffix(s, "]")
	}
	return strings.Count(s, ":") == 1
}

// splitPort takes host:port apart; without a port it is the scheme's own.
func splitPort(s, scheme string) (host string, port uint16, err error) {
	digits := ""
	switch end := strings.LastIndexByte(s, ']'); {
	case strings.HasPrefix(s, "["):
		if end < 0 {
			return "", 0, errors.New("has a [ without a ]")
		}
		host = s[1:end]
		if !strings.Contains(host, ":") {
			return "", 0, errors.New("has brackets, in which only an IPv6 address stands")
		}
		if digits = s[end+1:]; digits != "" && digits[0] != ':' {
			return "", 0, errors.New("has something behind its ]")
		}
		digits = strings.TrimPrefix(digits, ":")
	case strings.Count(s, ":") > 1:
		return "", 0, errors.New("has too many colons; write an IPv6 address in brackets")
	default:
		host, digits, _ = strings.Cut(s, ":")
	}
	if digits == "" {
		return host, portOf(scheme), nil
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || digits[0] == '+' {
		return "", 0, errors.New("has no port from 1 to 65535 behind its colon")
	}
	return host, uint16(n), nil
}

func portOf(scheme string) uint16 {
	if scheme == "http" {
		return 80
	}
	return 443
}

// maxName is the most letters of a name, by DNS.
const maxName = 253

// canonicalHost is the one spelling of a host: lower case, without the dot at the end, an
// address in its usual form and never as IPv4 within IPv6. A name must look like one: what a
// resolver might take for an address is refused, and so is what is not ASCII, because several
// spellings become one name.
func canonicalHost(host string) (string, netip.Addr, error) {
	var none netip.Addr
	if strings.Contains(host, ":") {
		addr, err := netip.ParseAddr(host)
		switch {
		case err != nil:
			return "", none, errors.New("is no IPv6 address")
		case addr.Zone() != "":
			return "", none, errors.New("has a zone")
		}
		addr = addr.Unmap()
		return addr.String(), addr, nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "" || len(host) > maxName {
		return "", none, errors.New("has no host of 1 to 253 letters")
	}
	last := ""
	for label := range strings.SplitSeq(host, ".") {
		if err := checkLabel(label); err != nil {
			return "", none, err
		}
		last = label
	}
	// A last label like this makes the whole an address to browsers and C libraries: 127.1,
	// 0x7f.1, 2130706433, 0177.0.0.1.
	if numeric(last) {
		addr, err := netip.ParseAddr(host)
		if err != nil {
			return "", none, errors.New("is no IPv4 address in its usual form of four decimal numbers")
		}
		return host, addr, nil
	}
	return host, none, nil
}

func checkLabel(label string) error {
	if label == "" || len(label) > 63 {
		return errors.New("has a part of the name that is empty or over 63 letters")
	}
	for _, c := range []byte(label) {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
		case c >= 0x80:
			return errors.New("has letters beyond ASCII; write the name in its xn-- form")
		default:
			return errors.New("has something in it that is in no host's name")
		}
	}
	return nil
}

// numeric tells whether a label is a number: decimal, octal or hexadecimal.
func numeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// String is the target as one writes it, the port left out where it is the scheme's own.
func (t Target) String() string {
	s := t.hostPort()
	if t.below {
		s = "*." + s
	}
	if t.scheme == "https" && t.port == 443 {
		return s
	}
	return t.scheme + "://" + s
}

// MarshalText writes a target as String does.
func (t Target) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// hostPort is what stands in a URL and in the Host header.
func (t Target) hostPort() string {
	s := t.host
	if strings.Contains(s, ":") {
		s = "[" + s + "]"
	}
	if t.port != portOf(t.scheme) {
		s += ":" + strconv.Itoa(int(t.port))
	}
	return s
}

// Addr is the target's address, where it is one and no name.
func (t Target) Addr() (netip.Addr, bool) { return t.addr, t.addr.IsValid() }

// Allows tells whether t, which may be a wildcard, covers a server.
func (t Target) Allows(server Target) bool {
	if t.scheme != server.scheme || t.port != server.port {
		return false
	}
	if !t.below {
		return t.host == server.host
	}
	_, literal := server.Addr()
	return !literal && strings.HasSuffix(server.host, "."+t.host)
}

// CheckInject says why no header can be injected for a target, or nil: it must be one host,
// and the connection encrypted.
func (t Target) CheckInject() error {
	switch {
	case t.scheme != "https":
		return errors.New("is not https; a secret is not sent in the clear")
	case t.below:
		return errors.New("is a wildcard; name each host that is told a secret")
	}
	return nil
}

// maxURL is the most bytes of a URL.
const maxURL = 16 << 10

// canonical checks a URL and brings it into the form that is sent, host and port in their one
// spelling, so that what is compared is what is asked. It returns the server.
func canonical(u *url.URL) (Target, error) {
	t := Target{scheme: strings.ToLower(u.Scheme)}
	switch {
	case t.scheme != "http" && t.scheme != "https":
		return t, fmt.Errorf("%w: the scheme %.20q is neither http nor https", ErrNotGranted, u.Scheme)
	case u.Opaque != "" || u.Host == "":
		return t, fmt.Errorf("%w: the URL has no host", ErrMalformed)
	case u.User != nil:
		return t, fmt.Errorf("%w: the URL has a user in it; send an Authorization header", ErrMalformed)
	}
	host, port, err := splitPort(u.Host, t.scheme)
	if err == nil {
		t.port = port
		t.host, t.addr, err = canonicalHost(host)
	}
	if err != nil {
		return t, fmt.Errorf("%w: the URL's host %.80q %w", ErrMalformed, u.Host, err)
	}
	u.Scheme = t.scheme
	if u.Host != t.host { // the usual one, without a port, is
		u.Host = t.hostPort()
	}
	u.Fragment, u.RawFragment = "", ""
	return t, nil
}
